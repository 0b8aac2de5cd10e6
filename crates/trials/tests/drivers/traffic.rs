//! Packets arrive as their sender meant them, and no others arrive.

use nicety_adapter::{Offload, Reset};
use nicety_adapters::find;
use nicety_drivers::vmxnet3::Settings;
use nicety_trials::guest::Net;
use nicety_trials::rig::MAC;

use crate::packets::{HEADERS, PARTIAL, cut, is_right, partial, whole};
use crate::{PEER, World, all, all_that, cuts};

fn plain() -> Offload {
    Offload::default()
}

/// Whether an adapter lists this offload.
fn does(name: &str, offload: &str) -> bool {
    find(name).unwrap().about.offloads.contains(&offload)
}

/// Whether it verifies the checksums of received packets.
fn verifies(name: &str) -> bool {
    does(name, "rx-checksum")
}

/// Some paths pad a frame to 60 bytes.
fn same(frame: &[u8], packet: &[u8]) -> bool {
    frame.len() <= packet.len().max(60) && frame.starts_with(packet)
}

/// Passes frames of every length in both directions, more than any ring has entries.
pub(crate) fn exchange(world: &mut World, count: usize) {
    for number in 0..count {
        let payload = number * 37 % 1461;
        let packet = whole(PEER, MAC.0, payload, number as u8);
        world.send(&packet, &plain());
        world.arrive(whole(MAC.0, PEER, payload, number as u8 ^ 0xff), plain());
        if number % 20 == 19 || number + 1 == count {
            world.run();
            let first = number - number % 20;
            let (out, took) = (world.out(), world.took());
            assert_eq!((out.len(), took.len()), (number + 1 - first, number + 1 - first));
            for (index, ((sent, _), (received, about))) in out.iter().zip(&took).enumerate() {
                let (payload, seed) = ((first + index) * 37 % 1461, (first + index) as u8);
                assert!(same(sent, &whole(PEER, MAC.0, payload, seed)), "sent {}", first + index);
                assert!(same(received, &whole(MAC.0, PEER, payload, seed ^ 0xff)), "received {}", first + index);
                assert_eq!(about.frames, 1);
            }
        }
    }
}

#[test]
fn frames_of_every_length_pass_both_ways_until_every_ring_has_wrapped_three_times() {
    for name in all() {
        let mut world = World::new(name, false);
        // A transmit ring has at most 256 entries, or as many as the receive ring.
        let ring = world.measure_ring(64).max(256);
        println!("{name}: {ring}");
        exchange(&mut world, 3 * ring + 7);
    }
}

#[test]
fn every_position_of_a_ring_can_be_where_a_long_packet_begins() {
    for name in all_that(|features| cuts(features, 30_000)) {
        println!("{name}");
        let mut world = World::new(name, true);
        for number in 0..300u32 {
            world.send(&whole(PEER, MAC.0, 100, number as u8), &plain());
            let long = partial(PEER, MAC.0, 30_000, number as u8);
            world.send(&long, &cut(1460));
            world.run();
            let out = world.out();
            assert_eq!(out.len(), 2, "{number}");
            assert_eq!(out[1].0[HEADERS..], long[HEADERS..], "{number}");
        }
    }
}

#[test]
fn a_packet_to_segment_reaches_a_wire_that_cuts_it_as_frames_that_are_right() {
    for name in all_that(|features| cuts(features, 60_000)) {
        println!("{name}");
        let mut world = World::new(name, false);
        let packet = partial(PEER, MAC.0, 60_000, 3);
        world.send(&packet, &cut(1448));
        world.run();
        let out = world.out();
        assert_eq!(out.len(), 60_000usize.div_ceil(1448));
        let mut at = HEADERS;
        for (index, (frame, _)) in out.iter().enumerate() {
            assert!(is_right(frame), "frame {index}");
            let sequence = u32::from_be_bytes(frame[38..42].try_into().unwrap());
            assert_eq!(sequence as usize, index * 1448);
            let len = usize::from(u16::from_be_bytes([frame[16], frame[17]])) - 40;
            assert_eq!(frame[HEADERS..HEADERS + len], packet[at..at + len]);
            at += len;
        }
        assert_eq!(at, packet.len());
    }
}

#[test]
fn a_packet_to_segment_reaches_a_wire_that_does_not_cut_whole() {
    for name in all_that(|features| cuts(features, 64_000)) {
        println!("{name}");
        let mut world = World::new(name, true);
        let packet = partial(PEER, MAC.0, 64_000, 5);
        world.send(&packet, &cut(1460));
        world.run();
        let out = world.out();
        assert_eq!(out.len(), 1);
        let (frame, offload) = &out[0];
        assert_eq!(frame[HEADERS..], packet[HEADERS..]);
        assert_eq!(offload.segment.map(|cut| (cut.mss, cut.headers)), Some((1460, 54)));
        // The pseudo-header's sum is restored, whatever value the device required there.
        assert_eq!(frame[50..52], packet[50..52]);
    }
}

#[test]
fn a_checksum_that_was_left_to_the_adapter_is_right_on_the_wire() {
    for name in all_that(|features| features.checksum) {
        println!("{name}");
        let mut world = World::new(name, false);
        for payload in [0, 1, 7, 100, 1460] {
            world.send(&partial(PEER, MAC.0, payload, 9), &Offload { checksum: PARTIAL, segment: None });
        }
        world.run();
        let out = world.out();
        assert_eq!(out.len(), 5);
        for ((frame, _), payload) in out.iter().zip([0, 1, 7, 100, 1460]) {
            assert!(is_right(frame), "{payload}");
            assert!(same(frame, &whole(PEER, MAC.0, payload, 9)));
        }
    }
}

#[test]
fn a_right_checksum_is_vouched_for_and_a_wrong_one_is_not() {
    for name in all() {
        println!("{name}");
        let mut world = World::new(name, false);
        world.arrive(whole(MAC.0, PEER, 500, 1), plain());
        let mut wrong = whole(MAC.0, PEER, 500, 1);
        wrong[200] ^= 1;
        world.arrive(wrong, plain());
        world.run();
        let took: Vec<bool> = world.took().iter().map(|(_, about)| about.checksum_good).collect();
        assert_eq!(took, [verifies(name), false]);
    }
}

#[test]
fn a_packet_of_64_kb_from_the_wire_comes_joined_where_the_driver_takes_it_so() {
    for name in all() {
        println!("{name}");
        // Otherwise each frame arrives on its own.
        let pieces = if does(name, "lro") || does(name, "uncut receive") { 1 } else { 42 };
        let mut world = World::new(name, true);
        let packet = partial(MAC.0, PEER, 60_000, 3);
        world.arrive(packet.clone(), cut(1460));
        world.run();
        let took = world.took();
        assert_eq!(took.len(), pieces);
        let mut payload: Vec<u8> = Vec::new();
        for (piece, about) in &took {
            assert_eq!(about.frames as usize * pieces, 42);
            assert!(about.checksum_good || !verifies(name));
            let len = usize::from(u16::from_be_bytes([piece[16], piece[17]])) - 40;
            payload.extend(&piece[HEADERS..HEADERS + len]);
        }
        assert!(payload == packet[HEADERS..]);
    }
}

#[test]
fn jumbo_frames_pass_both_ways() {
    let settings = Settings { mtu: 9000, lro: false, receive_rings: [256, 64], ..Settings::default() };
    for (name, net) in [
        ("vmxnet3", Net::vmxnet3(settings)),
        ("vmxnet2", Net::named("vmxnet2")),
        ("virtio-net", Net::named("virtio-net")),
    ] {
        println!("{name}");
        let mut world = World::with(name, false, net);
        for number in 0..300 {
            let payload = 8960 - number * 13 % 8000;
            let (away, back) = (whole(PEER, MAC.0, payload, 1), whole(MAC.0, PEER, payload, 2));
            world.send(&away, &plain());
            world.arrive(back.clone(), plain());
            world.run();
            let (out, took) = (world.out(), world.took());
            assert!(out.len() == 1 && out[0].0 == away, "{number}");
            assert!(took.len() == 1 && took[0].0 == back, "{number}");
        }
    }
}

#[test]
fn a_tag_passes_both_ways_whether_it_travels_in_the_packet_or_in_the_descriptor() {
    for name in all() {
        println!("{name}");
        let mut world = World::new(name, false);
        let tag = [0x81, 0x00, 0x60, 0x2a];
        world.guest.join_vlan(0x2a).unwrap();
        let (mut away, mut back) = (whole(PEER, MAC.0, 300, 1), whole(MAC.0, PEER, 300, 2));
        away.splice(12..12, tag);
        back.splice(12..12, tag);
        world.send(&away, &plain());
        world.arrive(back.clone(), plain());
        world.run();
        assert_eq!(world.out().iter().map(|(frame, _)| frame).collect::<Vec<_>>(), [&away]);
        assert_eq!(world.took().iter().map(|(frame, _)| frame).collect::<Vec<_>>(), [&back]);
    }
}

#[test]
fn a_driver_opens_again_after_it_was_closed_and_after_the_bus_was_reset() {
    for name in all() {
        println!("{name}");
        let mut world = World::new(name, false);
        exchange(&mut world, 50);
        world.guest.close().unwrap();
        world.arrive(whole(MAC.0, PEER, 100, 0), plain());
        world.run();
        assert!(world.took().is_empty(), "it is closed");
        world.open();
        exchange(&mut world, 50);
        world.rig.port.reset(Reset::Bus, world.rig.now);
        world.open();
        exchange(&mut world, 50);
    }
}

#[test]
fn connections_are_spread_over_several_queues_and_none_is_lost() {
    let settings = Settings { queues: 4, transmit_ring: 128, receive_rings: [128, 64], ..Settings::default() };
    let mut world = World::with("vmxnet3", false, Net::vmxnet3(settings));
    for round in 0..20u8 {
        for flow in 0..16u8 {
            let mut packets = [whole(PEER, MAC.0, 64, flow), whole(MAC.0, PEER, 64, flow)];
            // Changes the port, and updates the checksum (RFC 1624).
            for packet in &mut packets {
                packet[35] = packet[35].wrapping_add(flow);
                let old = u16::from_be_bytes([packet[50], packet[51]]);
                let (low, borrow) = old.overflowing_sub(flow.into());
                packet[50..52].copy_from_slice(&(low - u16::from(borrow)).to_be_bytes());
                assert!(is_right(packet));
            }
            let [away, back] = packets;
            world.send(&away, &plain());
            world.arrive(back, plain());
        }
        world.run();
        let (out, took) = (world.out(), world.took());
        assert_eq!((out.len(), took.len()), (16, 16), "{round}");
        assert!(took.iter().all(|(_, about)| about.checksum_good));
    }
    let counters = world.rig.port.state().counters;
    for queues in [&counters.transmit, &counters.receive] {
        let used = queues.iter().filter(|queue| queue.packets > 0).count();
        assert!(used > 1 && queues.iter().map(|queue| queue.packets).sum::<u64>() >= 320, "{used} queues");
    }
}

#[test]
fn rings_without_events_tables_or_segmentation_serve_too() {
    // CSUM, MAC, MRG_RXBUF, STATUS and VERSION_1 only; then all but tables.
    for features in [1u64 | 1 << 5 | 1 << 15 | 1 << 16 | 1 << 32, !(1 << 28), !(1 << 29)] {
        let mut world = World::with("virtio-net", false, Net::virtio(64, features));
        exchange(&mut world, 300);
        world.arrive(whole(MAC.0, PEER, 8000, 4), plain());
        world.send(&whole(PEER, MAC.0, 8900, 4), &plain());
        world.run();
        assert!(world.out()[0].0 == whole(PEER, MAC.0, 8900, 4));
        assert!(world.took()[0].0 == whole(MAC.0, PEER, 8000, 4));
    }
}
