//! A packet that was delivered in part, and then dropped because it could not wait, takes nothing of the next ones with it.

use nicety_adapter::Offload;
use nicety_adapters::find;
use nicety_drivers::vmxnet3;
use nicety_trials::guest::{MEMORY, Net};
use nicety_trials::rig::{MAC, Rig};

use crate::packets::{cut, is_right, partial, whole};
use crate::{PEER, World};

/// Bytes of the receive buffer: the packet cannot wait in it.
const BUFFER: u32 = 16 << 10;
/// Frames of the packet for which there is room.
const ROOM: usize = 5;
const MSS: usize = 1448;

fn world(name: &str) -> World {
    let net = match name {
        // Else it takes such packets whole.
        "vmxnet3" => Net::vmxnet3(vmxnet3::Settings { lro: false, ..vmxnet3::Settings::default() }),
        _ => Net::named(name),
    };
    World::on(Rig::with_buffer(find(name).unwrap(), MEMORY, true, BUFFER), net)
}

#[test]
fn what_is_dropped_after_some_of_its_frames_had_gone_leaves_the_next_ones_whole() {
    for name in ["e1000", "vmxnet3"] {
        let mut world = world(name);
        let ring = world.measure_ring(100);
        world.arrive_whole(ring - ROOM, 100);
        world.arrive(partial(MAC.0, PEER, 40 * MSS, 1), cut(MSS as u16));
        world.rig.settle();
        assert_eq!(world.waiting(), 0, "{name}: it is longer than the receive buffer");
        world.run();
        assert_eq!(world.took().len(), ring, "{name}: as many of its frames as there was room for");
        for payload in [1, 200, 1400] {
            world.arrive(whole(MAC.0, PEER, payload, 2), Offload::default());
            world.arrive(partial(MAC.0, PEER, 3 * MSS, 3), cut(MSS as u16));
            world.run();
            let took = world.took();
            assert_eq!(took.len(), 4, "{name}");
            assert!(took.iter().all(|(frame, _)| is_right(frame)), "{name}");
        }
    }
}
