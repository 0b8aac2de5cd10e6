//! A packet that was delivered in part, and then dropped because it could not wait, does not damage the next packets.

use nicety_adapter::Offload;
use nicety_adapters::find;
use nicety_trials::guest::{MEMORY, Net};
use nicety_trials::rig::{MAC, Rig};

use crate::packets::{cut, is_right, partial, whole};
use crate::resumed::{nets, room};
use crate::{PEER, World};

/// Bytes of the receive buffer: too small for the packet to wait in.
const BUFFER: u32 = 16 << 10;
/// Payload bytes of the packets, and of the frames that fill the ring first.
const SHORT: usize = 100;
/// Segment size of the later packets.
const MSS: usize = 1448;

fn world(name: &str, net: Net) -> World {
    World::on(Rig::with_buffer(find(name).unwrap(), MEMORY, true, BUFFER), net)
}

#[test]
fn what_is_dropped_after_some_of_its_frames_had_gone_leaves_the_next_ones_whole() {
    for (name, how, net) in nets() {
        let mut world = world(name, net);
        let ring = world.measure_ring(SHORT);
        let first = ring - room(ring);
        world.arrive_whole(first, SHORT);
        world.arrive(partial(MAC.0, PEER, 400 * SHORT, 1), cut(SHORT as u16));
        world.rig.settle();
        assert_eq!(world.waiting(), 0, "{name} {how}: it is longer than the receive buffer");
        world.run();
        let took = world.took().len();
        assert!(
            first < took && took <= ring,
            "{name} {how}: as many of its frames as there was room for: {took} of {ring}"
        );
        for payload in [1, 200, 1400] {
            world.arrive(whole(MAC.0, PEER, payload, 2), Offload::default());
            world.arrive(partial(MAC.0, PEER, 3 * MSS, 3), cut(MSS as u16));
            world.run();
            let took = world.took();
            assert_eq!(took.iter().map(|(_, about)| about.frames).sum::<u32>(), 4, "{name} {how}");
            assert!(took.iter().all(|(frame, about)| about.frames > 1 || is_right(frame)), "{name} {how}");
        }
    }
}
