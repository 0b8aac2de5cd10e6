//! A session of an outside TCP client survives its host, whatever happens to it, and whenever: the first host dies, stops or is cut off at
//! every single point of what it does.

use nicety_lab::replay::{End, Host, Role};
use nicety_protect::Stage;

use crate::help::{Task, adapters, settings};
use crate::world::{Fault, MS, World};

/// TCP tries again after a second, then two, four and so on.
const END: u64 = 60_000 * MS;

fn told(adapter: &str, world: &World, fault: Option<(usize, Fault)>) -> String {
    format!(
        "{adapter}, {fault:?}, {} answers, {} ms: {:?} and {:?}",
        world.client.answered(),
        world.now / MS,
        world.host(0).map(Host::status),
        world.host(1).map(Host::status),
    )
}

fn survives(adapter: &str, task: Task, fault: Option<(usize, Fault)>) -> World {
    plays(World::new(adapter, task, fault), adapter, fault)
}

fn plays(mut world: World, adapter: &str, fault: Option<(usize, Fault)>) -> World {
    world.play(END);
    let told = told(adapter, &world, fault);
    assert_eq!(world.client.broken, None, "{told}");
    assert!(world.client.done(), "{told}");
    world.check(&told);
    if fault.is_some() {
        // The hosts notice what happened, also after a client that was quick.
        let end = world.now + 3_000 * MS;
        world.pass(end);
        world.check(&told);
    }
    world
}

/// The result of a sweep.
#[derive(Debug, Default)]
struct Sum {
    points: usize,
    takeovers: usize,
    alone: usize,
}

/// Each `stride`th point, from the `first` on.
fn sweep(adapter: &str, task: Task, fault: Fault, stride: usize) -> Sum {
    let points = survives(adapter, task, None).points;
    let mut sum = Sum::default();
    for point in (1..=points).step_by(stride) {
        let world = survives(adapter, task, Some((point, fault)));
        sum.points += 1;
        sum.takeovers += usize::from(world.host(1).is_some_and(|host| host.role() == Role::Owner));
        sum.alone += usize::from(world.host(0).is_some_and(|host| host.status().stage == Some(Stage::Alone)));
    }
    println!("{adapter}, {fault:?}: {sum:?} of {points} points");
    sum
}

/// A few points of a session with every adapter, or all of them (`NICETY_EVERY_POINT`).
fn stride(usual: usize) -> usize {
    if std::env::var_os("NICETY_EVERY_POINT").is_some() { 1 } else { usual }
}

const ECHO: Task = Task { bytes: 12_000, ahead: 4_000 };
/// Requests that are answered before the next one.
const REQUESTS: Task = Task { bytes: 1_200, ahead: 100 };

#[test]
fn a_session_without_a_fault_is_protected_and_does_not_move() {
    for adapter in adapters() {
        // Full frames, and requests of 100 bytes that are answered before the next one.
        for task in [Task { bytes: 200_000, ahead: 20_000 }, Task { bytes: 40_000, ahead: 100 }] {
            let world = survives(adapter, task, None);
            let status = world.host(0).unwrap().status();
            assert!(status.is_protected, "{adapter}: {status:?}");
            assert_eq!(world.host(1).unwrap().role(), Role::Twin);
            let ratio = world.logged as f64 / world.received as f64;
            let (points, received) = (world.points, world.received);
            println!("{adapter}, {task:?}: {points} points, {received} bytes received, {ratio:.3} times logged");
            // VMware's log of received traffic was 1.07 times of it.
            assert!(ratio <= 1.02, "{adapter}, {task:?}: {ratio}");
        }
    }
}

#[test]
fn an_echo_survives_the_death_of_its_host_at_every_point() {
    let sum = sweep("e1000", ECHO, Fault::Kill, 1);
    assert_eq!(sum.takeovers, sum.points, "{sum:?}");
}

#[test]
fn requests_survive_the_death_of_its_host_at_every_point() {
    let sum = sweep("vmxnet3", REQUESTS, Fault::Kill, 1);
    assert_eq!(sum.takeovers, sum.points, "{sum:?}");
}

/// Thousands of points: a long session, with `NICETY_EVERY_POINT`.
#[test]
fn a_long_echo_survives_the_death_of_its_host() {
    let task = Task { bytes: 400_000, ahead: 20_000 };
    let sum = sweep("igb", task, Fault::Kill, stride(61));
    assert_eq!(sum.takeovers, sum.points, "{sum:?}");
}

#[test]
fn an_echo_survives_the_death_of_its_host_with_every_adapter() {
    for adapter in adapters() {
        sweep(adapter, ECHO, Fault::Kill, stride(17));
    }
}

/// The first host dies, the second takes over, a third, which knows nothing, joins it while the client goes on, and then the second dies, as
/// soon as the guest is protected again or some events later. Each at many points.
fn twice(adapter: &str, task: Task, stride: usize) -> usize {
    let points = survives(adapter, task, None).points;
    let mut moved = 0;
    for point in (1..=points).step_by(stride) {
        let fault = Some((point, Fault::Kill));
        let mut world = World::new(adapter, task, fault);
        world.play_until(END, |world| world.host(0).is_none());
        world.play_until(END, |world| world.host(1).is_some_and(|host| host.role() == Role::Owner));
        if world.host(0).is_some() || world.client.done() {
            continue;
        }
        world.join(0, &settings(adapter));
        world.play_until(END, |world| world.host(1).is_some_and(|host| host.status().is_protected));
        let told = told(adapter, &world, fault);
        let answered = world.client.answered();
        world.play_until(END, |world| world.client.answered() > answered + (point % 7) * 300);
        if world.client.done() {
            continue;
        }
        world.kill(1);
        world.play(END);
        assert_eq!(world.client.broken, None, "{told}");
        assert!(world.client.done(), "{told}");
        let survivor = world.host(0).unwrap();
        assert_eq!(survivor.role(), Role::Owner, "{told}");
        let known = &survivor.machine().sent;
        assert!(world.emitted.concat().iter().all(|frame| known.contains(frame)), "{told}: an unknown frame left");
        moved += 1;
    }
    moved
}

#[test]
fn a_session_survives_its_host_and_that_host_s_successor_which_a_new_host_has_joined() {
    // So slow that the third host has joined before the client is done.
    let task = Task { bytes: 40_000, ahead: 100 };
    // A session takes a second: with all adapters at all points it would be hours.
    let stride = if stride(2) == 1 { 29 } else { 151 };
    let moved = adapters().into_iter().step_by(5).map(|adapter| twice(adapter, task, stride)).sum::<usize>();
    println!("{moved} times");
    assert!(moved >= 10, "{moved} times");
}

/// Longer than the lease: the other host takes over, and the first one, which continues, ends.
#[test]
fn a_host_that_stops_for_longer_than_its_lease_at_any_point_is_replaced_and_gives_up() {
    let points = survives("virtio-net", ECHO, None).points;
    for point in (1..=points).step_by(stride(2)) {
        let fault = Some((point, Fault::Stop(3000 * MS)));
        let mut world = survives("virtio-net", ECHO, fault);
        let end = world.now + 10_000 * MS;
        world.pass(end);
        let told = told("virtio-net", &world, fault);
        world.check(&told);
        assert_eq!(world.host(1).map(Host::role), Some(Role::Owner), "{told}");
        assert_eq!(world.host(0).map(Host::role), Some(Role::Out(End::Owned)), "{told}");
    }
}

#[test]
fn a_host_that_stops_for_less_than_its_lease_at_any_point_goes_on() {
    sweep("igb", ECHO, Fault::Stop(200 * MS), stride(5));
}

/// The owner goes on alone: it still reaches the third party. The twin never takes over.
#[test]
fn a_link_that_is_cut_at_any_point_leaves_one_owner() {
    let sum = sweep("e1000e", ECHO, Fault::Cut(100_000 * MS), stride(3));
    assert_eq!((sum.takeovers, sum.alone), (0, sum.points), "{sum:?}");
}

#[test]
fn a_link_that_comes_back_at_any_point_leaves_one_owner() {
    let sum = sweep("e1000e", REQUESTS, Fault::Cut(700 * MS), stride(5));
    assert_eq!((sum.takeovers, sum.alone), (0, sum.points), "{sum:?}");
}

/// Both hosts lose the link: the owner goes on alone, and its twin is of no use any more.
#[test]
fn a_message_that_is_altered_on_the_link_at_any_point_costs_the_protection_and_nothing_else() {
    let points = survives("vmxnet3", ECHO, None).points;
    let mut given_up = 0;
    for point in (1..=points).step_by(stride(3)) {
        let world = survives("vmxnet3", ECHO, Some((point, Fault::Alter)));
        let hosts = [0, 1].map(|index| world.host(index).unwrap().status());
        assert!(hosts[0].role == Role::Owner, "{point}: {hosts:?}");
        let is_noticed = hosts[0].stage == Some(Stage::Alone) && hosts[1].role == Role::Out(End::Stale);
        // An altered length may ask for bytes that come with the next messages.
        assert!(is_noticed || (hosts[0].is_protected && !world.given_up), "{point}: {hosts:?}");
        given_up += usize::from(world.given_up);
    }
    // A length that is altered may ask for bytes that come with the next messages, or for more than any message has.
    assert!(given_up * 2 > points / stride(3), "{given_up} of {points}");
}

/// Nobody can prove that it owns the guest: nothing leaves until the third party is back.
#[test]
fn hosts_that_lose_each_other_and_the_third_party_at_any_point_wait_for_it() {
    sweep("rtl8139", ECHO, Fault::CutAll(5_000 * MS), stride(7));
}

/// Its lease runs out before the other host gets the guest, and it fences itself: nothing leaves it any more.
#[test]
fn a_host_that_loses_the_other_and_the_third_party_at_any_point_is_replaced_and_closes_its_gate() {
    let points = survives("e1000", ECHO, None).points;
    for point in (1..=points).step_by(stride(7)) {
        let fault = Some((point, Fault::CutFirst(5_000 * MS)));
        let mut world = survives("e1000", ECHO, fault);
        let end = world.now + 10_000 * MS;
        world.pass(end);
        let told = told("e1000", &world, fault);
        world.check(&told);
        assert_eq!(world.host(1).map(Host::role), Some(Role::Owner), "{told}");
        assert_eq!(world.host(0).map(Host::role), Some(Role::Out(End::Owned)), "{told}");
    }
}

/// A third party that takes most of a lease to answer.
#[test]
fn a_slow_third_party_delays_and_breaks_nothing() {
    for fault in [Fault::Kill, Fault::Cut(100_000 * MS), Fault::Stop(3000 * MS)] {
        for point in [1, 20, 40] {
            let fault = Some((point, fault));
            let mut world = World::new("pcnet", ECHO, fault);
            world.lock_ns = 300 * MS;
            plays(world, "pcnet", fault);
        }
    }
}

/// It names the input, stops, and the owner goes on without it, and says so.
#[test]
fn a_replica_that_differs_is_noticed_at_the_input_after_which_it_does() {
    let mut world = World::of(&settings("e1000"), Some(1), ECHO, None);
    world.play(END);
    assert!(world.client.done());
    let end = world.now + 3_000 * MS;
    world.pass(end);
    let (first, second) = (world.host(0).unwrap().status(), world.host(1).unwrap().status());
    assert!(!first.is_protected && first.role == Role::Owner, "{first:?}");
    let spoilt = world.host(0).unwrap().machine().frames[1];
    assert_eq!(second.role, Role::Out(End::Differs(spoilt)), "{second:?}");
}

/// In virtual time: what the hosts themselves take is not in it. The latency-bound case has one request on its way at a time.
#[test]
fn a_request_waits_for_one_round_trip_of_the_link_and_no_longer() {
    let requests = 100;
    let took = |link_ns: u64| {
        let mut world = World::new("virtio-net", Task { bytes: 100 * requests, ahead: 100 }, None);
        world.link_ns = link_ns;
        let begun = world.now;
        world = plays(world, "virtio-net", None);
        (world.now - begun) / requests as u64
    };
    let none = took(0);
    for round_trip in [100_000, 500_000, MS] {
        let each = took(round_trip / 2);
        println!("round trip {} us: {} us a request, {} without a link", round_trip / 1000, each / 1000, none / 1000);
        // The connection's beginning and end wait too: three round trips of a hundred and three.
        assert!(each <= none + round_trip + round_trip / 20 + 50_000, "{each} ns, {none} ns without a link");
        assert!(each >= none + round_trip, "output commit");
    }
}
