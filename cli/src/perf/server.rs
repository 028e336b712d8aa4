//! The side that is asked: answers tests until the client says goodbye.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use ironverbs::cm::{self, Listener};
use ironverbs::raw::Host;
use ironverbs::raw::cm::CmError;
use ironverbs::{Devices, Gid, Mtu, Rc};

use super::lane::Lane;
use super::place::Place;
use super::protocol::*;
use super::stream::{Connected, Refusal, Stream};

/// How and where to listen.
#[derive(clap::Args)]
pub(crate) struct ServerArgs {
    /// Serve clients instead of being one, those of the connection manager and those of TCP
    #[arg(long, short = 'S', visible_alias = "listen")]
    pub(crate) server: bool,
    /// Server: address to listen on [default: all]
    #[arg(long, value_name = "ADDRESS", requires = "server", conflicts_with = "host")]
    pub(crate) bind: Option<IpAddr>,
    /// Server: keep serving after the first client has gone
    #[arg(long, short = 'k', requires = "server", conflicts_with = "host")]
    pub(crate) keep: bool,
}

/// Which device and GID to use.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct PlaceArgs {
    /// Port to meet on [default: 18516; with --rping 7174]
    #[arg(long, short = 'p')]
    pub(crate) port: Option<u16>,
    /// Client: meet over TCP instead of through the connection manager
    #[arg(long)]
    pub(crate) tcp: bool,
    /// Device [default: the one that has the address of the connection]
    #[arg(long, short = 'd', value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Index of the source GID [default: that of the connection's address]
    #[arg(long, short = 'g', value_name = "INDEX")]
    pub(crate) gid_index: Option<u32>,
}

impl PlaceArgs {
    /// The port to meet on.
    pub(crate) fn port(&self) -> u16 {
        self.port.unwrap_or(18516)
    }
}

/// Sessions at once; the next client is told to come again.
const MAX_SESSIONS: usize = 64;
/// Between tests a client thinks, or its user does.
const IDLE: Duration = Duration::from_secs(3600);
/// After so long without a message the processor is left to others.
const SPIN: Duration = Duration::from_millis(20);
/// How long it is left at a time.
const NAP: Duration = Duration::from_millis(20);
/// How often the connection is looked at during a test.
const LOOK: Duration = Duration::from_millis(1);
/// For a greeting.
const PROMPT: Duration = Duration::from_secs(5);

/// Who calls.
enum Caller {
    Tcp(TcpStream),
    Cm(cm::Request<Rc>),
}

impl Caller {
    fn peer(&self) -> String {
        let peer = match self {
            Caller::Tcp(stream) => stream.peer_addr().ok(),
            Caller::Cm(request) => Some(request.peer_addr()),
        };
        peer.map_or("a client".to_owned(), |peer| peer.ip().to_canonical().to_string())
    }

    fn talk(self) -> Result<Talk, String> {
        let stream = match self {
            Caller::Tcp(stream) => Stream::tcp(stream).map_err(|e| e.to_string())?,
            Caller::Cm(request) => match Connected::accept(request) {
                Ok(connected) => Stream::Cm(Box::new(connected)),
                Err(Refusal::Cm(error)) => return Err(error.to_string()),
                Err(Refusal::Device(error)) => return Err(error.to_string()),
                Err(Refusal::Silent(_)) => return Err("it went away".to_owned()),
            },
        };
        Ok(Talk::new(stream))
    }
}

pub(crate) fn serve(host: &Host, args: &ServerArgs, place: &PlaceArgs) -> Result<(), String> {
    let (tcp, connections) = listen_twice(host, args.bind, place.port())?;
    let local = tcp.local_addr().map_err(|e| e.to_string())?;
    say!("listening on {} port {}", local.ip(), local.port());
    let (sender, callers) = mpsc::channel();
    let other = sender.clone();
    std::thread::spawn(move || take_tcp(&tcp, &sender));
    if let Some(mut connections) = connections {
        std::thread::spawn(move || take_connections(&mut connections, &other));
    }
    let sessions = Arc::new(AtomicUsize::new(0));
    loop {
        let caller: Caller = callers.recv().map_err(|e| e.to_string())??;
        let peer = caller.peer();
        if !args.keep {
            return session(host, caller, place).map_err(|e| format!("{peer}: {e}"));
        }
        if sessions.fetch_add(1, Ordering::AcqRel) >= MAX_SESSIONS {
            sessions.fetch_sub(1, Ordering::AcqRel);
            refuse(caller, "too many clients at once; try again later");
            continue;
        }
        let (host, place, count) = (host.clone(), place.clone(), sessions.clone());
        std::thread::spawn(move || {
            if let Err(e) = session(&host, caller, &place) {
                crate::warn(format_args!("{peer}: {e}"));
            }
            count.fetch_sub(1, Ordering::AcqRel);
        });
    }
}

/// Until nobody wants to know any more.
fn take_tcp(listener: &TcpListener, callers: &Sender<Result<Caller, String>>) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                if callers.send(Ok(Caller::Tcp(stream))).is_err() {
                    return;
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Err(e) => {
                crate::warn(format_args!("cannot accept: {e}"));
                // Out of descriptors: until sessions end there is nothing better to do.
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn take_connections(listener: &mut Listener<Rc>, callers: &Sender<Result<Caller, String>>) {
    loop {
        match listener.next().and_then(|pending| pending.wait()) {
            Ok(request) => {
                if callers.send(Ok(Caller::Cm(request))).is_err() {
                    return;
                }
            }
            Err(cm::Error::DeviceGone) => {
                let _ = callers.send(Err("the device is gone".to_owned()));
                return;
            }
            Err(e) => {
                crate::warn(format_args!("cannot accept: {e}"));
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// The same port of TCP and of the connection manager. Without a device there is only TCP, whose clients are told why.
fn listen_twice(
    host: &Host,
    bind: Option<IpAddr>,
    port: u16,
) -> Result<(TcpListener, Option<Listener<Rc>>), String> {
    /// A port that is free in one may be taken in the other.
    const TRIES: u32 = 100;
    let devices = Devices::from(host.clone());
    if devices.list().map_err(|e| e.to_string())?.is_empty() {
        return Ok((listen(bind, port)?, None));
    }
    let connections = |port| {
        let address = SocketAddr::new(bind.unwrap_or(Ipv6Addr::UNSPECIFIED.into()), port);
        Listener::bind(&devices, address, 0)
    };
    if port != 0 {
        // Who sees that TCP is listened on finds the other, too.
        let connections = connections(port).map_err(|e| match e {
            cm::Error::Refused(CmError::AddrInUse { .. }) => in_use(port),
            e => format!("cannot listen for connections: {e}"),
        })?;
        return Ok((listen(bind, port)?, Some(connections)));
    }
    let mut tries = 0;
    loop {
        let tcp = listen(bind, port)?;
        match connections(tcp.local_addr().map_err(|e| e.to_string())?.port()) {
            Ok(listener) => return Ok((tcp, Some(listener))),
            Err(_) if tries < TRIES => tries += 1,
            Err(e) => return Err(format!("cannot listen for connections: {e}")),
        }
    }
}

fn in_use(port: u16) -> String {
    format!("port {port} is in use (another server?); choose one with --port on both sides")
}

fn listen(bind: Option<IpAddr>, port: u16) -> Result<TcpListener, String> {
    let explain = |address: IpAddr| {
        move |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::AddrInUse => in_use(port),
            _ => format!("cannot listen on {address} port {port}: {e}"),
        }
    };
    match bind {
        Some(address) => TcpListener::bind((address, port)).map_err(explain(address)),
        None => {
            let any = IpAddr::from(Ipv6Addr::UNSPECIFIED);
            // Where IPv6 is off there is still IPv4.
            TcpListener::bind((any, port)).or_else(|e| {
                if e.kind() == std::io::ErrorKind::AddrInUse {
                    return Err(explain(any)(e));
                }
                let any = IpAddr::from(Ipv4Addr::UNSPECIFIED);
                TcpListener::bind((any, port)).map_err(explain(any))
            })
        }
    }
}

fn refuse(caller: Caller, why: &str) {
    if let Ok(mut talk) = caller.talk() {
        let _ = talk.send(&Message::Error { message: why.to_owned() });
    }
}

fn session(host: &Host, caller: Caller, args: &PlaceArgs) -> Result<(), String> {
    let mut talk = caller.talk()?;
    let result = converse(host, &mut talk, args);
    if let Err(message) = &result {
        let _ = talk.send(&Message::Error { message: message.clone() });
    }
    result
}

fn converse(host: &Host, talk: &mut Talk, args: &PlaceArgs) -> Result<(), String> {
    let say = |e: TalkError| e.to_string();
    match talk.receive(PROMPT).map_err(say)? {
        Message::Hello { program, protocol, version } => {
            check_greeting(&program, protocol, &version).map_err(say)?;
        }
        other => return Err(unexpected(&other)),
    }
    let (local, peer) = talk.stream().addresses().map_err(|e| e.to_string())?;
    let place = Place::find(host, local, peer, args.device.as_deref(), args.gid_index)?;
    let Message::Hello { program, protocol, version } = hello() else { return Ok(()) };
    let welcome = Message::Welcome { program, protocol, version, mtu: place.mtu as u8 };
    talk.send(&welcome).map_err(say)?;
    loop {
        match talk.receive(IDLE) {
            Ok(Message::Start { test, endpoint }) => run(&place, talk, test, &endpoint)?,
            Ok(Message::Bye) => return Ok(()),
            Ok(other) => return Err(unexpected(&other)),
            Err(TalkError::Closed) => return Err("the client went away".to_owned()),
            Err(e) => return Err(e.to_string()),
        }
    }
}

fn unexpected(message: &Message) -> String {
    let what = serde_json::to_string(message).unwrap_or_default();
    TalkError::Unexpected { what: what.chars().take(80).collect() }.to_string()
}

/// Nothing that a client asks for may cost more than this.
fn check(test: &Test, place: &Place) -> Result<(), String> {
    let max_size = match test.transport {
        Transport::Ud => place.mtu.bytes() as u32,
        _ => 1 << 30,
    };
    let supported = match test.transport {
        Transport::Rc => true,
        Transport::Uc => matches!(test.operation, Operation::Send | Operation::Write),
        Transport::Ud => test.operation == Operation::Send,
    };
    if !supported {
        return Err(format!("{} has no {}", test.transport.name(), test.operation.name()));
    }
    if test.size > max_size {
        return Err(format!("messages of {} bytes: at most {max_size} are allowed", test.size));
    }
    if test.operation.is_atomic() && test.size != 8 {
        return Err(format!("atomics of {} bytes: they have 8", test.size));
    }
    if test.window == 0
        || test.window > 4096
        || super::lane::window(test.window, test.size) != test.window
    {
        return Err(format!(
            "a window of {} messages of {} bytes is not allowed",
            test.window, test.size
        ));
    }
    let mtu = Mtu::try_from(test.mtu).map_err(|e| e.to_string())?;
    if mtu > place.mtu {
        return Err(format!("path MTU {}: the port here has {}", mtu.bytes(), place.mtu.bytes()));
    }
    Ok(())
}

fn run(place: &Place, talk: &mut Talk, test: Test, peer: &Peer) -> Result<(), String> {
    check(&test, place)?;
    let gid: Gid = peer.gid.parse().map_err(|e| format!("the client's GID: {e}"))?;
    let place = place.clone().facing(&gid)?;
    let mut lane = Lane::new(place, test).map_err(|e| e.to_string())?;
    match test.operation {
        Operation::Send if test.mode == Mode::Latency => lane.take_slots(),
        Operation::Read => lane.fill_target(),
        _ => Ok(()),
    }
    .map_err(|e| e.to_string())?;
    lane.connect(peer)?;
    let endpoint = lane.endpoint().map_err(|e| e.to_string())?;
    talk.send(&Message::Ready { endpoint }).map_err(|e| e.to_string())?;
    Target { lane, received: 0, checked: Checked::default() }.run(talk)
}

/// One test, seen from the side that is sent to, written to or read from.
struct Target {
    lane: Lane,
    received: u64,
    checked: Checked,
}

impl Target {
    fn run(mut self, talk: &mut Talk) -> Result<(), String> {
        let say = |e: TalkError| match e {
            TalkError::Closed => "the client went away in the middle of a test".to_owned(),
            e => e.to_string(),
        };
        let mut turns = 0_u32;
        let (mut active, mut looked) = (Instant::now(), Instant::now());
        loop {
            turns = turns.wrapping_add(1);
            if self.progress()? > 0 {
                active = Instant::now();
            }
            if !turns.is_multiple_of(16) || looked.elapsed() < LOOK {
                continue;
            }
            looked = Instant::now();
            let message = if active.elapsed() < SPIN || self.lane.sleep(NAP) {
                talk.look()
            } else {
                // Nothing can arrive that would have to be answered here.
                talk.wait(Duration::from_secs(1))
            };
            match message.map_err(say)? {
                None => {}
                Some(Message::Check { first, count }) => {
                    let checked = self.check(first, count)?;
                    talk.send(&Message::CheckDone { checked }).map_err(say)?;
                }
                Some(Message::Finish { sent }) => {
                    self.collect(sent)?;
                    let (received, checked) = (self.received, self.checked);
                    let counter = self.lane.counter();
                    talk.send(&Message::Summary { received, checked, counter }).map_err(say)?;
                    return Ok(());
                }
                Some(other) => return Err(unexpected(&other)),
            }
        }
    }

    /// Takes what has arrived; returns how much.
    fn progress(&mut self) -> Result<u64, String> {
        let (before, test) = (self.received, self.lane.test);
        self.lane.drive()?;
        while let Some(arrival) = self.lane.next_received(self.received)? {
            if test.verify {
                self.checked += Checked::one(arrival.right);
            }
            self.received += 1;
            if test.mode == Mode::Latency {
                self.lane.echo(&arrival)?;
            }
            self.lane.again(arrival)?;
        }
        Ok(self.received - before)
    }

    /// Checks the slots that messages `first` and on were written to.
    fn check(&mut self, first: u64, count: u64) -> Result<Checked, String> {
        let window = self.lane.test.window;
        if count > u64::from(window) || first.checked_add(count).is_none() {
            return Err(format!("asked to check {count} messages in {window} slots"));
        }
        let mut checked = Checked::default();
        for message in first..first + count {
            checked += Checked::one(self.lane.holds(message));
        }
        Ok(checked)
    }

    /// Waits for messages that are still on their way: for all where they cannot be lost, otherwise
    /// until none has come for a while.
    fn collect(&mut self, sent: u64) -> Result<(), String> {
        if self.lane.test.operation != Operation::Send {
            return Ok(());
        }
        let quiet = match self.lane.test.transport {
            Transport::Rc => Duration::from_secs(10),
            _ => Duration::from_millis(100),
        };
        let mut last = Instant::now();
        while self.received < sent && last.elapsed() < quiet {
            if self.progress()? > 0 {
                last = Instant::now();
            }
        }
        Ok(())
    }
}
