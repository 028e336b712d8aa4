# perftest's programs for whole Ethernet frames, by raw packet queue pairs and flow steering. They need packet sockets.
. "$(dirname "$0")/lib.sh"

macs=(02:00:00:00:00:01 02:00:00:00:00:02)
# Whether some socket in the server's place takes frames: there is no handshake, and the server has to be there first.
reads_frames() { $server_in cat /proc/net/packet | grep -qE '^[0-9a-f]+ +[0-9]+ +3 +0003 '; }
# raw PROGRAM OPTION...: both sides, to the success of both. IP addresses and ports are the server's and the client's on both.
raw() {
    local program=$1
    shift
    out=$work/out served=$work/served
    : >"$served"
    (on_server "$program" --server -d iron0 -B ${macs[0]} -E ${macs[1]} "$@") >"$served" 2>&1 &
    local job=$!
    await 'its socket takes frames' "$served" reads_frames
    (on_client "$program" --client -d iron0 -B ${macs[1]} -E ${macs[0]} "$@") >"$out" 2>&1 ||
        fail "exit status $?: $program $*" "$out" "$served"
    wait $job || fail "exit status of the server: $program $*" "$served" "$out"
    says_not "$out" '[Cc]ouldn.t|[Ff]ailed|[Uu]nable|not supported|ERROR'
    says_not "$served" '[Cc]ouldn.t|[Ff]ailed|[Uu]nable|not supported|ERROR'
}
# table SIZE: the last run has a result for this size.
table() { says "$out" "^ *$1 +[0-9]"; }

ip=(-J 10.1.1.1 -j 10.1.1.2 -K 7000 -k 7001)
raw raw_ethernet_lat -s 200 -n 100 && table 200
raw raw_ethernet_lat "${ip[@]}" -s 1400 -n 100 && table 1400
raw raw_ethernet_lat "${ip[@]}" --tcp -s 1000 -n 100 && table 1000
raw raw_ethernet_bw "${ip[@]}" -s 1400 -D 1 && table 1400
alone raw_ethernet_fs_rate --server -d iron0 -B ${macs[0]} -E ${macs[1]} -n 100
says "$out" '^100 .*[0-9]'
passed
