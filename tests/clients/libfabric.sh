# libfabric's verbs provider over our devices: what it finds, and its ping-pong on every kind of endpoint, data verified.
. "$(dirname "$0")/lib.sh"

alone fi_info -p verbs
says "$out" 'domain: iron0$' 'domain: iron0-dgram' 'FI_EP_MSG' 'FI_EP_DGRAM' 'FI_PROTO_RDMA_CM_IB_RC' 'FI_PROTO_IB_UD' \
    'FI_PROTO_RXM'

# pingpong ROUNDS PROVIDER ENDPOINT LARGEST [OPTION]...
pingpong() {
    local rounds=$1 provider=$2 endpoint=$3 largest=$4
    shift 4
    local words=(fi_pingpong -p "$provider" -e "$endpoint" -c -I "$rounds" "$@")
    pair 47592 "${words[@]}" -- "${words[@]}" "$host"
    says "$out" "^$largest +$rounds +=$rounds "
    says "$served" "^$largest +$rounds +=$rounds "
}
pingpong 50 verbs msg 1m
pingpong 50 'verbs;ofi_rxm' rdm 1m
pingpong 50 'verbs;ofi_rxm' rdm 64k -m tagged
pingpong 200 verbs dgram 1k
# Retransmission of its own, with timers.
pingpong 20 'verbs;ofi_rxd' rdm 4k -S 4096
passed
