#!/bin/bash
# Runs in the guest of vm/run: our device in namespace `peer` against the kernel's rxe1, each side as server and as client.
#
#   interop.sh STAGE PROGRAMS [--direct] [GROUP]...
#   interop.sh --list [GROUP]...
#
# STAGE is what `cargo xtask stage` makes, PROGRAMS the directory of those of tests/exchange.c, driver.c, worlds.c, kernel.c and ids.c. Prints
# `ok NAME` or `FAILED NAME: WHY` per case; --list the names only, anywhere. Groups: driver, worlds, kernel, iwarp, pingpong, verbs,
# cm, multicast, perftest, faults and, only when named, matrix (all of perftest) and repeat (exchanges under loss, 50 times). With
# --direct both sides are the kernel's, in the initial namespace: that shows whether the harness and the kernel are right (netem
# has no effect there: the kernel does not let such packets out).
# In group driver our library is on rxe1: on the side `driven` by its own driver, on the side `plugged` by the plug-in of Debian's
# rdma-core. Either serves the other, and the connection manager's utilities meet Debian's library. Meanwhile Debian's
# pyverbs is on rxe0, by one after the other: what passes with Debian's library passes with both. What a program that tries
# everything prints is the same with both as with Debian's library.
# In group iwarp the same goes for siw0. There both ends are always the kernel's: our devices have no iWARP.
# In group worlds the side `united` is our librdmacm on software devices and on the kernel's at once. Its software devices have
# another UDP port, since in the initial namespace the kernel has 4791.
# What is on the wire during most of verbs goes to PROGRAMS/exchange.pcap, of cm to PROGRAMS/exchange.cm.pcap.
#
# Under loss only programs take part that tell each other, by TCP, that they are through before they take their queue pairs
# down. ibv_rc_pingpong does not: whoever is through first leaves while its last acknowledgement may be lost, and then no one
# answers the other's retransmissions. By the IBA that ends in RETRY_EXC_ERR; kernel rxe takes a retry_cnt of 7, which
# these programs ask for, as "for ever" (a capture shows it retransmit every 68 ms until killed; so it does to itself when
# its peer is killed).
set -u
groups=" driver worlds kernel iwarp pingpong verbs cm multicast perftest faults "
stage=${1-} programs=${2-} direct= list=
if [[ $stage == --list ]]; then list=1; shift; else shift 2; fi
[[ ${1-} == --direct ]] && { direct=1; shift; }
(($#)) && groups=" $* "
# Where its module could not be built, the rest is tried all the same.
[[ $list || -e /sys/class/infiniband/siw0 ]] || groups=${groups/ iwarp / }
exchange=$programs/exchange worlds=$programs/worlds kernel=$programs/kernel ids=$programs/ids
port=18515
runner=pair
[[ $list ]] || logs=$(mktemp -d)
export stage direct exchange

ours() {
  if [[ $direct ]]; then "$@"; else ip netns exec peer env IRONVERBS_SOFT=only "$stage/bin/ironverbs" run -- "$@"; fi
}
kernels() { "$@"; }
driven() { env IRONVERBS_SOFT=off LD_LIBRARY_PATH="$stage/lib" "$@"; }
plugged() { env IRONVERBS_KERNEL_DRIVER=plugin IRONVERBS_SOFT=off LD_LIBRARY_PATH="$stage/lib" "$@"; }
united() { env IRONVERBS_UDP_PORT=4792 LD_LIBRARY_PATH="$stage/lib" "$@"; }
export -f ours kernels driven plugged united

declare -A address=([kernels-v4]=10.79.0.1 [kernels-v6]=fd79::1 [ours-v4]=10.79.0.2 [ours-v6]=fd79::2
  [driven-v4]=10.79.0.1 [driven-v6]=fd79::1 [plugged-v4]=10.79.0.1 [plugged-v6]=fd79::1)
[[ $direct ]] && address[ours-v4]=10.79.0.1 address[ours-v6]=fd79::1
# The kernel's device is named: rxe1 is not its first.
declare -A device=([kernels]="-d rxe1" [ours]="${direct:+-d rxe1}" [driven]="-d rxe1" [plugged]="-d rxe1")
multicast=239.77.1.1
declare -A mapped=([v4]=::ffff: [v6]=) gid

# Where the GIDs stand in each side's table.
[[ $list ]] || for side in ours kernels driven plugged; do
  table=$($side ibv_devinfo ${device[$side]} -v)
  for family in v4 v6; do
    wanted=${mapped[$family]}${address[$side-$family]}
    gid[$side-$family]=$(sed -n "s/.*GID\[ *\([0-9]*\)\]:[[:space:]]*$wanted\(,.*\)\?$/\1/p" <<<"$table" | head -n 1)
    [[ ${gid[$side-$family]} ]] || echo "interop: $side has no GID for $family"
  done
done

descendants() {
  echo "$1"
  local child
  for child in $(cat "/proc/$1/task/$1/children" 2>/dev/null); do descendants "$child"; done
}

# Whether a server that leaves nothing to see waits for its clients: it has been asleep, in one sleep, for half a second. Of
# several requests of a client that comes too early one may be refused and the next one taken.
asleep() { # PROGRAM
  local leaf name before after
  leaf=$(descendants "$pid" | tail -n 1)
  read -r name _ <<<"$1"
  name=${name##*/}
  [[ $(cat "/proc/$leaf/comm" 2>/dev/null) == "${name:0:15}" ]] || return
  before=$(grep -E "^State|^voluntary" "/proc/$leaf/status")
  sleep 0.5
  after=$(grep -E "^State|^voluntary" "/proc/$leaf/status")
  [[ $before == *sleeping* && $before == "$after" ]]
}

# Whether the server on that side is ready for clients, by what its program leaves to see.
ready() { # SIDE PROGRAM LOG
  local space=() port=$port
  [[ $1 == ours && ! $direct ]] && space=(ip netns exec peer)
  case $2 in
    *ibv_* | *exchange*) [[ $("${space[@]}" ss -Hltn "sport = :$port") ]] ;;
    *ib_*" -R"*siw*) [[ $(ss -Hltn "sport = :$port") ]] ;;
    *ib_*" -R"*) grep -q "Waiting for client to connect" "$3" && sleep 1 ;;
    *ib_*) [[ $("${space[@]}" ss -Hltn "sport = :$port") ]] ;;
    *worlds*) grep -q "^listening" "$3" ;;
    *mckey*) grep -q "receiving data transfers" "$3" && sleep 0.5 ;;
    *) asleep "$2" ;;
  esac
}

run() { # SIDE LIMIT WORD...
  local side=$1 limit=$2
  shift 2
  timeout -s KILL "$limit" bash -c "$side stdbuf -oL $*"
}

# pair NAME SERVER-SIDE CLIENT-SIDE LIMIT SERVER CLIENT [told]: `told` servers do not end by themselves.
pair() {
  local name=$1 server=$2 client=$3 limit=$4 told=${7-} status=0 server_status=0 look began=$SECONDS
  local log="$logs/${name//\//-}"
  run "$server" $((limit + 30)) "$5" >"$log.server" 2>&1 &
  local pid=$!
  for look in {1..300}; do
    ready "$server" "$5" "$log.server" && break
    kill -0 $pid 2>/dev/null || break
    sleep 0.1
  done
  for look in {1..20}; do
    run "$client" "$limit" "$6" >"$log.client" 2>&1
    status=$?
    # Only who is refused before anything else happened came too early.
    ((status)) && [[ $5 != *ib* ]] && grep -qE "REJECTED|UNREACHABLE|refused" "$log.client" && kill -0 $pid 2>/dev/null || break
    sleep 0.5
  done
  # A client that failed leaves a server that waits for ever.
  ((status)) && sleep 2
  [[ $told ]] || ((status)) && kill -KILL $(descendants $pid) 2>/dev/null
  wait $pid 2>/dev/null
  server_status=$?
  [[ $told ]] && server_status=0
  if ((status == 0 && server_status == 0)); then
    echo "ok $name"
  else
    echo "FAILED $name: server ($server) exit status $server_status, client ($client) exit status $status"
    grep -v ' address: ' "$log.server" | sed "s/^/  server: /" | tail -n 12
    grep -v ' address: ' "$log.client" | sed "s/^/  client: /" | tail -n 12
  fi
  echo "  $((SECONDS - began)) s"
}

# both NAME SERVER CLIENT [told]: our side as server, then as client, over IPv4 and IPv6. In the programs' lines DEV and GID
# stand for the options of the own device and its GID, HOST for the server's address, HERE for the own.
both() {
  local family
  for family in v4 v6; do
    each "$1-server-$family" ours kernels "$family" "$2" "$3" "${4-}"
    each "$1-client-$family" kernels ours "$family" "$2" "$3" "${4-}"
  done
}

# As `both`, each role over one of the families: for what is the same by either.
half() {
  each "$1-server-v4" ours kernels v4 "$2" "$3" "${4-}"
  each "$1-client-v6" kernels ours v6 "$2" "$3" "${4-}"
}

# Kernel rxe (6.1) as the requester: where a sequence NAK acknowledges a whole message whose own acknowledgement was lost, it
# repeats that message as an empty packet under the PSN of the next one (a capture shows it), so that its PSNs and ours
# differ from there on, and we refuse what follows. Such a run says nothing of us and is repeated.
lossy() { # The arguments of `pair`
  local attempt said theirs=client
  [[ $2 == kernels ]] && theirs=server
  for attempt in 1 2 3 4 5; do
    said=$(pair "$@")
    [[ $said == FAILED*"  $theirs: "*"completion of "*" with remote invalid request error"* ]] || break
    ((attempt < 5)) && echo "  (again: rxe's empty packet)"
  done
  echo "$said"
}

each() { # NAME SERVER-SIDE CLIENT-SIDE FAMILY SERVER CLIENT TOLD
  local name=$1 server=$2 client=$3 family=$4
  [[ $list ]] && { echo "$name"; return; }
  fill() { # SIDE LINE
    local line=" $2 " host=${address[$server-$family]}
    line=${line// DEV / ${device[$1]} }
    line=${line// GID / ${gid[$1-$family]} }
    # The TCP side of pingpongs and of perftest without more options speaks IPv4; the GIDs alone say how the data goes.
    line=${line// HOST4 / ${address[$server-v4]} }
    line=${line// HOST / $host }
    line=${line// HERE / ${address[$1-$family]} }
    echo "$line"
  }
  $runner "$name" "$server" "$client" 120 "$(fill "$server" "$5")" "$(fill "$client" "$6")" "$7"
}

server() { each "$1-server-v4" ours kernels v4 "$2" "$3" "${4-}"; }
client() { each "$1-client-v6" kernels ours v6 "$2" "$3" "${4-}"; }

netem() { # WORD...: what happens to packets, both ways
  runner=lossy
  [[ $list ]] && return
  tc qdisc replace dev v0 root netem "$@"
  ip netns exec peer tc qdisc replace dev v1 root netem "$@"
}

calm() {
  runner=pair
  [[ $list ]] && return
  tc qdisc del dev v0 root
  ip netns exec peer tc qdisc del dev v1 root
}

# capture [NAME]: everything from here to `captured` is kept, packet by packet: batches are split before they reach the interface.
capture() {
  [[ $list || $direct ]] && return
  ip netns exec peer ethtool -K v1 gso off tx-udp-segmentation off gro off
  ethtool -K v0 gro off
  local file=$exchange${1:+.$1}.pcap look
  dumpcap -q -P -i v0 -f "udp port 4791" -w "$file" >"$logs/dumpcap" 2>&1 &
  capturing=$!
  for look in {1..200}; do
    [[ -s $file ]] && break
    sleep 0.1
  done
}

captured() {
  [[ $list || $direct ]] && return
  sleep 2
  kill -INT $capturing
  wait $capturing
  ip netns exec peer ethtool -K v1 gso on tx-udp-segmentation on
}

pingpong() { # WAY KIND SIZE ROUNDS
  local program="ibv_${2}_pingpong -c -s $3 -n $4 -p $port DEV -g GID"
  $1 "$2" "$program" "$program HOST4"
}

exchanges() { # NAME OPTION...: each goes both ways whoever serves
  local name=$1
  shift
  half "exchange-$name" "$exchange -p $port DEV -g GID $*" "$exchange -p $port DEV -g GID $* HOST"
}

perftest() { # WAY SUFFIX PROGRAM OPTION...
  local way=$1 suffix=$2 program=$3
  shift 3
  $way "$program$suffix" "$program -F $* DEV -x GID" "$program -F $* DEV -x GID HOST4"
}

perftest_cm() { # SUFFIX PROGRAM OPTION...: with -R it takes IPv4 addresses only
  local name=$2-cm$1 program=$2
  shift 2
  each "$name-server-v4" ours kernels v4 "$program -R -F $*" "$program -R -F $* HOST" ""
  each "$name-client-v4" kernels ours v4 "$program -R -F $*" "$program -R -F $* HOST" ""
}

# What a side's utilities say of the kernel's devices, and what a program that tries everything does on one.
seen() { # SIDE
  run "$1" 60 ibv_devices && run "$1" 60 ibv_devinfo -v
}
done_by() { # SIDE
  run "$1" 60 "$programs/driver" -d rxe0 -g 1
}
ids_of() { # SIDE
  run "$1" 120 "$ids" 10.77.0.1 7480
}

joined_by() { # SIDE
  run "$1" 60 "$programs/driver" -a 10.78.0.1
}

# same WHAT FUNCTION [GROUP]: each driver's output is that of Debian's library.
same() {
  local side name difference of=${logs-}/${3-driver}.$1
  for side in driven plugged; do
    name=${3-driver}-$1-$side
    [[ $list ]] && { echo $name; continue; }
    [[ -f $of.kernels ]] || $2 kernels >"$of.kernels" 2>&1
    $2 $side >"$of.$side" 2>&1
    if difference=$(diff "$of.kernels" "$of.$side"); then
      echo "ok $name"
    else
      echo "FAILED $name: something else than with Debian's library"
      echo "$difference"
    fi
  done
}

# written NAME OPTION...: what our driver is to print is in a file, where Debian's has a mistake or two.
written() {
  local name=$1 difference
  shift
  [[ $list ]] && { echo $name; return; }
  if difference=$(run driven 60 "$programs/driver" "$@" 2>&1 | diff "$(dirname "$0")/$name.txt" -); then
    echo "ok $name"
  else
    echo "FAILED $name: something else than tests/$name.txt has"
    echo "$difference"
  fi
}

# Our library as server, over IPv4; and as client, over IPv6.
driver_server() { each "driver-$1-server-v4" driven kernels v4 "$2" "$3" ""; } # NAME SERVER CLIENT
driver_client() { each "driver-$1-client-v6" kernels driven v6 "$2" "$3" ""; }
# The same by the one driver against the other.
drivers_server() { each "driver-$1-server-v4" driven plugged v4 "$2" "$3" ""; }
drivers_client() { each "driver-$1-client-v6" plugged driven v6 "$2" "$3" ""; }

modules=(addr atomic cq cq_events cqex device flow fork mr odp parent_domain pd qp qpex relaxed_ordering rss_traffic shared_pd
  tag_matching)

# What siw can do of that: queue pairs that are connected by hand it has none.
iwarp_modules=(cq cqex device fork pd qp)

# Debian's pyverbs on rxe0 and siw0, by our library's drivers, beside everything else.
pyverbs_begins() {
  [[ $list ]] && return
  local tests=$logs/pyverbs
  mkdir "$tests" && cp -r /usr/share/doc/rdma-core/tests "$tests" && gunzip -rf "$tests"
  for side in driven plugged; do
    cd "$tests"
    group driver && run $side 900 python3 tests/run_tests.py -v --dev rxe0 "${modules[@]/#/tests.test_}" >"$logs/pyverbs.driver-$side" 2>&1
    group iwarp && run $side 900 python3 tests/run_tests.py -v --dev siw0 "${iwarp_modules[@]/#/tests.test_}" >"$logs/pyverbs.iwarp-$side" 2>&1
  done &
  pyverbs=$!
}

# Each test that passes with Debian's library on this kernel is in a list, and passes.
pyverbs_ends() { # GROUP LIST
  local side passed missing
  [[ $list ]] || wait $pyverbs
  for side in driven plugged; do
    [[ $list ]] && { echo $1-pyverbs-$side; continue; }
    # A test is named, perhaps described in a line of its own, and its verdict follows.
    passed=$(awk '/^test_[a-z0-9_]* \(tests\./ { name = $2; gsub(/^\(tests\.|\)$/, "", name) }
      /(^| \.\.\. )ok$/ { print name }' "$logs/pyverbs.$1-$side" | LC_ALL=C sort)
    missing=$(LC_ALL=C comm -13 - "$(dirname "$0")/$2" <<<"$passed")
    if [[ $missing ]]; then
      echo "FAILED $1-pyverbs-$side: $(wc -l <<<"$missing") tests do not pass: $(tr '\n' ' ' <<<"$missing")"
      tail -n 40 "$logs/pyverbs.$1-$side"
    else
      echo "ok $1-pyverbs-$side"
    fi
  done
}

group() { [[ $groups == *" $1 "* ]]; }

declare -A options=([bw]="-s 8192 -n 150" [lat]="-s 64 -n 100")
if group driver || group iwarp; then pyverbs_begins; fi
if group driver; then
  same devices seen
  same does done_by
  same ids ids_of
  written driver-builds -d rxe0 -g 1 -b # The extended way to post.
  role=server
  for kind in rc uc ud srq; do
    program="ibv_${kind}_pingpong -c -s 1024 -n 20 -p $port DEV -g GID"
    drivers_$role $kind-pingpong "$program" "$program HOST4"
    [[ $role == server ]] && role=client || role=server
  done
  for what in send write read atomic; do
    program="ib_${what}_bw -F -n 50 DEV -x GID"
    [[ $what == atomic ]] || program="$program -s 8192"
    [[ $what == send ]] && program="$program -e"
    drivers_$role ib_${what}_bw "$program" "$program HOST4"
    [[ $role == server ]] && role=client || role=server
  done
  # The kernel's connection manager by our librdmacm.
  driver_server rping "rping -s -a HERE -v -V -C 5 -S 1000" "rping -c -a HOST -v -V -C 5 -S 1000"
  driver_client rping "rping -s -a HERE -v -V -C 5 -S 1000" "rping -c -a HOST -v -V -C 5 -S 1000"
  driver_server ucmatose "ucmatose -b HERE -c 2 -C 5 -S 5000" "ucmatose -s HOST -c 2 -C 5 -S 5000"
  driver_server udaddy "udaddy -b HERE -c 2 -C 5" "udaddy -s HOST -c 2 -C 5"
  driver_client udaddy "udaddy -b HERE -c 2 -C 5" "udaddy -s HOST -c 2 -C 5"
  # Its server listens on IPv4.
  each driver-endpoint-client-v4 kernels driven v4 rdma_server "rdma_client -s HOST" ""
  each driver-mckey-client-v4 kernels driven v4 "mckey -m $multicast -b HERE" "mckey -m $multicast -b HERE -s" ""
fi
# alone NAME LINE: a program of side `united` that needs no peer.
alone() {
  [[ $list ]] && { echo "$1"; return; }
  local status=0
  run united 60 "$2" >"$logs/$1" 2>&1 || status=$?
  ((status)) && { echo "FAILED $1: exit status $status"; tail -n 12 "$logs/$1"; } || echo "ok $1"
}

# Two worlds: on dummy1 there is a software device alone.
if group worlds; then
  [[ $list ]] || {
    ip link add dummy1 type dummy
    ip link set dummy1 up
    ip addr add 10.80.0.1/24 dev dummy1
    ip -6 addr add fd80::1/64 dev dummy1 nodad
  }
  v4="10.77.0.1=rxe0 10.79.0.1=rxe1 10.80.0.1=iron" v6="fd77::1=rxe0 fd79::1=rxe1 fd80::1=iron"
  meet() { # NAME SERVER-SIDE CLIENT-SIDE SERVER CLIENT
    if [[ $list ]]; then echo "$1"; else pair "$1" "$2" "$3" 60 "$worlds $4" "$5"; fi
  }
  meet worlds-listener-v4 united united "serve 7471 3" "$worlds connect 7471 $v4"
  meet worlds-listener-v6 united united "serve 7471 3 ::" "$worlds connect 7471 $v6"
  meet worlds-endpoint united united "endpoint 7471 3" "$worlds connect 7471 $v4"
  meet worlds-server united kernels "serve 7471 1" "$worlds connect 7471 10.79.0.1=rxe1"
  meet worlds-client ours united "serve 7471 1" "$worlds connect 7471 10.79.0.2=rxe1"
  meet worlds-preference united united "serve 7471 2" \
    "env IRONVERBS_PREFER=software $worlds connect 7471 10.77.0.1=iron 10.79.0.1=iron"
  alone worlds-port-taken "$worlds taken 7471 10.80.0.1 10.77.0.1"
  [[ $list ]] || ip link del dummy1
fi

# A device that goes while an id and a queue pair are on it, and one of its name that comes. `rdma link delete` ends when
# nobody has the device open.
removal() {
  [[ $list ]] && { echo kernel-removal; return; }
  local look why=
  ip link add dummy2 type dummy
  ip link set dummy2 up
  ip addr add 10.81.0.1/24 dev dummy2
  rdma link add rxe2 type rxe netdev dummy2
  run united 150 "$worlds removal 10.81.0.1 rxe2" >"$logs/removal" 2>&1 &
  local pid=$!
  for look in {1..300}; do grep -q "^ready" "$logs/removal" && break; sleep 0.1; done
  timeout 60 rdma link delete rxe2 || why="rdma link delete: exit status $?; "
  for look in {1..300}; do grep -q "^gone" "$logs/removal" && break; sleep 0.1; done
  rdma link add rxe2 type rxe netdev dummy2 || why+="rdma link add: exit status $?; "
  wait $pid || why+="exit status $?"
  [[ $why ]] && { echo "FAILED kernel-removal: $why"; tail -n 12 "$logs/removal"; } || echo "ok kernel-removal"
  rdma link delete rxe2
  ip link del dummy2
}

# A device that goes while contexts of it are open, by one driver and by the other.
fatal() { # SIDE
  local name=kernel-fatal-$1 look why=
  [[ $list ]] && { echo $name; return; }
  ip link add dummy3 type dummy
  ip link set dummy3 up
  rdma link add rxe3 type rxe netdev dummy3
  run "$1" 150 "$kernel fatal rxe3" >"$logs/$name" 2>&1 &
  local pid=$!
  for look in {1..300}; do grep -q "^ready" "$logs/$name" && break; sleep 0.1; done
  # It ends when nobody has the device open any more.
  timeout 60 rdma link delete rxe3 || why="rdma link delete: exit status $?; "
  wait $pid || why+="exit status $?"
  [[ $why ]] && { echo "FAILED $name: $why"; tail -n 12 "$logs/$name"; } || echo "ok $name"
  ip link del dummy3
}

# The module is taken away, and comes back with its devices: while a context is open it stays.
unload() {
  local look why= input
  [[ $list ]] && { echo kernel-unload; return; }
  input=$(mktemp -u) && mkfifo "$input"
  run united 150 "$kernel unload rxe1" >"$logs/unload" 2>&1 <"$input" &
  local pid=$!
  exec 9>"$input"
  said() { for look in {1..300}; do grep -q "^$1" "$logs/unload" && return; sleep 0.1; done; }
  said ready
  modprobe -r rdma_rxe 2>/dev/null && why="the module went while it was in use; "
  echo c >&9
  exec 9>&-
  said closed
  modprobe -r rdma_rxe || why+="modprobe -r: exit status $?; "
  said gone
  modprobe rdma_rxe
  rdma link add rxe0 type rxe netdev dummy0
  rdma link add rxe1 type rxe netdev v0
  wait $pid || why+="exit status $?"
  [[ $why ]] && { echo "FAILED kernel-unload: $why"; tail -n 12 "$logs/unload"; } || echo "ok kernel-unload"
}

if group kernel; then
  alone kernel-umad "$kernel umad rxe1"
  alone kernel-reach "$kernel reach rxe1 ::ffff:10.79.0.1 0"
  alone kernel-reach-nobody "$kernel reach rxe1 ::ffff:10.79.0.99 6"
  alone kernel-reach-other "$kernel reach rxe1 fd77::1 6"
  [[ $list ]] || chmod 600 /dev/infiniband/*
  alone kernel-denied "env IRONVERBS_SOFT=off setpriv --reuid 65534 --clear-groups $kernel denied"
  [[ $list ]] || chmod 666 /dev/infiniband/{rdma_cm,uverbs*}
  removal
  fatal driven
  fatal plugged
fi
if group iwarp; then
  same does joined_by iwarp
  written iwarp-spared -a 10.78.0.1 -b # What stops or kills the kernel's siw with Debian's.
  iwarp() { # NAME SERVER-SIDE CLIENT-SIDE SERVER CLIENT
    if [[ $list ]]; then echo "iwarp-$1"; else pair "iwarp-$1" "$2" "$3" 60 "$4" "$5"; fi
  }
  v4=10.78.0.1 v6=fd78::1
  # rping's threads do not wait for each other at the end: one may ask for an event of a channel that is gone.
  iwarp rping-server-v4 driven kernels "rping -s -a $v4 -v -V -C 5 -S 1000; true" \
    "rping -c -a $v4 -v -V -C 5 -S 1000 | tee /dev/stderr | grep -c '^ping data' | grep -qx 5"
  iwarp ucmatose-client-v6 kernels driven "ucmatose -b $v6 -c 2 -C 5 -S 5000" "ucmatose -s $v6 -c 2 -C 5 -S 5000"
  iwarp endpoint-server driven plugged rdma_server "rdma_client -s $v4"
  # Not ib_send_bw: with -e it sleeps for completions while it waits for a credit, which its peer writes to its memory.
  iwarp send_lat plugged driven "ib_send_lat -R -F -e -d siw0 -n 50" "ib_send_lat -R -F -e -d siw0 -n 50 $v4"
  iwarp read_bw driven kernels "ib_read_bw -R -F -d siw0 -s 8192 -n 50" "ib_read_bw -R -F -d siw0 -s 8192 -n 50 $v4"
  # One channel with ids on a software device, if there is one, and on this one.
  iwarp worlds united united "$worlds serve 7471 2" "$worlds connect 7471 $v4=siw0 10.79.0.1=rxe1"
fi
if group pingpong; then
  pingpong half rc 4096 50
  pingpong half uc 4096 50
  pingpong half ud 1024 50
  pingpong half srq 4096 10
fi
if group verbs; then
  exchanges rc -t rc
  capture
  for kind in rc uc ud; do exchanges $kind-mtu -t $kind -m 4096; done
  captured
fi
if group cm; then
  capture cm
  both rping "rping -s -a HERE -v -V -C 10 -S 1000" "rping -c -a HOST -v -V -C 10 -S 1000"
  both ucmatose "ucmatose -b HERE -c 2 -C 10 -S 10000" "ucmatose -s HOST -c 2 -C 10 -S 10000"
  both udaddy "udaddy -b HERE -c 2 -C 10" "udaddy -s HOST -c 2 -C 10"
  captured
fi
if group multicast; then
  # IPv4: the kernel knows no multicast by rdma_cm over IPv6 on RoCE (ENOTSUPP).
  each mckey-server-v4 ours kernels v4 "mckey -m $multicast -b HERE" "mckey -m $multicast -b HERE -s" ""
  each mckey-client-v4 kernels ours v4 "mckey -m $multicast -b HERE" "mckey -m $multicast -b HERE -s" ""
fi
if group perftest; then
  for what in send write read; do
    perftest half "" ib_${what}_bw ${options[bw]}
  done
  perftest half "" ib_atomic_bw -n 100
  perftest server "" ib_send_lat ${options[lat]}
  perftest client "" ib_write_lat ${options[lat]}
  perftest server "" ib_read_lat ${options[lat]}
  perftest client "" ib_atomic_lat -n 100
  perftest_cm "" ib_send_bw ${options[bw]}
  perftest_cm "" ib_read_lat ${options[lat]}
fi
if group faults; then
  netem loss 2%
  exchanges rc-loss -t rc -l -n 2
  exchanges uc-loss -t uc -l
  exchanges ud-loss -t ud -l
  netem duplicate 5%
  exchanges rc-duplication -t rc -l
  netem delay 2ms reorder 75% 50%
  exchanges rc-reordering -t rc -l
  netem corrupt 2%
  exchanges rc-corruption -t rc -l
  exchanges ud-corruption -t ud -l
  calm
fi
if group matrix; then
  for suffix in "" -loss; do
    [[ $suffix ]] && netem loss 2%
    for what in send write read atomic; do
      for kind in bw lat; do
        more=${options[$kind]}
        [[ $what == atomic ]] && more="-n 100"
        perftest both "$suffix" ib_${what}_$kind $more
        perftest_cm "$suffix" ib_${what}_$kind $more
      done
    done
  done
  calm
fi
if group repeat; then
  netem loss 2%
  for round in {1..25}; do exchanges rc-loss-$round -t rc -l; done
  calm
fi
if group driver; then pyverbs_ends driver pyverbs-rxe.txt; fi
if group iwarp; then pyverbs_ends iwarp pyverbs-siw.txt; fi
# Last: all devices of rxe go.
if group kernel; then unload; fi
[[ $list ]] || echo "interop: done"
