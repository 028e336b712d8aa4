//! The ring's protocol over any memory: the shared mapping of [`super::ring`], or a model checker's.
//!
//! The ring is lines of 64 bytes. A record is a header word and its bytes, on as many lines in a row
//! as they need; a record that does not fit before the end of the ring is preceded by a wrap header
//! and starts at line 0. A header of 0 is none: **before a record is published, the header word of
//! the line behind it is 0**, so that the consumer, which knows where the next header comes, polls
//! that one line and can never take old payload for a header. The producer sees to it ahead of time,
//! after a record is published, so that a record of one line costs one hand-over of one cache line.
//!
//! The consumer publishes how far it is only now and then: each quarter of the ring, when it finds
//! nothing, and when the producer says that it is blocked.
//!
//! What the other side wrote is read once and checked; positions are each side's own. A value that
//! cannot be ends the lane ([`Broken`]), whatever it was meant to do.

use std::cell::Cell;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

/// Bytes of a line.
pub const LINE: usize = 64;

/// Bytes of the header word, which starts a record's first line.
pub const HEADER: usize = 4;

/// The longest record: a payload of 16 KiB and 128 bytes of headers.
pub const MAX_RECORD: usize = 16 * 1024 + 128;

/// Bits of a header word: length in the lowest, kind from bit 16 on.
const LENGTH: u32 = 0xffff;
const KIND: u32 = 16;
const RECORD: u32 = 1 << 31;
const WRAP: u32 = 1 << 30;

/// Lines that are made ready behind the last record.
const AHEAD: u32 = 8;

/// States of [`Word::Waits`] in its lower two bits. Above them is which sleep it is: one wake for
/// each.
const BLOCKED: u32 = 1;
const ASLEEP: u32 = 2;
const STATE: u32 = 3;

/// Values of [`Word::Closed`] and [`Word::Gone`] besides 0.
const OVER: u32 = 1;
const LEAVING: u32 = 2;

/// The words that both sides use. Each is written by one side only.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Word {
    /// The header of the line with this number. Written by the producer.
    Header(u32),
    /// Lines consumed so far, modulo 2^32. Written by the consumer.
    Head,
    /// Which sleep the consumer is in; 0: none. Written by the consumer.
    Sleeps,
    /// Whether the producer waits for room, and how. Written by the producer.
    Waits,
    /// 1: the consumer has mapped the ring. Written by the consumer.
    Taken,
    /// 1: the consumer will consume no more; 2: its process is about to end. Written by the
    /// consumer.
    Closed,
    /// 1: the producer will produce no more; 2: its process is about to end. Written by the
    /// producer.
    Gone,
}

/// Memory with the words. Each side has its own view of the same memory.
pub trait Memory {
    /// Lines of the ring.
    const LINES: u32;

    /// Loads a word.
    fn load(&self, word: Word, order: Ordering) -> u32;
    /// Stores a word.
    fn store(&self, word: Word, value: u32, order: Ordering);
    /// A sequentially consistent fence.
    fn fence(&self);
}

/// The other side wrote what it never writes: the lane is of no more use.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the other side of a ring wrote nonsense into it")]
pub struct Broken;

/// Lines that a record of `len` bytes takes.
fn lines_of(len: usize) -> u32 {
    (HEADER + len).div_ceil(LINE) as u32
}

/// A record being written: its first line and its length.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Reserved {
    skip: u32,
    lines: u32,
    len: u32,
}

/// The producer's position and what it knows of the consumer's.
#[derive(Debug)]
pub struct Writer<M> {
    memory: M,
    /// Lines used so far, modulo 2^32, and the line that comes next.
    tail: u32,
    at: u32,
    /// The last head seen, modulo 2^32.
    head: u32,
    /// From `at` on, so many lines have no header.
    ready: u32,
    reserved: Option<Reserved>,
    /// What [`Word::Waits`] is, and what it was when we last slept.
    waits: u32,
    slept: u32,
    /// The consumer's sleep that we last gave a wake for.
    woken: Cell<u32>,
    broken: bool,
}

impl<M: Memory> Writer<M> {
    /// Over memory that is all zero.
    pub fn new(memory: M) -> Writer<M> {
        Writer {
            memory,
            tail: 0,
            at: 0,
            head: 0,
            ready: M::LINES,
            reserved: None,
            waits: 0,
            slept: 0,
            woken: Cell::new(0),
            broken: false,
        }
    }

    /// The memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Makes room for a record and gives the line it starts at; its bytes start [`HEADER`] bytes
    /// into the line. None: the ring is full and the consumer told so, the record is longer than
    /// [`MAX_RECORD`], or the lane is broken. A reservation before that was not committed is void.
    pub fn reserve(&mut self, len: usize) -> Option<u32> {
        if self.reserved.take().is_some() {
            // Its bytes may be where there were no headers.
            self.ready = self.ready.min(1);
        }
        if len > MAX_RECORD || self.broken {
            return None;
        }
        let lines = lines_of(len);
        let skip = if lines > M::LINES - self.at { M::LINES - self.at } else { 0 };
        // And the line behind, which gets no header.
        let need = skip + lines + 1;
        if !self.room(need) && !self.refresh(need) {
            if self.waits == 0 {
                self.wait(BLOCKED);
            }
            // SYNC POINT: with the fence in `Reader::prepare_sleep`: either the consumer sees that
            // we wait, or we see the head that it published before. A consumer that does not sleep
            // looks again.
            self.memory.fence();
            if !self.refresh(need) {
                return None;
            }
        }
        // One that sleeps is woken by what it said when it went to sleep: that somebody else has found room, for a shorter
        // record perhaps, does not mean that all have.
        if self.waits & STATE == BLOCKED {
            self.wait(0);
        }
        self.reserved = Some(Reserved { skip, lines, len: len as u32 });
        Some(if skip > 0 { 0 } else { self.at })
    }

    fn wait(&mut self, waits: u32) {
        self.waits = waits;
        self.memory.store(Word::Waits, waits, Relaxed);
    }

    fn room(&self, need: u32) -> bool {
        need <= M::LINES - self.tail.wrapping_sub(self.head)
    }

    /// Learns how far the consumer is.
    fn refresh(&mut self, need: u32) -> bool {
        // SYNC POINT: with the store in `Reader::publish`: the consumer is done with those lines.
        let head = self.memory.load(Word::Head, Acquire);
        if head.wrapping_sub(self.head) > self.tail.wrapping_sub(self.head) {
            self.broken = true;
            return false;
        }
        self.head = head;
        self.room(need)
    }

    /// Publishes the record reserved last; without one, does nothing.
    pub fn commit(&mut self, kind: u8) {
        let Some(Reserved { skip, lines, len }) = self.reserved.take() else { return };
        let first = if skip > 0 { 0 } else { self.at };
        let behind = if first + lines == M::LINES { 0 } else { first + lines };
        self.ready = self.ready.saturating_sub(skip + lines);
        if self.ready == 0 {
            self.memory.store(Word::Header(behind), 0, Relaxed);
            self.ready = 1;
        }
        // SYNC POINT: with the load in `Reader::next`: the bytes, and that nothing is behind.
        self.memory.store(Word::Header(first), RECORD | u32::from(kind) << KIND | len, Release);
        if skip > 0 {
            // Only now: the consumer comes to line 0 by this one.
            self.memory.store(Word::Header(self.at), WRAP, Release);
        }
        self.at = behind;
        self.tail = self.tail.wrapping_add(skip + lines);
        let free = M::LINES - self.tail.wrapping_sub(self.head);
        while self.ready < AHEAD.min(free) {
            let line = self.at + self.ready;
            let line = if line < M::LINES { line } else { line - M::LINES };
            self.memory.store(Word::Header(line), 0, Relaxed);
            self.ready += 1;
        }
    }

    /// Whether the consumer is to be woken, because it has gone to sleep. To be asked after commits;
    /// true once for each time it sleeps.
    pub fn needs_wake(&self) -> bool {
        // SYNC POINT: with the fence in `Reader::prepare_sleep`: either we see that it sleeps, or
        // it sees what we committed.
        self.memory.fence();
        let sleep = self.memory.load(Word::Sleeps, Relaxed);
        sleep != 0 && self.woken.replace(sleep) != sleep
    }

    /// Whether the last reservation failed for want of room.
    pub fn is_waiting(&self) -> bool {
        self.waits != 0 && !self.broken
    }

    /// Whether the last reservation failed for want of room, and the consumer was not told to wake this
    /// process ([`Writer::prepare_sleep`]).
    pub fn waits_awake(&self) -> bool {
        self.waits & STATE == BLOCKED && !self.broken
    }

    /// To be called before going to sleep: a producer that waits for room wants to be woken. False:
    /// there is room now.
    pub fn prepare_sleep(&mut self) -> bool {
        if !self.is_waiting() {
            return true;
        }
        self.slept = self.slept.wrapping_add(STATE + 1);
        self.wait(self.slept | ASLEEP);
        // SYNC POINT: as in `reserve`.
        self.memory.fence();
        let before = self.head;
        self.refresh(0);
        if self.head == before && !self.broken {
            if self.head == self.tail {
                // All of it is room: whoever waited has been served since.
                self.wait(0);
            }
            return true;
        }
        self.awake();
        false
    }

    /// Undoes [`Writer::prepare_sleep`].
    pub fn awake(&mut self) {
        if self.waits & STATE == ASLEEP {
            self.wait(BLOCKED);
        }
    }

    /// Whether the consumer is done with everything that was committed, as far as it has said: it says so when it
    /// finds nothing more.
    pub fn is_drained(&self) -> bool {
        // SYNC POINT: as in `refresh`: what the consumer did with it is done.
        !self.broken && self.memory.load(Word::Head, Acquire) == self.tail
    }

    /// Whether the consumer has mapped the ring.
    pub fn is_taken(&self) -> bool {
        self.memory.load(Word::Taken, Relaxed) != 0
    }

    /// Whether the lane is of no more use: the consumer has closed it or wrote nonsense.
    pub fn is_closed(&self) -> bool {
        self.broken || self.memory.load(Word::Closed, Relaxed) & OVER != 0
    }

    /// Whether the consumer's process has said that it ends, or has closed the lane: if it is dead,
    /// it was not killed.
    pub fn peer_is_leaving(&self) -> bool {
        self.memory.load(Word::Closed, Relaxed) != 0
    }

    /// Tells the consumer that this process is about to end in good order. The lane works on.
    pub fn leave(&mut self) {
        if self.memory.load(Word::Gone, Relaxed) & OVER == 0 {
            self.memory.store(Word::Gone, LEAVING, Release);
        }
    }

    /// Tells the consumer that nothing more will come.
    pub fn close(&mut self) {
        // SYNC POINT: with the load in `Reader::is_over`: what was committed is seen first.
        self.memory.store(Word::Gone, OVER, Release);
    }
}

/// A record's place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Place {
    /// What the producer said it is.
    pub kind: u8,
    /// Its first line; its bytes start [`HEADER`] bytes into it, and go on to the next lines.
    pub line: u32,
    /// How many bytes; they are within the ring.
    pub len: usize,
}

/// The consumer's position.
#[derive(Debug)]
pub struct Reader<M> {
    memory: M,
    /// The line that comes next.
    at: u32,
    /// Lines consumed so far, modulo 2^32, and what of it the producer was told.
    head: u32,
    published: u32,
    /// Lines of the record that `next` gave.
    current: u32,
    /// What [`Word::Sleeps`] is, and what it was when we last slept.
    sleeps: u32,
    slept: u32,
    /// The producer's sleep that we last gave a wake for.
    woken: u32,
    broken: bool,
}

impl<M: Memory> Reader<M> {
    /// Over memory whose producer may have begun.
    pub fn new(memory: M) -> Reader<M> {
        memory.store(Word::Taken, 1, Relaxed);
        Reader {
            memory,
            at: 0,
            head: 0,
            published: 0,
            current: 0,
            sleeps: 0,
            slept: 0,
            woken: 0,
            broken: false,
        }
    }

    /// The memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The next record, or the same again until it is released; None: there is none now.
    #[allow(clippy::should_implement_trait, reason = "what it gives is a place in the ring")]
    pub fn next(&mut self) -> Result<Option<Place>, Broken> {
        if self.broken {
            return Err(Broken);
        }
        // SYNC POINT: with the store in `Writer::commit`.
        let mut header = self.memory.load(Word::Header(self.at), Acquire);
        if header == 0 {
            if self.published != self.head {
                self.publish();
            }
            return Ok(None);
        }
        if header == WRAP && self.at != 0 {
            self.head = self.head.wrapping_add(M::LINES - self.at);
            self.at = 0;
            header = self.memory.load(Word::Header(0), Acquire);
        }
        let len = (header & LENGTH) as usize;
        let lines = lines_of(len);
        if header & RECORD == 0
            || header & WRAP != 0
            || len > MAX_RECORD
            || lines > M::LINES - self.at
        {
            self.broken = true;
            return Err(Broken);
        }
        self.current = lines;
        Ok(Some(Place { kind: (header >> KIND) as u8, line: self.at, len }))
    }

    /// Gives the lines of the record that [`Reader::next`] gave back to the producer; without one,
    /// does nothing.
    pub fn release(&mut self) {
        let lines = std::mem::take(&mut self.current);
        self.at += lines;
        if self.at == M::LINES {
            self.at = 0;
        }
        self.head = self.head.wrapping_add(lines);
        let unpublished = self.head.wrapping_sub(self.published);
        if unpublished > M::LINES / 4
            || unpublished > 0 && self.memory.load(Word::Waits, Relaxed) != 0
        {
            self.publish();
        }
    }

    fn publish(&mut self) {
        // SYNC POINT: with the load in `Writer::refresh`: we have read what we release.
        self.memory.store(Word::Head, self.head, Release);
        self.published = self.head;
    }

    /// To be called before going to sleep. False: something came meanwhile, or the producer waits
    /// and is to be woken: stay awake.
    pub fn prepare_sleep(&mut self) -> bool {
        if self.published != self.head {
            self.publish();
        }
        self.slept = self.slept.wrapping_add(1).max(1);
        self.sleeps = self.slept;
        self.memory.store(Word::Sleeps, self.sleeps, Relaxed);
        // SYNC POINT: with the fences in `Writer::needs_wake`, `Writer::reserve` and
        // `Writer::prepare_sleep`.
        self.memory.fence();
        let quiet = self.memory.load(Word::Header(self.at), Relaxed) == 0
            && !self.is_to_wake(self.memory.load(Word::Waits, Relaxed));
        if !quiet || self.broken {
            self.awake();
            return false;
        }
        true
    }

    /// Undoes [`Reader::prepare_sleep`].
    pub fn awake(&mut self) {
        if std::mem::take(&mut self.sleeps) != 0 {
            self.memory.store(Word::Sleeps, 0, Relaxed);
        }
    }

    /// Whether the producer is to be woken: it waits for room, asleep, and there is some now. True
    /// once for each time it sleeps.
    pub fn producer_waits(&mut self) -> bool {
        if self.memory.load(Word::Waits, Relaxed) == 0 {
            return false;
        }
        if self.published != self.head {
            self.publish();
        }
        // SYNC POINT: with the fence in `Writer::prepare_sleep`.
        self.memory.fence();
        let waits = self.memory.load(Word::Waits, Relaxed);
        let wake = self.is_to_wake(waits);
        if wake {
            self.woken = waits;
        }
        wake
    }

    /// Whether the producer sleeps, and was not woken yet.
    fn is_to_wake(&self, waits: u32) -> bool {
        waits & STATE == ASLEEP && waits != self.woken
    }

    /// Whether nothing is left and nothing more will come: the producer has closed the lane, or
    /// wrote nonsense.
    pub fn is_over(&self) -> bool {
        // SYNC POINT: with the store in `Writer::close`.
        let gone = self.is_gone();
        self.broken || gone && self.is_empty()
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.broken || self.memory.load(Word::Header(self.at), Acquire) == 0
    }

    /// Whether the producer has closed the lane.
    pub fn is_gone(&self) -> bool {
        self.memory.load(Word::Gone, Acquire) & OVER != 0
    }

    /// Whether the producer's process has said that it ends, or has closed the lane.
    pub fn peer_is_leaving(&self) -> bool {
        self.memory.load(Word::Gone, Acquire) != 0
    }

    /// Tells the producer that this process is about to end in good order. The lane works on.
    pub fn leave(&mut self) {
        if self.memory.load(Word::Closed, Relaxed) & OVER == 0 {
            self.memory.store(Word::Closed, LEAVING, Release);
        }
    }

    /// Whether the producer wrote nonsense.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Tells the producer that nothing more will be consumed.
    pub fn close(&mut self) {
        self.memory.store(Word::Closed, OVER, Release);
    }
}
