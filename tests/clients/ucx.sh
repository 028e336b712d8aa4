# UCX over our devices: its view of them, and its own measurements with every operation.
. "$(dirname "$0")/lib.sh"

# No transport but the one asked for.
export UCX_NET_DEVICES=iron0:1 UCX_LOG_LEVEL=warn

alone ucx_info -d
says "$out" 'Transport: rc_verbs' 'Transport: ud_verbs' 'Connection manager: rdmacm'
says_not "$out" 'ERROR'

every='tag_lat tag_bw tag_sync_lat ucp_put_lat ucp_put_bw ucp_get ucp_am_lat ucp_am_bw stream_lat stream_bw'
atomics='ucp_add ucp_fadd ucp_swap ucp_cswap'
large='tag_lat tag_bw ucp_put_bw ucp_get ucp_am_bw'
# Addresses come and go while a network namespace is young.
quiet() { says_not "$1" 'ERROR' 'WARN .*(RoCE|drop|timeout|fail|unhandled)'; }

port=18800
for transport in rc_verbs ud_verbs; do
    # Connections of rc are arranged with datagrams, which serve nothing else.
    case $transport in
    rc_verbs) export UCX_TLS=rc_verbs,ud_verbs:aux,self ;;
    ud_verbs) export UCX_TLS=ud_verbs,self ;;
    esac
    for size in 8 8192 65536 1048576; do
        case $size in
        8) tests="$every $atomics" count=100 ;;
        8192) tests=$every count=50 ;;
        *) tests=$large count=10 ;;
        esac
        batch=$work/batch
        for test in $tests; do
            echo "$test-$size -t $test -s $size -n $count -w 5"
        done >"$batch"
        pair $port ucx_perftest -p $port -b "$batch" -- ucx_perftest -p $port -f -b "$batch" "$host"
        for test in $tests; do says "$out" "$test-$size +$count "; done
        quiet "$out"
        quiet "$served"
        port=$((port + 1))
    done
done
passed
