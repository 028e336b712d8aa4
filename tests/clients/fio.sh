# fio's rdma engine: a receiver and a sender, with every verb. What is sent carries checksums that the receiver verifies.
. "$(dirname "$0")/lib.sh"

port=18820
# What a process that waits for a connection says; it listens on no port that the kernel knows of.
waits() { grep -q 'waiting for connection' "$served"; }

# job VERB BLOCKS OPTION_OF_BOTH...
job() {
    local verb=$1 blocks=$2 status
    local common=(fio --ioengine=rdma --port=$port --bs=64k --size=$((blocks * 64))k)
    shift 2
    out=$work/out served=$work/served limit=20
    : >"$served"
    (cd "$work" && on_server "${common[@]}" --name=receiver --rw=read --iodepth=128 "$@") >"$served" 2>&1 &
    local job=$!
    await "it listens" "$served" waits
    (cd "$work" && on_client "${common[@]}" --name=sender --hostname="$host" --rw=write --verb=$verb --iodepth=4 "$@" \
        --do_verify=0) >"$out" 2>&1
    status=$?
    if grep -q 'RNR retry' "$out" && [ "${again:=0}" -lt 3 ]; then
        # The sender gives the receiver half a second to post its receives, and wants no retry after that.
        again=$((again + 1))
        kill $job
        wait $job
        port=$((port + 1))
        job $verb $blocks "$@"
        return
    fi
    [ $status = 0 ] || fail "exit status $status: the sender" "$out" "$served"
    wait $job || fail "exit status $?: the receiver" "$served" "$out"
    says "$out" 'err= 0' "issued rwts: total=0,$blocks,0,0 short=0,0,0,0 dropped=0,0,0,0"
    says "$served" 'err= 0'
    says_not "$out" 'cq completion status' 'fail'
    says_not "$served" 'cq completion status' 'verify:'
    port=$((port + 1))
}
job send 128 --verify=crc32c
says "$served" "issued rwts: total=128,0,0,0 short=0,0,0,0 dropped=0,0,0,0"
job write 512
job read 512
passed
