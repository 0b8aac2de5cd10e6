//! The control queue (virtio 1.2, section 5.1.6.5).

use nicety_adapter::Reason;
use virtio_bindings::virtio_net::*;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_INDIRECT_DESC;

use crate::guest::{Guest, bit, rings};
use crate::packets::{payload, tcp4};
use crate::traffic::{plain, rich};

const OK: u8 = VIRTIO_NET_OK as u8;
const ERR: u8 = VIRTIO_NET_ERR as u8;

fn controlled(extra: &[u32]) -> Guest {
    let bits = [VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_CTRL_RX, VIRTIO_NET_F_MQ];
    Guest::new(rich() | bits.iter().chain(extra).map(|number| bit(*number)).sum::<u128>(), 32)
}

/// Whether a frame to this address is received.
fn hears(guest: &mut Guest, address: [u8; 6], vlan: Option<u16>) -> bool {
    let mut frame = tcp4(&payload(20));
    frame[..6].copy_from_slice(&address);
    if let Some(vlan) = vlan {
        let tag = [0x81, 0, (vlan >> 8) as u8, vlan as u8];
        frame.splice(12..12, tag);
    }
    let mut sender = Guest::new(plain(), 16);
    sender.send(0, &[0; 12], &frame, 2000);
    sender.fetch_of(0);
    guest.post(0, 1, 2048);
    let before = guest.counters.receive_drops[Reason::Filtered as usize];
    assert_eq!(guest.deliver(&sender.batch).refused(), 0);
    let heard = !guest.received(0).is_empty();
    assert_eq!(heard, guest.counters.receive_drops[Reason::Filtered as usize] == before);
    heard
}

fn table(unicast: &[[u8; 6]], multicast: &[[u8; 6]]) -> Vec<u8> {
    let mut out = Vec::new();
    for list in [unicast, multicast] {
        out.extend((list.len() as u32).to_le_bytes());
        out.extend(list.concat());
    }
    out
}

#[test]
fn receive_modes_and_address_tables_filter_as_they_say() {
    let own = [2, 0, 0, 0, 0, 1];
    let (other, group, broadcast) = ([2, 0, 0, 0, 0, 7], [1, 0, 0x5e, 0, 0, 5], [0xff; 6]);
    let mut guest = controlled(&[VIRTIO_NET_F_CTRL_RX_EXTRA]);
    assert!(hears(&mut guest, other, None), "before the driver has said anything");
    assert_eq!(guest.command(VIRTIO_NET_CTRL_RX, VIRTIO_NET_CTRL_RX_PROMISC, &[0]), OK);
    let heard = |guest: &mut Guest| [own, other, group, broadcast].map(|address| hears(guest, address, None));
    assert_eq!(heard(&mut guest), [true, false, false, true]);
    let set = table(&[other], &[group]);
    assert_eq!(guest.command(VIRTIO_NET_CTRL_MAC, VIRTIO_NET_CTRL_MAC_TABLE_SET, &set), OK);
    assert_eq!(heard(&mut guest), [true, true, true, true]);
    guest.command(VIRTIO_NET_CTRL_MAC, VIRTIO_NET_CTRL_MAC_TABLE_SET, &table(&[], &[]));
    assert_eq!(guest.command(VIRTIO_NET_CTRL_RX, VIRTIO_NET_CTRL_RX_ALLMULTI, &[1]), OK);
    assert_eq!(heard(&mut guest), [true, false, true, true]);
    assert_eq!(guest.command(VIRTIO_NET_CTRL_RX, VIRTIO_NET_CTRL_RX_NOBCAST, &[1]), OK);
    assert_eq!(heard(&mut guest), [true, false, true, false]);
    assert_eq!(guest.nic.receive_block(), None);
    assert_eq!(guest.command(VIRTIO_NET_CTRL_RX, VIRTIO_NET_CTRL_RX_NOMULTI, &[1]), OK);
    assert_eq!(guest.command(VIRTIO_NET_CTRL_RX, VIRTIO_NET_CTRL_RX_NOUNI, &[1]), OK);
    assert_eq!(heard(&mut guest), [false; 4]);
    let none = "its receive filter accepts no address (VIRTIO_NET_CTRL_RX_NOUNI, NOMULTI, NOBCAST)";
    assert_eq!(guest.nic.receive_block(), Some(none));
    assert_eq!(guest.command(VIRTIO_NET_CTRL_RX, VIRTIO_NET_CTRL_RX_PROMISC, &[1]), OK);
    assert_eq!(guest.nic.receive_block(), None);
}

/// virtio 1.2, 5.1.6.5.2: a device that cannot hold a table accepts all addresses of that kind.
#[test]
fn more_addresses_than_the_table_holds_let_all_of_that_kind_in_however_many_they_are() {
    let (group, station) = ([1, 9, 9, 9, 9, 9], [2, 9, 9, 9, 9, 9]);
    for count in [80_usize, 170, 171, 200, 1000, 20_000, 21_844, 21_845, 60_000] {
        for kind in [1, 2] {
            let mut guest = controlled(&[]);
            guest.command(VIRTIO_NET_CTRL_RX, VIRTIO_NET_CTRL_RX_PROMISC, &[0]);
            let many: Vec<[u8; 6]> =
                (0..count).map(|i| [kind, 0, 0, (i >> 16) as u8, (i >> 8) as u8, i as u8]).collect();
            let (unicast, multicast) = if kind == 2 { (&many[..], &[][..]) } else { (&[][..], &many[..]) };
            let set = table(unicast, multicast);
            assert_eq!(guest.command(VIRTIO_NET_CTRL_MAC, VIRTIO_NET_CTRL_MAC_TABLE_SET, &set), OK, "{count}");
            assert_eq!([group, station].map(|address| hears(&mut guest, address, None)), [kind == 1, kind == 2]);
            assert_eq!(guest.counters.guest_errors(), 0);
            // Behind any number of addresses the other kind's table is read as it is.
            if kind == 2 {
                let set = table(&many, &[[1, 7, 7, 7, 7, 7]]);
                assert_eq!(guest.command(VIRTIO_NET_CTRL_MAC, VIRTIO_NET_CTRL_MAC_TABLE_SET, &set), OK, "{count}");
                let groups = [group, [1, 7, 7, 7, 7, 7]];
                assert_eq!(groups.map(|address| hears(&mut guest, address, None)), [false, true], "{count}");
            }
            let few = table(&[], &[group]);
            assert_eq!(guest.command(VIRTIO_NET_CTRL_MAC, VIRTIO_NET_CTRL_MAC_TABLE_SET, &few), OK);
            assert_eq!([group, many[0]].map(|address| hears(&mut guest, address, None)), [true, false], "{count}");
        }
    }
}

/// Section 2.7.4: a device assumes nothing about framing.
#[test]
fn a_table_s_bytes_may_lie_in_any_pieces() {
    let (group, station) = ([1, 9, 9, 9, 9, 9], [2, 9, 9, 9, 9, 9]);
    let many: Vec<[u8; 6]> = (0..100).map(|i| [1, 0, 0, 0, 0, i]).collect();
    for step in [1, 3, 5, 7, 64] {
        let mut guest = controlled(&[VIRTIO_RING_F_INDIRECT_DESC]);
        guest.command(VIRTIO_NET_CTRL_RX, VIRTIO_NET_CTRL_RX_PROMISC, &[0]);
        let set = |unicast: &[[u8; 6]], multicast: &[[u8; 6]]| {
            let code = [VIRTIO_NET_CTRL_MAC as u8, VIRTIO_NET_CTRL_MAC_TABLE_SET as u8];
            [&code[..], &table(unicast, multicast)].concat()
        };
        assert_eq!(guest.command_in_pieces(&set(&[station], &[group]), step), OK);
        assert_eq!([group, station, many[0]].map(|address| hears(&mut guest, address, None)), [true, true, false]);
        assert_eq!(guest.command_in_pieces(&set(&[station], &many), step), OK, "pieces of {step}");
        assert_eq!([group, station].map(|address| hears(&mut guest, address, None)), [true, true]);
        // A table with fewer bytes than its count needs.
        let mut short = set(&[station], &many);
        short.pop();
        assert_eq!(guest.command_in_pieces(&short, step), ERR);
        assert_eq!(guest.counters.guest_errors(), 1);
    }
}

#[test]
fn vlans_are_let_in_one_by_one() {
    let mut guest = controlled(&[VIRTIO_NET_F_CTRL_VLAN]);
    let own = [2, 0, 0, 0, 0, 1];
    guest.command(VIRTIO_NET_CTRL_RX, VIRTIO_NET_CTRL_RX_PROMISC, &[0]);
    assert!(hears(&mut guest, own, None) && !hears(&mut guest, own, Some(5)));
    assert_eq!(guest.command(VIRTIO_NET_CTRL_VLAN, VIRTIO_NET_CTRL_VLAN_ADD, &5u16.to_le_bytes()), OK);
    assert!(hears(&mut guest, own, Some(5)) && !hears(&mut guest, own, Some(6)));
    assert_eq!(guest.command(VIRTIO_NET_CTRL_VLAN, VIRTIO_NET_CTRL_VLAN_DEL, &5u16.to_le_bytes()), OK);
    assert!(!hears(&mut guest, own, Some(5)));
    assert_eq!(guest.command(VIRTIO_NET_CTRL_VLAN, VIRTIO_NET_CTRL_VLAN_ADD, &4096u16.to_le_bytes()), ERR);
}

#[test]
fn the_address_that_the_driver_sets_is_heard_and_read_back() {
    let mut guest = controlled(&[VIRTIO_NET_F_CTRL_MAC_ADDR]);
    guest.command(VIRTIO_NET_CTRL_RX, VIRTIO_NET_CTRL_RX_PROMISC, &[0]);
    let new = [2, 7, 7, 7, 7, 7];
    assert_eq!(guest.command(VIRTIO_NET_CTRL_MAC, VIRTIO_NET_CTRL_MAC_ADDR_SET, &new), OK);
    assert!(hears(&mut guest, new, None) && !hears(&mut guest, [2, 0, 0, 0, 0, 1], None));
    let mut bytes = [0; 6];
    assert!(rings(&mut *guest.nic).config(0, &mut bytes));
    assert_eq!(bytes, new);
}

#[test]
fn receive_offloads_can_be_turned_off_and_on_again() {
    let mut guest = controlled(&[VIRTIO_NET_F_CTRL_GUEST_OFFLOADS]);
    let set = |bits: &[u32]| bits.iter().map(|number| 1u64 << number).sum::<u64>().to_le_bytes();
    let class = VIRTIO_NET_CTRL_GUEST_OFFLOADS;
    assert!(guest.nic.features().contains(&"rx-tso4"));
    assert_eq!(guest.command(class, VIRTIO_NET_CTRL_GUEST_OFFLOADS_SET, &set(&[VIRTIO_NET_F_GUEST_CSUM])), OK);
    assert!(!guest.nic.features().contains(&"rx-tso4"));
    let all = [VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6];
    assert_eq!(guest.command(class, VIRTIO_NET_CTRL_GUEST_OFFLOADS_SET, &set(&all)), OK);
    assert!(guest.nic.features().contains(&"rx-tso4"));
    assert_eq!(guest.command(class, VIRTIO_NET_CTRL_GUEST_OFFLOADS_SET, &set(&[VIRTIO_NET_F_GUEST_UFO])), ERR);
}

#[test]
fn commands_that_are_not_known_or_not_whole_are_refused() {
    let mut guest = controlled(&[]);
    let pairs = |n: u16| n.to_le_bytes();
    let bad: [(u32, u32, &[u8]); 7] = [
        (99, 0, &[0]),
        (VIRTIO_NET_CTRL_RX, 9, &[1]),
        (VIRTIO_NET_CTRL_RX, VIRTIO_NET_CTRL_RX_NOBCAST, &[1]),
        (VIRTIO_NET_CTRL_MAC, VIRTIO_NET_CTRL_MAC_TABLE_SET, &[0xff; 9]),
        (VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, &pairs(0)),
        (VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, &pairs(3)),
        (VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, &[1]),
    ];
    for (class, command, data) in bad {
        assert_eq!(guest.command(class, command, data), ERR, "{class} {command} {data:?}");
    }
    assert_eq!(guest.counters.guest_errors(), bad.len() as u64);
    assert_eq!(guest.command(VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, &pairs(2)), OK);
}
