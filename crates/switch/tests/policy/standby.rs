//! A port that stands by for another one: the address of both is learned at that one.

use nicety_adapter::{Offload, PortId, Time};
use nicety_frame::Mac;
use nicety_switch::{Plan, Policy, Primary, Step};

use super::{A, B, EVERYBODY, access, world::World};

/// Ports of a VM: the primary and its standby. Port 2 is another VM's.
const PRIMARY: u16 = 0;
const STANDBY: u16 = 1;
const OTHER: u16 = 2;
const PAIR: Primary = Primary { address: Mac(A), port: PortId(PRIMARY) };

fn frame(target: [u8; 6], source: [u8; 6]) -> Vec<u8> {
    [&target[..], &source, &[0x88, 0xb5], &[0; 46]].concat()
}

impl World {
    /// The standby sends while the primary is driven.
    fn stand_by(&mut self, frames: &[Vec<u8>]) -> &Plan {
        self.load(STANDBY, frames, Offload::default());
        self.switch.forward_standby(&self.batch, PAIR, self.now, &mut self.plan);
        &self.plan
    }

    fn at(&self, address: [u8; 6], fid: u16) -> Option<u16> {
        self.switch.addresses().find(Mac(address), fid, self.now).map(|port| port.0)
    }
}

/// A flat switch, and one with a VLAN, with the number of its network.
fn worlds() -> [(World, u16); 2] {
    let world = |policy: &Policy| World::new(&[policy.clone(), policy.clone(), policy.clone()]);
    [(world(&Policy::default()), 0), (world(&access(10)), 10)]
}

#[test]
fn what_a_standby_sends_leads_to_its_primary_and_as_ever_once_that_is_not_driven() {
    for (mut world, fid) in worlds() {
        world.send(OTHER, &[frame(EVERYBODY, B)]);
        // Until now the standby has carried all, and its pair of addresses is kept.
        for _ in 0..3 {
            world.send(STANDBY, &[frame(B, A)]);
        }
        assert_eq!(world.at(A, fid), Some(STANDBY));
        let plan = world.stand_by(&[frame(B, A), frame(B, A), frame(EVERYBODY, A)]);
        assert_eq!(plan.picks(PortId(OTHER)).len(), 3, "its frames are forwarded");
        assert_eq!(world.at(A, fid), Some(PRIMARY));
        assert_eq!(world.send(OTHER, &[frame(A, B)]).receivers(), [PortId(PRIMARY)]);
        for _ in 0..3 {
            world.send(PRIMARY, &[frame(B, A)]);
            world.stand_by(&[frame(B, A)]);
            assert_eq!(world.at(A, fid), Some(PRIMARY));
        }
        world.send(STANDBY, &[frame(B, A)]);
        assert_eq!(world.at(A, fid), Some(STANDBY), "with the first frame");
        assert_eq!(world.send(OTHER, &[frame(A, B)]).receivers(), [PortId(STANDBY)]);
    }
}

#[test]
fn another_address_behind_a_standby_is_learned_there() {
    let another = [2, 0, 0, 0, 0, 0xc];
    for (mut world, fid) in worlds() {
        world.send(OTHER, &[frame(EVERYBODY, B)]);
        world.stand_by(&[frame(B, another), frame(B, A), frame(B, another)]);
        assert_eq!([another, A].map(|address| world.at(address, fid)), [Some(STANDBY), Some(PRIMARY)]);
        assert_eq!(world.send(OTHER, &[frame(another, B)]).receivers(), [PortId(STANDBY)]);
    }
}

#[test]
fn the_steps_say_where_a_standby_s_address_is_learned() {
    for (mut world, _) in worlds() {
        world.send(STANDBY, &[frame(EVERYBODY, A)]);
        world.load(STANDBY, &[frame(EVERYBODY, A)], Offload::default());
        for (primary, at) in [(None, STANDBY), (Some(PAIR), PRIMARY)] {
            let steps = world.switch.explain(&world.batch, primary, Time::ZERO, &mut world.plan);
            let learns = Step::Learns { address: Mac(A), at: PortId(at), before: Some(PortId(STANDBY)) };
            assert!(steps.contains(&learns), "{steps:?}");
        }
    }
}
