//! What the two sides talk over: a connection of the connection manager, or TCP.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use ironverbs::cm::{Connection, Offer, Request, Route};
use ironverbs::{Access, Context, Cq, Message, Op, Pd, Qp, Rc, Region, Unconnected};

/// Bytes that go in one message of a connection.
const CHUNK: usize = 4096;

/// Messages that can arrive before any was looked at; more wait at the sender.
const RECEIVES: usize = 16;

/// For a peer that stops reading.
const STALLED: Duration = Duration::from_secs(10);

/// For a peer that is asked for a connection, or was accepted.
const ANSWER: Duration = Duration::from_secs(10);

/// Between two looks whether a silent connection has ended.
const LOOK: Duration = Duration::from_millis(50);

/// A stream of bytes in both directions.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Cm(Box<Connected>),
}

impl Stream {
    pub(crate) fn tcp(stream: TcpStream) -> io::Result<Stream> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(STALLED))?;
        Ok(Stream::Tcp(stream))
    }

    /// The addresses of both ends, this one first.
    pub(crate) fn addresses(&self) -> io::Result<(IpAddr, IpAddr)> {
        match self {
            Stream::Tcp(stream) => Ok((stream.local_addr()?.ip(), stream.peer_addr()?.ip())),
            Stream::Cm(connected) => {
                let connection = &connected.connection;
                Ok((connection.local_addr().ip(), connection.peer_addr().ip()))
            }
        }
    }

    /// Sends all of it.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => {
                stream.set_nonblocking(false)?;
                stream.write_all(bytes)
            }
            Stream::Cm(connected) => connected.send(bytes),
        }
    }

    /// Adds to `into` what has come, waiting for it at most for `patience`. False: the peer has hung up.
    pub(crate) fn receive(&mut self, into: &mut Vec<u8>, patience: Duration) -> io::Result<bool> {
        match self {
            Stream::Tcp(stream) => tcp_receive(stream, into, patience),
            Stream::Cm(connected) => connected.receive(into, patience),
        }
    }
}

fn tcp_receive(stream: &mut TcpStream, into: &mut Vec<u8>, patience: Duration) -> io::Result<bool> {
    stream.set_nonblocking(patience.is_zero())?;
    if !patience.is_zero() {
        stream.set_read_timeout(Some(patience))?;
    }
    let mut chunk = [0; CHUNK];
    match stream.read(&mut chunk) {
        Ok(0) => Ok(false),
        Ok(n) => {
            into.extend_from_slice(chunk.get(..n).unwrap_or_default());
            Ok(true)
        }
        Err(e) => match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {
                Ok(true)
            }
            io::ErrorKind::ConnectionReset => Ok(false),
            _ => Err(e),
        },
    }
}

/// Queue pair and memory of a connection.
pub(crate) struct Connected {
    connection: Connection<Rc>,
    receives: VecDeque<Op<ironverbs::Slice, Message>>,
    region: Region,
    cq: Cq,
    ended: bool,
}

/// The same before there is a connection.
struct Parts {
    qp: Unconnected<Rc>,
    receives: VecDeque<Op<ironverbs::Slice, Message>>,
    region: Region,
    cq: Cq,
}

impl Parts {
    fn new(context: &Context) -> Result<Parts, ironverbs::Error> {
        let pd = Pd::new(context)?;
        let cq = Cq::new(context, RECEIVES as u32 + 2)?;
        let qp = Qp::<Rc>::builder(&pd, &cq).depth(2, RECEIVES as u32);
        let qp = qp.access(Access::empty()).build()?;
        let region = pd.region(CHUNK * (RECEIVES + 1), Access::LOCAL_WRITE)?;
        let slices = (1..=RECEIVES).map(|n| region.slice(n * CHUNK..(n + 1) * CHUNK));
        let receives =
            slices.map(|slice| Ok(qp.recv(slice?)?)).collect::<Result<_, ironverbs::Error>>()?;
        Ok(Parts { qp, receives, region, cq })
    }
}

/// Why there is no connection.
pub(crate) enum Refusal {
    /// The peer or the way to it.
    Cm(ironverbs::cm::Error),
    /// This side's device.
    Device(ironverbs::Error),
    /// Nobody answers.
    Silent(Duration),
}

impl From<ironverbs::cm::Error> for Refusal {
    fn from(error: ironverbs::cm::Error) -> Refusal {
        Refusal::Cm(error)
    }
}

impl From<ironverbs::Error> for Refusal {
    fn from(error: ironverbs::Error) -> Refusal {
        Refusal::Device(error)
    }
}

impl Connected {
    /// Asks for a connection.
    pub(crate) fn connect(route: Route<Rc>) -> Result<Connected, Refusal> {
        let Parts { qp, receives, region, cq } = Parts::new(&route.device().open()?)?;
        let pending = route.connect(qp, &Offer::default())?;
        let connection = pending.wait_for(ANSWER).map_err(|_| Refusal::Silent(ANSWER))??;
        Ok(Connected { connection, receives, region, cq, ended: false })
    }

    /// Accepts one.
    pub(crate) fn accept(request: Request<Rc>) -> Result<Connected, Refusal> {
        let Parts { qp, receives, region, cq } = Parts::new(&request.device().open()?)?;
        let pending = request.accept(qp, &Offer::default())?;
        let connection = pending.wait_for(ANSWER).map_err(|_| Refusal::Silent(ANSWER))??;
        Ok(Connected { connection, receives, region, cq, ended: false })
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        for chunk in bytes.chunks(CHUNK) {
            let mut slice = self.region.slice(..chunk.len()).map_err(io::Error::other)?;
            slice.write_at(0, chunk).map_err(io::Error::other)?;
            let op = self.connection.qp().send(slice).post();
            let op = op.map_err(|rejected| io::Error::other(rejected.to_string()))?;
            let stalled = io::Error::new(io::ErrorKind::TimedOut, "the peer does not read");
            let (result, _) = op.wait_for(STALLED).map_err(|_| stalled)?;
            result.map_err(|error| {
                io::Error::new(io::ErrorKind::ConnectionReset, error.to_string())
            })?;
        }
        Ok(())
    }

    fn receive(&mut self, into: &mut Vec<u8>, patience: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + patience;
        loop {
            if self.take(into)? {
                return Ok(true);
            }
            if self.ended {
                return Ok(false);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // What came before the end is taken first.
                self.ended = self.connection.closed().wait_for(Duration::ZERO).is_ok();
                return Ok(!self.ended || self.take(into)?);
            }
            if let Some(op) = self.receives.pop_front() {
                match op.wait_for(left.min(LOOK)) {
                    Ok(output) => return self.arrived(output, into),
                    Err(op) => self.receives.push_front(op),
                }
            }
            self.ended = self.connection.closed().wait_for(Duration::ZERO).is_ok();
        }
    }

    /// Takes all that has arrived; whether anything has.
    fn take(&mut self, into: &mut Vec<u8>) -> io::Result<bool> {
        self.cq.poll().map_err(io::Error::other)?;
        let mut any = false;
        while let Some(op) = self.receives.pop_front() {
            match op.try_take() {
                Ok(output) => {
                    if !self.arrived(output, into)? {
                        return Ok(any);
                    }
                    any = true;
                }
                Err(op) => {
                    self.receives.push_front(op);
                    break;
                }
            }
        }
        Ok(any)
    }

    /// False: the connection has ended.
    fn arrived(
        &mut self,
        (result, slice): ironverbs::Output<ironverbs::Slice, Message>,
        into: &mut Vec<u8>,
    ) -> io::Result<bool> {
        let Ok(received) = result else {
            self.ended = true;
            return Ok(false);
        };
        into.extend_from_slice(&received.data(&slice));
        let again = self.connection.qp().recv(slice);
        self.receives.push_back(again.map_err(|rejected| io::Error::other(rejected.to_string()))?);
        Ok(true)
    }
}
