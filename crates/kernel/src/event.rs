//! What is read from the descriptors for events.

/// Bytes of `struct ib_uverbs_async_event_desc`.
pub const ASYNC: usize = 16;
/// Bytes of `struct ib_uverbs_comp_event_desc`.
pub const COMPLETION: usize = 8;

/// An asynchronous event: what its object was called when it was made, or the port; and its type.
pub fn asynchronous(record: &[u8; ASYNC]) -> (u64, u32) {
    let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = *record;
    (u64::from_ne_bytes([a, b, c, d, e, f, g, h]), u32::from_ne_bytes([i, j, k, l]))
}

/// The record of an event of the device itself.
pub fn of_device(event_type: u32) -> [u8; ASYNC] {
    let mut record = [0; ASYNC];
    if let Some(place) = record.get_mut(8..12) {
        place.copy_from_slice(&event_type.to_ne_bytes());
    }
    record
}

/// What the completion queue of an event was called when it was made.
pub fn completion(record: &[u8; COMPLETION]) -> u64 {
    u64::from_ne_bytes(*record)
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_event_has_its_object_first() {
        let mut record = [0; super::ASYNC];
        record[..8].copy_from_slice(&0x1122_3344_5566_7788u64.to_ne_bytes());
        record[8..12].copy_from_slice(&9u32.to_ne_bytes());
        assert_eq!(super::asynchronous(&record), (0x1122_3344_5566_7788, 9));
        assert_eq!(super::asynchronous(&super::of_device(8)), (0, 8));
    }
}
