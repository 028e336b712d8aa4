# Packages of PyPI that bring compiled RDMA programs: Mooncake's transfer engine, reading and writing between two
# processes, and the bindings `ibverbs`. CACHE names a folder to keep what is installed in.
. "$(dirname "$0")/lib.sh"

cache=${CACHE:-$work}/pypi
packages='ibverbs==2026.10.22 mooncake-transfer-engine-non-cuda==0.3.13.post1'
if [ "$(cat "$cache/packages" 2>/dev/null)" != "$packages" ]; then
    rm -rf "$cache"
    /usr/bin/python3 -m venv "$cache" >"$work/pip" 2>&1 || fail "no virtual environment" "$work/pip"
    "$cache/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: $packages >"$work/pip" 2>&1 ||
        fail "cannot install $packages" "$work/pip"
    echo "$packages" >"$cache/packages"
fi

alone "$cache/bin/python3" "$here/loopback.py"
says "$out" 'right: SEND' 'right: RDMA_WRITE' 'right: RDMA_READ' 'right: ATOMIC_FETCH_AND_ADD'

engine=$(echo "$cache"/lib/python3*/site-packages/mooncake/transfer_engine_bench)
options=(--metadata_server=P2PHANDSHAKE --protocol=rdma --device_name=iron0 --buffer_size=16777216)
listening='listening on [0-9.]*:[0-9]+'
for operation in read write; do
    served=$work/target
    : >"$served"
    (on_server "$engine" --mode=target --local_server_name="$host" "${options[@]}") >"$served" 2>&1 &
    job=$!
    # It takes memory after that.
    await "it listens" "$served" grep -qE "numa node num" "$served"
    segment=$(grep -oE "$listening" "$served" | tail -n 1 | grep -oE '[^ ]+$')
    alone "$engine" --mode=initiator --local_server_name="$client_host" --segment_id="$segment" \
        --operation=$operation --duration=1 --threads=1 --batch_size=4 "${options[@]}"
    says "$out" 'RDMA device: iron0' 'Test completed: duration .*, batch count [1-9]'
    says_not "$out" '^E[0-9]{4} ' 'Failed'
    says_not "$served" '^E[0-9]{4} ' 'Failed'
    kill $job
    wait $job
done
passed
