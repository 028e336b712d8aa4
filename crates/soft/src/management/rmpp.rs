//! Long messages of agents in several MADs (RMPP, IBA 13.6), as the kernel's umad does it for those that ask.
//!
//! A message is the MAD's headers, once, and all data behind them. The sender keeps to the receiver's window, sends again
//! from the last segment acknowledged when nothing is heard, and gives up after a few times.

use ironverbs_wire::mad::{MAD_LEN, Mad};

/// The RMPP header's fields, from the start of the MAD.
const VERSION: usize = 24;
const TYPE: usize = 25;
const FLAGS: usize = 26;
const STATUS: usize = 27;
const SEGMENT: std::ops::Range<usize> = 28..32;
const LENGTH: std::ops::Range<usize> = 32..36;
/// Common and RMPP header.
const HEADERS: usize = 36;
/// Bytes of a MAD behind them, which lengths count.
const ROOM: usize = MAD_LEN - HEADERS;

const ACTIVE: u8 = 1;
const FIRST: u8 = 2;
const LAST: u8 = 4;

const DATA: u8 = 1;
const ACK: u8 = 2;
const STOP: u8 = 3;
const ABORT: u8 = 4;

const METHOD: usize = 3;
const RESPONSE: u8 = 0x80;

/// Segments that a receiver lets be sent before it acknowledges.
const WINDOW: u32 = 32;
/// The longest message that is put together, in segments: some 13 MB.
const MOST_SEGMENTS: u32 = 1 << 16;

/// What a MAD is to RMPP.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing: it stands alone.
    None,
    Data,
    Ack,
    /// The other side wants no more.
    End,
}

pub(super) fn kind(mad: &Mad) -> Kind {
    if !has_rmpp(mad[1]) || mad[VERSION] != 1 || mad[FLAGS] & ACTIVE == 0 {
        return Kind::None;
    }
    match mad[TYPE] {
        DATA => Kind::Data,
        ACK => Kind::Ack,
        STOP | ABORT => Kind::End,
        _ => Kind::None,
    }
}

/// Whether MADs of the class have the header (IBA 13.6.2).
fn has_rmpp(class: u8) -> bool {
    matches!(class, 0x03 | 0x06 | 0x10..=0x12 | 0x30..=0x4f)
}

/// Where the data of a class begins.
fn data_at(class: u8) -> usize {
    match class {
        0x03 => 56,
        0x06 | 0x10..=0x12 => 64,
        // An OUI.
        _ => 40,
    }
}

fn word(mad: &Mad, at: std::ops::Range<usize>) -> u32 {
    let bytes = mad.get(at).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u32::from_be_bytes)
}

fn set_word(mad: &mut Mad, at: std::ops::Range<usize>, value: u32) {
    if let Some(room) = mad.get_mut(at) {
        room.copy_from_slice(&value.to_be_bytes());
    }
}

/// A message as it comes.
#[derive(Debug)]
pub(super) struct Incoming {
    message: Vec<u8>,
    /// The last segment taken.
    segment: u32,
    window: u32,
}

/// What a segment has led to.
#[derive(Debug)]
pub(super) struct Taken {
    /// To be sent back.
    pub(super) ack: Option<Mad>,
    /// The whole message, with its last segment.
    pub(super) message: Option<Vec<u8>>,
}

impl Incoming {
    pub(super) fn new() -> Incoming {
        Incoming { message: Vec::new(), segment: 0, window: WINDOW }
    }

    /// Takes a DATA segment.
    pub(super) fn take(&mut self, mad: &Mad) -> Taken {
        let number = word(mad, SEGMENT);
        let data_at = data_at(mad[1]);
        if number != self.segment.wrapping_add(1) || number > MOST_SEGMENTS {
            // Out of order, or once more: only tell up to where it has come.
            return Taken { ack: Some(self.ack(mad)), message: None };
        }
        let last = mad[FLAGS] & LAST != 0;
        let room = MAD_LEN - data_at;
        let unused = match last {
            true => ROOM.saturating_sub(word(mad, LENGTH) as usize).min(room),
            false => 0,
        };
        if number == 1 {
            self.message.extend(mad.iter().take(data_at));
        }
        self.message.extend(mad.iter().skip(data_at).take(room - unused));
        self.segment = number;
        if !(last || number == 1 || number == self.window) {
            return Taken { ack: None, message: None };
        }
        self.window = number.saturating_add(WINDOW);
        let message = last.then(|| std::mem::take(&mut self.message));
        Taken { ack: Some(self.ack(mad)), message }
    }

    fn ack(&self, of: &Mad) -> Mad {
        let mut ack = [0; MAD_LEN];
        let headers = data_at(of[1]);
        if let (Some(to), Some(from)) = (ack.get_mut(..headers), of.get(..headers)) {
            to.copy_from_slice(from);
        }
        ack[METHOD] ^= RESPONSE;
        (ack[TYPE], ack[FLAGS], ack[STATUS]) = (ACK, ACTIVE, 0);
        set_word(&mut ack, SEGMENT, self.segment);
        set_word(&mut ack, LENGTH, self.window);
        ack
    }
}

/// A message as it goes.
#[derive(Debug)]
pub(super) struct Outgoing {
    message: Vec<u8>,
    segments: u32,
    acknowledged: u32,
    window: u32,
    sent: u32,
}

impl Outgoing {
    /// None: the message has no data, or is of a class that cannot be cut.
    pub(super) fn new(message: Vec<u8>) -> Option<Outgoing> {
        let class = *message.get(1)?;
        let at = data_at(class);
        let segments = message.len().checked_sub(at)?.div_ceil(MAD_LEN - at).max(1);
        let segments = u32::try_from(segments).ok().filter(|n| *n <= MOST_SEGMENTS)?;
        has_rmpp(class).then_some(Outgoing {
            message,
            segments,
            acknowledged: 0,
            window: 1,
            sent: 0,
        })
    }

    /// The next segment that may be sent.
    pub(super) fn next(&mut self) -> Option<Mad> {
        if self.sent >= self.segments.min(self.window) {
            return None;
        }
        self.sent += 1;
        self.segment(self.sent)
    }

    fn segment(&self, number: u32) -> Option<Mad> {
        let at = data_at(*self.message.get(1)?);
        let room = MAD_LEN - at;
        let mut mad = [0; MAD_LEN];
        mad.get_mut(..at)?.copy_from_slice(self.message.get(..at)?);
        let start = at + (number as usize - 1) * room;
        let data = self.message.get(start..)?;
        let data = data.get(..room).unwrap_or(data);
        mad.get_mut(at..at + data.len())?.copy_from_slice(data);
        let unused = room * self.segments as usize - (self.message.len() - at);
        let (first, last) = (number == 1, number == self.segments);
        (mad[VERSION], mad[TYPE], mad[STATUS]) = (1, DATA, 0);
        mad[FLAGS] = mad[FLAGS] & 0xf8
            | ACTIVE
            | if first { FIRST } else { 0 }
            | if last { LAST } else { 0 };
        set_word(&mut mad, SEGMENT, number);
        let length = match (first, last) {
            (_, true) => ROOM - unused,
            (true, _) => ROOM * self.segments as usize - unused,
            _ => 0,
        };
        // Of a single segment both are the same.
        set_word(&mut mad, LENGTH, u32::try_from(length).unwrap_or(0));
        Some(mad)
    }

    /// Takes an acknowledgement. Whether that was the last.
    pub(super) fn acknowledge(&mut self, ack: &Mad) -> bool {
        let (segment, window) = (word(ack, SEGMENT), word(ack, LENGTH));
        if segment <= self.sent && segment >= self.acknowledged && window >= segment {
            self.acknowledged = segment;
            self.window = window.max(self.window);
        }
        self.acknowledged >= self.segments
    }

    /// Nothing was heard: sends again what is not acknowledged.
    pub(super) fn rewind(&mut self) {
        self.sent = self.acknowledged;
    }
}

/// Whether a message is sent in segments: what says so, and all that is longer than a MAD.
pub(super) fn is_long(message: &[u8]) -> bool {
    let active = message.get(FLAGS).is_some_and(|flags| flags & ACTIVE != 0);
    let class = message.get(1).is_some_and(|class| has_rmpp(*class));
    let data = message.get(TYPE).is_some_and(|kind| *kind == DATA);
    class && (message.len() > MAD_LEN || active && data)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(len: usize) -> Vec<u8> {
        let mut message = vec![1, 0x03, 2, 0x92];
        message.resize(56, 0);
        message.extend((0..len).map(|i| i as u8));
        message
    }

    /// Carries a message over; `lose` says whether the next segment or acknowledgement is lost.
    fn carry(message: &[u8], mut lose: impl FnMut() -> bool) -> Vec<u8> {
        let mut outgoing = Outgoing::new(message.to_vec()).unwrap();
        let mut incoming = Incoming::new();
        let mut count = 0;
        let mut lost = || {
            count += 1;
            assert!(count < 100_000, "no end");
            lose()
        };
        let mut whole = None;
        loop {
            let Some(segment) = outgoing.next() else {
                outgoing.rewind();
                continue;
            };
            if lost() {
                continue;
            }
            assert_eq!(kind(&segment), Kind::Data);
            let taken = incoming.take(&segment);
            whole = taken.message.or(whole);
            if let Some(ack) = taken.ack.filter(|_| !lost()) {
                assert_eq!((kind(&ack), ack[METHOD]), (Kind::Ack, 0x12));
                if outgoing.acknowledge(&ack) {
                    return whole.unwrap();
                }
            }
        }
    }

    #[test]
    fn messages_of_any_length_arrive() {
        for len in [0, 1, 199, 200, 201, 400, 6_400, 6_401, 12_800, 13_000, 100_000] {
            let message = message(len);
            let whole = carry(&message, || false);
            // The header's fields are those of the first segment.
            assert_eq!((whole.len(), &whole[56..]), (message.len(), &message[56..]), "{len}");
        }
    }

    #[test]
    fn losses_only_cost_time() {
        let message = message(20_000);
        for every in 2..8 {
            let mut random = fastrand::Rng::with_seed(every);
            let whole = carry(&message, || random.u64(..every) == 0);
            assert_eq!(whole[56..], message[56..], "{every}");
        }
    }

    #[test]
    fn no_segment_makes_it_fail() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut incoming = Incoming::new();
        let mut outgoing = Outgoing::new(message(5_000)).unwrap();
        for _ in 0..10_000 {
            let mut mad = [0; MAD_LEN];
            random.fill(&mut mad);
            (mad[1], mad[VERSION], mad[28], mad[29]) = (0x03, 1, 0, 0);
            let taken = incoming.take(&mad);
            assert!(taken.message.is_none_or(|message| message.len() < 20_000_000));
            outgoing.acknowledge(&mad);
            let _ = outgoing.next();
        }
    }
}
