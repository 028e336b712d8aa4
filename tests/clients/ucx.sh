# UCX over our devices: its view of them, and its own measurements with every operation.
. "$(dirname "$0")/lib.sh"

# No transport but the one asked for, and a warning is a failure.
export UCX_NET_DEVICES=iron0:1 UCX_LOG_LEVEL=warn

alone ucx_info -d
sed -n '/Memory domain: iron0/,/^$/p' "$out" >"$work/iron0"
says "$out" 'Transport: rc_verbs' 'Transport: ud_verbs' 'Connection manager: rdmacm'
says_not "$out" 'WARN' 'ERROR'

tests='tag_lat tag_bw tag_sync_lat ucp_put_lat ucp_put_bw ucp_get ucp_am_lat ucp_am_bw stream_lat stream_bw'
atomics='ucp_add ucp_fadd ucp_swap ucp_cswap'
port=18800
for transport in rc_verbs ud_verbs; do
    # Connections of rc are arranged with datagrams, which serve nothing else.
    case $transport in
    rc_verbs) export UCX_TLS=rc_verbs,ud_verbs:aux,self ;;
    ud_verbs) export UCX_TLS=ud_verbs,self ;;
    esac
    for size in 8 4096 65536 1048576; do
        count=200
        [ $size -lt 1048576 ] || count=30
        batch=$work/batch
        for test in $tests; do
            echo "$test-$size -t $test -s $size -n $count -w 10"
        done >"$batch"
        [ $size != 8 ] || for test in $atomics; do echo "$test-8 -t $test -s 8 -n $count -w 10"; done >>"$batch"
        pair $port ucx_perftest -p $port -b "$batch" -- ucx_perftest -p $port -f -b "$batch" "$host"
        for test in $tests; do says "$out" "$test-$size.*[0-9]"; done
        says_not "$out" 'WARN' 'ERROR'
        says_not "$served" 'WARN' 'ERROR'
        port=$((port + 1))
    done
done
passed
