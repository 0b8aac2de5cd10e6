//! VLANs of guests' ports beyond an uplink of the flat network: with their tags, beside frames without one.

use super::*;

/// Ports: 0 the uplink, 1 and 2 in VLAN 10, 3 without a VLAN, 4 a trunk with VLANs 10 and 20, 5 in service VLAN 10.
const UP: u16 = 0;
const OWN: u16 = 1;
const FLAT: u16 = 3;
const TRUNK: u16 = 4;
const SERVICE: u16 = 5;
const C: [u8; 6] = [2, 0, 0, 0, 0, 0xc];
const D: [u8; 6] = [2, 0, 0, 0, 0, 0xd];

fn world() -> World {
    let flat = Policy::default();
    World::with_uplink(&[flat.clone(), access(10), access(10), flat, trunk("10,20", None), service(10)])
}

fn only(port: u16, edit: Edit) -> (Vec<(u16, Edit)>, Option<Reason>) {
    (vec![(port, edit)], None)
}

fn ports(got: (Vec<(u16, Edit)>, Option<Reason>)) -> Vec<u16> {
    got.0.into_iter().map(|(port, _)| port).collect()
}

/// `ip link set DEV vf N vlan 10 qos 3`: igb_set_vmvir, ixgbe_set_vmvir.
#[test]
fn a_port_s_frames_leave_with_its_vlan_s_tag_and_come_back_without_it() {
    let mut w = world();
    w.switch.set_policy(PortId(OWN), &Policy { priority: 3, ..access(10) });
    let (got, _) = w.one(OWN, plain(EVERYBODY, A));
    let tag = customer(3, 10);
    assert_eq!(got, [(UP, Edit::Tag(tag)), (2, Edit::Keep), (TRUNK, Edit::Tag(tag))]);
    // The answer to A, with its tag.
    assert_eq!(w.one(UP, tagged(A, C, customer(0, 10))), only(OWN, Edit::Untag));
    assert_eq!(w.one(OWN, plain(C, A)), only(UP, Edit::Tag(tag)), "C was learned there");
    // Without its tag it is another network's.
    assert_eq!(ports(w.one(UP, plain(A, C))), [FLAT]);
    assert_eq!(ports(w.one(UP, tagged(A, C, customer(5, 0)))), [FLAT], "a priority is no VLAN");
    assert_eq!(w.one(TRUNK, tagged(C, B, customer(1, 10))), only(UP, Edit::Keep));
    let service = Tag::service(Tci(10));
    let (got, _) = w.one(SERVICE, plain(EVERYBODY, D));
    assert_eq!(got, [(UP, Edit::Tag(service)), (TRUNK, Edit::Tag(service))], "802.1ad, of its own");
    assert_eq!(w.one(UP, tagged(D, C, service)), only(SERVICE, Edit::Untag));
}

#[test]
fn a_broadcast_with_the_tag_reaches_the_vlan_s_ports_and_guests_of_the_flat_network_with_it() {
    let mut w = world();
    let (got, _) = w.one(UP, tagged(EVERYBODY, C, customer(0, 10)));
    assert_eq!(got, [(OWN, Edit::Untag), (2, Edit::Untag), (FLAT, Edit::Keep), (TRUNK, Edit::Keep)]);
    // VLAN 20 has no port but the trunk; nobody has VLAN 30.
    assert_eq!(ports(w.one(UP, tagged(EVERYBODY, C, customer(0, 20)))), [FLAT, TRUNK]);
    assert_eq!(ports(w.one(UP, tagged(EVERYBODY, C, customer(0, 30)))), [FLAT]);
    assert_eq!(ports(w.one(UP, plain(EVERYBODY, C))), [FLAT]);
}

#[test]
fn a_guest_of_the_flat_network_with_the_same_vlan_gets_answers_from_outside_and_never_reaches_the_vlan_s_ports() {
    let mut w = world();
    w.one(OWN, plain(EVERYBODY, A));
    let ten = customer(0, 10);
    for tags in [vec![ten], vec![ten, ten], vec![customer(0, 0), ten], vec![Tag::service(Tci(10))], vec![]] {
        for target in [A, EVERYBODY, D] {
            assert_eq!(w.one(FLAT, frame(target, B, &tags, 0x88b5, &[])), only(UP, Edit::Keep), "{tags:?} {target:?}");
        }
    }
    assert_eq!(w.one(UP, tagged(B, C, ten)).0.last(), Some(&(TRUNK, Edit::Keep)), "nobody of the VLAN has sent from B");
    assert!(ports(w.one(UP, tagged(B, C, ten))).contains(&FLAT));
    // It says that it is A: frames of the VLAN go to A all the same, and to nobody else.
    w.one(FLAT, tagged(EVERYBODY, A, ten));
    w.one(FLAT, plain(EVERYBODY, A));
    assert_eq!(w.one(UP, tagged(A, C, ten)), only(OWN, Edit::Untag));
}

#[test]
fn between_uplinks_a_frame_passes_once() {
    let mut w = world();
    w.switch.set_policy(PortId(FLAT), &Policy::default());
    w.switch.join_uplink(PortId(FLAT), ()).unwrap();
    let ten = customer(0, 10);
    let (got, _) = w.one(UP, tagged(EVERYBODY, C, ten));
    assert_eq!(got, [(OWN, Edit::Untag), (2, Edit::Untag), (FLAT, Edit::Keep), (TRUNK, Edit::Keep)]);
    // C is behind one uplink, D behind the other one.
    w.one(FLAT, tagged(EVERYBODY, D, ten));
    assert_eq!(w.one(UP, tagged(D, C, ten)), only(FLAT, Edit::Keep));
    assert_eq!(w.refused(UP, tagged(C, D, ten)), Some(Reason::SamePort));
    assert_eq!(w.one(OWN, plain(C, A)).0.len(), 1);
}

#[test]
fn a_vlan_that_another_uplink_has_leaves_by_that_one_alone() {
    let mut w = world();
    w.switch.set_policy(PortId(2), &trunk("10", None));
    w.switch.join_uplink(PortId(2), ()).unwrap();
    assert_eq!(ports(w.one(OWN, plain(EVERYBODY, A))), [2, TRUNK]);
    assert_eq!(ports(w.one(UP, tagged(EVERYBODY, C, customer(0, 10)))), [FLAT]);
    assert_eq!(ports(w.one(TRUNK, tagged(EVERYBODY, B, customer(0, 20)))), [UP], "nobody else has that");
    // The querier of multicast groups leads nowhere.
    w.switch.set_policy(PortId(2), &Policy { is_service: true, ..trunk("10", None) });
    assert_eq!(ports(w.one(OWN, plain(EVERYBODY, A))), [UP, 2, TRUNK]);
    // Once no port has it, its frames are those of the flat network again.
    for port in [OWN, TRUNK] {
        w.switch.leave(PortId(port));
    }
    assert_eq!(ports(w.one(UP, tagged(EVERYBODY, C, customer(0, 10)))), [FLAT]);
}

#[test]
fn each_packet_of_a_batch_from_outside_has_its_own_receivers_and_one_drop_at_most() {
    let mut w = world();
    w.one(OWN, plain(EVERYBODY, A));
    w.switch.leave(PortId(FLAT));
    let frames: Vec<Vec<u8>> = (0..64u16)
        .map(|n| match n % 4 {
            0 => tagged(A, C, customer(0, 10)),
            1 => tagged(EVERYBODY, C, customer(0, 30)),
            2 => tagged(EVERYBODY, C, customer(0, 20)),
            _ => plain(A, C),
        })
        .collect();
    let plan = w.send(UP, &frames);
    assert_eq!(
        plan.picks(PortId(OWN)).iter().map(|pick| pick.packet).collect::<Vec<_>>(),
        (0..64).step_by(4).collect::<Vec<_>>()
    );
    assert_eq!(
        plan.picks(PortId(TRUNK)).iter().map(|pick| pick.packet).collect::<Vec<_>>(),
        (2..64).step_by(4).collect::<Vec<_>>()
    );
    let mut dropped: Vec<_> = plan.drops().to_vec();
    dropped.sort_by_key(|(packet, _)| *packet);
    let expected: Vec<_> = (0..64).filter(|n| n % 2 == 1).map(|n| (n, Reason::NoReceiver)).collect();
    assert_eq!(dropped, expected);
}

#[test]
fn the_networks_of_a_frame_are_its_vlan_s_and_the_flat_one() {
    let w = world();
    let of = |port, tags: &[Tag]| w.switch.networks(PortId(port), &frame(A, B, tags, 0x88b5, &[])).collect::<Vec<_>>();
    assert_eq!(of(UP, &[customer(0, 10)]), [10, 0]);
    assert_eq!(of(UP, &[customer(0, 30)]), [0]);
    assert_eq!(of(UP, &[]), [0]);
    assert_eq!(of(FLAT, &[customer(0, 10)]), [0]);
    assert_eq!(of(OWN, &[]), [10]);
    assert_eq!(of(OWN, &[customer(0, 10)]), [0u16; 0]);
}
