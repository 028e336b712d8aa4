//! Requests in bytes (`struct siw_sqe`, `struct siw_rqe`).
//!
//! A request is written but for its word, then the word with [`VALID`](super::VALID), by which it is the kernel's.

use super::VALID;

/// Bytes of a send request.
pub const SEND: usize = 120;
/// Bytes of a receive request.
pub const RECEIVE: usize = 112;
/// Bytes of a scatter/gather entry: address, length, lkey, as programs have it.
pub const SGE: usize = 16;
/// Where a send request has its entries.
pub const SEND_LIST: usize = 24;
/// Where a receive request has them.
pub const RECEIVE_LIST: usize = 16;
/// Where a send request has its data if that is inline: behind its first entry, which has the length.
pub const INLINE_DATA: usize = SEND_LIST + SGE;
/// The most that can be.
pub const MAX_INLINE: usize = SGE * (super::MAX_SGE - 1);

/// Where a request has the program's name for it.
pub const ID: usize = 0;
/// Where a send request has the peer's key: of a WRITE or READ, or the one to invalidate.
pub const RKEY: usize = 12;
/// Where it has the peer's address.
pub const REMOTE_ADDRESS: usize = 16;

/// `enum ib_uverbs_wr_opcode`, as far as the kernel's siw takes it from programs.
pub const RDMA_WRITE: u32 = 0;
/// See [`RDMA_WRITE`].
pub const SEND_ONLY: u32 = 2;
/// See [`RDMA_WRITE`].
pub const RDMA_READ: u32 = 4;
/// See [`RDMA_WRITE`].
pub const SEND_WITH_INV: u32 = 9;

/// Flags of requests (`enum ibv_send_flags`).
pub const FENCE: u32 = 1;
/// See [`FENCE`].
pub const SIGNALED: u32 = 1 << 1;
/// See [`FENCE`].
pub const SOLICITED: u32 = 1 << 2;
/// See [`FENCE`].
pub const INLINE: u32 = 1 << 3;

/// The word of a send request: `None` for one that the kernel would not take. It stops at those without saying which it was,
/// so they must not come to it: an opcode without a meaning for iWARP (immediate data, atomics, windows), a READ that waits
/// for others (FENCE) or has not exactly one place for its data, inline data of a kind that has none, too long a list.
#[inline]
pub fn send_word(opcode: u32, flags: u32, sges: usize) -> Option<u32> {
    let (own, possible, most) = match opcode {
        RDMA_WRITE => (0, FENCE | SIGNALED | SOLICITED | INLINE, super::MAX_SGE),
        SEND_ONLY => (3, FENCE | SIGNALED | SOLICITED | INLINE, super::MAX_SGE),
        // Exactly one, also where nothing is to be read: the kernel looks at it.
        RDMA_READ if sges == 1 => (1, SIGNALED | SOLICITED, 1),
        SEND_WITH_INV => (5, FENCE | SIGNALED | SOLICITED, super::MAX_SGE),
        _ => return None,
    };
    if flags & !possible & (FENCE | INLINE) != 0 || flags & INLINE == 0 && sges > most {
        return None;
    }
    let mut word = VALID;
    for (flag, theirs) in
        [(INLINE, 1 << 1), (SIGNALED, 1 << 2), (SOLICITED, 1 << 3), (FENCE, 1 << 4)]
    {
        if flags & flag != 0 {
            word |= theirs;
        }
    }
    let entries = if flags & INLINE != 0 { 1 } else { sges as u8 };
    Some(join(word, entries, own))
}

/// The word of a receive request with so many entries; `None` for too many.
#[inline]
pub fn receive_word(sges: usize) -> Option<u32> {
    (sges <= super::MAX_SGE).then(|| join(VALID, sges as u8, 0))
}

#[inline]
fn join(flags: u16, entries: u8, opcode: u8) -> u32 {
    let [low, high] = flags.to_ne_bytes();
    u32::from_ne_bytes([low, high, entries, opcode])
}

/// Whether the word says that the element is the kernel's.
#[inline]
pub fn is_taken(word: u32) -> bool {
    let [low, high, _, _] = word.to_ne_bytes();
    u16::from_ne_bytes([low, high]) & VALID != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(word: Option<u32>) -> Option<(u16, u8, u8)> {
        let [low, high, entries, opcode] = word?.to_ne_bytes();
        Some((u16::from_ne_bytes([low, high]), entries, opcode))
    }

    #[test]
    fn words_are_as_the_header_has_them() {
        assert_eq!(fields(send_word(RDMA_WRITE, 0, 6)), Some((1, 6, 0)));
        assert_eq!(fields(send_word(RDMA_READ, SIGNALED, 1)), Some((1 | 4, 1, 1)));
        assert_eq!(fields(send_word(SEND_ONLY, SOLICITED | FENCE, 0)), Some((1 | 8 | 16, 0, 3)));
        assert_eq!(fields(send_word(SEND_ONLY, INLINE, 9)), Some((1 | 2, 1, 3)));
        assert_eq!(fields(send_word(SEND_WITH_INV, 0, 2)), Some((1, 2, 5)));
        assert_eq!(fields(receive_word(3)), Some((1, 3, 0)));
    }

    #[test]
    fn what_the_kernel_would_stop_at_does_not_come_to_it() {
        for opcode in [1, 3, 5, 6, 7, 8, 10, u32::MAX] {
            assert_eq!(send_word(opcode, 0, 1), None, "{opcode}");
        }
        assert_eq!(send_word(RDMA_READ, FENCE, 1), None);
        assert_eq!(send_word(RDMA_READ, INLINE, 1), None);
        assert_eq!(send_word(RDMA_READ, 0, 2), None);
        assert_eq!(send_word(RDMA_READ, 0, 0), None);
        assert_eq!(send_word(SEND_WITH_INV, INLINE, 1), None);
        assert_eq!(send_word(SEND_ONLY, 0, 7), None);
        assert_eq!(receive_word(7), None);
        // With entries that would be few in a byte.
        assert_eq!(send_word(SEND_ONLY, 0, 257), None);
        assert_eq!(receive_word(257), None);
    }

    #[test]
    fn an_element_is_the_kernels_while_it_is_valid() {
        assert!(is_taken(receive_word(0).unwrap()));
        assert!(!is_taken(0) && !is_taken(join(0, 3, 5)));
    }
}
