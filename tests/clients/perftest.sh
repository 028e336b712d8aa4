# perftest with the options that people give it besides sizes and transports.
. "$(dirname "$0")/lib.sh"

port=18850
# both PROGRAM OPTION...: the same on both sides, to the success of both, without a complaint.
both() {
    pair $port "$1" -F -p $port "${@:2}" -- "$1" -F -p $port "${@:2}" "$host"
    says_not "$out" '[Cc]ouldn.t|[Ff]ailed|[Uu]nable|not supported|ERROR'
    says_not "$served" '[Cc]ouldn.t|[Ff]ailed|[Uu]nable|not supported|ERROR'
    port=$((port + 1))
}
# table SIZE: the last run has a result for this size.
table() { says "$out" "^ *$1 +[0-9]"; }

both ib_send_bw --use-srq -q 4 -s 4096 -n 200 && table 4096
both ib_send_bw --use-srq -q 4 -s 4096 -n 200 -b && table 4096
both ib_send_bw -e -s 65536 -n 100 && table 65536
both ib_send_bw -r 64 -l 8 -s 4096 -n 256 && table 4096
both ib_send_bw -c UD -q 4 -s 1024 -n 100 -x 1 && table 1024
both ib_send_lat -e -s 64 -n 100 && table 64
both ib_send_lat -I 256 -s 256 -n 200 && table 256
both ib_send_lat -c UD -s 512 -n 100 -U && table 512
both ib_write_bw -q 16 -s 8192 -n 64 && table 8192
both ib_write_bw -q 16 -b --mr_per_qp -s 8192 -n 64 && table 8192
both ib_write_bw -D 1 -s 65536 && table 65536
both ib_write_bw -x 1 -d iron0 -i 1 -m 512 -s 65536 -n 50 && table 65536
both ib_write_bw --report_gbits -N -Q 1 -t 16 -S 1 -s 1048576 -n 20 && table 1048576
both ib_write_bw --odp -s 65536 -n 50 && table 65536
both ib_write_lat -s 8 -n 200 -H && says "$out" '^#, usec'
both ib_read_bw -q 4 -o 16 -s 65536 -n 50 && table 65536
both ib_read_bw -o 1 -b -s 65536 -n 50 && table 65536
both ib_read_lat -o 1 -s 4096 -n 100 && table 4096
both ib_atomic_bw -A CMP_AND_SWAP -q 4 -n 100 && table 8
both ib_atomic_lat -A FETCH_AND_ADD -n 100 && table 8

# What a device like ours has not is refused with words, at both ends, and nothing hangs.
refused() {
    local what=$1 status
    shift
    out=$work/out served=$work/served
    : >"$served"
    (on_server "$@" -p $port) >"$served" 2>&1 &
    local job=$!
    # Some look at the device before they wait for the other side, others behind that.
    until listens $port || ! kill -0 $job 2>/dev/null; do sleep 0.02; done
    (on_client "$@" -p $port "$host") >"$out" 2>&1
    status=$?
    [ $status != 0 ] && [ $status -lt 124 ] || fail "exit status $status: $*" "$out" "$served"
    wait $job
    status=$?
    [ $status != 0 ] && [ $status -lt 124 ] || fail "exit status $status: $*" "$served" "$out"
    says "$out" "$what"
    says "$served" "$what"
    port=$((port + 1))
}
refused 'Couldn.t|[Ff]ailed|[Ii]nvalid|[Nn]ot supported' ib_send_bw -F -c SRD -s 4096 -n 10
refused 'Couldn.t|[Ff]ailed|[Ii]nvalid|[Nn]ot' ib_write_bw -F -d mlx5_0 -s 4096 -n 10
refused 'Couldn.t|[Ff]ailed|[Ii]nvalid|[Nn]ot' ib_write_bw -F -i 2 -s 4096 -n 10

alone ibv_devices
says "$out" '^ +iron0 '
alone ibv_devinfo -v -d iron0
says "$out" 'PORT_ACTIVE' 'ODP' 'RoCE v2' 'link_layer:.*Ethernet'
passed
