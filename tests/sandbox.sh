#!/usr/bin/env bash
# Pairs of programs in one place, for a sandbox that has been set up around this script: sandbox.sh STAGE
set -eu
run() { "$stage/bin/ironverbs" run -- "$@"; }
stage=$1

pair() {
    run "$@" &
    local server=$!
    # The servers listen on TCP port 18515.
    for _ in $(seq 100); do
        grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6 && break
        sleep 0.1
    done
    run "$@" 127.0.0.1
    wait "$server"
}

pair ibv_rc_pingpong -g 0 -p 18515 -s 65536 -c
pair ibv_srq_pingpong -g 0 -p 18515 -s 4096 -c
pair ib_send_bw -F -x 0 -p 18515 -s 65536 -n 500
pair ib_write_lat -F -x 0 -p 18515 -n 500
echo "sandbox: done"
