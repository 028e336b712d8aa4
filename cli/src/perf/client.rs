//! The side that asks: connects, runs tests, measures.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ironverbs::raw::Host;
use ironverbs::{Devices, Mtu, Rc, cm};

use super::lane::Lane;
use super::place::Place;
use super::progress::Progress;
use super::protocol::*;
use super::server::PlaceArgs;
use super::stream::{Connected, Refusal, Stream};

/// For an address to be resolved, or to answer by TCP.
const PATIENCE: Duration = Duration::from_secs(10);
/// Nobody listens there (IBA 12.6.7.2).
const NOBODY: u16 = 8;
/// For the server's answers; it may have memory to set up.
const ANSWER: Duration = Duration::from_secs(30);
/// After so long without a completion something is wrong that no timer of the QP has noticed.
const STUCK: Duration = Duration::from_secs(60);

/// An echo on UC or UD that takes longer is lost.
const ECHO: Duration = Duration::from_secs(1);

/// A conversation with a server.
pub(crate) struct Session {
    talk: Talk,
    pub(crate) place: Place,
    /// The largest path MTU that both ports have.
    pub(crate) mtu: Mtu,
}

/// How long a test goes on.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Length {
    Messages(u64),
    Time(Duration),
}

/// What a test gave.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) messages: u64,
    /// Messages that did not arrive, or whose echo did not (UC, UD).
    pub(crate) lost: u64,
    pub(crate) elapsed: Duration,
    /// Nanoseconds of each operation, in latency tests.
    pub(crate) latency: Option<Histogram<u64>>,
    /// Messages whose data was checked.
    pub(crate) checked: Checked,
}

impl Session {
    pub(crate) fn connect(host: &Host, name: &str, args: &PlaceArgs) -> Result<Session, String> {
        let stream = dial(host, name, args)?;
        let (local, peer) = stream.addresses().map_err(|e| e.to_string())?;
        let mut talk = Talk::new(stream);
        let say = |e: TalkError| format!("{name} port {}: {e}", args.port());
        talk.send(&hello()).map_err(say)?;
        let theirs = match talk.receive(Duration::from_secs(10)).map_err(say)? {
            Message::Welcome { program, protocol, version, mtu } => {
                check_greeting(&program, protocol, &version).map_err(say)?;
                Mtu::try_from(mtu).map_err(|e| e.to_string())?
            }
            other => return Err(say(unexpected(&other))),
        };
        let place = Place::find(host, local, peer, args.device.as_deref(), args.gid_index)?;
        let mtu = place.mtu.min(theirs);
        Ok(Session { talk, place, mtu })
    }

    /// Ends the conversation; the server then waits for nobody.
    pub(crate) fn bye(mut self) {
        let _ = self.talk.send(&Message::Bye);
    }

    /// Begins a test: both QPs are connected when it returns.
    pub(crate) fn begin(&mut self, test: Test) -> Result<Run<'_>, String> {
        let say = |e: TalkError| e.to_string();
        let text = |e: ironverbs::Error| e.to_string();
        let mut lane = Lane::new(self.place.clone(), test).map_err(text)?;
        lane.take_slots().map_err(text)?;
        let endpoint = lane.endpoint().map_err(text)?;
        self.talk.send(&Message::Start { test, endpoint }).map_err(say)?;
        let peer = match self.talk.receive(ANSWER).map_err(say)? {
            Message::Ready { endpoint } => endpoint,
            other => return Err(say(unexpected(&other))),
        };
        lane.connect(&peer)?;
        Ok(Run { talk: &mut self.talk, lane, last_look: Instant::now() })
    }
}

fn unexpected(message: &Message) -> TalkError {
    let what = serde_json::to_string(message).unwrap_or_default();
    TalkError::Unexpected { what: what.chars().take(80).collect() }
}

/// Connects to the first of the name's addresses where somebody listens.
fn dial(host: &Host, name: &str, args: &PlaceArgs) -> Result<Stream, String> {
    let port = args.port();
    let addresses: Vec<SocketAddr> =
        (name, port).to_socket_addrs().map_err(|e| format!("{name}: {e}"))?.collect();
    let mut error = format!("{name} has no address");
    for address in addresses {
        let stream = if args.tcp { by_tcp(address) } else { by_cm(host, address) };
        match stream {
            Ok(stream) => return Ok(stream),
            Err(why) => error = format!("{name} port {port}: {why}"),
        }
    }
    Err(error)
}

fn by_tcp(address: SocketAddr) -> Result<Stream, String> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE);
    stream.and_then(Stream::tcp).map_err(|e| match e.kind() {
        std::io::ErrorKind::ConnectionRefused => refused(address),
        _ => e.to_string(),
    })
}

/// By the connection manager: the kernel's route to the address says which device it is.
fn by_cm(host: &Host, address: SocketAddr) -> Result<Stream, String> {
    let devices = Devices::from(host.clone());
    let route =
        cm::resolve::<Rc>(&devices, None, address, PATIENCE).and_then(|pending| pending.wait());
    let route = route.map_err(|e| e.to_string())?;
    let udp = host.config().udp_port.value;
    match Connected::connect(route) {
        Ok(connected) => Ok(Stream::Cm(Box::new(connected))),
        Err(Refusal::Cm(cm::Error::Rejected { reason: NOBODY, .. })) => Err(refused(address)),
        Err(Refusal::Cm(error)) => Err(error.to_string()),
        Err(Refusal::Device(error)) => Err(error.to_string()),
        Err(Refusal::Silent(time)) => Err(format!(
            "no answer within {} s: nothing there answers on UDP port {udp}; start `ironverbs perf --server --port {}` \
             there, and see that UDP port {udp} is let through",
            time.as_secs(),
            address.port()
        )),
    }
}

fn refused(address: SocketAddr) -> String {
    let port = address.port();
    format!("connection refused: start `ironverbs perf --server --port {port}` there")
}

/// A test under way.
pub(crate) struct Run<'a> {
    talk: &'a mut Talk,
    lane: Lane,
    last_look: Instant,
}

/// One operation of a latency test.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Once {
    /// From posting to its completion; of a SEND, to the arrival of its echo.
    pub(crate) time: Duration,
    /// Whether the data was what it should be, where that is checked.
    pub(crate) right: bool,
}

impl Run<'_> {
    /// Runs the test to its end.
    pub(crate) fn measure(
        mut self,
        length: Length,
        progress: &mut Progress,
    ) -> Result<Outcome, String> {
        let result = match self.lane.test.mode {
            Mode::Bandwidth => self.bandwidth(length, progress),
            Mode::Latency => self.latency(length, progress),
        };
        let finished = result.and_then(|outcome| self.finish(outcome));
        finished.map_err(|why| self.both_sides(why))
    }

    /// Our failure and, where the server has one to tell, its own.
    pub(crate) fn both_sides(&mut self, why: String) -> String {
        let deadline = Instant::now() + Duration::from_millis(300);
        while Instant::now() < deadline {
            match self.talk.look() {
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                Err(e @ (TalkError::Peer(_) | TalkError::Closed)) if e.to_string() != why => {
                    return format!("{why}\n{e}");
                }
                _ => break,
            }
        }
        let first_line = why.lines().next().unwrap_or_default().to_owned();
        let _ = self.talk.send(&Message::Error { message: first_line });
        why
    }

    fn bandwidth(&mut self, length: Length, progress: &mut Progress) -> Result<Outcome, String> {
        let test = self.lane.test;
        let window = u64::from(test.window);
        // Writes are checked by the server, a window at a time, with none under way meanwhile.
        let in_rounds = test.verify && test.operation == Operation::Write;
        let (mut posted, mut done) = (0_u64, 0_u64);
        let mut checked = Checked::default();
        let start = Instant::now();
        let (mut last, mut paused, mut elapsed) = (start, Duration::ZERO, Duration::ZERO);
        loop {
            let enough = match length {
                Length::Messages(n) => posted >= n,
                Length::Time(t) => elapsed >= t,
            };
            let round_ends = in_rounds && posted > 0 && (enough || posted.is_multiple_of(window));
            if round_ends && done == posted {
                let pause = Instant::now();
                let count = (posted - 1) % window + 1;
                checked += self.ask_check(posted - count, count)?;
                paused += pause.elapsed();
                last = Instant::now();
            }
            if enough && done == posted {
                return Ok(Outcome { messages: done, lost: 0, elapsed, latency: None, checked });
            }
            let waiting = enough || (round_ends && done < posted);
            if !waiting {
                let mut free = window - (posted - done);
                if in_rounds {
                    free = free.min(window - posted % window);
                }
                if let Length::Messages(n) = length {
                    free = free.min(n - posted);
                }
                if free > 0 {
                    self.lane.post(posted, free)?;
                    posted += free;
                }
            }
            self.lane.drive()?;
            let before = done;
            while let Some((_, result)) = self.lane.next_sent()? {
                checked += result;
                done += 1;
            }
            if done == before {
                self.look(last)?;
                continue;
            }
            last = Instant::now();
            elapsed = last.saturating_duration_since(start).saturating_sub(paused);
            progress.show(&test, done, length, elapsed);
        }
    }

    fn ask_check(&mut self, first: u64, count: u64) -> Result<Checked, String> {
        self.talk.send(&Message::Check { first, count }).map_err(|e| e.to_string())?;
        match self.talk.receive(ANSWER).map_err(|e| e.to_string())? {
            Message::CheckDone { checked } => Ok(checked),
            other => Err(unexpected(&other).to_string()),
        }
    }

    /// Now and then sees whether the server still lives.
    pub(crate) fn look(&mut self, last: Instant) -> Result<(), String> {
        if self.last_look.elapsed() < Duration::from_millis(5) {
            return Ok(());
        }
        self.last_look = Instant::now();
        if let Some(message) = self.talk.look().map_err(|e| e.to_string())? {
            return Err(unexpected(&message).to_string());
        }
        if last.elapsed() > STUCK {
            let seconds = STUCK.as_secs();
            return Err(format!(
                "nothing has completed for {seconds} s, though the server is there"
            ));
        }
        Ok(())
    }

    fn latency(&mut self, length: Length, progress: &mut Progress) -> Result<Outcome, String> {
        let test = self.lane.test;
        let mut latency = Histogram::new(3).map_err(|e| e.to_string())?;
        let (mut messages, mut lost) = (0, 0);
        let mut checked = Checked::default();
        let start = Instant::now();
        loop {
            let elapsed = start.elapsed();
            let enough = match length {
                Length::Messages(n) => messages >= n,
                Length::Time(t) => elapsed >= t && messages > 0,
            };
            if enough {
                let latency = Some(latency);
                return Ok(Outcome { messages, lost, elapsed, latency, checked });
            }
            match self.once(messages, ECHO)? {
                Some(Once { time, right }) => {
                    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                    latency.record(ns).map_err(|e| e.to_string())?;
                    if test.verify && test.operation == Operation::Write {
                        checked += self.ask_check(messages, 1)?;
                    } else if test.verify {
                        checked += Checked::one(right);
                    }
                }
                None => lost += 1,
            }
            messages += 1;
            progress.show(&test, messages, length, elapsed);
        }
    }

    /// Does operation number `number` alone. `None` when its echo does not come within `patience`:
    /// on UC and UD it may be lost.
    pub(crate) fn once(&mut self, number: u64, patience: Duration) -> Result<Option<Once>, String> {
        let test = self.lane.test;
        let start = Instant::now();
        self.lane.post(number, 1)?;
        let (mut completed, mut answer) = (false, None);
        loop {
            if !self.lane.drive()? {
                // Nothing new to take.
                if start.elapsed() > patience && test.transport != Transport::Rc {
                    return Ok(None);
                }
                self.look(start)?;
            }
            while let Some((message, checked)) = self.lane.next_sent()? {
                completed |= message == number;
                if message == number && test.operation != Operation::Send {
                    answer = Some(Once { time: start.elapsed(), right: checked.wrong == 0 });
                }
            }
            while let Some(arrival) = self.lane.next_received(number)? {
                // An echo that was given up may still come.
                if arrival.number == number {
                    answer = Some(Once { time: start.elapsed(), right: arrival.right });
                }
                self.lane.again(arrival)?;
            }
            if completed && answer.is_some() {
                return Ok(answer);
            }
        }
    }

    /// Ends the test and adds what the server saw of it.
    pub(crate) fn finish(&mut self, mut outcome: Outcome) -> Result<Outcome, String> {
        let test = self.lane.test;
        self.talk.send(&Message::Finish { sent: outcome.messages }).map_err(|e| e.to_string())?;
        let (received, theirs, counter) =
            match self.talk.receive(ANSWER).map_err(|e| e.to_string())? {
                Message::Summary { received, checked, counter } => (received, checked, counter),
                other => return Err(unexpected(&other).to_string()),
            };
        if test.operation == Operation::Send && test.mode == Mode::Bandwidth {
            outcome.checked = theirs;
            outcome.lost = outcome.messages.saturating_sub(received);
        } else {
            outcome.checked.wrong += theirs.wrong;
        }
        if test.transport == Transport::Uc && test.operation == Operation::Write {
            // A write of which a packet was lost leaves old data, and nobody is told.
            outcome.lost += std::mem::take(&mut outcome.checked.wrong);
        }
        if test.operation.is_atomic() && counter != outcome.messages {
            let n = outcome.messages;
            return Err(format!(
                "after {n} atomics the server's counter stands at {counter}, not {n}"
            ));
        }
        if test.transport == Transport::Rc && outcome.lost > 0 {
            let n = outcome.messages;
            return Err(format!(
                "of {n} messages that completed here, the server received {received}"
            ));
        }
        Ok(outcome)
    }
}
