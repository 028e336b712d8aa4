# MPICH over UCX over our devices: point to point, collective and one-sided, data verified, 2 and 4 ranks, none of them
# neighbours in shared memory to it.
. "$(dirname "$0")/lib.sh"

mpicc.mpich -O2 -Wall -Werror "$here/mpi.c" -o "$work/mpi" || fail "mpi.c does not compile"
export UCX_NET_DEVICES=iron0:1 UCX_TLS=rc_verbs,ud_verbs:aux,self UCX_LOG_LEVEL=info MPIR_CVAR_NOLOCAL=1
for ranks in 2 4; do
    alone mpirun.mpich -n $ranks "$work/mpi"
    for ((rank = 0; rank < ranks; rank++)); do
        says "$out" "rank $rank of $ranks: right in net:"
    done
    says "$out" 'rc_verbs/iron0:1'
    says_not "$out" 'UCX +ERROR'
done
passed
