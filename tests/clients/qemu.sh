# QEMU: live migration of a small guest over rdma, twice: running, and stopped, to see that its memory is the same.
. "$(dirname "$0")/lib.sh"

# What lies in the guest's memory besides its firmware's.
head -c 8M /dev/urandom >"$work/data"
# guest on_server|on_client NAME OPTION...
guest() {
    local where=$1 id=$2
    shift 2
    ($where qemu-system-x86_64 -M pc,accel=tcg -m 32 -display none -nodefaults -vga none -serial none \
        -qmp "unix:$work/$id,server=on,wait=off" "$@") >"$work/$id.log" 2>&1 &
    await "its socket" "$work/$id.log" test -S "$work/$id"
}
guest on_client first -device loader,file="$work/data",addr=0x800000,force-raw=on
guest on_server second -incoming defer
guest on_client third -incoming defer

out=$work/out
timeout 120 /usr/bin/python3 "$here/migrate.py" "$work" $((32 << 20)) "rdma:$host:18840" "rdma:$client_host:18841" \
    >"$out" 2>&1 || fail "exit status $?: migrate.py" "$out" "$work"/*.log
says "$out" 'migrated: [1-9][0-9]+ pages, .*False' 'right: it runs' 'migrated: [1-9][0-9]+ pages.*True' 'right: the same memory'
cmp <(head -c 16M "$work/third.memory" | tail -c 8M) "$work/data" || fail "the data differs" "$out"
says "$work/second.log" 'RDMA Device opened: kernel name iron0'
says_not "$work/second.log" 'rror'
passed
