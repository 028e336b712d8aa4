//! Hosts that say by ICMP that nobody there has the port.

use ironverbs_mad::{Disconnect, Event, Failure, Resolve};
use ironverbs_wire::mad::cm::Message;

use crate::support::*;

/// Lets time pass while the host of the server refuses everything that the client sends it.
fn refuse_for(world: &mut World, time: u64) {
    let end = world.now.after(time);
    while world.now < end {
        let before = world.trace.len();
        world.wait(10 * MS);
        if world.trace.len() > before {
            let now = world.now;
            world.cms[CLIENT].refused(now, &gid(SERVER));
        }
    }
}

fn refused() -> World {
    let mut world = World::new(7, Faults { loss: 100, ..Faults::default() });
    world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x100)).unwrap();
    world.flush();
    let now = world.now;
    world.cms[CLIENT].refused(now, &gid(SERVER));
    world
}

#[test]
fn who_listens_a_moment_later_is_found_at_once() {
    let mut world = refused();
    refuse_for(&mut world, 400 * MS);
    world.faults.loss = 0;
    world.cms[SERVER].listen(SERVICE, ironverbs_mad::LocalAddr::Any, 16).unwrap();
    world.wait(900 * MS);
    world.request_event();
    assert!(world.events(CLIENT).is_empty());
}

#[test]
fn a_host_that_goes_on_refusing_is_unreachable_after_three_seconds() {
    let mut world = refused();
    refuse_for(&mut world, 2_900 * MS);
    assert!(world.events(CLIENT).is_empty());
    let sent = world.trace.len();
    // 50, 100, 200, 400 ms, then 800 ms each.
    assert_eq!(sent, 7);
    assert!(world.trace.iter().all(|(_, message)| matches!(message, Message::Req(_))));
    refuse_for(&mut world, 1_000 * MS);
    let Event::Failed { failure, .. } = world.event(CLIENT) else { panic!() };
    assert_eq!(failure, Failure::Refused);
    assert!(world.cms[CLIENT].is_empty());
}

/// A word of ICMP that is forged, or true for a moment only, takes nothing from the time that a peer has.
#[test]
fn one_refusal_costs_no_retry() {
    let mut world = refused();
    let connect = request(CLIENT, 0x100);
    let each = ironverbs_mad::exponential(connect.remote_cm_response_timeout)
        + 2 * ironverbs_mad::exponential(connect.packet_life_time);
    world.wait(each * u64::from(connect.max_cm_retries));
    assert!(world.events(CLIENT).is_empty());
    world.wait(3 * each);
    let Event::Failed { failure, .. } = world.event(CLIENT) else { panic!() };
    assert_eq!(failure, Failure::NoReply);
}

#[test]
fn nobody_elses_connections_are_touched() {
    let mut world = World::new(7, Faults { loss: 100, ..Faults::default() });
    world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x100)).unwrap();
    world.flush();
    for _ in 0..10 {
        let now = world.now;
        world.cms[CLIENT].refused(now, &"10.0.0.77".parse().unwrap());
        world.wait(400 * MS);
    }
    assert!(world.events(CLIENT).is_empty());
    assert_eq!(world.trace.len(), 1);
}

#[test]
fn the_end_of_a_connection_waits_for_no_host_that_refuses() {
    let mut world = World::listening();
    let [client, _] = world.connected();
    world.faults.loss = 100;
    world.cms[CLIENT].disconnect(world.now, client, &[]).unwrap();
    refuse_for(&mut world, 1_000 * MS);
    let Event::Disconnected { by, .. } = world.event(CLIENT) else { panic!() };
    assert_eq!(by, Disconnect::Lost);
}

#[test]
fn services_likewise() {
    let mut world = World::new(3, Faults { loss: 100, ..Faults::default() });
    let asked = Resolve::new(path(CLIENT), SERVICE);
    let sidr = world.cms[CLIENT].resolve(world.now, &asked).unwrap();
    world.flush();
    let now = world.now;
    world.cms[CLIENT].refused(now, &gid(SERVER));
    refuse_for(&mut world, 4_000 * MS);
    assert_eq!(world.event(CLIENT), Event::SidrFailed { sidr, failure: Failure::Refused });
    assert!(world.cms[CLIENT].is_empty());
}
