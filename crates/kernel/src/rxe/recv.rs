//! A receive request in bytes (`struct rxe_recv_wqe`).

use super::Slot;

/// Bytes in front of the scatter/gather entries.
pub const HEADER: usize = 40;
/// Bytes of a scatter/gather entry: address, length, lkey, as programs have it.
pub const SGE: usize = 16;

/// Entries for which an element of that many bytes has room.
pub fn max_sge(element: usize) -> u32 {
    (element.saturating_sub(HEADER) / SGE) as u32
}

/// Writes all but the entries, which follow from [`HEADER`] on: `sges` of them, for `length` bytes.
#[inline]
pub fn put(slot: &mut impl Slot, wr_id: u64, length: u32, sges: u32) {
    slot.put64(0, wr_id);
    slot.put64(8, 0);
    slot.put32(16, length);
    slot.put32(20, length);
    // The entry that is filled next, how many there are, and how much of it is filled.
    slot.put32(24, 0);
    slot.put32(28, sges);
    slot.put64(32, 0);
}

#[cfg(test)]
mod tests {
    use super::super::send::tests::Bytes;
    use super::*;

    #[test]
    fn a_receive_is_as_the_header_has_it() {
        let mut bytes = Bytes(vec![0xee; HEADER + SGE]);
        put(&mut bytes, 0x1122, 4096, 3);
        let fields = [16, 20, 24, 28, 32, 36].map(|at| bytes.get32(at));
        assert_eq!((bytes.get64(0), fields), (0x1122, [4096, 4096, 0, 3, 0, 0]));
        assert!(bytes.0[HEADER..].iter().all(|&byte| byte == 0xee));
    }

    #[test]
    fn entries_fit_into_an_element() {
        assert_eq!([0, 40, 55, 56, 64, 512].map(max_sge), [0, 0, 0, 1, 1, 29]);
    }
}
