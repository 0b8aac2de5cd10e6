//! Ports with policies, and their sent and received frames: VLANs, private VLANs, addresses, guards, storm control.

mod guards;
mod outward;
mod ports;
mod priority;
mod standby;
#[path = "../world/mod.rs"]
mod world;

use nicety_adapter::{Edit, Offload, PortId, Reason};
use nicety_frame::vlan::{Tag, Tci};
use nicety_switch::{Plan, Policy, Vlan, VlanId};

use world::World;

const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
const B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
const EVERYBODY: [u8; 6] = [0xff; 6];

impl World {
    /// Port 0 is an uplink.
    fn with_uplink(policies: &[Policy]) -> Self {
        let world = Self::new(policies);
        world.switch.join_uplink(PortId(0), ()).unwrap();
        world
    }

    fn send_as(&mut self, from: u16, frames: &[Vec<u8>], offload: Offload) -> &Plan {
        self.load(from, frames, offload);
        self.switch.forward(&self.batch, self.now, &mut self.plan);
        &self.plan
    }

    fn send(&mut self, from: u16, frames: &[Vec<u8>]) -> &Plan {
        self.send_as(from, frames, Offload::default())
    }

    /// Sends one frame. Returns the receivers with their edits, and the reason for a drop.
    fn one(&mut self, from: u16, frame: Vec<u8>) -> (Vec<(u16, Edit)>, Option<Reason>) {
        let plan = self.send(from, &[frame]);
        let mut got: Vec<_> = plan.receivers().iter().map(|port| (port.0, plan.picks(*port)[0].edit)).collect();
        got.sort_by_key(|(port, _)| *port);
        let dropped = plan.drops().first().map(|(_, reason)| *reason);
        assert!(got.is_empty() != dropped.is_none(), "delivered or dropped, never both: {got:?} {dropped:?}");
        (got, dropped)
    }

    fn refused(&mut self, from: u16, frame: Vec<u8>) -> Option<Reason> {
        self.one(from, frame).1
    }
}

fn id(number: u16) -> VlanId {
    VlanId::new(number).unwrap()
}

fn access(number: u16) -> Policy {
    Policy { vlan: Vlan::Access(id(number)), ..Policy::default() }
}

fn trunk(allowed: &str, native: Option<u16>) -> Policy {
    let vlan = Vlan::Trunk { allowed: allowed.parse().unwrap(), native: native.map(id) };
    Policy { vlan, ..Policy::default() }
}

fn service(number: u16) -> Policy {
    Policy { vlan: Vlan::Service(id(number)), ..Policy::default() }
}

fn customer(priority: u8, number: u16) -> Tag {
    Tag::customer(Tci::new(priority, false, number))
}

fn frame(target: [u8; 6], source: [u8; 6], tags: &[Tag], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [target, source].concat();
    tags.iter().for_each(|tag| bytes.extend(tag.to_bytes()));
    bytes.extend(ethertype.to_be_bytes());
    bytes.extend(payload);
    bytes.resize(bytes.len().max(60), 0);
    bytes
}

fn plain(target: [u8; 6], source: [u8; 6]) -> Vec<u8> {
    frame(target, source, &[], 0x88b5, &[])
}

fn tagged(target: [u8; 6], source: [u8; 6], tag: Tag) -> Vec<u8> {
    frame(target, source, &[tag], 0x88b5, &[])
}
