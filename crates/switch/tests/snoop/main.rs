//! IGMP and MLD snooping: the ports that get the frames of a group. The tests set the time.

mod frames;

use std::sync::Arc;

use nicety_adapter::{Batch, PortId, Reason, Time};
use nicety_memory::Map;
use nicety_switch::{Interest, Limits, Plan, Policy, Private, Switch, Vlan, VlanId, Wanted};

use frames::*;

const SECOND: u64 = 1_000_000_000;
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
    /// This many ports, all of them snooped.
    fn new(ports: u16) -> Self {
        Self::of(&vec![snooped(); usize::from(ports)])
    }

    /// Ports with these policies.
    fn of(policies: &[Policy]) -> Self {
        let switch = Switch::new(Limits::default());
        for (policy, port) in policies.iter().zip((0..).map(PortId)) {
            switch.set_policy(port, policy);
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

    /// The ports that get a frame; none if it is dropped as `no-receiver`.
    fn send(&mut self, from: u16, frame: impl Into<Vec<u8>>) -> Vec<u16> {
        self.load(from, &[frame.into()]);
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
    // Another group with the same Ethernet address.
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
    // PIM's hello marks a router too.
    world.send(3, hello());
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
    // Several records in one report, behind a record with sources; and more than fit into a private head.
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
    assert_eq!(world.send(0, query_for(GROUP)), [1, 2, 3]);
    world.send(2, old(0x16, GROUP));
    world.pass(1);
    assert_eq!(world.send(3, data(GROUP)), [1, 2]);
    world.pass(1);
    assert_eq!(world.send(3, data(GROUP)), [2]);
}

/// RFC 2236, section 3, and RFC 3376, section 8.8: the query's Maximum Response Time, as often as the querier asks.
#[test]
fn who_does_not_answer_a_query_is_gone_when_its_own_time_for_answers_is_over() {
    let longer = |frame: Frame, rest: [u8; 4]| Frame { message: [frame.message, rest.to_vec()].concat(), ..frame };
    let coded = |frame: Frame, at: usize, code: &[u8]| {
        let mut frame = frame;
        frame.message[at..at + code.len()].copy_from_slice(code);
        frame
    };
    let v2 = |code| coded(query_for(GROUP), 1, &[code]);
    // S and QRV, QQIC, and no sources: RFC 3376, sections 4.1.5 to 4.1.8.
    let v3 = |code, flags| coded(longer(query_for(GROUP), [flags, 125, 0, 0]), 1, &[code]);
    let mld = |code: u16| coded(query_for6(), 4, &code.to_be_bytes());
    let first_mld = |code: u16| {
        let mut frame = mld(code);
        frame.message.truncate(24);
        frame
    };
    let flagged = |frame, flags| coded(frame, 24, &[flags]);
    for (name, query, left_ms) in [
        ("RFC 2236, section 2.2: tenths of a second", v2(100), 20_000),
        ("no floating point in version 2", v2(255), 51_000),
        ("as short as the default, so that there is time to answer", v2(1), 2_000),
        ("RFC 3376, section 4.1.1: below 128", v3(127, 2), 25_400),
        ("from 128: (0 | 0x10) << 3, which is 128 tenths", v3(0x80, 2), 25_600),
        ("(5 | 0x10) << (1 + 3), which is 336 tenths", v3(0x95, 2), 67_200),
        ("a querier that asks three times", v3(100, 3), 30_000),
        ("RFC 3376, section 8.1: a robustness of 0 is none", v3(100, 0), 20_000),
        ("and one of 1 is not recommended", v3(100, 1), 20_000),
        ("never longer than before", v3(0xff, 7), 260_000),
        ("RFC 3376, section 4.1.5: routers do not act on it", v3(10, 8 | 2), 260_000),
        ("RFC 2710, section 3.4: milliseconds", first_mld(7_000), 14_000),
        ("RFC 3810, section 5.1.3: below 32768", mld(32_767), 65_534),
        ("(0 | 0x1000) << 3 ms", mld(0x8000), 65_536),
        ("(0x234 | 0x1000) << (1 + 3) ms", mld(0x9234), 2 * (0x1234 << 4)),
        ("a robust MLD querier", flagged(mld(5_000), 4), 20_000),
        ("RFC 3810, section 5.1.7", flagged(mld(1_000), 8 | 2), 260_000),
    ] {
        let mut world = World::new(3);
        world.send(1, if query.is_v4() { old(0x16, GROUP) } else { old6(131) });
        world.send(2, query);
        let left: Vec<_> =
            world.switch.wanted(world.now).iter().filter(|w| w.port == PortId(1)).map(|w| w.left).collect();
        assert_eq!(left, [std::time::Duration::from_millis(left_ms)], "{name}");
    }
}

#[test]
fn a_query_ends_no_membership_of_a_port_that_it_does_not_reach() {
    let community = Private::Community(7);
    let mut world = World::of(
        &[Private::Promiscuous, Private::Isolated, Private::Isolated, community, community]
            .map(|private| Policy { private, ..snooped() }),
    );
    for port in 0..5 {
        assert_eq!(world.send(port, old(0x16, GROUP)), NONE);
    }
    let left = |world: &World| {
        let mut left: Vec<_> = world.switch.wanted(world.now).iter().map(|w| (w.port.0, w.left.as_secs())).collect();
        left.sort_unstable();
        left
    };
    assert_eq!(world.send(1, query_for(GROUP)), [0]);
    assert_eq!(left(&world), [(0, 2), (1, 260), (2, 260), (3, 260), (4, 260)], "an isolated port asks");
    assert_eq!(world.send(3, query_for(GROUP)), [0, 4]);
    assert_eq!(left(&world), [(0, 2), (1, 260), (2, 260), (3, 260), (4, 2)], "a port of a community asks");
    assert_eq!(world.send(0, query_for(GROUP)), [1, 2, 3, 4]);
    assert_eq!(left(&world), [(0, 2), (1, 2), (2, 2), (3, 2), (4, 2)]);
    let mut world = World::new(3);
    world.send(1, old(0x16, GROUP));
    world.load(0, &[query_for(GROUP).bytes()]);
    world.switch.explain(&world.batch, None, world.now, &mut Plan::new());
    assert_eq!(left(&world), [(1, 260)], "the explanation of a query changes nothing");
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
    let data = || Frame::v6(LOCAL6, GROUP6, 17, &[0; 20]);
    assert_eq!(world.send(3, data()), [0, 1, 2]);
    assert_eq!(world.send(1, old6(131)), NONE);
    assert_eq!(world.send(3, data()), [1]);
    assert_eq!(world.send(0, query6(LOCAL6)), [1, 2, 3]);
    assert_eq!(world.send(2, report6(4)), [0]);
    assert_eq!(world.send(3, data()), [0, 1, 2]);
    world.send(1, old6(132));
    world.send(2, report6(3));
    world.send(0, query_for6());
    world.pass(2);
    assert_eq!(world.send(3, data()), [0, 1, 2], "nobody is left: all");
    // Hosts use these groups to find each other.
    world.send(1, Frame::v6(LOCAL6, ALL6, 58, &[&[131, 0, 0, 0, 0, 0, 0, 0][..], &ALL6].concat()));
    assert_eq!(world.send(3, Frame::v6(LOCAL6, ALL6, 58, &[136, 0, 0, 0])), [0, 1, 2]);
}

#[test]
fn a_report_that_its_receivers_do_not_take_joins_nothing() {
    let unaddressed = |frame: Frame| Frame { source: vec![0; frame.source.len()], ..frame };
    for (name, right) in [
        ("version 2", old(0x16, GROUP)),
        ("version 3", report(&[(4, GROUP, 0)])),
        ("MLD", old6(131)),
        ("MLD 2", report6(4)),
        ("without an address", unaddressed(report(&[(4, GROUP, 0)]))),
        ("MLD 2 without an address", unaddressed(report6(4))),
    ] {
        let mut world = World::new(3);
        for (what, spoilt) in right.spoilt() {
            assert_eq!(world.send(1, spoilt), NONE, "{name} with {what}: it goes to no host, which may take it");
            assert_eq!(world.switch.wanted(world.now), [] as [Wanted; 0], "{name} with {what}");
        }
        world.send(1, right);
        assert_eq!(world.switch.wanted(world.now).len(), 1, "{name}");
    }
    let first_version = Frame { options: Vec::new(), ..old(0x12, GROUP) };
    let mut world = World::new(3);
    world.send(1, first_version);
    assert_eq!(world.switch.wanted(world.now).len(), 1, "RFC 1112 has no router alert");
}

#[test]
fn a_query_that_hosts_do_not_take_ends_no_membership_and_makes_no_router() {
    let sources = |frame: Frame, count: u8| {
        let mut frame = Frame { source: ROUTER.to_vec(), ..frame };
        frame.message.extend([2, 125, 0, count]);
        frame.message.extend(vec![10; usize::from(count) * 4]);
        frame
    };
    let of_length = |frame: Frame, len| {
        let mut frame = frame;
        frame.message.resize(len, 0);
        frame.bytes()
    };
    for (name, right, join) in [
        ("version 2", Frame { source: ROUTER.to_vec(), ..query_for(GROUP) }, old(0x16, GROUP)),
        ("version 3", sources(query_for(GROUP), 0), old(0x16, GROUP)),
        ("MLD 2", query_for6(), old6(131)),
    ] {
        let mut world = World::new(3);
        world.send(1, join);
        let mut spoilt = right.spoilt();
        let odd = if right.is_v4() { 10 } else { 26 };
        spoilt.push(("a length of no version (RFC 3376, section 7.1)", of_length(right.clone(), odd)));
        if right.is_v4() {
            let all = Frame { target: vec![224, 0, 0, 1], mac: mac4([224, 0, 0, 1]), ..right.clone() };
            spoilt.push(("all hosts' address", all.bytes()));
        } else {
            spoilt.push(("no address", Frame { source: vec![0; 16], ..right.clone() }.bytes()));
        }
        for (what, frame) in spoilt {
            world.send(0, frame);
            let wanted = world.switch.wanted(world.now);
            let left: Vec<_> = wanted.iter().map(|wanted| (wanted.port.0, wanted.left.as_secs())).collect();
            assert_eq!(left, [(1, 260)], "{name} with {what}");
        }
        world.send(0, right);
        let wanted = world.switch.wanted(world.now);
        let left: Vec<_> = wanted.iter().map(|wanted| (wanted.port.0, wanted.left.as_secs())).collect();
        assert_eq!(left, [(1, 2), (0, 255)], "{name}");
    }
    let mut world = World::new(3);
    world.send(1, old(0x16, GROUP));
    world.send(0, sources(query_for(GROUP), 2));
    let wanted = world.switch.wanted(world.now);
    assert_eq!(wanted[0].left.as_secs(), 260, "it asks for some sources alone");
}

#[test]
fn a_general_query_or_a_hello_that_nobody_takes_makes_no_router() {
    let first_version = Frame::v4(ROUTER, [224, 0, 0, 1], 2, &[0x11, 0, 0, 0, 0, 0, 0, 0]);
    let hello6 = Frame::v6(LOCAL6, [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 13], 103, &[0x20, 0, 0, 0]);
    for (name, right) in [
        ("IGMP", query(ROUTER)),
        ("MLD", query6(LOCAL6)),
        ("PIM", hello()),
        ("PIM of IPv6", Frame { options: Vec::new(), ..hello6 }),
    ] {
        let mut world = World::new(3);
        for (what, spoilt) in right.spoilt() {
            world.send(0, spoilt);
            assert_eq!(world.switch.wanted(world.now), [] as [Wanted; 0], "{name} with {what}");
        }
        world.send(0, right);
        assert_eq!(world.switch.wanted(world.now)[0].interest, Interest::Router, "{name}");
    }
    let mut world = World::new(3);
    world.send(0, Frame::v4(ROUTER, [224, 0, 0, 13], 103, &[0x23, 0, 0, 0]));
    assert_eq!(world.switch.wanted(world.now), [] as [Wanted; 0], "PIM's join is no hello");
    world.send(0, Frame { options: Vec::new(), ..first_version });
    assert_eq!(world.switch.wanted(world.now)[0].interest, Interest::Router, "RFC 1112 has no router alert");
}

#[test]
fn a_report_reaches_no_other_host_however_it_is_wrapped() {
    // A host of version 2 that hears a report sends none itself (RFC 2236, section 3), and its port would be forgotten.
    let mut world = World::new(3);
    let right = old(0x16, GROUP).bytes();
    for tags in [1, 2, 3, 9, 20, 28, 40] {
        let stack = [0x81, 0, 0, 0].repeat(tags);
        let wrapped = [&right[..12], &stack, &right[12..]].concat();
        assert_eq!(world.send(1, wrapped), NONE, "{tags} tags");
    }
    let mut fragment = right;
    fragment[14 + 6] = 0x20;
    assert_eq!(world.send(1, fragment), NONE, "a first fragment");
}

#[test]
fn a_report_of_more_groups_than_there_is_room_for_gets_its_port_all() {
    let many: Vec<_> = (0..100).map(|last| (4, [239, 7, 0, last], 0)).collect();
    let long: Vec<_> = (0..200).map(|last| (4, [239, 7, 0, last], 0)).collect();
    for (name, records) in [("many groups", many), ("longer than it is read", long)] {
        let mut world = World::new(4);
        world.send(1, report(&records));
        world.send(2, old(0x16, [239, 7, 0, 99]));
        assert_eq!(world.send(3, data([239, 7, 0, 99])), [1, 2], "{name}");
    }
    let mut leaves: Vec<_> = (0..90).map(|last| (3, [239, 6, 0, last], 0)).collect();
    leaves.push((4, GROUP, 0));
    let mut world = World::new(4);
    world.send(1, report(&leaves));
    assert_eq!(world.send(3, data(GROUP)), [1], "it is the last of many records");
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
    world.load(1, &[old(0x16, GROUP).bytes()]);
    let (batch, now) = (&world.batch, world.now);
    world.switch.explain(batch, None, now, &mut Plan::new());
    assert_eq!(world.send(0, data(GROUP)), [1, 2, 3]);
    world.send(1, old(0x16, GROUP));
    assert_eq!(world.send(0, data(GROUP)), [1, 3]);
}

#[test]
fn a_train_of_one_address_is_looked_at_frame_by_frame() {
    let mut world = World::new(4);
    world.load(1, &[data(GROUP), old(0x16, GROUP), data(GROUP), data([239, 129, 2, 3])].map(|frame| frame.bytes()));
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
    // It gets all groups from now on, because its groups are unknown; other ports get only theirs.
    assert_eq!(world.send(0, data(GROUP)), [1, 3]);
    assert_eq!(world.send(0, data([239, 200, 0, 1])), [3]);
    assert_eq!(world.send(0, data([239, 200, 9, 9])), [1, 2, 3], "there was no room for it: all");
    world.pass(260);
    assert_eq!(world.send(0, data([239, 200, 0, 1])), [1, 2, 3]);
}
