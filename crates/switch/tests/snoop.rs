//! IGMP and MLD snooping: who gets the frames of a group. Time is the test's own.

use std::sync::Arc;

use nicety_adapter::{Batch, PortId, Reason, Time};
use nicety_frame::checksum;
use nicety_memory::Map;
use nicety_switch::{Interest, Limits, Plan, Policy, Switch, Vlan, VlanId, Wanted};

const SECOND: u64 = 1_000_000_000;
const GROUP: [u8; 4] = [239, 1, 2, 3];
const GROUP6: [u8; 16] = [0xff, 0x15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3];
/// Who has an address and asks, and a switch that asks.
const ROUTER: [u8; 4] = [10, 0, 0, 1];
const NOBODY: [u8; 4] = [0; 4];
const NONE: [u16; 0] = [];

fn snooped() -> Policy {
    Policy { snooping: true, ..Policy::default() }
}

struct World {
    switch: Switch,
    map: Arc<Map>,
    batch: Batch,
    plan: Plan,
    now: Time,
}

impl World {
    /// So many ports, all of them snooped.
    fn new(ports: u16) -> Self {
        let switch = Switch::new(Limits::default());
        for port in (0..ports).map(PortId) {
            switch.set_policy(port, &snooped());
            switch.join(port, ()).unwrap();
        }
        let map = Arc::new(Map::private(1 << 20).unwrap());
        Self { switch, map, batch: Batch::new(), plan: Plan::new(), now: Time(SECOND) }
    }

    fn load(&mut self, from: u16, frames: &[Vec<u8>]) {
        self.batch.start(&self.map, PortId(from), 0);
        for (bytes, at) in frames.iter().zip((0..).step_by(4096)) {
            self.map.write(at, bytes).unwrap();
            let mut draft = self.batch.draft(0).unwrap();
            draft.push(at, bytes.len() as u32).unwrap();
            draft.finish_plain(0);
        }
    }

    /// Who gets a frame; nobody if it is dropped as `no-receiver`.
    fn send(&mut self, from: u16, frame: Vec<u8>) -> Vec<u16> {
        self.load(from, &[frame]);
        self.switch.forward(&self.batch, self.now, &mut self.plan);
        let mut got: Vec<u16> = self.plan.receivers().iter().map(|port| port.0).collect();
        got.sort_unstable();
        let dropped: Vec<Reason> = self.plan.drops().iter().map(|(_, reason)| *reason).collect();
        assert_eq!(dropped, if got.is_empty() { vec![Reason::NoReceiver] } else { Vec::new() });
        got
    }

    fn pass(&mut self, seconds: u64) {
        self.now = self.now.after_ns(seconds * SECOND);
    }
}

fn ethernet(target: [u8; 6], ethertype: u16, payload: &[&[u8]]) -> Vec<u8> {
    let mut frame = [&target[..], &[2, 0, 0, 0, 0, 9], &ethertype.to_be_bytes(), &payload.concat()].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

/// RFC 1112, section 6.4.
fn mac4(group: [u8; 4]) -> [u8; 6] {
    [1, 0, 0x5e, group[1] & 0x7f, group[2], group[3]]
}

fn v4(source: [u8; 4], group: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    // With a router alert, as RFC 3376, section 4, wants of messages.
    let len = 24 + payload.len() as u16;
    let head = [0x46, 0xc0, (len >> 8) as u8, len as u8, 0, 0, 0, 0, 1, protocol, 0, 0];
    ethernet(mac4(group), 0x0800, &[&head, &source, &group, &[0x94, 4, 0, 0], payload])
}

fn data(group: [u8; 4]) -> Vec<u8> {
    v4([10, 0, 0, 9], group, 17, &[0; 20])
}

fn query(source: [u8; 4]) -> Vec<u8> {
    v4(source, [224, 0, 0, 1], 2, &[0x11, 100, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0])
}

/// A query for a group, as version 2 has it.
fn query_for(group: [u8; 4], is_whole: bool) -> Vec<u8> {
    let mut message = [&[0x11, 10, 0, 0][..], &group].concat();
    let sum = checksum::sum(&message).checksum() ^ u16::from(!is_whole);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    v4(NOBODY, group, 2, &message)
}

/// A message of version 1 or 2: 0x12 and 0x16 join, 0x17 leaves.
fn old(kind: u8, group: [u8; 4]) -> Vec<u8> {
    let target = if kind == 0x17 { [224, 0, 0, 2] } else { group };
    v4([10, 0, 0, 9], target, 2, &[&[kind, 0, 0, 0][..], &group].concat())
}

/// A report of version 3: records of a type, a group, and so many sources.
fn report(records: &[(u8, [u8; 4], u8)]) -> Vec<u8> {
    let mut bytes = vec![0x22, 0, 0, 0, 0, 0, 0, records.len() as u8];
    for (kind, group, sources) in records {
        bytes.extend([*kind, 0, 0, *sources]);
        bytes.extend(group);
        bytes.extend(vec![10; usize::from(*sources) * 4]);
    }
    v4([10, 0, 0, 9], [224, 0, 0, 22], 2, &bytes)
}

fn v6(source: [u8; 16], group: [u8; 16], next: u8, payload: &[u8]) -> Vec<u8> {
    let target = [0x33, 0x33, group[12], group[13], group[14], group[15]];
    let len = 8 + payload.len() as u16;
    let head = [0x60, 0, 0, 0, (len >> 8) as u8, len as u8, 0, 1];
    let options = [next, 0, 5, 2, 0, 0, 1, 0];
    ethernet(target, 0x86dd, &[&head, &source, &group, &options, payload])
}

const LOCAL6: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
const ALL6: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

#[test]
fn a_group_that_nobody_has_joined_goes_to_all_and_one_that_is_known_to_its_members_and_routers() {
    let mut world = World::new(5);
    assert_eq!(world.send(0, data(GROUP)), [1, 2, 3, 4]);
    for (kind, port) in [(0x12, 1), (0x16, 2)] {
        world.send(port, old(kind, GROUP));
    }
    assert_eq!(world.send(0, data(GROUP)), [1, 2]);
    assert_eq!(world.send(0, query(ROUTER)), [1, 2, 3, 4], "a query goes to all");
    assert_eq!(world.send(4, data(GROUP)), [0, 1, 2], "a router gets all groups");
    assert_eq!(world.send(1, data(GROUP)), [0, 2], "not back to a member that sends");
    // The same address on Ethernet, and another group.
    assert_eq!(world.send(4, data([239, 129, 2, 3])), [0, 1, 2, 3]);
}

#[test]
fn reports_go_to_routers_alone() {
    let mut world = World::new(4);
    assert_eq!(world.send(1, old(0x16, GROUP)), NONE, "there is no router");
    assert_eq!(world.send(0, query(NOBODY)), [1, 2, 3]);
    assert_eq!(world.send(1, old(0x16, GROUP)), NONE, "who has no address is no router");
    world.send(0, query(ROUTER));
    assert_eq!(world.send(1, old(0x16, GROUP)), [0]);
    assert_eq!(world.send(1, report(&[(4, GROUP, 0)])), [0]);
    assert_eq!(world.send(1, old(0x17, GROUP)), [0]);
    // PIM's hello is a router's too.
    world.send(3, v4(ROUTER, [224, 0, 0, 13], 103, &[0x20, 0, 0, 0]));
    assert_eq!(world.send(1, old(0x16, GROUP)), [0, 3]);
}

#[test]
fn version_3_joins_by_any_source_and_leaves_by_including_none() {
    let mut world = World::new(4);
    world.send(0, query(ROUTER));
    for (record, joins) in [(1, true), (2, true), (4, true), (5, true), (3, true), (6, false)] {
        let group = [239, 0, 0, record];
        world.send(1, report(&[(record, group, 2)]));
        let expected = if joins { vec![0, 1] } else { vec![0, 1, 3] };
        assert_eq!(world.send(2, data(group)), expected, "record type {record}");
    }
    // Several at once, behind a record with sources; and more than a private head holds.
    let many: Vec<_> = (0..40).map(|last| (4, [239, 7, 0, last], 3)).collect();
    world.send(1, report(&many));
    for last in [0, 20, 39] {
        assert_eq!(world.send(2, data([239, 7, 0, last])), [0, 1], "group {last}");
    }
    world.send(1, report(&[(3, GROUP, 0), (3, [239, 0, 0, 4], 0)]));
    world.pass(5);
    assert_eq!(world.send(2, data([239, 0, 0, 4])), [0, 1], "somebody asks first whether others stay");
}

#[test]
fn who_leaves_is_gone_two_seconds_after_a_query_that_nobody_answers() {
    let mut world = World::new(4);
    for port in [1, 2] {
        world.send(port, old(0x16, GROUP));
    }
    world.send(1, old(0x17, GROUP));
    world.send(0, query_for(GROUP, false));
    world.pass(2);
    assert_eq!(world.send(3, data(GROUP)), [1, 2], "hosts do not hear a damaged query, and would not answer");
    assert_eq!(world.send(0, query_for(GROUP, true)), [1, 2, 3]);
    world.send(2, old(0x16, GROUP));
    world.pass(1);
    assert_eq!(world.send(3, data(GROUP)), [1, 2]);
    world.pass(1);
    assert_eq!(world.send(3, data(GROUP)), [2]);
}

#[test]
fn what_is_not_said_again_runs_out() {
    let mut world = World::new(4);
    world.send(1, old(0x16, GROUP));
    world.pass(259);
    assert_eq!(world.send(3, data(GROUP)), [1]);
    world.send(1, old(0x16, GROUP));
    world.pass(259);
    assert_eq!(world.send(3, data(GROUP)), [1], "it was said again");
    world.pass(1);
    assert_eq!(world.send(3, data(GROUP)), [0, 1, 2]);
    world.send(0, query(ROUTER));
    world.pass(254);
    assert_eq!(world.send(1, old(0x16, GROUP)), [0]);
    world.pass(1);
    assert_eq!(world.send(1, old(0x16, GROUP)), NONE, "the router is gone");
}

#[test]
fn mld_is_understood_as_igmp_is() {
    let mut world = World::new(4);
    let query = |source| v6(source, ALL6, 58, &[&[130, 0, 0, 0][..], &[0; 24]].concat());
    let message = |kind: u8| v6(LOCAL6, GROUP6, 58, &[&[kind, 0, 0, 0, 0, 0, 0, 0][..], &GROUP6].concat());
    let records = |kind: u8| {
        let bytes = [&[143, 0, 0, 0, 0, 0, 0, 1, kind, 0, 0, 0][..], &GROUP6].concat();
        v6(LOCAL6, [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 22], 58, &bytes)
    };
    let data = || v6(LOCAL6, GROUP6, 17, &[0; 20]);
    assert_eq!(world.send(3, data()), [0, 1, 2]);
    assert_eq!(world.send(1, message(131)), NONE);
    assert_eq!(world.send(3, data()), [1]);
    assert_eq!(world.send(0, query(LOCAL6)), [1, 2, 3]);
    assert_eq!(world.send(2, records(4)), [0]);
    assert_eq!(world.send(3, data()), [0, 1, 2]);
    world.send(1, message(132));
    world.send(2, records(3));
    let mut ask = [&[130, 0, 0, 0, 3, 232, 0, 0][..], &GROUP6, &[2, 125, 0, 0]].concat();
    let sum = checksum::pseudo_v6(LOCAL6.into(), GROUP6.into(), 58, 28).then(checksum::sum(&ask), false).checksum();
    ask[2..4].copy_from_slice(&sum.to_be_bytes());
    world.send(0, v6(LOCAL6, GROUP6, 58, &ask));
    world.pass(2);
    assert_eq!(world.send(3, data()), [0, 1, 2], "nobody is left: all");
    // Hosts find each other by such groups.
    world.send(1, v6(LOCAL6, ALL6, 58, &[&[131, 0, 0, 0, 0, 0, 0, 0][..], &ALL6].concat()));
    assert_eq!(world.send(3, v6(LOCAL6, ALL6, 58, &[136, 0, 0, 0])), [0, 1, 2]);
}

#[test]
fn what_is_no_ip_or_local_or_broadcast_goes_to_all() {
    let mut world = World::new(3);
    world.send(1, old(0x16, GROUP));
    world.send(1, old(0x16, [224, 0, 0, 251]));
    assert_eq!(world.send(0, data([224, 0, 0, 251])), [1, 2]);
    assert_eq!(world.send(0, ethernet(mac4(GROUP), 0x88b5, &[])), [1, 2]);
    assert_eq!(world.send(0, ethernet([0xff; 6], 0x0806, &[])), [1, 2]);
    assert_eq!(world.send(0, ethernet(mac4(GROUP), 0x0800, &[&[0x45, 0]])), [1, 2], "a cut header");
}

#[test]
fn vlans_are_apart_and_a_port_that_leaves_or_moves_is_forgotten() {
    let mut world = World::new(4);
    let access = |id| Policy { vlan: Vlan::Access(VlanId::new(id).unwrap()), ..snooped() };
    for (port, vlan) in [(0, 10), (1, 10), (2, 20), (3, 10)] {
        world.switch.leave(PortId(port));
        world.switch.set_policy(PortId(port), &access(vlan));
        world.switch.join(PortId(port), ()).unwrap();
    }
    world.send(2, old(0x16, GROUP));
    assert_eq!(world.send(0, data(GROUP)), [1, 3], "joined in another VLAN");
    world.send(1, old(0x16, GROUP));
    assert_eq!(world.send(0, data(GROUP)), [1]);
    world.switch.set_policy(PortId(1), &access(20));
    assert_eq!(world.send(0, data(GROUP)), [3], "nobody is known any more");
    assert_eq!(world.send(2, data(GROUP)), [1], "nobody knows what who has moved had joined");
    world.pass(260);
    world.send(2, old(0x16, GROUP));
    assert_eq!(world.send(2, data(GROUP)), NONE, "the member itself sends, and is the only one known");
    world.switch.leave(PortId(2));
    world.switch.set_policy(PortId(2), &access(20));
    world.switch.join(PortId(2), ()).unwrap();
    assert_eq!(world.send(1, data(GROUP)), [2], "nobody is known");
    assert_eq!(world.switch.wanted(world.now), [] as [Wanted; 0]);
}

#[test]
fn a_port_gets_all_groups_for_260_seconds_once_it_begins_to_be_snooped() {
    let mut world = World::new(4);
    world.switch.set_policy(PortId(2), &Policy::default());
    world.send(1, old(0x16, GROUP));
    assert_eq!(world.send(0, data(GROUP)), [1, 2], "who is not snooped gets all");
    world.switch.set_policy(PortId(2), &snooped());
    assert_eq!(world.send(0, data(GROUP)), [1, 2], "it may have joined before");
    world.switch.arrived(PortId(3));
    world.pass(200);
    world.send(1, old(0x16, GROUP));
    assert_eq!(world.send(0, data(GROUP)), [1, 2, 3], "its guest may have joined elsewhere");
    world.pass(60);
    assert_eq!(world.send(0, data(GROUP)), [1, 3]);
    world.pass(200);
    world.send(1, old(0x16, GROUP));
    assert_eq!(world.send(0, data(GROUP)), [1]);
}

#[test]
fn what_is_wanted_is_shown_with_how_long() {
    let mut world = World::new(3);
    world.send(1, old(0x16, GROUP));
    world.send(0, query(ROUTER));
    world.pass(60);
    let wanted = world.switch.wanted(world.now);
    let found: Vec<_> = wanted.iter().map(|wanted| (wanted.port.0, wanted.interest, wanted.left.as_secs())).collect();
    assert_eq!(found, [(1, Interest::Group(GROUP.into()), 200), (0, Interest::Router, 195)]);
}

#[test]
fn promiscuous_ports_get_all_and_an_explanation_learns_nothing() {
    let mut world = World::new(4);
    world.switch.set_policy(PortId(3), &Policy { promiscuous: true, ..snooped() });
    world.load(1, &[old(0x16, GROUP)]);
    let (batch, now) = (&world.batch, world.now);
    world.switch.explain(batch, now, &mut Plan::new());
    assert_eq!(world.send(0, data(GROUP)), [1, 2, 3]);
    world.send(1, old(0x16, GROUP));
    assert_eq!(world.send(0, data(GROUP)), [1, 3]);
}

#[test]
fn a_train_of_one_address_is_looked_at_frame_by_frame() {
    let mut world = World::new(4);
    world.load(1, &[data(GROUP), old(0x16, GROUP), data(GROUP), data([239, 129, 2, 3])]);
    world.switch.forward(&world.batch, world.now, &mut world.plan);
    let drops: Vec<u16> = world.plan.drops().iter().map(|(packet, _)| *packet).collect();
    assert_eq!(drops, [1, 2], "the report, and what only its sender wants");
    assert_eq!(world.send(0, data(GROUP)), [1]);
}

#[test]
fn a_guest_that_joins_without_end_fills_no_table_and_takes_nothing_from_others() {
    let mut world = World::new(4);
    for round in 0..4000u32 {
        let [_, a, b, c] = round.to_be_bytes();
        world.send(3, old(0x16, [239, 200 + a, b, c]));
    }
    world.send(1, old(0x16, GROUP));
    // It gets all groups from now on, for nobody knows which it wants; others get theirs.
    assert_eq!(world.send(0, data(GROUP)), [1, 3]);
    assert_eq!(world.send(0, data([239, 200, 0, 1])), [3]);
    assert_eq!(world.send(0, data([239, 200, 9, 9])), [1, 2, 3], "there was no room for it: all");
    world.pass(260);
    assert_eq!(world.send(0, data([239, 200, 0, 1])), [1, 2, 3]);
}
