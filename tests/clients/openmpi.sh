# Open MPI over UCX over our devices: point to point, collective and one-sided, data verified, 2 and 4 ranks. With
# two places the ranks are spread over both, by a launch agent in place of ssh.
. "$(dirname "$0")/lib.sh"

mpicc.openmpi -O2 -Wall -Werror "$here/mpi.c" -o "$work/mpi" || fail "mpi.c does not compile"
chmod -R a+rX "$work"

export UCX_NET_DEVICES=iron0:1 UCX_TLS=rc_verbs,ud_verbs:aux,self UCX_LOG_LEVEL=warn
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
# Its folder for sockets, whose names have to be short.
export TMPDIR=$work PMIX_SYSTEM_TMPDIR=$work

options=(--mca pml ucx --mca osc ucx --mca btl ^openib,vader,tcp --mca pml_base_verbose 10 --bind-to none
    -x UCX_NET_DEVICES -x UCX_TLS -x UCX_LOG_LEVEL)
expected=1
if [ "$client_host" != "$host" ]; then
    expected=2
    # The launch agent: "ssh" with a host's name for one of the two places.
    cat >"$work/agent" <<EOF
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
case \$1 in
$host) place="$server_in" ;;
$client_host) place="$client_in" ;;
*) echo "agent: no such host: \$1" >&2; exit 1 ;;
esac
shift
exec \$place "$stage/bin/ironverbs" run -- sh -c "\$*"
EOF
    chmod 755 "$work/agent"
    options+=(--mca plm_rsh_agent "$work/agent" --mca plm rsh --mca orte_keep_fqdn_hostnames 1
        --host "$host:2,$client_host:2" --map-by node --mca oob_tcp_if_include veth0)
fi
for ranks in 2 4; do
    alone mpirun.openmpi "${options[@]}" -n $ranks "$work/mpi"
    for ((rank = 0; rank < ranks; rank++)); do
        says "$out" "^rank $rank of $ranks: right in net:"
    done
    places=$(grep -o 'right in net:.*' "$out" | sort -u | wc -l)
    [ "$places" = "$expected" ] || fail "the ranks are in $places places" "$out"
    says "$out" 'select: component ucx selected'
    says_not "$out" 'UCX +ERROR'
done
passed
