#!/bin/bash
# The figures of BENCHMARKS.md about the kernel's soft-RoCE. Runs in the guest of vm/run:
#
#   cargo xtask stage
#   gcc -O2 -o DIRECTORY/rxe benches/rxe.c -libverbs
#   cargo xtask vm --timeout 1500 -- bash benches/rxe.sh STAGE DIRECTORY [instructions|rates]...
#
# instructions: those of an operation on rxe0, by Debian's library and by ours, by both of its drivers, counted by callgrind.
# rates: perftest between the ends of one veth pair, ours at both ends and ours against kernel rxe.
set -u
stage=$1 programs=$2
shift 2
what=" ${*:-instructions rates} "

debian() { "$@"; }
own() { env IRONVERBS_SOFT=off LD_LIBRARY_PATH="$stage/lib" "$@"; }
plugin() { env IRONVERBS_KERNEL_DRIVER=plugin IRONVERBS_SOFT=off LD_LIBRARY_PATH="$stage/lib" "$@"; }

# A line OPERATION-WHAT COUNT for each that the program counted: one run of callgrind, a part of its output for each.
count() { # LIBRARY
  local parts
  parts=$(mktemp -d)
  "$1" valgrind --tool=callgrind --collect-atstart=no --toggle-collect=measured --dump-after=mark \
    --callgrind-out-file="$parts/part" /tmp/rxe-instructions -d rxe0 -g 1 >"$parts/said" 2>"$parts/errors" ||
    { echo "instructions by $1:" && tail -n 5 "$parts/errors"; } >&2
  grep "not sound" "$parts/errors" >&2
  local number what rounds
  while read -r number what rounds; do
    awk -v what="$what" -v rounds="$rounds" '/^totals:/ { print what, $2 / rounds }' "$parts/part.$number"
  done <"$parts/said"
  rm -r "$parts"
}

if [[ $what == *" instructions "* ]]; then
  cp "$programs/rxe" /tmp/rxe-instructions
  for library in debian own plugin; do count $library >"/tmp/rxe-instructions.$library"; done
  # OPERATION-WHAT DEBIAN OWN PLUGIN
  join /tmp/rxe-instructions.debian /tmp/rxe-instructions.own | join - /tmp/rxe-instructions.plugin |
    sed 's/^/instructions /'
fi

if [[ $what == *" rates "* ]]; then
  measure() { # NAME SERVER CLIENT ADDRESS PROGRAM-WORDS...: the column of what is typical
    local name=$1 server=$2 client=$3 address=$4 space look
    shift 4
    [[ $server == ours_peer ]] && space="ip netns exec peer"
    $server timeout 120 "$@" >/tmp/server 2>&1 &
    # Its options go to the client by TCP.
    for look in {1..300}; do
      [[ $(${space-} ss -Hltn "sport = :18515") ]] && break
      sleep 0.2
    done
    $client timeout 120 "$@" "$address" >/tmp/client 2>&1 || sed 's/^/  /' /tmp/client | tail -n 3
    wait
    echo "$name $* $(grep -E '^ *[0-9]+ +[0-9]+ ' /tmp/client | tail -n 1 | tr -s ' ')"
  }
  kernel() { "$@" -d rxe1 -x 1; }
  # Ours at both ends takes another port: the kernel has 4791 in this namespace.
  ours_here() { env IRONVERBS_UDP_PORT=4792 IRONVERBS_INTERFACES=v0 IRONVERBS_SOFT=only "$stage/bin/ironverbs" run -- "$@" -x 0; }
  ours_there() { ip netns exec peer env IRONVERBS_UDP_PORT=4792 IRONVERBS_SOFT=only "$stage/bin/ironverbs" run -- "$@" -x 0; }
  ours_peer() { ip netns exec peer env IRONVERBS_SOFT=only "$stage/bin/ironverbs" run -- "$@" -x 0; }
  for round in 1 2 3; do
    for program in "ib_write_bw -F -s 65536 -n 300 -m 4096" "ib_send_bw -F -s 65536 -n 300 -m 4096" "ib_send_lat -F -s 8 -n 300"; do
      measure "ours-ours" ours_here ours_there 10.79.0.1 $program
      measure "kernel-ours" kernel ours_peer 10.79.0.1 $program
      measure "ours-kernel" ours_peer kernel 10.79.0.2 $program
    done
  done
fi
