#!/bin/bash
# Runs in the guest of vm/run: our device in namespace `peer` against the kernel's rxe1, each side as server and as client.
#
#   interop.sh STAGE [DIRECT]
#
# Prints `ok NAME` or `FAILED NAME: WHY` per case. With a second argument both sides are the kernel's, in the initial
# namespace: that shows whether the harness and the kernel are right.
set -u
stage=$1 direct=${2-}
port=18515
logs=$(mktemp -d)

ours() {
  if [[ $direct ]]; then "$@"; else ip netns exec peer "$stage/bin/ironverbs" run -- "$@"; fi
}
kernels() { "$@"; }

# index SIDE GID: where the GID stands in that side's table. The kernel's device is named: rxe1 is not its first.
index() {
  local device=()
  [[ $1 == kernels || $direct ]] && device=(-d rxe1)
  "$1" ibv_devinfo "${device[@]}" -v | sed -n "s/.*GID\[ *\([0-9]*\)\]:[[:space:]]*$2\(,.*\)\?$/\1/p" | head -n 1
}

listening() {
  if [[ $1 == ours && ! $direct ]]; then ip netns exec peer ss -Hltn "sport = :$port"; else ss -Hltn "sport = :$port"; fi
}

# pair NAME SERVER-SIDE CLIENT-SIDE FAMILY KIND ROUNDS
pair() {
  local name=$1 server=$2 client=$3 family=$4 kind=$5 rounds=$6
  local host size=4096 side program
  local -A gid device=([kernels]="-d rxe1" [ours]="${direct:+-d rxe1}")
  [[ $kind == ud ]] && size=1024
  for side in ours kernels; do
    gid[$side]=${index[$side-$family]-}
    [[ ${gid[$side]} ]] || { echo "FAILED $name: $side has no GID for $family"; return; }
  done
  # The servers listen on IPv4 only; the GIDs alone say how the data goes.
  host=${address[$server-v4]}
  program="ibv_${kind}_pingpong -s $size -n $rounds -c -p $port"
  timeout -s KILL 90 bash -c "$(declare -f ours kernels); stage='$stage' direct='$direct'; \
    $server $program ${device[$server]} -g ${gid[$server]}" >"$logs/$name.server" 2>&1 &
  local pid=$! look
  for look in {1..300}; do
    [[ $(listening "$server") ]] && break
    kill -0 $pid 2>/dev/null || break
    sleep 0.1
  done
  timeout -s KILL 90 bash -c "$(declare -f ours kernels); stage='$stage' direct='$direct'; \
    $client $program ${device[$client]} -g ${gid[$client]} $host" >"$logs/$name.client" 2>&1
  local client_status=$? server_status
  # A client that failed leaves a server that waits for ever.
  ((client_status)) && { sleep 2; kill -KILL -- $(descendants $pid) 2>/dev/null; }
  wait $pid 2>/dev/null
  server_status=$?
  if ((client_status == 0 && server_status == 0)); then
    echo "ok $name"
  else
    echo "FAILED $name: server ($server) exit status $server_status, client ($client) exit status $client_status"
    grep -hv ' address: ' "$logs/$name.server" | sed "s/^/  server: /" | tail -n 12
    grep -hv ' address: ' "$logs/$name.client" | sed "s/^/  client: /" | tail -n 12
  fi
}

descendants() {
  echo "$1"
  local child
  for child in $(cat "/proc/$1/task/$1/children" 2>/dev/null); do descendants "$child"; done
}

declare -A address=([kernels-v4]=10.79.0.1 [kernels-v6]=fd79::1 [ours-v4]=10.79.0.2 [ours-v6]=fd79::2)
[[ $direct ]] && address[ours-v4]=10.79.0.1 address[ours-v6]=fd79::1
declare -A index
for side in ours kernels; do
  index[$side-v4]=$(index $side "::ffff:${address[$side-v4]}")
  index[$side-v6]=$(index $side "${address[$side-v6]}")
done

everything() { # SUFFIX ROUNDS KIND...
  local suffix=$1 rounds=$2 family kind
  shift 2
  for family in v4 v6; do
    for kind; do
      pair "$kind-server$suffix-$family" ours kernels "$family" "$kind" "$rounds"
      pair "$kind-client$suffix-$family" kernels ours "$family" "$kind" "$rounds"
    done
  done
}

everything "" 100 rc uc ud
everything "" 10 srq
tc qdisc add dev v0 root netem loss 2%
ip netns exec peer tc qdisc add dev v1 root netem loss 2%
everything -loss 200 rc
echo "interop: done"
