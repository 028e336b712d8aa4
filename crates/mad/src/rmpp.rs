//! Messages longer than a MAD: the reliable multi-packet protocol (IBA 13.6).
//!
//! A message is cut into segments, each a MAD of its own with the headers of its class in front. The receiver takes them
//! in order, says by an ACK up to which it has them and how many more it would take, and the sender repeats what is not
//! acknowledged in time. Either may abort.

use ironverbs_wire::mad::{MAD_LEN, Mad};

use crate::Instant;

/// Bytes of the common header and the protocol's own.
const HEADERS: usize = 36;
const VERSION: u8 = 1;
const DATA: u8 = 1;
const ACK: u8 = 2;
const STOP: u8 = 3;
const ABORT: u8 = 4;
const ACTIVE: u8 = 1;
const FIRST: u8 = 2;
const LAST: u8 = 4;
const RESPONSE: u8 = 0x80;

/// Segments that a receiver takes before it has to say so: as the kernel.
const WINDOW: u32 = 64;

/// The longest message that is taken: 4 MiB.
const MOST: u32 = (4 << 20) / 200;

/// How long a sender waits for an ACK, in nanoseconds, and how often it sends again.
const PATIENCE: u64 = 100_000_000;
const RETRIES: u32 = 10;

/// Status of an abort (IBA 13.6.2.3, table): too many retries, an inconsistent segment, a version.
const TOO_MANY_RETRIES: u8 = 126;
const INCONSISTENT: u8 = 118;

/// Bytes in front of the data of a class's MADs (IBA 13.6.1, 15.2.1.1, 16.5).
pub fn data_offset(class: u8) -> usize {
    match class {
        0x03 => 56,
        0x06 | 0x10..=0x12 => 64,
        0x30..=0x4f => 40,
        _ => HEADERS,
    }
}

/// Whether MADs of the class have the protocol's header (IBA 13.6.2).
pub fn has_rmpp(class: u8) -> bool {
    matches!(class, 0x03 | 0x06 | 0x10..=0x12 | 0x30..=0x4f)
}

/// Whether a MAD is part of such an exchange.
pub fn is_active(mad: &Mad) -> bool {
    mad[24] == VERSION && mad[26] & ACTIVE != 0
}

/// Whether a message is sent in segments: what says so, and all that is longer than a MAD. As the kernel takes it, the flag is
/// enough: programs leave the rest of the header to whoever cuts the message.
pub fn is_long(message: &[u8]) -> bool {
    let at = |at: usize| message.get(at).copied().unwrap_or(0);
    let data = matches!(at(25), 0 | DATA) && at(26) & ACTIVE != 0;
    has_rmpp(at(1)) && (message.len() > MAD_LEN || data)
}

/// What a MAD is to the exchange it is part of.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Nothing: it stands alone.
    None,
    /// For a [`Receiver`].
    Data,
    /// For a [`Sender`].
    Ack,
    /// Either side gives up: for both.
    End,
}

/// What a MAD is to the exchange it is part of.
pub fn part(mad: &Mad) -> Part {
    match mad[25] {
        _ if !has_rmpp(mad[1]) || !is_active(mad) => Part::None,
        DATA => Part::Data,
        ACK => Part::Ack,
        STOP | ABORT => Part::End,
        _ => Part::None,
    }
}

fn word(mad: &Mad, at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&mad[at..at + 4]);
    u32::from_be_bytes(bytes)
}

fn put(mad: &mut Mad, kind: u8, flags: u8, status: u8, segment: u32, last: u32) {
    // The time to answer, in the upper five bits, is left as "unknown".
    mad[24..28].copy_from_slice(&[VERSION, kind, 0x1f << 3 | flags | ACTIVE, status]);
    mad[28..32].copy_from_slice(&segment.to_be_bytes());
    mad[32..36].copy_from_slice(&last.to_be_bytes());
}

/// Sends one message.
#[derive(Debug)]
pub struct Sender {
    head: Mad,
    offset: usize,
    data: Vec<u8>,
    segments: u32,
    /// All up to this were acknowledged.
    acked: u32,
    /// The last that may be sent.
    window: u32,
    /// The next to be sent.
    next: u32,
    deadline: Option<Instant>,
    left: u32,
    failed: bool,
}

impl Sender {
    /// A sender of `data` behind the headers of `head`, whose class decides where data starts.
    pub fn new(head: &Mad, data: Vec<u8>) -> Sender {
        let offset = data_offset(head[1]);
        let room = MAD_LEN - offset;
        let segments = data.len().div_ceil(room).max(1) as u32;
        Sender {
            head: *head,
            offset,
            data,
            segments,
            acked: 0,
            window: 1,
            next: 1,
            deadline: None,
            left: RETRIES,
            failed: false,
        }
    }

    /// The next MAD to send now.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Mad> {
        if self.failed || self.next > self.window.min(self.segments) {
            return None;
        }
        let segment = self.segment(self.next);
        self.next += 1;
        self.deadline.get_or_insert(now.after(PATIENCE));
        Some(segment)
    }

    fn segment(&self, number: u32) -> Mad {
        let room = MAD_LEN - self.offset;
        let start = (number as usize - 1) * room;
        let data = self.data.get(start..).unwrap_or_default();
        let data = &data[..data.len().min(room)];
        let mut mad = self.head;
        mad[self.offset..].fill(0);
        mad[self.offset..self.offset + data.len()].copy_from_slice(data);
        let (first, last) = (number == 1, number == self.segments);
        let flags = if first { FIRST } else { 0 } | if last { LAST } else { 0 };
        // Of the first the whole, of the last its own; the headers of the class count in each.
        let class = self.offset - HEADERS;
        let length = match (first, last) {
            (true, _) => self.segments as usize * class + self.data.len(),
            (false, true) => class + data.len(),
            _ => 0,
        };
        put(&mut mad, DATA, flags, 0, number, length as u32);
        mad
    }

    /// Takes an ACK, STOP or ABORT of this exchange.
    pub fn handle(&mut self, now: Instant, mad: &Mad) {
        match mad[25] {
            ACK => {
                let (segment, window) = (word(mad, 28), word(mad, 32));
                if segment > self.segments || segment >= self.next || window < segment {
                    return;
                }
                if segment > self.acked {
                    self.acked = segment;
                    self.left = RETRIES;
                    self.deadline = Some(now.after(PATIENCE));
                }
                self.window = self.window.max(window);
            }
            STOP | ABORT => self.failed = true,
            _ => {}
        }
    }

    /// Time has come to `now`: sends again from what was not acknowledged on. A MAD that says that it is given up.
    pub fn handle_timeout(&mut self, now: Instant) -> Option<Mad> {
        if self.is_done() || self.failed || self.deadline.is_none_or(|deadline| deadline > now) {
            return None;
        }
        if self.left == 0 {
            self.failed = true;
            let mut abort = self.head;
            put(&mut abort, ABORT, 0, TOO_MANY_RETRIES, 0, 0);
            return Some(abort);
        }
        self.left -= 1;
        self.next = self.acked + 1;
        self.deadline = Some(now.after(PATIENCE));
        None
    }

    /// When [`Sender::handle_timeout`] is to be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.is_done() || self.failed { None } else { self.deadline }
    }

    /// Whether the receiver has all of it.
    pub fn is_done(&self) -> bool {
        self.acked == self.segments
    }

    /// Whether it was given up, by either side.
    pub fn has_failed(&self) -> bool {
        self.failed
    }
}

/// What came of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// A MAD to send back.
    pub reply: Option<Mad>,
    /// The whole message: the headers of the first segment and all data, as long as it is.
    pub done: Option<Vec<u8>>,
    /// It was aborted, by either side.
    pub failed: bool,
}

/// Receives one message.
#[derive(Debug, Default)]
pub struct Receiver {
    /// Headers and data so far.
    whole: Vec<u8>,
    offset: usize,
    got: u32,
    window: u32,
    done: bool,
}

impl Receiver {
    /// A receiver that has nothing yet.
    pub fn new() -> Receiver {
        Receiver { window: WINDOW, ..Receiver::default() }
    }

    /// Takes a DATA, STOP or ABORT of this exchange.
    pub fn handle(&mut self, mad: &Mad) -> Step {
        match mad[25] {
            DATA => {}
            STOP | ABORT => return Step { failed: true, ..Step::default() },
            _ => return Step::default(),
        }
        let (segment, flags) = (word(mad, 28), mad[26]);
        let last = flags & LAST != 0;
        if self.done || segment <= self.got {
            // Its ACK was lost.
            return Step { reply: Some(self.ack(mad)), ..Step::default() };
        }
        if segment != self.got + 1 {
            // What comes too early comes again.
            return Step::default();
        }
        if (segment == 1) != (flags & FIRST != 0) || segment > MOST {
            let mut abort = *mad;
            abort[3] ^= RESPONSE;
            put(&mut abort, ABORT, 0, INCONSISTENT, 0, 0);
            return Step { reply: Some(abort), failed: true, done: None };
        }
        if segment == 1 {
            self.offset = data_offset(mad[1]);
            self.whole.extend_from_slice(&mad[..self.offset]);
        }
        self.got = segment;
        let room = MAD_LEN - self.offset;
        let length = match last {
            // A single one tells the whole.
            true => (word(mad, 32) as usize).saturating_sub(self.offset - HEADERS).min(room),
            false => room,
        };
        self.whole.extend_from_slice(&mad[self.offset..self.offset + length]);
        self.done = last;
        let full = segment == self.window;
        if full {
            self.window += WINDOW;
        }
        let reply = (segment == 1 || full || last).then(|| self.ack(mad));
        let done = last.then(|| std::mem::take(&mut self.whole));
        Step { reply, done, failed: false }
    }

    fn ack(&self, mad: &Mad) -> Mad {
        let mut ack = *mad;
        ack[3] ^= RESPONSE;
        ack[4..6].fill(0);
        ack[self.offset..].fill(0);
        put(&mut ack, ACK, 0, 0, self.got, self.window);
        ack
    }
}
