#!/bin/bash
# The figures of BENCHMARKS.md about the kernel's soft-RoCE. Runs in the guest of vm/run:
#
#   cargo xtask stage
#   gcc -O2 -o DIRECTORY/rxe benches/rxe.c -libverbs
#   cargo xtask vm --timeout 1500 -- bash benches/rxe.sh STAGE DIRECTORY [instructions|rates]...
#
# instructions: those of an operation on rxe0, by Debian's library and by ours, by both of its drivers; the difference of two
# runs of callgrind. rates: perftest between the ends of one veth pair, ours at both ends and ours against kernel rxe.
set -u
stage=$1 programs=$2
shift 2
what=" ${*:-instructions rates} "

debian() { "$@"; }
own() { env IRONVERBS_SOFT=off LD_LIBRARY_PATH="$stage/lib" "$@"; }
plugin() { env IRONVERBS_KERNEL_DRIVER=plugin IRONVERBS_SOFT=off LD_LIBRARY_PATH="$stage/lib" "$@"; }

count() { # LIBRARY OPERATION ROUNDS
  local said
  said=$("$1" valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect=measured "$programs/rxe" -d rxe0 -g 1 "$2" "$3" 2>&1)
  [[ $said == *" 0 polls in vain"* ]] || echo "not sound: $2 by $1: $(grep rounds <<<"$said")" >&2
  sed -n 's/.*Collected : //p' <<<"$said"
}

if [[ $what == *" instructions "* ]]; then
  cp "$programs/rxe" /tmp && programs=/tmp
  for operation in send write inline list receive builder extended; do
    line=$operation
    for library in debian own plugin; do
      less=$(count $library $operation 20) more=$(count $library $operation 60)
      line+=" $library $(awk "BEGIN { print ($more - $less) / 40 }")"
    done
    echo "$line"
  done
fi

if [[ $what == *" rates "* ]]; then
  measure() { # NAME SERVER CLIENT ADDRESS PROGRAM-WORDS...: the column of what is typical
    local name=$1 server=$2 client=$3 address=$4
    shift 4
    $server timeout 120 "$@" >/tmp/server 2>&1 &
    sleep 6
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
