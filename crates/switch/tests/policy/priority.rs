//! Tags that leave, for each tag that comes and each kind of port: IEEE 802.1Q-2018, 6.9 (a priority-tagged frame has the port's VLAN, and
//! its own priority or a regenerated one), 8.6.2 (the ingress filter), 8.8.10 (an untagged egress takes the VLAN's tag off).

use super::*;

/// A frame's tags on the wire, outermost first: identifier, priority, VLAN.
type Wire = &'static [(u16, u8, u16)];

const C: u16 = 0x8100;
const S: u16 = 0x88a8;

/// Tags of what a port of VLAN 10, whose own priority is 3, sends; and those with which it leaves by the trunk and by the uplink without VLANs.
/// `None`: it leaves nowhere. First if the guest's word counts, then if not.
const ACCESS: [(Wire, Option<[Wire; 2]>); 10] = [
    (&[], Some([&[(C, 3, 10)], &[(C, 3, 10)]])),
    (&[(C, 5, 0)], Some([&[(C, 5, 10)], &[(C, 3, 10)]])),
    (&[(C, 0, 0)], Some([&[(C, 0, 10)], &[(C, 3, 10)]])),
    (&[(C, 5, 10)], None),
    (&[(C, 5, 20)], None),
    // Without its first tag it would be in the second one's VLAN.
    (&[(C, 5, 0), (C, 0, 20)], None),
    (&[(C, 5, 0), (S, 0, 20)], None),
    (&[(C, 5, 10), (C, 0, 20)], None),
    (&[(S, 5, 10)], None),
    (&[(S, 5, 0), (C, 0, 20)], None),
];

/// The same of a trunk of VLANs 10 and, without a tag, 30.
const TRUNK: [(Wire, Option<[Wire; 2]>); 9] = [
    (&[], Some([&[(C, 0, 30)], &[(C, 0, 30)]])),
    (&[(C, 5, 0)], Some([&[(C, 5, 30)], &[(C, 0, 30)]])),
    (&[(C, 5, 10)], Some([&[(C, 5, 10)], &[(C, 0, 10)]])),
    (&[(C, 0, 10)], Some([&[(C, 0, 10)], &[(C, 0, 10)]])),
    (&[(C, 5, 20)], None),
    (&[(C, 5, 0), (C, 0, 20)], None),
    // The second tag is the customer's, and its own business.
    (&[(C, 5, 10), (C, 6, 20)], Some([&[(C, 5, 10), (C, 6, 20)], &[(C, 0, 10), (C, 6, 20)]])),
    (&[(S, 5, 10)], Some([&[(S, 5, 10)], &[(S, 0, 10)]])),
    (&[(S, 5, 20)], None),
];

/// The same of a customer's port of service VLAN 10.
const SERVICE: [(Wire, Option<[Wire; 2]>); 4] = [
    (&[], Some([&[(S, 0, 10)], &[(S, 0, 10)]])),
    (&[(C, 5, 0)], Some([&[(S, 5, 10), (C, 5, 0)], &[(S, 0, 10), (C, 5, 0)]])),
    (&[(C, 5, 20)], Some([&[(S, 5, 10), (C, 5, 20)], &[(S, 0, 10), (C, 5, 20)]])),
    (&[(S, 5, 10)], None),
];

fn tag((tpid, priority, number): (u16, u8, u16)) -> Tag {
    Tag { tpid, tci: Tci::new(priority, false, number) }
}

/// The tags of a frame after an edit.
fn after(edit: Edit, tags: &[Tag]) -> Vec<Tag> {
    match edit {
        Edit::Keep => tags.to_vec(),
        Edit::Untag => tags[1..].to_vec(),
        Edit::Tag(tag) => [&[tag], tags].concat(),
        Edit::Retag(tag) => [&[tag], &tags[1..]].concat(),
    }
}

/// Checks that frames of a port with this policy leave by a trunk of VLANs 10 and 30 with the tags of the table. If the trunk is no uplink,
/// they leave by an uplink without VLANs, with the same tags.
fn leaves_as_in(table: &[(Wire, Option<[Wire; 2]>)], policy: &Policy) {
    for (column, regenerates) in [false, true].into_iter().enumerate() {
        let sender = Policy { regenerates, ..policy.clone() };
        let mut world = World::with_uplink(&[Policy::default(), sender, trunk("10,30", None)]);
        for &(sent, left) in table {
            let tags: Vec<Tag> = sent.iter().copied().map(tag).collect();
            let (got, dropped) = world.one(1, frame(EVERYBODY, A, &tags, 0x88b5, &[]));
            let got: Vec<(u16, Vec<Tag>)> = got.into_iter().map(|(port, edit)| (port, after(edit, &tags))).collect();
            let what = format!("{sent:x?}, regenerates: {regenerates}");
            let Some(left) = left else {
                assert_eq!((got, dropped), (vec![], Some(Reason::Vlan)), "{what}");
                continue;
            };
            let expected: Vec<Tag> = left[column].iter().copied().map(tag).collect();
            assert_eq!(got, [(0, expected.clone()), (2, expected)], "{what}");
        }
    }
}

#[test]
fn a_port_of_one_vlan_sends_its_own_priority_or_the_one_that_its_guest_may_choose() {
    leaves_as_in(&ACCESS, &Policy { priority: 3, ..access(10) });
}

#[test]
fn a_trunk_sends_the_priorities_of_its_tags_only_if_its_guest_may_choose_them() {
    leaves_as_in(&TRUNK, &trunk("10", Some(30)));
}

#[test]
fn a_customer_s_port_copies_the_priority_of_its_tags_only_if_its_guest_may_choose_it() {
    leaves_as_in(&SERVICE, &service(10));
}

#[test]
fn a_frame_that_may_be_dropped_first_says_so_only_if_its_guest_may_choose() {
    let tag = Tag::customer(Tci::new(2, true, 0));
    for (regenerates, left) in [(false, Tci::new(2, true, 10)), (true, Tci(10))] {
        let mut world = World::new(&[Policy { regenerates, ..access(10) }, trunk("10", None)]);
        assert_eq!(world.one(0, tagged(EVERYBODY, A, tag)).0, [(1, Edit::Retag(Tag::customer(left)))]);
    }
}

/// Beyond an uplink of the same VLAN, and at a guest of the same VLAN, no tag is left.
#[test]
fn where_a_frame_leaves_without_a_tag_none_of_its_own_is_left() {
    for regenerates in [false, true] {
        let mut world = World::with_uplink(&[access(10), Policy { regenerates, ..access(10) }, access(10)]);
        for &(sent, left) in &ACCESS {
            let tags: Vec<Tag> = sent.iter().copied().map(tag).collect();
            let (got, _) = world.one(1, frame(EVERYBODY, A, &tags, 0x88b5, &[]));
            let got: Vec<_> = got.into_iter().map(|(port, edit)| (port, after(edit, &tags))).collect();
            let expected = if left.is_some() { vec![(0, vec![]), (2, vec![])] } else { vec![] };
            assert_eq!(got, expected, "{sent:x?}");
        }
    }
}

/// The flat network has no VLANs: a tag is a part of the frame.
#[test]
fn without_a_vlan_tags_pass_as_they_are() {
    let flat = Policy { regenerates: true, mac_changes: false, ..Policy::default() };
    let mut world = World::with_uplink(&[Policy::default(), flat, Policy::default()]);
    for &(sent, _) in ACCESS.iter().chain(&TRUNK) {
        let tags: Vec<Tag> = sent.iter().copied().map(tag).collect();
        assert_eq!(world.one(1, frame(EVERYBODY, A, &tags, 0x88b5, &[])).0, [(0, Edit::Keep), (2, Edit::Keep)]);
    }
}
