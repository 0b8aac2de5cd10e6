//! Behaviour of a learning switch, in the terms of IEEE 802.1Q.

use std::sync::Arc;

use nicety_adapter::{Batch, PortId, Reason, Time};
use nicety_frame::Mac;
use nicety_memory::Map;
use nicety_switch::{Addresses, Limits, Plan, Switch};

const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
const B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
const EVERYBODY: [u8; 6] = [0xff; 6];

struct World {
    switch: Switch,
    map: Arc<Map>,
    batch: Batch,
    plan: Plan,
}

impl World {
    fn new(ports: u16) -> Self {
        let switch = Switch::new(Limits::default());
        for port in 0..ports {
            switch.join(PortId(port), ()).unwrap();
        }
        Self { switch, map: Arc::new(Map::private(1 << 16).unwrap()), batch: Batch::new(), plan: Plan::new() }
    }

    fn send(&mut self, from: u16, frames: &[([u8; 6], [u8; 6])], at_s: u64) {
        self.batch.start(&self.map, PortId(from), 0);
        for (i, (target, source)) in frames.iter().enumerate() {
            let bytes = [&target[..], &source[..], &[8, 0], &[0; 46]].concat();
            self.map.write(i as u64 * 64, &bytes).unwrap();
            let mut draft = self.batch.draft(0).unwrap();
            draft.push(i as u64 * 64, 60).unwrap();
            draft.finish_plain(0);
        }
        self.switch.forward(&self.batch, Time(at_s * 1_000_000_000), &mut self.plan);
    }

    fn receivers(&self) -> Vec<u16> {
        let mut ports: Vec<u16> = self.plan.receivers().iter().map(|p| p.0).collect();
        ports.sort_unstable();
        ports
    }
}

#[test]
fn ports_that_leave_together_are_forgotten_like_those_that_leave_one_by_one() {
    let mac = |port: u16| [2, 0, 0, 0, 1, port as u8];
    let [mut together, mut apart] = [World::new(6), World::new(6)];
    for world in [&mut together, &mut apart] {
        (0..6).for_each(|port| world.send(port, &[(EVERYBODY, mac(port))], 0));
    }
    let gone = [PortId(1), PortId(4), PortId(9)];
    assert_eq!(together.switch.leave_all(&gone).len(), 2, "the third had not joined");
    assert_eq!(gone.map(|port| apart.switch.leave(port)), [Some(()), Some(()), None]);
    for world in [&mut together, &mut apart] {
        for (target, receivers) in
            [(mac(1), &[2, 3, 5][..]), (mac(4), &[2, 3, 5]), (mac(5), &[5]), (EVERYBODY, &[2, 3, 5])]
        {
            world.send(0, &[(target, mac(0))], 1);
            assert_eq!(world.receivers(), receivers, "{target:x?}");
        }
        let mut left: Vec<u16> = world.switch.addresses().iter(Time(1)).map(|learned| learned.port.0).collect();
        left.sort_unstable();
        assert_eq!(left, [0, 2, 3, 5]);
    }
}

#[test]
fn an_unknown_address_is_flooded_and_a_known_one_is_not() {
    let mut world = World::new(4);
    world.send(0, &[(B, A)], 0);
    assert_eq!(world.receivers(), [1, 2, 3]);
    world.send(2, &[(A, B)], 1);
    assert_eq!(world.receivers(), [0]);
    world.send(0, &[(B, A)], 2);
    assert_eq!(world.receivers(), [2]);
}

#[test]
fn an_address_that_moves_is_followed_at_its_first_frame() {
    let mut world = World::new(3);
    world.send(0, &[(EVERYBODY, A)], 0);
    world.send(1, &[(EVERYBODY, A)], 0);
    world.send(2, &[(A, B)], 0);
    assert_eq!(world.receivers(), [1]);
}

#[test]
fn every_sender_of_a_batch_is_learned_whomever_its_neighbours_write_to() {
    const C: [u8; 6] = [2, 0, 0, 0, 0, 0xc];
    // A train to one target, interrupted by another sender; then a target that the switch knows.
    for target in [EVERYBODY, B] {
        let mut world = World::new(4);
        world.send(3, &[(EVERYBODY, B)], 0);
        world.send(0, &[(target, A), (target, C), (target, A)], 0);
        world.send(1, &[(A, B), (C, B)], 0);
        assert_eq!(world.receivers(), [0]);
        assert_eq!(world.plan.picks(PortId(0)).len(), 2, "a bridge may stand behind a port: both senders are there");
    }
}

#[test]
fn an_address_silent_for_longer_than_the_ageing_time_is_flooded_again() {
    let mut world = World::new(3);
    world.send(0, &[(EVERYBODY, A)], 10);
    world.send(1, &[(A, B)], 310);
    assert_eq!(world.receivers(), [0]);
    world.send(1, &[(A, B)], 311);
    assert_eq!(world.receivers(), [0, 2]);
}

#[test]
fn a_frame_is_never_sent_back_where_it_came_from() {
    let mut world = World::new(2);
    world.send(0, &[(EVERYBODY, A)], 0);
    world.send(0, &[(A, B)], 0);
    assert_eq!(world.plan.drops(), [(0, Reason::SamePort)]);
    assert!(world.receivers().is_empty());
}

#[test]
fn frames_for_the_next_bridge_go_no_further() {
    let mut world = World::new(2);
    world.send(0, &[([1, 0x80, 0xc2, 0, 0, 0xe], A), ([1, 0x80, 0xc2, 0, 0, 0x10], A)], 0);
    assert_eq!(world.plan.drops(), [(0, Reason::Policy)]);
    assert_eq!(world.plan.picks(PortId(1)).len(), 1);
}

#[test]
fn a_port_that_left_gets_nothing_and_is_forgotten() {
    let mut world = World::new(3);
    world.send(0, &[(EVERYBODY, A)], 0);
    world.switch.leave(PortId(0));
    world.send(1, &[(A, B)], 0);
    assert_eq!(world.receivers(), [2]);
    assert!(world.switch.addresses().iter(Time::ZERO).all(|learned| learned.port != PortId(0)));
}

#[test]
fn a_lonely_port_is_told_that_nobody_is_there() {
    let mut world = World::new(1);
    world.send(0, &[(EVERYBODY, A)], 0);
    assert_eq!(world.plan.drops(), [(0, Reason::NoReceiver)]);
}

#[test]
fn each_receiver_gets_its_frames_in_the_order_of_the_batch() {
    let mut world = World::new(3);
    world.send(1, &[(EVERYBODY, B)], 0);
    world.send(0, &[(B, A), (EVERYBODY, A), (B, A), (EVERYBODY, A)], 0);
    let order = |port| world.plan.picks(PortId(port)).iter().map(|p| p.packet).collect::<Vec<_>>();
    assert_eq!(order(1), [0, 1, 2, 3]);
    assert_eq!(order(2), [1, 3]);
}

#[test]
fn a_multicast_sender_is_not_learned() {
    let mut world = World::new(3);
    let sender = [3, 0, 0, 0, 0, 1];
    world.send(0, &[(EVERYBODY, sender)], 0);
    assert_eq!(world.switch.addresses().iter(Time::ZERO).count(), 0);
}

#[test]
fn a_hundred_thousand_addresses_are_found_where_they_were_heard() {
    let limits = Limits { addresses: 262_144, ..Limits::default() };
    let switch = Switch::<()>::new(limits);
    let address = |i: u32| {
        let [a, b, c, d] = i.to_be_bytes();
        nicety_frame::Mac([2, 0, a, b, c, d])
    };
    for i in 0..100_000 {
        switch.addresses().learn(address(i), 0, PortId((i % 7) as u16), Time::ZERO);
    }
    let right = |&i: &u32| switch.addresses().find(address(i), 0, Time::ZERO) == Some(PortId((i % 7) as u16));
    let found = (0..100_000).filter(right).count();
    assert!(found > 97_000, "{found} found; a full set of four forgets, and then floods");
    let wrong =
        (0..100_000).any(|i| switch.addresses().find(address(i), 0, Time::ZERO).is_some_and(|p| p.0 != (i % 7) as u16));
    assert!(!wrong, "never a wrong port");
}

/// The smallest table: one set of four entries. Reports which of five addresses it keeps.
struct Four(Addresses);

impl Four {
    fn new() -> Self {
        Self(Addresses::new(Limits { addresses: 4, ..Limits::default() }))
    }

    fn heard(&self, who: u8, at_s: u64) {
        self.0.learn(Mac([2, 0, 0, 0, 0, who]), 0, PortId(who.into()), Time(at_s * 1_000_000_000));
    }

    fn remembered(&self) -> Vec<u8> {
        let found =
            |who: &u8| self.0.find(Mac([2, 0, 0, 0, 0, *who]), 0, Time(100_000_000_000)) == Some(PortId((*who).into()));
        (0..5).filter(found).collect()
    }
}

#[test]
fn of_a_full_set_the_address_that_was_silent_longest_is_forgotten() {
    // The four are learned first in any order, and last seen in any order.
    for order in 0..256_u32 {
        let seconds: Vec<u64> = (0..4).map(|who| u64::from(order >> (2 * who) & 3)).collect();
        if (0..4).any(|second| !seconds.contains(&second)) {
            continue;
        }
        for refreshed in 0..4 {
            let four = Four::new();
            (0..4).for_each(|who| four.heard(who, 10 + seconds[usize::from(who)]));
            four.heard(refreshed, 20);
            let oldest = (0..4).filter(|who| *who != refreshed).min_by_key(|who| seconds[usize::from(*who)]).unwrap();
            four.heard(4, 30);
            let left: Vec<u8> = (0..5).filter(|who| *who != oldest).collect();
            assert_eq!(four.remembered(), left, "{seconds:?}, and then {refreshed}");
        }
    }
}

#[test]
fn a_new_address_takes_a_free_place_before_anybody_is_forgotten() {
    for gone in 0..4 {
        let four = Four::new();
        (0..4).for_each(|who| four.heard(who, 0));
        four.0.forget(PortId(gone.into()));
        four.heard(4, 0);
        let left: Vec<u8> = (0..5).filter(|who| *who != gone).collect();
        assert_eq!(four.remembered(), left);
    }
}
