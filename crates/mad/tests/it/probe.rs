//! Ports that are asked whether they are there.

use ironverbs_mad::{
    Cm, Config, Instant, PROBE_PERIOD, PROBE_SILENCE, ProbeEvent, Prober, Transmit,
};
use ironverbs_wire::Path;
use ironverbs_wire::mad::cm::{Message, SidrStatus};

use crate::support::{CLIENT, MS, Rng, SECOND, gid, path};

/// A prober and a port of which `Cm` answers, and the network between them.
struct Port {
    now: Instant,
    prober: Prober,
    peer: Cm,
    up: bool,
    loss: u64,
    rng: Rng,
    events: Vec<(Instant, ProbeEvent)>,
}

impl Port {
    fn new(seed: u64, loss: u64) -> Port {
        Port {
            now: Instant(SECOND),
            prober: Prober::new(5, 10, seed.into()),
            peer: Cm::new(Config::new(7, 10, (seed ^ 77).into())),
            up: true,
            loss,
            rng: Rng(seed),
            events: Vec::new(),
        }
    }

    fn exchange(&mut self) {
        while let Some(Transmit { path, pkey, mad }) = self.prober.poll_transmit() {
            if self.up && !self.rng.percent(self.loss) {
                self.peer.handle_mad(self.now, &path, pkey, &mad);
            }
        }
        while let Some(answer) = self.peer.poll_transmit() {
            if !self.rng.percent(self.loss) {
                self.prober.handle_mad(self.now, &answer.path, &answer.mad);
            }
        }
        assert!(self.peer.poll_event().is_none(), "a question concerns no program");
        while let Some(event) = self.prober.poll_event() {
            self.events.push((self.now, event));
        }
    }

    fn run(&mut self, time: u64) {
        let end = self.now.after(time);
        while self.now < end {
            self.exchange();
            let next = self.prober.next_timeout().unwrap_or(end).min(end);
            self.now = next.max(self.now.after(1));
            self.prober.handle_timeout(self.now);
            if self.peer.next_timeout().is_some_and(|at| at <= self.now) {
                self.peer.handle_timeout(self.now);
            }
        }
        self.exchange();
    }
}

#[test]
fn a_question_ends_once_whatever_is_lost() {
    for seed in 0..200 {
        let mut port = Port::new(seed, seed % 60);
        port.up = seed % 4 != 0;
        let id = port.prober.ask(port.now, &path(CLIENT), 30 * SECOND);
        port.run(40 * SECOND);
        let [(_, event)] = port.events[..] else { panic!("seed {seed}: {:?}", port.events) };
        let wanted = if port.up { ProbeEvent::Answers(id) } else { ProbeEvent::Silent(id) };
        assert_eq!(event, wanted, "seed {seed}");
        assert_eq!(port.prober.next_timeout(), None);
    }
}

#[test]
fn a_port_under_watch_comes_and_goes() {
    for seed in 0..20 {
        // One question in eight is lost, and as many answers.
        let mut port = Port::new(seed, 12);
        let id = port.prober.watch(port.now, &path(CLIENT));
        port.run(5 * SECOND);
        assert_eq!(port.prober.answers(id), Some(true));
        assert_eq!(port.events, [], "seed {seed}");
        port.up = false;
        let gone = port.now;
        port.run(5 * SECOND);
        let [(told, ProbeEvent::Silent(_))] = port.events[..] else { panic!("{:?}", port.events) };
        assert!(told <= gone.after(PROBE_SILENCE + 2 * PROBE_PERIOD), "{told:?} {gone:?}");
        port.up = true;
        port.run(5 * SECOND);
        assert!(matches!(port.events[..], [_, (_, ProbeEvent::Answers(_))]), "{:?}", port.events);
        // A word that nobody is there counts at once, and only once.
        port.up = false;
        for _ in 0..2 {
            port.prober.unreachable(port.now, &gid(1));
            port.exchange();
        }
        assert!(matches!(port.events[..], [_, _, (_, ProbeEvent::Silent(_))]), "{:?}", port.events);
        port.prober.forget(id);
        port.run(SECOND);
        assert_eq!(port.prober.next_timeout(), None);
    }
}

#[test]
fn only_who_was_asked_can_answer() {
    let mut prober = Prober::new(5, 10, 1);
    let now = Instant(SECOND);
    prober.ask(now, &path(CLIENT), SECOND);
    let question = prober.poll_transmit().unwrap();
    let Ok((tid, Message::SidrReq(request))) = Message::parse(&question.mad) else { panic!() };
    let answer = |tid, id| {
        let rep = ironverbs_wire::mad::cm::SidrRep {
            request_id: id,
            status: SidrStatus::UNSUPPORTED,
            info_len: 0,
            qpn: 0,
            service_id: request.service_id,
            qkey: 0,
            info: [0; 72],
            private_data: [0; 136],
        };
        Message::SidrRep(rep).emit(tid)
    };
    let back = Path { src: question.path.dst, dst: question.path.src, ..question.path };
    let stranger = Path { src: "10.0.0.3".parse().unwrap(), ..back };
    let id = request.request_id;
    assert!(!prober.handle_mad(now, &stranger, &answer(tid, id)));
    assert!(!prober.handle_mad(now, &back, &answer(tid ^ 1, id)));
    assert!(!prober.handle_mad(now, &back, &answer(tid, id ^ 1)));
    assert!(!prober.handle_mad(now, &back, &question.mad));
    assert_eq!(prober.poll_event(), None);
    assert!(prober.handle_mad(now.after(MS), &back, &answer(tid, id)));
    assert!(!prober.handle_mad(now.after(MS), &back, &answer(tid, id)));
    assert!(matches!(prober.poll_event(), Some(ProbeEvent::Answers(_))));
    assert_eq!(prober.poll_event(), None);
}
