"""Two queue pairs of one process joined by PyPI's ibverbs: SEND, WRITE, READ and an atomic, data verified."""

import ctypes

import ibverbs as ib

ACCESS = (
    ib.AccessFlags.LOCAL_WRITE
    | ib.AccessFlags.REMOTE_WRITE
    | ib.AccessFlags.REMOTE_READ
    | ib.AccessFlags.REMOTE_ATOMIC
)
SIZE = 1 << 16

ctx = ib.get_device_list()[0].open()
pd, cq = ctx.alloc_pd(), ctx.create_cq(64)
port, gid = ctx.query_port(1), ctx.query_gid(1, 0)


def end():
    buffer = (ctypes.c_ubyte * SIZE)()
    region = pd.reg_mr(ctypes.addressof(buffer), SIZE, ACCESS)
    qp = pd.create_qp(ib.QPInitAttr(send_cq=cq, recv_cq=cq, qp_type=ib.QPType.RC))
    return buffer, region, qp, ib.local_qp_info(qp, port, gid, port=1, psn=0)


def completions(count):
    done = []
    while len(done) < count:
        for wc in cq.poll(16):
            wc.raise_for_status()
            done.append(wc.wr_id)
    return sorted(done)


(a, a_region, a_qp, a_info), (b, b_region, b_qp, b_info) = end(), end()
for qp, peer in ((a_qp, b_info), (b_qp, a_info)):
    ib.connect_rc(qp, ib.QPInfo.from_bytes(peer.to_bytes()), port=1, sgid_index=0, access=ACCESS)


def post(wr_id, opcode, length, **more):
    if opcode != ib.WROpcode.SEND:
        more = {"remote_addr": ctypes.addressof(b), "rkey": b_region.rkey, **more}
    sges = [ib.SGE(a_region, length)]
    a_qp.post_send(
        ib.SendWR(wr_id=wr_id, sg_list=sges, opcode=opcode, send_flags=ib.SendFlags.SIGNALED, **more)
    )


pattern = bytes(at * 7 % 251 for at in range(SIZE))
for wr_id, opcode in ((1, ib.WROpcode.SEND), (2, ib.WROpcode.RDMA_WRITE)):
    ctypes.memmove(a, pattern, SIZE)
    ctypes.memset(b, 0, SIZE)
    expected = [wr_id]
    if opcode == ib.WROpcode.SEND:
        b_qp.post_recv(ib.RecvWR(wr_id=10, sg_list=[ib.SGE(b_region, SIZE)]))
        expected.append(10)
    post(wr_id, opcode, SIZE)
    assert completions(len(expected)) == expected
    assert bytes(b) == pattern, opcode
    print(f"right: {opcode.name}")

ctypes.memset(a, 0, SIZE)
post(3, ib.WROpcode.RDMA_READ, SIZE)
assert completions(1) == [3]
assert bytes(a) == pattern
print("right: RDMA_READ")

word = ctypes.c_uint64.from_buffer(b)
word.value = 40
post(4, ib.WROpcode.ATOMIC_FETCH_AND_ADD, 8, compare_add=2)
assert completions(1) == [4]
assert (ctypes.c_uint64.from_buffer(a).value, word.value) == (40, 42)
print("right: ATOMIC_FETCH_AND_ADD")
