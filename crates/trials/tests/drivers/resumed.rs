//! A packet with room for only some of its frames: the rest waits, follows in order, and is counted when it arrives.

use nicety_adapters::find;
use nicety_drivers::{vmxnet, vmxnet3};
use nicety_trials::guest::{MEMORY, Net};
use nicety_trials::rig::{MAC, Rig};

use crate::packets::{HEADERS, cut, is_right, partial};
use crate::{PEER, World, all};

/// Frames enough to fill some rings more than once.
const FRAMES: usize = 400;
/// Bytes of each frame's payload; too long for a data ring.
const MSS: usize = 100;

/// Frames of the packet that have room at first: more than a driver holds back before it gives buffers to the device, and fewer
/// than a short ring has.
pub(crate) fn room(ring: usize) -> usize {
    (ring / 2).min(24)
}

/// Drivers that receive such a packet cut: those that cannot join, and one with too few buffers for a packet uncut. The adapter
/// finds this out for each packet.
pub(crate) fn nets() -> Vec<(&'static str, &'static str, Net)> {
    let linux = vmxnet3::Settings::default();
    let nets = |name| match name {
        "vmxnet3" => vec![
            (name, "without LRO", Net::vmxnet3(vmxnet3::Settings { lro: false, ..linux })),
            (name, "with LRO in four buffers", Net::vmxnet3(vmxnet3::Settings { receive_pieces: 4, ..linux })),
        ],
        "vmxnet2" => vec![
            (name, "without LPD", Net::vmxnet(vmxnet::Settings { lpd: false, ..vmxnet::Settings::default() })),
            (name, "with LPD in four pages", Net::vmxnet(vmxnet::Settings { frags: 4, ..vmxnet::Settings::default() })),
        ],
        // VIRTIO_NET_F_GUEST_CSUM, GUEST_TSO4 and GUEST_TSO6.
        "virtio-net" => vec![(name, "without TSO", Net::virtio(256, !(1 << 1 | 1 << 7 | 1 << 8)))],
        "virtio-net-pci" => vec![(name, "without TSO", Net::virtio_pci(256, !(1 << 1 | 1 << 7 | 1 << 8)))],
        _ => vec![(name, "", Net::named(name))],
    };
    all().flat_map(nets).collect()
}

#[test]
fn a_packet_that_was_refused_halfway_arrives_with_all_its_frames_in_order() {
    for (name, how, net) in nets() {
        let mut world = World::on(Rig::new(find(name).unwrap(), MEMORY, true), net);
        let ring = world.measure_ring(MSS);
        let first = ring - room(ring);
        for seed in 0..5 {
            let before = world.rig.port.state().counters.taken();
            world.arrive_whole(first, MSS);
            let packet = partial(MAC.0, PEER, FRAMES * MSS, seed);
            world.arrive(packet.clone(), cut(MSS as u16));
            world.arrive_whole(3, MSS);
            assert_eq!(world.waiting(), 1 + 3, "{name} {how}: there is room for some of its frames only");
            world.run();
            let took = world.took();
            let came: Vec<&[u8]> = took.iter().map(|(frame, _)| frame.as_slice()).collect();
            assert_eq!(came.len(), first + FRAMES + 3, "{name} {how}: frames");
            assert!(came.iter().all(|frame| is_right(frame)), "{name} {how}");
            let of_it = &came[first..][..FRAMES];
            let payload: Vec<u8> = of_it.iter().flat_map(|frame| &frame[HEADERS..]).copied().collect();
            assert!(payload == packet[HEADERS..], "{name} {how}: its payload");
            let after = world.rig.port.state().counters.taken();
            assert_eq!(after.frames - before.frames, came.len() as u64, "{name} {how}: what is counted is there");
            assert_eq!(after.packets - before.packets, (first + 1 + 3) as u64, "{name} {how}");
        }
    }
}
