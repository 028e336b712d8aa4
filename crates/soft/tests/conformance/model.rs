//! Random requests on whole Hosts, over a bad network where there is one, beside a model that knows what must come of them: every byte,
//! every completion, in order, once.
//!
//! Each direction of each connection has memory of its own: a place to send from and read into, of which no part is
//! used twice; receives; and, at the responder, a place that is written, one of atomics, and one that is only read.
//! What the IBA leaves open, as a WRITE after a READ of the same place, is fenced.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use ironverbs_soft::sim::Impairments;
use ironverbs_soft::*;

use crate::fabric::{Fabric, VIRTUAL_WATCHDOG, WATCHDOG};
use crate::side::{ALL, Side, join, move_to, pattern, post_inline, wr};

/// Bytes of memory that one end of a connection has.
const SHARE: u64 = 1 << 20;
/// Places within it: what is sent and read into, receives, what the peer writes, its atomics, what it only reads.
const SCRATCH: u64 = 0;
const RECEIVES: u64 = 0x60_000;
const WRITTEN: u64 = 0xc0_000;
const WORDS: u64 = 0xe0_000;
const READ_ONLY: u64 = 0xf0_000;
const PLACE: u64 = 0x10_000;
const WORD_COUNT: u64 = 16;

/// A message that the other side must receive next.
#[derive(Debug)]
struct Message {
    opcode: WcOpcode,
    data: Vec<u8>,
    imm: Option<[u8; 4]>,
}

/// A request that must complete next.
#[derive(Debug)]
struct Request {
    wr_id: u64,
    opcode: WcOpcode,
    signaled: bool,
    /// Brought to this place: a READ's data or an atomic's result.
    brings: Option<(u64, Vec<u8>)>,
    /// It is a message that takes a receive.
    message: bool,
}

/// One end of a connection: what it sent, and what it must receive.
struct End {
    qp: Arc<Qp>,
    base: u64,
    /// Next free bytes.
    scratch: u64,
    receive_at: u64,
    requests: VecDeque<Request>,
    incoming: VecDeque<Message>,
    receives: VecDeque<(u64, u64)>,
    /// What the peer has made of the places it may change.
    written: Vec<u8>,
    words: Vec<u64>,
    /// A READ or atomic of a place that may change is under way.
    must_fence: bool,
    /// Requests posted since one that was signaled: the queue has their places back with the next such.
    unsignaled: usize,
    next_id: u64,
    /// Messages that the peer has acknowledged, and those that came from it.
    acknowledged: u64,
    received: u64,
}

/// A shared queue, and the places of the receives posted to it.
type Pool = (Arc<Srq>, BTreeMap<u64, u64>);

struct Run {
    seed: u64,
    random: fastrand::Rng,
    f: Fabric,
    sides: [Side; 2],
    connections: Vec<[End; 2]>,
    /// Where a side shares its receives: the queue, and the places of those posted.
    shared: [Option<Pool>; 2],
}

impl Run {
    fn new(f: Fabric, seed: u64) -> Run {
        let mut random = fastrand::Rng::with_seed(seed);
        let count = random.u64(1..=3);
        let side = || Side::new(&f.host(), (count * SHARE) as usize);
        let sides = [side(), side()];
        let shared = sides.each_ref().map(|side| {
            let srq = || side.pd.create_srq(SrqInit { max_wr: 32, max_sge: 4 }).unwrap();
            (random.u8(0..3) == 0).then(|| (srq(), BTreeMap::new()))
        });
        let weather = Impairments {
            loss: random.f64() * 0.1,
            duplication: random.f64() * 0.1,
            reordering: random.f64() * 0.1,
            corruption: random.f64() * 0.1,
            delay: random.u64(1_000..100_000),
            ..Impairments::default()
        };
        let ends = |n: u64| {
            let base = n * SHARE;
            let qps = [0, 1].map(|side| {
                let (srq, side) = (shared[side].as_ref().map(|(srq, _)| srq.clone()), &sides[side]);
                let cap = QpCap {
                    max_send_wr: 16,
                    max_recv_wr: 32,
                    max_send_sge: 4,
                    max_recv_sge: 4,
                    max_inline_data: 256,
                };
                side.pd.create_qp(&QpInit { cap, srq, ..side.init(QpType::Rc) }).unwrap()
            });
            for side in &sides {
                let fixed = pattern(PLACE as usize, n);
                side.fill((base + READ_ONLY) as usize, &fixed);
            }
            qps.map(|qp| End {
                qp,
                base,
                scratch: base + SCRATCH,
                receive_at: base + RECEIVES,
                requests: VecDeque::new(),
                incoming: VecDeque::new(),
                receives: VecDeque::new(),
                written: vec![0; PLACE as usize],
                words: vec![0; WORD_COUNT as usize],
                must_fence: false,
                unsignaled: 0,
                next_id: 0,
                acknowledged: 0,
                received: 0,
            })
        };
        let connections: Vec<_> = (0..count).map(ends).collect();
        let mut run = Run { seed, random, sides, connections, shared, f };
        for n in 0..run.connections.len() {
            run.connect(n);
        }
        if let Some(network) = run.f.network() {
            network.impair(weather);
        }
        run
    }

    fn connect(&mut self, n: usize) {
        let random = &mut self.random;
        let path_mtu = random.choice([Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M4096]).unwrap();
        let (depth, timer) = (random.u8(1..=16), random.u8(1..=10));
        let psn = random.u32(..) & 0xff_ffff;
        let [x, y] = &self.connections[n];
        join(&self.sides[0], &x.qp, &self.sides[1], &y.qp, |attr| {
            attr.path_mtu = path_mtu;
            (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (depth, depth);
            (attr.sq_psn, attr.rq_psn) = (psn, psn);
            attr.min_rnr_timer = timer;
            attr.access = ALL;
        });
    }

    fn go(mut self) {
        for _ in 0..self.random.usize(60..160) {
            let n = self.random.usize(0..self.connections.len());
            let side = self.random.usize(0..2);
            match self.random.u8(0..20) {
                0..=5 => self.post_receive(n, side),
                6..=14 => self.post_request(n, side),
                15..=18 => {
                    for _ in 0..self.random.usize(0..60) {
                        self.f.progress();
                    }
                    self.collect();
                }
                _ if self.random.u8(0..4) == 0 => self.break_and_reconnect(n),
                _ => {}
            }
        }
        self.finish();
    }

    fn post_receive(&mut self, n: usize, side: usize) {
        let end = &mut self.connections[n][side];
        // Long enough for any message.
        let len: u32 = 12_000;
        if end.receive_at + u64::from(len) > end.base + WRITTEN {
            // Those at the beginning were used up long ago: at most 32 are posted at a time.
            end.receive_at = end.base + RECEIVES;
        }
        let here = &self.sides[side];
        let pool = self.shared[side].as_mut();
        let near = |at: &u64| at.abs_diff(end.receive_at) < u64::from(len);
        let used = match &pool {
            Some((_, posted)) => posted.values().any(near),
            None => end.receives.iter().any(|(_, at)| near(at)),
        };
        if used {
            return;
        }
        let cut = self.random.u32(0..=len);
        let sges =
            [here.sge(end.receive_at, cut), here.sge(end.receive_at + u64::from(cut), len - cut)];
        // Numbers of a side, not of a connection: its connections may share the queue.
        end.next_id += 1;
        let wr_id = end.next_id << 8 | n as u64;
        let posted = match pool {
            Some((srq, posted)) => {
                let done = srq.post_recv(wr_id, &sges);
                done.map(|()| {
                    posted.insert(wr_id, end.receive_at);
                })
            }
            None => {
                let done = end.qp.post_recv(wr_id, &sges);
                done.map(|()| end.receives.push_back((wr_id, end.receive_at)))
            }
        };
        if posted.is_ok() {
            end.receive_at += u64::from(len);
        }
    }

    /// Posts a request of any kind, and tells both ends' models.
    fn post_request(&mut self, n: usize, side: usize) {
        use WrOpcode::*;
        let random = &mut self.random;
        let [x, y] = &mut self.connections[n];
        let (end, peer) = if side == 0 { (x, y) } else { (y, x) };
        let (here, there) = (&self.sides[side], &self.sides[1 - side]);
        let opcode = random
            .choice([
                Send,
                SendWithImm,
                Write,
                Write,
                WriteWithImm,
                Read,
                Read,
                CompareSwap,
                FetchAdd,
            ])
            .unwrap();
        let longest = if random.bool() { 600 } else { 12_000 };
        let len = match opcode {
            CompareSwap | FetchAdd => 8,
            _ => random.u32(0..longest),
        };
        if end.scratch + u64::from(len) > end.base + RECEIVES {
            return;
        }
        let place = end.scratch;
        let data = pattern(len as usize, random.u64(..));
        let imm = random.u32(..).to_be_bytes();
        let reads = matches!(opcode, Read | CompareSwap | FetchAdd);
        let word = random.u64(0..WORD_COUNT);
        let within = random.u64(0..=PLACE - u64::from(len));
        let changing = random.bool();
        let remote = end.base
            + match opcode {
                CompareSwap | FetchAdd => WORDS + word * 8,
                Read if !changing => READ_ONLY + within,
                _ => WRITTEN + within,
            };
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, random.u8(0..3) > 0 || end.unsignaled == 8);
        flags.set(SendFlags::SOLICITED, random.bool());
        let changes = matches!(opcode, Write | WriteWithImm | CompareSwap | FetchAdd);
        let fence = end.must_fence && changes || random.u8(0..8) == 0;
        flags.set(SendFlags::FENCE, fence);
        end.next_id += 1;
        let before = peer.words[word as usize];
        // Half of the comparisons hold.
        let compare_add = if random.bool() { before } else { random.u64(..) };
        let request = SendWr {
            flags,
            imm,
            compare_add,
            swap: random.u64(..),
            ..there.remote(end.next_id, opcode, remote)
        };
        let inline = !reads && len <= 256 && random.bool();
        let posted = if inline {
            post_inline(&end.qp, &request, &data)
        } else {
            if !reads {
                here.fill(place as usize, &data);
            }
            let cut = random.u32(0..=len);
            let sges = [here.sge(place, cut), here.sge(place + u64::from(cut), len - cut)];
            end.qp.post_send(&request, Payload::Sges(&sges))
        };
        match posted {
            Ok(()) => {}
            Err(PostError::QueueFull { .. }) => return,
            Err(error) => panic!("seed {}: {error}", self.seed),
        }
        end.scratch += u64::from(len).next_multiple_of(8);
        end.unsignaled = if flags.contains(SendFlags::SIGNALED) { 0 } else { end.unsignaled + 1 };
        end.must_fence = (end.must_fence && !fence) || (opcode == Read && changing);

        let (at, to) = (within as usize, within as usize + len as usize);
        let mut brings = None;
        match opcode {
            Write | WriteWithImm => peer.written[at..to].copy_from_slice(&data),
            Read => {
                let from = remote as usize;
                let bytes = if changing {
                    peer.written[at..to].to_vec()
                } else {
                    there.read(from, len as usize)
                };
                brings = Some((place, bytes));
            }
            CompareSwap | FetchAdd => {
                brings = Some((place, before.to_ne_bytes().to_vec()));
                peer.words[word as usize] = match opcode {
                    FetchAdd => before.wrapping_add(compare_add),
                    _ if before == compare_add => request.swap,
                    _ => before,
                };
            }
            _ => {}
        }
        let message = matches!(opcode, Send | SendWithImm | WriteWithImm);
        if message {
            peer.incoming.push_back(Message {
                opcode: if opcode == WriteWithImm {
                    WcOpcode::RecvWriteWithImm
                } else {
                    WcOpcode::Recv
                },
                data,
                imm: (opcode != Send).then_some(imm),
            });
        }
        end.requests.push_back(Request {
            wr_id: end.next_id,
            opcode: match opcode {
                Write | WriteWithImm => WcOpcode::Write,
                Read => WcOpcode::Read,
                CompareSwap => WcOpcode::CompareSwap,
                FetchAdd => WcOpcode::FetchAdd,
                _ => WcOpcode::Send,
            },
            signaled: flags.contains(SendFlags::SIGNALED),
            brings,
            message,
        });
    }

    /// Looks at the completions there are; all must be successes.
    fn collect(&mut self) {
        for side in 0..2 {
            for wc in self.sides[side].poll() {
                assert_eq!(wc.status, WcStatus::Success, "seed {}: {wc:?}", self.seed);
                let n = self.owner(side, &wc);
                self.succeeded(n, side, &wc);
            }
        }
    }

    fn owner(&self, side: usize, wc: &Wc) -> usize {
        let of = self.connections.iter().position(|ends| ends[side].qp.qpn() == wc.qpn);
        of.unwrap_or_else(|| panic!("seed {}: whose is {wc:?}?", self.seed))
    }

    fn succeeded(&mut self, n: usize, side: usize, wc: &Wc) {
        let seed = self.seed;
        let here = &self.sides[side];
        let end = &mut self.connections[n][side];
        if matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvWriteWithImm) {
            let at = taken(end, &mut self.shared[side], wc, seed);
            let want = end.incoming.pop_front().expect("a message was sent");
            end.received += 1;
            assert_eq!(wc.opcode, want.opcode, "seed {seed}");
            assert_eq!(wc.byte_len as usize, want.data.len(), "seed {seed}");
            let imm = wc.flags.contains(WcFlags::WITH_IMM).then_some(wc.imm);
            assert_eq!(imm, want.imm, "seed {seed}");
            if wc.opcode == WcOpcode::Recv {
                let got = here.read(at as usize, want.data.len());
                assert!(got == want.data, "seed {seed}: a message changed");
            }
            return;
        }
        // Those before it that were not signaled are complete, too.
        loop {
            let request = end.requests.pop_front().expect("a request was posted");
            end.acknowledged += u64::from(request.message);
            if let Some((at, want)) = &request.brings {
                let got = here.read(*at as usize, want.len());
                assert!(got == *want, "seed {seed}: {request:?} brought {got:?}");
            }
            if request.signaled {
                assert_eq!((wc.wr_id, wc.opcode), (request.wr_id, request.opcode), "seed {seed}");
                return;
            }
        }
    }

    /// Moves a connection to ERR in the middle: what is posted completes, in order, as flushed from some point on.
    /// Then it is made anew.
    fn break_and_reconnect(&mut self, n: usize) {
        let seed = self.seed;
        let first = self.random.usize(0..2);
        for side in [first, 1 - first] {
            move_to(&self.connections[n][side].qp, QpState::Err);
            for _ in 0..self.random.usize(0..20) {
                self.f.progress();
            }
        }
        // All flushed ones are there at once: none depends on the network.
        for side in 0..2 {
            let mut flushing = [false; 2];
            for wc in self.sides[side].poll() {
                let of = self.owner(side, &wc);
                let receive = matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvWriteWithImm);
                if wc.status == WcStatus::Success {
                    assert!(!flushing[usize::from(receive)] || of != n, "seed {seed}: {wc:?}");
                    self.succeeded(of, side, &wc);
                    continue;
                }
                // The one that was left to the last may have given its peer up.
                let gave_up =
                    wc.status == WcStatus::RetryExcErr && side != first && flushing == [false; 2];
                assert!(gave_up || wc.status == WcStatus::WrFlushErr, "seed {seed}: {wc:?}");
                assert_eq!(of, n, "seed {seed}: {wc:?}");
                let end = &mut self.connections[n][side];
                if receive {
                    taken(end, &mut self.shared[side], &wc, seed);
                } else {
                    // Some before the first flushed one may have completed without a signal.
                    let mut request = end.requests.pop_front().expect("a request was posted");
                    while !flushing[0] && request.wr_id != wc.wr_id {
                        assert!(!request.signaled, "seed {seed}: {request:?} has no completion");
                        end.acknowledged += u64::from(request.message);
                        request = end.requests.pop_front().expect("a request was posted");
                    }
                    assert_eq!(
                        (wc.wr_id, wc.opcode),
                        (request.wr_id, request.opcode),
                        "seed {seed}"
                    );
                }
                flushing[usize::from(receive)] = true;
            }
        }
        for side in 0..2 {
            let end = &mut self.connections[n][side];
            assert!(end.receives.is_empty(), "seed {seed}: a receive without completion");
            for request in end.requests.drain(..) {
                assert!(!request.signaled, "seed {seed}: {request:?} has no completion");
                end.acknowledged += u64::from(request.message);
            }
            end.must_fence = false;
            end.unsignaled = 0;
        }
        let ends = &mut self.connections[n];
        for side in 0..2 {
            let (sent, came) = (ends[side].acknowledged, ends[1 - side].received);
            assert!(sent <= came, "seed {seed}: {sent} acknowledged, {came} received");
        }
        // The next connection counts anew.
        ends.iter_mut().for_each(|end| (end.acknowledged, end.received) = (0, 0));
        for side in 0..2 {
            move_to(&self.connections[n][side].qp, QpState::Reset);
        }
        // Packets of before may still be on their way; a new connection must not mistake them.
        self.f.settle_for(1_000_000);
        self.collect();
        self.last_requests_are_told();
        for side in 0..2 {
            let end = &mut self.connections[n][side];
            end.incoming.clear();
            // Requests that failed were carried out, in part or not at all.
            let here = &self.sides[side];
            end.written = here.read((end.base + WRITTEN) as usize, PLACE as usize);
            let words = here.read((end.base + WORDS) as usize, WORD_COUNT as usize * 8);
            end.words = words
                .chunks_exact(8)
                .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
                .collect();
        }
        self.connect(n);
    }

    /// Gives every message a receive, waits for the end, and compares all memory.
    fn finish(mut self) {
        let seed = self.seed;
        let start = Instant::now();
        let now = |run: &Run| run.f.network().map_or(0, |network| network.now());
        let deadline = now(&self) + VIRTUAL_WATCHDOG;
        let pass = |run: &mut Run| {
            let did = run.f.progress();
            let stands = run.f.network().is_some() && !did;
            let late = now(run) > deadline || start.elapsed() > WATCHDOG;
            assert!(!stands && !late, "seed {seed}: it does not go on");
            run.feed();
            run.collect();
        };
        for n in 0..self.connections.len() {
            for side in 0..2 {
                let last = wr(u64::MAX, WrOpcode::Write);
                while self.connections[n][side].qp.post_send(&last, Payload::Sges(&[])).is_err() {
                    pass(&mut self);
                }
                self.connections[n][side].requests.push_back(Request {
                    wr_id: u64::MAX,
                    opcode: WcOpcode::Write,
                    signaled: true,
                    brings: None,
                    message: false,
                });
            }
        }
        while self.connections.iter().flatten().any(|end| !end.requests.is_empty()) {
            pass(&mut self);
        }
        self.f.settle();
        self.collect();
        for side in 0..2 {
            let here = &self.sides[side];
            assert!(here.next_event().is_none(), "seed {seed}");
            for (n, ends) in self.connections.iter().enumerate() {
                let end = &ends[side];
                assert_eq!(end.qp.state(), QpState::Rts, "seed {seed}");
                assert!(end.incoming.is_empty(), "seed {seed}: messages are missing");
                let at = |place| (end.base + place) as usize;
                let written = here.read(at(WRITTEN), PLACE as usize);
                assert!(written == end.written, "seed {seed}: what was written differs");
                let words: Vec<u8> = end.words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                assert_eq!(here.read(at(WORDS), words.len()), words, "seed {seed}");
                let fixed = pattern(PLACE as usize, n as u64);
                assert!(here.read(at(READ_ONLY), PLACE as usize) == fixed, "seed {seed}");
            }
        }
    }

    /// Queue pairs with a shared queue that went to ERR have said so, and nothing else has.
    fn last_requests_are_told(&self) {
        for side in &self.sides {
            while let Some(event) = side.next_event() {
                assert_eq!(event.kind, EventKind::QpLastWqeReached, "seed {}", self.seed);
                event.ack();
            }
        }
    }

    /// Posts receives where messages wait for them.
    fn feed(&mut self) {
        for n in 0..self.connections.len() {
            for side in 0..2 {
                let end = &self.connections[n][side];
                let posted = match &self.shared[side] {
                    Some((_, posted)) => posted.len(),
                    None => end.receives.len(),
                };
                if posted < end.incoming.len().min(20) {
                    self.post_receive(n, side);
                }
            }
        }
    }
}

/// The place of the receive that completed: the oldest of a queue pair's own, any of a shared queue.
fn taken(end: &mut End, shared: &mut Option<Pool>, wc: &Wc, seed: u64) -> u64 {
    if let Some((_, posted)) = shared {
        return posted.remove(&wc.wr_id).unwrap_or_else(|| panic!("seed {seed}: {wc:?} twice"));
    }
    let (wr_id, at) = end.receives.pop_front().expect("a receive was posted");
    assert_eq!(wc.wr_id, wr_id, "seed {seed}");
    at
}

cases![every_request_does_what_the_model_says];

fn every_request_does_what_the_model_says(f: &Fabric) {
    // Every seed has Hosts of its own. A real path has no accidents that more of them would bring about.
    let seeds = crate::simulated::seeds();
    let count = seeds.end - seeds.start;
    let real = count.min(15.max(count / 10));
    let count = if f.network().is_some() { count } else { real };
    let seeds = seeds.start..seeds.start + count;
    for seed in seeds {
        Run::new(f.again(seed), seed).go();
    }
}
