//! WRITEs that answer WRITEs, both sides spinning on their memory, beside what they cannot be faster than.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ironverbs_soft::*;
use ironverbs_sys::peer::{self, Range};

use crate::Outcome;
use crate::ours::{End, PORT, median};

/// Where in its memory each side waits for the other's count.
const MAILBOX: u64 = 4096;

/// A side: its memory is of a kind that peers can map, or its own.
struct Side {
    end: End,
    to: SendWr,
    pauses: bool,
}

impl Side {
    fn join(kind: &str, stream: &mut TcpStream) -> Outcome<Side> {
        let host = Host::start(Config::default())?;
        let end = End::with(&host, kind == "shared")?;
        let (addr, rkey) = end.exchange(stream)?;
        let to = End::request(WrOpcode::Write, (addr + MAILBOX, rkey));
        Ok(Side { end, to, pauses: kind == "shared" })
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        // SAFETY: aligned and within the memory, which lives as long as the side; only used as an atomic.
        unsafe { AtomicU64::from_ptr((self.end.memory.addr() + offset) as *mut u64) }
    }

    fn write(&self, count: u64) -> Outcome {
        self.word(0).store(count, Ordering::Relaxed);
        self.end.qp.post_send(&self.to, Payload::Sges(&[self.end.sge(8)]))?;
        while self.end.poll()?.1 == 0 {}
        Ok(())
    }

    fn wait(&self, count: u64) {
        let mut spins = 0u32;
        while self.word(MAILBOX).load(Ordering::Acquire) != count {
            // As programs do that wait for the kernel's copy; the raw hand-over pauses, too.
            if self.pauses {
                std::hint::spin_loop();
            }
            spins = spins.wrapping_add(1);
            // Where both processes are on one core, it must change hands.
            if spins.is_multiple_of(4096) {
                std::thread::yield_now();
            }
        }
    }
}

/// Answers each WRITE by one, for ever.
pub(crate) fn target(at: &str, kind: &str) -> Outcome {
    let listener = TcpListener::bind((at, PORT))?;
    println!("ready");
    let (mut stream, _) = listener.accept()?;
    let side = Side::join(kind, &mut stream)?;
    for count in 1.. {
        side.wait(count);
        side.write(count)?;
    }
    Ok(())
}

/// The median of half a round trip in nanoseconds.
pub(crate) fn ping(to: &str, kind: &str, rounds: usize) -> Outcome {
    let mut stream = TcpStream::connect((to, PORT))?;
    let side = Side::join(kind, &mut stream)?;
    let mut times = Vec::with_capacity(rounds);
    for count in 1..=rounds as u64 {
        let begin = Instant::now();
        side.write(count)?;
        side.wait(count);
        times.push(begin.elapsed().as_nanos() as u64);
    }
    let direct = side.end.qp.counters().direct;
    let carried = if kind == "shared" { direct.mapped } else { direct.kernel };
    if carried.messages < rounds as u64 / 2 {
        return Err(format!("carried otherwise: {direct:?}").into());
    }
    println!("figure {}", median(&mut times) as f64 / 2.0);
    Ok(())
}

/// Spins on a word that another process writes.
pub(crate) fn word(at: &str) -> Outcome {
    let listener = TcpListener::bind((at, PORT))?;
    println!("ready");
    let word = AtomicU64::new(0);
    let (mut stream, _) = listener.accept()?;
    writeln!(stream, "{} {}", std::process::id(), word.as_ptr() as u64)?;
    let mut last = 0;
    loop {
        last = std::hint::black_box(word.load(Ordering::Acquire)).max(last);
    }
}

/// The median of one process_vm_writev(2) of 8 bytes to that word, in nanoseconds.
pub(crate) fn writev(to: &str, rounds: usize) -> Outcome {
    let stream = TcpStream::connect((to, PORT))?;
    let mut line = String::new();
    BufReader::new(stream.try_clone()?).read_line(&mut line)?;
    let (pid, addr) = line.trim().split_once(' ').ok_or("unexpected")?;
    let (pid, addr) = (pid.parse()?, addr.parse()?);
    let mut times = Vec::with_capacity(rounds);
    for count in 1..=rounds as u64 {
        let range = [Range::new(&raw const count as u64, 8)];
        let begin = Instant::now();
        // SAFETY: the other process has the word for this.
        let copied = unsafe { peer::write(pid, &range, addr, 8) }?;
        times.push(begin.elapsed().as_nanos() as u64);
        assert_eq!(copied, 8);
    }
    drop(stream);
    println!("figure {}", median(&mut times));
    Ok(())
}
