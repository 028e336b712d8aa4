//! The administrator's client, and the cache of paths, against the administrator.

use ironverbs_mad::Instant;
use ironverbs_mad::subnet::{
    PathCache, QueryId, SaClient, SaError, SaPath, SaQuery, notice, port_gid,
};
use ironverbs_wire::Gid;
use ironverbs_wire::mad::Mad;

use crate::fabric::Fabric;
use crate::support::{MS, Rng, SECOND};

/// A client at a node, and the administrator at another.
struct Pair {
    fabric: Fabric,
    client: SaClient,
    node: usize,
    sm: usize,
    rng: Rng,
    loss: u64,
}

type Outcome = Result<Vec<Vec<u8>>, SaError>;

impl Pair {
    fn new(adapters: usize, seed: u64) -> Pair {
        let mut fabric = Fabric::new(adapters, 8, seed);
        fabric.manage(0, 3);
        fabric.run(3 * SECOND);
        let client = SaClient::new(u128::from(seed) << 64 | 7);
        Pair { fabric, client, node: 1, sm: 0, rng: Rng(seed), loss: 0 }
    }

    fn lost(&mut self) -> bool {
        self.rng.percent(self.loss)
    }

    /// Lets MADs pass until there is none, and takes the first result.
    fn settle(&mut self) -> Option<(QueryId, Outcome)> {
        loop {
            while let Some(mad) = self.client.poll_transmit() {
                if !self.lost() {
                    self.fabric.ask(self.node, self.sm, &mad);
                }
            }
            let came = std::mem::take(&mut self.fabric.received);
            if came.is_empty() {
                return self.client.poll_event();
            }
            for (to, mad) in came {
                if to == self.node && !self.lost() {
                    self.client.handle_mad(self.fabric.now, &mad);
                }
            }
        }
    }

    fn ask(&mut self, query: SaQuery, time: u64) -> Outcome {
        let id = self.client.query(self.fabric.now, query, time);
        loop {
            if let Some((of, outcome)) = self.settle() {
                assert_eq!(of, id);
                return outcome;
            }
            self.fabric.run(5 * MS);
            self.client.handle_timeout(self.fabric.now);
        }
    }

    fn gid(&self, node: usize) -> Gid {
        Gid(self.fabric.gid(node))
    }
}

#[test]
fn a_path_is_what_the_administrator_says() {
    let mut pair = Pair::new(9, 1);
    let (own, target) = (pair.gid(1), pair.gid(5));
    let records = pair.ask(SaQuery::path(&own, &target, None), SECOND).unwrap();
    let path = SaPath::parse(&records[0]).unwrap();
    assert_eq!((path.sgid, path.dgid), (own, target));
    assert_eq!((path.slid, path.dlid), (pair.fabric.lid(1), pair.fabric.lid(5)));
    assert_eq!((path.pkey, path.mtu, path.sl), (0xffff, 5, 0));

    let mut cache = PathCache::default();
    let now = pair.fabric.now;
    cache.put(now, path);
    assert_eq!(cache.get(now, &own, &target), Some(path));
    assert_eq!(cache.get(now, &target, &own), None);
    cache.invalidate(&pair.gid(7));
    assert_eq!(cache.len(), 1);
    cache.invalidate(&target);
    assert!(cache.is_empty());
    cache.put(now, path);
    assert_eq!(cache.get(now.after(3600 * SECOND), &own, &target), None, "it is not kept for ever");

    let unknown: Gid = "fe80::1".parse().unwrap();
    let refused = pair.ask(SaQuery::path(&own, &unknown, None), SECOND).unwrap_err();
    assert!(refused.is_absent(), "{refused:?}");
    let other = pair.ask(SaQuery::path(&own, &target, Some(0x8555)), SECOND).unwrap_err();
    assert!(other.is_absent(), "a partition that is not shared: {other:?}");
    assert_eq!(SaPath::parse(&records[0][..40]), None);
}

#[test]
fn answers_of_many_segments_arrive_whatever_is_lost() {
    for seed in 0..30 {
        let mut pair = Pair::new(60, seed);
        pair.loss = 5 * (seed % 5);
        let own = pair.gid(1);
        let records = pair.ask(SaQuery::nodes(), 60 * SECOND).unwrap();
        let mut gids: Vec<Gid> =
            records.iter().map(|record| port_gid(&own, record).unwrap()).collect();
        gids.sort_unstable();
        gids.dedup();
        // With the switches.
        assert_eq!(gids.len(), pair.fabric.nodes.len(), "seed {seed}");
        assert!((0..60).all(|node| gids.contains(&pair.gid(node))), "seed {seed}");
        assert_eq!(pair.client.pending(), 0);
    }
}

#[test]
fn silence_ends_when_the_time_is_over() {
    let mut client = SaClient::new(3);
    let start = Instant(SECOND);
    let gid: Gid = "fe80::1".parse().unwrap();
    let id = client.query(start, SaQuery::path(&gid, &gid, None), SECOND);
    let mut tids = Vec::new();
    let mut now = start;
    loop {
        while let Some(mad) = client.poll_transmit() {
            tids.push(mad[12..16].to_vec());
        }
        if let Some(event) = client.poll_event() {
            assert_eq!(event, (id, Err(SaError::Silent)));
            break;
        }
        now = client.next_timeout().unwrap();
        client.handle_timeout(now);
    }
    assert_eq!(now, start.after(SECOND));
    let all = tids.len();
    tids.sort_unstable();
    tids.dedup();
    assert!((4..8).contains(&all) && tids.len() == all, "{all} questions, each of its own");
    assert_eq!(client.next_timeout(), None);
    let cancelled = client.query(now, SaQuery::path(&gid, &gid, None), SECOND);
    client.cancel(cancelled);
    client.handle_timeout(now.after(2 * SECOND));
    assert_eq!(client.poll_event(), None);
}

fn answer(mad: &Mad, status: u16) -> Mad {
    let mut answer = *mad;
    answer[3] |= 0x80;
    answer[4..6].copy_from_slice(&status.to_be_bytes());
    answer
}

#[test]
fn a_busy_administrator_is_asked_again() {
    let mut client = SaClient::new(4);
    let gid: Gid = "fe80::1".parse().unwrap();
    let start = Instant(SECOND);
    let id = client.query(start, SaQuery::path(&gid, &gid, None), 5 * SECOND);
    let first = client.poll_transmit().unwrap();
    assert!(client.handle_mad(start, &answer(&first, 1)));
    assert_eq!((client.poll_event(), client.pending()), (None, 1));
    let again = client.next_timeout().unwrap();
    client.handle_timeout(again);
    let second = client.poll_transmit().unwrap();
    // Nobody else's answers count: of another transaction, another attribute, or requests.
    for (at, value) in [(15, second[15] ^ 1), (17, 0x38), (3, 0x01)] {
        let mut wrong = answer(&second, 0x0300);
        wrong[at] = value;
        assert!(!client.handle_mad(again, &wrong), "byte {at}");
    }
    // The late answer to the first question is as good.
    assert!(client.handle_mad(again, &answer(&first, 0x0300)));
    assert_eq!(client.poll_event(), Some((id, Err(SaError::Status(0x0300)))));
    assert!(!client.handle_mad(again, &answer(&second, 0)), "nobody waits any more");
}

#[test]
fn nothing_that_comes_makes_it_fail() {
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let mut client = SaClient::new(seed.into());
        let mut now = Instant(SECOND);
        for _ in 0..50 {
            client.query(now, SaQuery::nodes(), SECOND);
            while let Some(mut mad) = client.poll_transmit() {
                mad[3] |= 0x80;
                for byte in mad.iter_mut().skip(24) {
                    if rng.percent(20) {
                        *byte = rng.below(256) as u8;
                    }
                }
                if rng.percent(70) {
                    mad[24..27].copy_from_slice(&[1, 1 + rng.below(4) as u8, 1 | 2 | 4]);
                    mad[28..32].copy_from_slice(&[0, 0, 0, rng.below(3) as u8]);
                }
                client.handle_mad(now, &mad);
                let _ = notice(&mad);
            }
            now = now.after(100 * MS);
            client.handle_timeout(now);
            while client.poll_event().is_some() {}
        }
    }
}

#[test]
fn notices_come_until_they_are_acknowledged() {
    let mut pair = Pair::new(9, 5);
    for trap in [64, 65] {
        pair.ask(SaQuery::inform(trap, true), SECOND).unwrap();
    }
    let records =
        pair.ask(SaQuery { attribute: 0xf3, mask: 0, ..SaQuery::groups() }, SECOND).unwrap();
    assert_eq!((records.len(), records[0].len()), (2, 64));
    let gone = pair.gid(6);
    pair.fabric.kill(6);
    pair.fabric.managers.get_mut(&0).unwrap().topology_changed(pair.fabric.now);
    pair.fabric.run(3 * SECOND);
    let reports: Vec<Mad> = std::mem::take(&mut pair.fabric.received)
        .into_iter()
        .filter(|(to, mad)| *to == 1 && notice(mad) == Some((65, gone)))
        .map(|(_, mad)| mad)
        .collect();
    assert!((3..8).contains(&reports.len()), "nobody acknowledged: {}", reports.len());
    // One that is acknowledged comes once.
    pair.fabric.revive(6);
    pair.fabric.managers.get_mut(&0).unwrap().topology_changed(pair.fabric.now);
    let mut count = 0;
    for _ in 0..100 {
        pair.fabric.run(20 * MS);
        for (to, mad) in std::mem::take(&mut pair.fabric.received) {
            if to == 1 && notice(&mad).is_some_and(|(trap, _)| trap == 64) {
                count += 1;
                let mut heard = mad;
                heard[3] |= 0x80;
                pair.fabric.ask(1, 0, &heard);
            }
        }
    }
    assert_eq!(count, 1);
    let refused = pair.ask(SaQuery::inform(67, false), SECOND).unwrap_err();
    assert_eq!(refused, SaError::Status(0x0200), "what was never subscribed to");
}

#[test]
fn a_manager_that_has_just_begun_is_asked_again() {
    let mut pair = Pair::new(4, 3);
    let (own, unknown) = (pair.gid(1), "fe80::9:9".parse().unwrap());
    let query = || SaQuery::path(&own, &unknown, None);
    pair.client.ask_anew(pair.fabric.now);
    let begun = pair.fabric.now.0;
    assert_eq!(pair.ask(query(), SECOND), Err(SaError::Status(0x0500)));
    let waited = pair.fabric.now.0 - begun;
    assert!((400 * MS..SECOND).contains(&waited), "{waited}");
    // It is old enough; and whoever has no time is told at once.
    let then = pair.fabric.now;
    assert_eq!(pair.ask(query(), SECOND), Err(SaError::Status(0x0500)));
    pair.client.ask_anew(then);
    assert_eq!(pair.ask(query(), 10 * MS), Err(SaError::Status(0x0500)));
    assert_eq!(pair.fabric.now, then);
}
