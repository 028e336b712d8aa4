//! A send request in bytes (`struct rxe_send_wqe`).
//!
//! Every request has [`head`] and [`tail`], and in between what its kind has. Behind the tail follow, from [`HEADER`] on, the
//! scatter/gather entries, or the data itself where it is inline.

use super::Slot;

/// Bytes in front of the entries or the data.
pub const HEADER: usize = 208;
/// Bytes of a scatter/gather entry: address, length, lkey, as programs have it.
pub const SGE: usize = 16;

/// Opcodes (`enum ib_uverbs_wr_opcode`, and the header's `ibv_wr_opcode`).
pub const RDMA_WRITE: u32 = 0;
/// See [`RDMA_WRITE`].
pub const RDMA_WRITE_WITH_IMM: u32 = 1;
/// See [`RDMA_WRITE`].
pub const SEND: u32 = 2;
/// See [`RDMA_WRITE`].
pub const SEND_WITH_IMM: u32 = 3;
/// See [`RDMA_WRITE`].
pub const RDMA_READ: u32 = 4;
/// See [`RDMA_WRITE`].
pub const ATOMIC_CMP_AND_SWP: u32 = 5;
/// See [`RDMA_WRITE`].
pub const ATOMIC_FETCH_AND_ADD: u32 = 6;
/// See [`RDMA_WRITE`].
pub const LOCAL_INV: u32 = 7;
/// See [`RDMA_WRITE`].
pub const BIND_MW: u32 = 8;
/// See [`RDMA_WRITE`].
pub const SEND_WITH_INV: u32 = 9;

/// The data is behind the request itself (`IBV_SEND_INLINE`).
pub const INLINE: u32 = 1 << 3;

/// Whether the kernel has the opcode in its tables: it does not check that.
#[inline]
pub fn is_known(opcode: u32) -> bool {
    opcode <= SEND_WITH_INV
}

const IOVA: usize = 152;

/// What every request has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    /// The program's name for it.
    pub wr_id: u64,
    /// One that [`is_known`].
    pub opcode: u32,
    /// `enum ibv_send_flags`.
    pub flags: u32,
    /// Immediate data as it is in memory, or the key to invalidate.
    pub imm: u32,
}

/// Writes the start of a request.
#[inline]
pub fn head(slot: &mut impl Slot, head: &Head) {
    slot.put64(0, head.wr_id);
    slot.put32(8, 0);
    slot.put32(12, head.opcode);
    slot.put32(16, head.flags);
    slot.put32(20, head.imm);
}

/// Marks the data as inline, in the flags that [`head`] wrote.
#[inline]
pub fn mark_inline(slot: &mut impl Slot, flags: u32) {
    slot.put32(16, flags | INLINE);
}

/// Writes where a WRITE or READ goes to.
#[inline]
pub fn rdma(slot: &mut impl Slot, remote_addr: u64, rkey: u32) {
    slot.put64(24, remote_addr);
    slot.put32(32, rkey);
    slot.put64(IOVA, remote_addr);
}

/// Writes an atomic's operands; `compare_add` is what is compared with, or added.
#[inline]
pub fn atomic(slot: &mut impl Slot, remote_addr: u64, compare_add: u64, swap: u64, rkey: u32) {
    slot.put64(24, remote_addr);
    slot.put64(32, compare_add);
    slot.put64(40, swap);
    slot.put32(48, rkey);
    slot.put64(IOVA, remote_addr);
}

/// Writes a datagram's destination. Kernels that know address handles by number need nothing else; for others
/// [`address`] must follow.
#[inline]
pub fn datagram(slot: &mut impl Slot, qpn: u32, qkey: u32, ah: u32) {
    slot.put32(24, qpn);
    slot.put32(28, qkey);
    // The P_Key's index, which is the queue pair's.
    slot.put32(32, 0);
    slot.put32(36, ah);
}

/// Writes a datagram's address in full, for kernels before 5.15.
pub fn address(slot: &mut impl Slot, address: &Address) {
    for (i, word) in address.0.chunks_exact(8).enumerate() {
        let word = word.first_chunk().copied().unwrap_or_default();
        slot.put64(56 + 8 * i, u64::from_ne_bytes(word));
    }
}

/// What a window is bound to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bind {
    /// First address.
    pub addr: u64,
    /// Bytes; 0 takes the binding away.
    pub length: u64,
    /// The region's lkey.
    pub mr_lkey: u32,
    /// The window's present rkey.
    pub mw_rkey: u32,
    /// The rkey that it is to have.
    pub rkey: u32,
    /// Rights.
    pub access: u32,
}

/// Writes a binding.
#[inline]
pub fn bind(slot: &mut impl Slot, bind: &Bind) {
    slot.put64(24, bind.addr);
    slot.put64(32, bind.length);
    slot.put32(40, bind.mr_lkey);
    slot.put32(44, bind.mw_rkey);
    slot.put32(48, bind.rkey);
    slot.put32(52, bind.access);
}

/// Writes the rest: that it is fresh, its number `ssn` in the queue, and how much data in how many entries; none where it is
/// inline.
#[inline]
pub fn tail(slot: &mut impl Slot, ssn: u32, length: u32, sges: u32) {
    // Status and state.
    slot.put64(144, 0);
    // What the kernel keeps: mask, PSNs, length acknowledged. It takes `has_rd_atomic` for its own note of an earlier try.
    slot.put64(160, 0);
    slot.put64(168, 0);
    slot.put32(176, ssn);
    slot.put32(180, 0);
    data(slot, length, sges);
}

/// Writes how much data there is, over what [`tail`] wrote.
#[inline]
pub fn data(slot: &mut impl Slot, length: u32, sges: u32) {
    slot.put32(184, length);
    slot.put32(188, length);
    // The entry that is sent next, how many there are, and how much of it is sent.
    slot.put32(192, 0);
    slot.put32(196, sges);
    slot.put64(200, 0);
}

/// A destination as kernels before 5.15 want it in every datagram (`struct rxe_av`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Address([u8; 88]);

impl Address {
    /// From the path's attributes and the GID of the own end. The destination's MAC address is the kernel's to find.
    pub fn new(path: &crate::command::Path, sgid: [u8; 16]) -> Address {
        let is_v4 = sgid.starts_with(&MAPPED);
        let mut out = crate::command::Bytes::new()
            .u8(path.port_num)
            .u8(if is_v4 { 1 } else { 2 })
            .zeros(6)
            .bytes(&path.dgid)
            .u32(path.flow_label)
            .u8(path.sgid_index)
            .u8(path.hop_limit)
            .u8(path.traffic_class)
            .u8(0)
            .0;
        for gid in [sgid, path.dgid] {
            out.extend(socket_address(is_v4, gid));
        }
        Address(out.first_chunk().copied().unwrap_or([0; 88]))
    }
}

/// Of a GID that stands for an IPv4 address.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// The GID's address as `struct sockaddr_in` or `sockaddr_in6`, in the room of the larger.
fn socket_address(is_v4: bool, gid: [u8; 16]) -> [u8; 28] {
    const AF_INET: u16 = 2;
    const AF_INET6: u16 = 10;
    let mut out = [0; 28];
    let (family, bytes, at) = match is_v4 {
        true => (AF_INET, gid.get(12..).unwrap_or_default(), 4),
        false => (AF_INET6, gid.as_slice(), 8),
    };
    let family = family.to_ne_bytes();
    for (to, from) in out.iter_mut().zip(family) {
        *to = from;
    }
    for (to, from) in out.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
    out
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::command::Path;

    pub(in super::super) struct Bytes(pub Vec<u8>);

    impl Bytes {
        pub(in super::super) fn get32(&self, at: usize) -> u32 {
            u32::from_ne_bytes(self.0[at..at + 4].try_into().unwrap())
        }

        pub(in super::super) fn get64(&self, at: usize) -> u64 {
            u64::from_ne_bytes(self.0[at..at + 8].try_into().unwrap())
        }
    }

    impl Slot for Bytes {
        fn put32(&mut self, at: usize, value: u32) {
            assert!(at.is_multiple_of(4));
            self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }

        fn put64(&mut self, at: usize, value: u64) {
            assert!(at.is_multiple_of(8));
            self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
    }

    fn used() -> Bytes {
        // What an earlier request left.
        Bytes(vec![0xee; HEADER + SGE])
    }

    #[test]
    fn a_write_is_as_the_header_has_it() {
        let mut bytes = used();
        let (opcode, flags) = (RDMA_WRITE_WITH_IMM, 2);
        head(&mut bytes, &Head { wr_id: 0x1122, opcode, flags, imm: 0x3344 });
        rdma(&mut bytes, 0x7000_1000, 0x55);
        tail(&mut bytes, 7, 4096, 1);
        assert_eq!(bytes.get64(0), 0x1122);
        let fields = [8, 12, 16, 20].map(|at| bytes.get32(at));
        assert_eq!(fields, [0, RDMA_WRITE_WITH_IMM, 2, 0x3344]);
        assert_eq!((bytes.get64(24), bytes.get32(32)), (0x7000_1000, 0x55));
        assert_eq!((bytes.get64(152), bytes.get32(176)), (0x7000_1000, 7));
        let fields = [184, 188, 192, 196, 200, 204].map(|at| bytes.get32(at));
        assert_eq!(fields, [4096, 4096, 0, 1, 0, 0]);
    }

    #[test]
    fn nothing_of_the_kernels_own_is_left_of_an_earlier_request() {
        let mut bytes = used();
        tail(&mut bytes, 0, 0, 0);
        let kept = [144, 148, 160, 164, 168, 172, 180].map(|at| bytes.get32(at));
        assert_eq!(kept, [0; 7]);
    }

    #[test]
    fn atomics_datagrams_and_bindings_share_their_places() {
        let mut bytes = used();
        atomic(&mut bytes, 8, 9, 10, 11);
        assert_eq!([24, 32, 40, IOVA].map(|at| bytes.get64(at)), [8, 9, 10, 8]);
        assert_eq!(bytes.get32(48), 11);
        datagram(&mut bytes, 0x11, 0x8001_0000, 5);
        assert_eq!([24, 28, 32, 36].map(|at| bytes.get32(at)), [0x11, 0x8001_0000, 0, 5]);
        let wanted = Bind { addr: 1, length: 2, mr_lkey: 3, mw_rkey: 4, rkey: 5, access: 6 };
        bind(&mut bytes, &wanted);
        assert_eq!([24, 32].map(|at| bytes.get64(at)), [1, 2]);
        assert_eq!([40, 44, 48, 52].map(|at| bytes.get32(at)), [3, 4, 5, 6]);
    }

    #[test]
    fn an_address_for_older_kernels_has_both_ends() {
        let mapped = |last: u8| {
            let mut gid = [0; 16];
            gid[10..].copy_from_slice(&[0xff, 0xff, 10, 77, 0, last]);
            gid
        };
        let path = Path {
            dgid: mapped(2),
            flow_label: 0x11,
            sgid_index: 1,
            hop_limit: 64,
            traffic_class: 3,
            port_num: 1,
            ..Path::default()
        };
        let mut bytes = used();
        address(&mut bytes, &Address::new(&path, mapped(1)));
        let at = |place: usize, n: usize| bytes.0[56 + place..56 + place + n].to_vec();
        assert_eq!(at(0, 2), [1, 1]);
        assert_eq!(at(8, 16), mapped(2));
        assert_eq!((bytes.get32(56 + 24), at(28, 3)), (0x11, vec![1, 64, 3]));
        assert_eq!((at(32, 2), at(36, 4)), (vec![2, 0], vec![10, 77, 0, 1]));
        assert_eq!((at(60, 2), at(64, 4)), (vec![2, 0], vec![10, 77, 0, 2]));
        // IPv6: behind port and flow information.
        let v6 = Address::new(&Path { dgid: [9; 16], ..path }, [8; 16]);
        assert_eq!((v6.0[1], &v6.0[40..56], &v6.0[68..84]), (2, &[8; 16][..], &[9; 16][..]));
    }

    #[test]
    fn only_opcodes_in_the_kernels_tables_go_there() {
        assert!([RDMA_WRITE, SEND_WITH_INV, BIND_MW].into_iter().all(is_known));
        assert!(![10, 16, u32::MAX].into_iter().any(is_known));
    }
}
