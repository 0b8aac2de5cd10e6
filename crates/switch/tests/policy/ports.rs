//! VLANs, private VLANs, addresses, storm control, the MTU.

use nicety_adapter::{Checksum, Edit, Offload, PortId, Reason, Segment, SegmentKind, Time};
use nicety_frame::Mac;
use nicety_frame::vlan::{self, Tag, Tci};
use nicety_switch::{Policy, Private, Step, Storm, Vlan, VlanSet};

use crate::world::World;
use crate::{A, B, EVERYBODY, access, customer, frame, plain, service, tagged, trunk};

const SECOND: u64 = 1_000_000_000;

#[test]
fn an_access_port_s_frames_stay_in_its_vlan_and_have_its_tag_on_the_trunk() {
    let mut world = World::new(&[trunk("10,20", None), access(10), access(10), access(20), Policy::default()]);
    let tag = customer(0, 10);
    assert_eq!(world.one(1, plain(EVERYBODY, A)), (vec![(0, Edit::Tag(tag)), (2, Edit::Keep)], None));
    // The other direction: an answer from the trunk, without its tag.
    assert_eq!(world.one(0, tagged(A, B, tag)), (vec![(1, Edit::Untag)], None));
    assert_eq!(world.one(1, plain(B, A)), (vec![(0, Edit::Tag(tag))], None));
}

#[test]
fn an_address_is_learned_in_each_vlan_apart() {
    let mut world = World::new(&[access(10), access(10), access(20), access(20)]);
    world.one(0, plain(EVERYBODY, A));
    world.one(2, plain(EVERYBODY, A));
    assert_eq!(world.one(1, plain(A, B)), (vec![(0, Edit::Keep)], None));
    assert_eq!(world.one(3, plain(A, B)), (vec![(2, Edit::Keep)], None));
    let mut fids: Vec<u16> = world.switch.addresses().iter(world.now).map(|learned| learned.fid).collect();
    fids.sort_unstable();
    assert_eq!(fids, [10, 10, 20, 20]);
}

#[test]
fn a_port_without_vlan_is_on_the_flat_network_with_others_like_it() {
    let mut world = World::new(&[Policy::default(), access(10), Policy::default()]);
    assert_eq!(world.one(0, tagged(EVERYBODY, A, customer(0, 10))), (vec![(2, Edit::Keep)], None));
    assert_eq!(world.refused(1, plain(EVERYBODY, B)), Some(Reason::NoReceiver));
}

#[test]
fn a_tag_that_a_port_may_not_send_is_refused() {
    let mut world = World::new(&[trunk("10,20-30", None), access(10), trunk("40", Some(1)), access(1)]);
    assert_eq!(world.refused(1, tagged(EVERYBODY, A, customer(0, 10))), Some(Reason::Vlan), "its own, too");
    assert_eq!(world.refused(1, tagged(EVERYBODY, A, Tag::service(Tci(10)))), Some(Reason::Vlan));
    assert_eq!(world.refused(0, tagged(EVERYBODY, A, customer(0, 31))), Some(Reason::Vlan));
    assert_eq!(world.refused(0, tagged(EVERYBODY, A, customer(0, 4095))), Some(Reason::Vlan));
    assert_eq!(world.refused(0, plain(EVERYBODY, A)), Some(Reason::Vlan), "there is no native VLAN");
    assert_eq!(world.refused(0, tagged(EVERYBODY, A, customer(7, 0))), Some(Reason::Vlan));
    assert_eq!(world.switch.addresses().iter(world.now).count(), 0, "nothing is learned of what is refused");
    assert_eq!(world.one(2, plain(EVERYBODY, A)), (vec![(3, Edit::Keep)], None));
    assert_eq!(world.one(3, plain(EVERYBODY, B)), (vec![(2, Edit::Keep)], None), "native: without a tag");
}

#[test]
fn a_priority_tag_becomes_the_vlan_s_with_its_priority_and_goes_where_there_is_none() {
    let mut world = World::new(&[trunk("10", None), access(10), access(10)]);
    let got = world.one(1, tagged(EVERYBODY, A, customer(5, 0)));
    assert_eq!(got, (vec![(0, Edit::Retag(customer(5, 10))), (2, Edit::Untag)], None));
}

#[test]
fn a_service_port_s_frames_keep_their_own_tags_and_have_an_802_1ad_tag_on_the_trunk() {
    let mut world = World::new(&[trunk("100", None), service(100), service(100), access(100)]);
    let outer = Tag::service(Tci::new(3, false, 100));
    let got = world.one(1, tagged(EVERYBODY, A, customer(3, 7)));
    assert_eq!(got, (vec![(0, Edit::Tag(outer)), (2, Edit::Keep)], None), "VLAN 100 itself is another");
    let double = frame(EVERYBODY, B, &[outer, customer(3, 7)], 0x88b5, &[]);
    assert_eq!(world.one(0, double), (vec![(1, Edit::Untag), (2, Edit::Untag)], None));
    let twice = frame(EVERYBODY, B, &[outer, customer(3, 7)], 0x88b5, &[]);
    assert_eq!(world.refused(1, twice), Some(Reason::Vlan));
}

#[test]
fn trunks_keep_tags_between_them() {
    let mut world = World::new(&[trunk("1-4094", None), trunk("20-30", Some(20))]);
    assert_eq!(world.one(0, tagged(EVERYBODY, A, customer(2, 25))), (vec![(1, Edit::Keep)], None));
    assert_eq!(world.one(0, tagged(EVERYBODY, A, customer(2, 20))), (vec![(1, Edit::Untag)], None));
    assert_eq!(world.one(1, plain(EVERYBODY, B)), (vec![(0, Edit::Tag(customer(0, 20)))], None));
    assert_eq!(world.refused(0, tagged(EVERYBODY, A, customer(2, 31))), Some(Reason::NoReceiver));
}

/// Frames with two tags: no port of customers' VLANs may expose the inner one (802.1Q-2018, 6.9: a tag determines the VLAN).
fn double(outer: Tag, inner: Tag) -> Vec<u8> {
    frame(EVERYBODY, A, &[outer, inner], 0x88b5, &[])
}

#[test]
fn a_tag_behind_a_priority_tag_does_not_lead_into_another_vlan() {
    for inner in [customer(0, 20), customer(0, 0), Tag::service(Tci(20))] {
        let mut world = World::new(&[trunk("10,20", Some(10)), access(10), access(10), trunk("10,20", Some(10))]);
        for port in [1, 0] {
            assert_eq!(world.refused(port, double(customer(5, 0), inner)), Some(Reason::Vlan), "{inner} from {port}");
        }
        assert_eq!(world.switch.addresses().iter(world.now).count(), 0, "nothing is learned of it");
    }
}

#[test]
fn a_frame_with_two_tags_leaves_by_a_native_trunk_with_both_and_by_no_access_port() {
    let mut world = World::new(&[trunk("10,20", None), trunk("10,20", Some(10)), access(10), trunk("10", None)]);
    for inner in [customer(0, 20), customer(0, 0), Tag::service(Tci(20))] {
        let got = world.one(0, double(customer(3, 10), inner));
        assert_eq!(got, (vec![(1, Edit::Keep), (3, Edit::Keep)], None), "{inner}");
    }
    // A provider's bridge removes its own tag, and the rest is the customer's; it does not remove another provider's.
    let mut world = World::new(&[trunk("100", None), service(100), trunk("100", None)]);
    let outer = Tag::service(Tci(100));
    assert_eq!(world.one(0, double(outer, customer(0, 20))).0, [(1, Edit::Untag), (2, Edit::Keep)]);
    assert_eq!(world.one(0, double(outer, Tag::service(Tci(200)))).0, [(2, Edit::Keep)]);
}

/// The VLAN in which a switch classifies a frame.
fn vlan_of(world: &mut World, from: u16, frame: &[u8]) -> Option<u16> {
    world.load(from, &[frame.to_vec()], Offload::default());
    let steps = world.switch.explain(&world.batch, None, world.now, &mut world.plan);
    steps.iter().find_map(|step| if let Step::Vlan(Ok(fid)) = step { Some(*fid) } else { None })
}

fn edited(frame: &[u8], edit: Edit) -> Vec<u8> {
    let mut bytes = [frame, &[0; 4]].concat();
    let len = match edit {
        Edit::Keep => frame.len(),
        Edit::Untag => vlan::strip(&mut bytes, frame.len()).unwrap().0,
        Edit::Tag(tag) => vlan::insert(&mut bytes, frame.len(), tag).unwrap(),
        Edit::Retag(tag) => vlan::replace(&mut bytes, tag).map(|_| frame.len()).unwrap(),
    };
    bytes.truncate(len);
    bytes
}

#[test]
fn no_stack_of_tags_leads_into_another_vlan_at_the_next_switch() {
    let trunks = [trunk("10,20,100", None), trunk("10,20,100", Some(10)), trunk("20,100", Some(20))];
    let others = [access(10), access(20), service(10), service(100)];
    let policies = [&trunks[..], &others].concat();
    let alphabet = [0, 10, 20, 100].map(|number| [customer(0, number), Tag::service(Tci(number))]).concat();
    let mut stacks = vec![Vec::new()];
    for _ in 0..3 {
        let longer = stacks.iter().flat_map(|stack| alphabet.iter().map(|tag| [&stack[..], &[*tag]].concat()));
        stacks = stacks.iter().cloned().chain(longer).collect();
    }
    let (mut here, mut next) = (World::new(&policies), World::new(&policies));
    let mut delivered = 0;
    for stack in &stacks {
        for from in 0..policies.len() as u16 {
            let sent = frame(EVERYBODY, A, stack, 0x88b5, &[]);
            let vlan = vlan_of(&mut here, from, &sent);
            let picks = here.one(from, sent.clone()).0;
            for (port, edit) in picks {
                let left = edited(&sent, edit);
                let outer = vlan::outer(&left);
                match &policies[usize::from(port)].vlan {
                    // The same trunk at the next switch.
                    Vlan::Trunk { .. } => assert_eq!(vlan_of(&mut next, port, &left), vlan, "{stack:?} from {from}"),
                    Vlan::Access(_) => assert_eq!(outer, None, "{stack:?} from {from} to {port}"),
                    _ => assert!(outer.is_none_or(|tag| tag.tpid == 0x8100), "{stack:?} from {from} to {port}"),
                }
                delivered += 1;
            }
        }
    }
    assert!(delivered > 1000, "{delivered}");
}

#[test]
fn a_frame_that_ends_within_its_tag_is_too_short() {
    let mut world = World::new(&[trunk("10,20", Some(10)), access(10), service(10)]);
    // Padded with zeros on its way, the last one would be in VLAN 20.
    for len in 14..18 {
        for port in [0, 1, 2] {
            let cut = tagged(EVERYBODY, A, customer(0, 20))[..len].to_vec();
            assert_eq!(world.refused(port, cut), Some(Reason::TooShort), "{len} bytes from {port}");
        }
    }
    assert_eq!(world.one(1, plain(EVERYBODY, A)[..14].to_vec()).1, None, "without a tag it is a whole header");
}

#[test]
fn frames_of_one_batch_in_several_vlans_do_not_mix() {
    let mut world = World::new(&[trunk("10,20", None), access(10), access(20)]);
    let frames = [10, 20, 10, 30].map(|number| tagged(EVERYBODY, A, customer(0, number)));
    let plan = world.send(0, &frames);
    let packets = |port| plan.picks(PortId(port)).iter().map(|pick| pick.packet).collect::<Vec<_>>();
    assert_eq!((packets(1), packets(2)), (vec![0, 2], vec![1]));
    assert_eq!(plan.drops(), [(3, Reason::Vlan)]);
}

#[test]
fn private_ports_reach_promiscuous_ones_and_their_community() {
    let of = |private| Policy { private, ..access(10) };
    let parts =
        [Private::Promiscuous, Private::Isolated, Private::Isolated, Private::Community(1), Private::Community(1)];
    let mut policies: Vec<_> = parts.into_iter().map(of).collect();
    policies.push(of(Private::Community(2)));
    let mut world = World::new(&policies);
    let mut reached = |from: u16| {
        let got = world.one(from, plain(EVERYBODY, [2, 0, 0, 0, 1, from as u8])).0;
        got.into_iter().map(|(port, _)| port).collect::<Vec<_>>()
    };
    assert_eq!(reached(0), [1, 2, 3, 4, 5]);
    assert_eq!((reached(1), reached(2)), (vec![0], vec![0]));
    assert_eq!((reached(3), reached(4), reached(5)), (vec![0, 4], vec![0, 3], vec![0]));
    assert_eq!(world.refused(1, plain([2, 0, 0, 0, 1, 2], [2, 0, 0, 0, 1, 1])), Some(Reason::PrivateVlan));
    assert_eq!(world.one(4, plain([2, 0, 0, 0, 1, 3], [2, 0, 0, 0, 1, 4])).0.len(), 1);
}

#[test]
fn a_promiscuous_port_gets_what_others_send_to_each_other_in_its_vlan() {
    let watching = Policy { promiscuous: true, ..access(10) };
    let mut world = World::new(&[access(10), access(10), watching, access(20), access(20)]);
    world.one(1, plain(EVERYBODY, B));
    assert_eq!(world.one(0, plain(B, A)).0, [(1, Edit::Keep), (2, Edit::Keep)]);
    world.one(4, plain(EVERYBODY, B));
    assert_eq!(world.one(3, plain(B, A)).0, [(4, Edit::Keep)]);
}

#[test]
fn a_forged_source_is_refused_and_a_bound_address_is_not() {
    let addresses = vec![Mac(A), Mac([2, 0, 0, 0, 0, 0x11])];
    let strict = Policy { addresses, forged_transmits: false, ..Policy::default() };
    let mut world = World::new(&[strict, Policy::default()]);
    assert_eq!(world.refused(0, plain(EVERYBODY, B)), Some(Reason::Forged));
    assert_eq!(world.refused(0, plain(EVERYBODY, A)), None);
    assert_eq!(world.refused(0, plain(EVERYBODY, [2, 0, 0, 0, 0, 0x11])), None);
    assert!(world.switch.addresses().iter(world.now).all(|learned| learned.address != Mac(B)));
}

#[test]
fn a_port_whose_address_may_not_change_gets_frames_for_its_own_alone() {
    let strict = Policy { addresses: vec![Mac(A)], mac_changes: false, ..Policy::default() };
    let mut world = World::new(&[strict, Policy::default(), Policy::default()]);
    world.one(0, plain(EVERYBODY, B));
    assert_eq!(world.refused(1, plain(B, [2, 0, 0, 0, 0, 1])), Some(Reason::MacChanged));
    assert_eq!(world.one(1, plain(A, [2, 0, 0, 0, 0, 1])).0.len(), 2, "flooded, as it has not been heard of");
    assert_eq!(world.one(1, plain([2, 9, 9, 9, 9, 9], [2, 0, 0, 0, 0, 1])).0, [(2, Edit::Keep)]);
    assert_eq!(world.one(1, plain(EVERYBODY, [2, 0, 0, 0, 0, 1])).0.len(), 2);
}

#[test]
fn a_port_has_as_many_addresses_as_its_limit_until_one_has_been_silent() {
    let limited = Policy { address_limit: Some(2), ..Policy::default() };
    let mut world = World::new(&[limited, Policy::default()]);
    let from = |last| plain(EVERYBODY, [2, 0, 0, 0, 0, last]);
    assert_eq!((world.refused(0, from(1)), world.refused(0, from(2))), (None, None));
    assert_eq!(world.refused(0, from(3)), Some(Reason::AddressLimit));
    world.now = Time(200 * SECOND);
    assert_eq!(world.refused(0, from(2)), None);
    world.now = Time(302 * SECOND);
    assert_eq!(world.refused(0, from(3)), None);
    assert_eq!(world.refused(0, from(1)), Some(Reason::AddressLimit));
}

#[test]
fn storm_control_lets_through_its_rate_of_each_kind_and_no_more() {
    let storm = Storm { broadcast: Some(1000), multicast: Some(500), unknown: Some(100) };
    let mut world = World::new(&[Policy { storm, ..Policy::default() }, Policy::default()]);
    let kinds = [
        (EVERYBODY, 1000, Reason::BroadcastStorm),
        ([1, 0, 0x5e, 0, 0, 1], 500, Reason::MulticastStorm),
        ([2, 7, 7, 7, 7, 7], 100, Reason::UnknownStorm),
    ];
    for (target, rate, reason) in kinds {
        let (mut went, mut refused) = (0, 0);
        for _ in 0..1000 {
            world.now = world.now.after_ns(10_000_000);
            let plan = world.send(0, &vec![plain(target, A); 20]);
            went += plan.picks(PortId(1)).len();
            assert!(plan.drops().iter().all(|drop| drop.1 == reason));
            refused += plan.drops().len();
        }
        // 2000 a second for ten seconds; the burst is a tenth of a second's frames.
        assert_eq!(went + refused, 20_000);
        assert!((10 * rate..=10 * rate + rate / 10 + 1).contains(&went), "{reason:?}: {went}");
    }
}

#[test]
fn a_frame_longer_than_the_mtu_guard_is_refused_and_a_packet_to_be_cut_is_not() {
    let policy = Policy { mtu: Some(1000), ..Policy::default() };
    let mut world = World::new(&[policy, Policy::default()]);
    let long = |bytes: usize, tags: &[Tag]| frame(EVERYBODY, A, tags, 0x88b5, &vec![0; bytes]);
    assert_eq!(world.refused(0, long(1000, &[])), None);
    assert_eq!(world.refused(0, long(1001, &[])), Some(Reason::Mtu));
    assert_eq!(world.refused(0, long(1000, &[customer(0, 3)])), None, "a tag is no payload");
    assert_eq!(world.refused(0, long(1001, &[customer(0, 3)])), Some(Reason::Mtu));
    assert_eq!(world.refused(0, long(1000, &[customer(0, 3); 3])), Some(Reason::Mtu), "a third tag is");
    let cut = |mss| {
        let segment = Some(Segment { kind: SegmentKind::Tcp, mss, headers: 54 });
        Offload { checksum: Checksum::Partial { start: 34, field: 50 }, segment }
    };
    let mut tcp = vec![0; 5000];
    (tcp[0], tcp[9], tcp[32]) = (0x45, 6, 0x50);
    let tcp = frame(EVERYBODY, A, &[], 0x0800, &tcp);
    assert_eq!(world.send_as(0, std::slice::from_ref(&tcp), cut(960)).drops(), []);
    assert_eq!(world.send_as(0, &[tcp], cut(961)).drops(), [(0, Reason::Mtu)]);
}

#[test]
fn a_policy_replaced_while_the_switch_runs_holds_for_the_next_batch() {
    let mut world = World::new(&[Policy::default(), Policy::default(), Policy::default()]);
    world.one(0, plain(EVERYBODY, A));
    assert_eq!(world.one(1, plain(A, B)).0, [(0, Edit::Keep)]);
    world.switch.set_policy(PortId(0), &access(10));
    assert_eq!(world.one(1, plain(A, B)).0, [(2, Edit::Keep)], "what was learned of it is forgotten");
    world.switch.set_policy(PortId(1), &access(10));
    assert_eq!(world.one(1, plain(A, B)).0, [(0, Edit::Keep)]);
    world.switch.set_policy(PortId(0), &Policy::default());
    world.switch.set_policy(PortId(1), &Policy::default());
    assert_eq!(world.one(2, plain(EVERYBODY, B)).0.len(), 2);
}

#[test]
fn a_port_that_left_takes_its_policy_with_it() {
    let mut world = World::new(&[access(10), Policy::default()]);
    world.switch.leave(PortId(0));
    world.switch.join(PortId(0), ()).unwrap();
    assert_eq!(world.one(1, plain(EVERYBODY, B)).0, [(0, Edit::Keep)]);
}

#[test]
fn vlans_are_written_as_numbers_and_ranges_from_1_to_4094() {
    for text in ["10", "10,20-30", "1-4094", "5,7,9-11"] {
        assert_eq!(text.parse::<VlanSet>().unwrap().to_string(), text);
    }
    assert_eq!("3,1,2".parse::<VlanSet>().unwrap().to_string(), "1-3");
    for text in ["0", "4095", "70000", "-1", "", "30-20", "10-", "a", "0-5", "4000-4095"] {
        assert!(text.parse::<VlanSet>().unwrap_err().to_string().contains("1 to 4094"), "{text}");
    }
}

/// IEEE 802.1Q-2018, clause 40: a VEPA forwards what its stations send to the neighbouring bridge, which returns it.
#[test]
fn stations_of_a_vepa_reach_each_other_by_the_uplink_alone() {
    let vepa = || Policy { private: Private::Vepa, ..Policy::default() };
    let mut world = World::with_uplink(&[Policy::default(), vepa(), vepa(), Policy::default()]);
    let of = |number: u8| [2, 0, 0, 0, 1, number];
    let to = |(got, _): (Vec<(u16, Edit)>, Option<Reason>)| got.into_iter().map(|(port, _)| port).collect::<Vec<_>>();
    assert_eq!(to(world.one(1, plain(EVERYBODY, of(1)))), [0], "and not the fellow");
    assert_eq!(to(world.one(0, plain(EVERYBODY, of(1)))), [2, 3], "returned: not to its sender");
    assert_eq!(to(world.one(2, plain(of(1), of(2)))), [0], "although the switch knows it");
    assert_eq!(to(world.one(0, plain(of(1), of(2)))), [1], "returned");
    assert_eq!(to(world.one(1, plain(of(2), of(1)))), [0], "its address stayed where it is");
    assert_eq!(to(world.one(0, plain(of(2), of(1)))), [2]);
    // It reaches no ordinary port directly, and no ordinary port reaches it.
    assert_eq!(to(world.one(3, plain(EVERYBODY, of(3)))), [0]);
    assert_eq!(to(world.one(1, plain(of(3), of(1)))), [0]);
    assert_eq!(world.refused(3, plain(of(1), of(3))), Some(Reason::PrivateVlan));
    // A stranger beyond the uplink is heard by all.
    assert_eq!(to(world.one(0, plain(EVERYBODY, of(9)))), [1, 2, 3]);
    assert_eq!(to(world.one(1, plain(of(9), of(1)))), [0]);
}
