//! Frames that wait come out as they went in, and in their order, wherever in the ring of bytes they lie.

use std::collections::VecDeque;
use std::sync::Arc;

use nicety_adapter::{Batch, Budget, Delivery, Edit, Frames, Offload, PACKETS, Packet, PortId};
use nicety_memory::Map;
use nicety_plane::Backlog;

/// Bytes of the ring: room for frames that are longer than a private head.
const SIZE: u32 = 400;

/// A backlog, and what should be in it.
struct World {
    backlog: Backlog,
    map: Arc<Map>,
    batch: Batch,
    waiting: VecDeque<Vec<u8>>,
    frames: u32,
}

impl World {
    fn new() -> Self {
        let backlog = Backlog::new(SIZE).unwrap();
        let map = Arc::new(Map::private(SIZE as usize).unwrap());
        Self { backlog, map, batch: Batch::new(), waiting: VecDeque::new(), frames: 0 }
    }

    /// One more frame, unlike those before it. Whether it found room.
    fn push(&mut self, len: u32) -> bool {
        self.frames += 1;
        let bytes: Vec<u8> = (0..len).map(|at| (5 * self.frames + at) as u8).collect();
        self.map.write(0, &bytes).unwrap();
        self.batch.start(&self.map, PortId(0), 0);
        let mut draft = self.batch.draft(0).unwrap();
        draft.push(0, len).unwrap();
        draft.finish(Offload::default(), 0);
        let used = self.backlog.used();
        let taken = self.backlog.push(&self.batch, &self.batch.packets()[0], Edit::Keep);
        // Fewer bytes are skipped than the frame has.
        assert!(taken || used + 2 * len > SIZE, "{len} bytes were refused beside {used}");
        assert!(self.backlog.used() <= SIZE);
        if taken {
            self.waiting.push_back(bytes);
        }
        taken
    }

    fn fill(&mut self, len: u32) {
        while self.push(len) {}
    }

    /// The first `packets` frames go: one at least.
    fn drain(&mut self, packets: usize) {
        let World { backlog, waiting, .. } = self;
        let expected = packets.max(1).min(waiting.len());
        let bytes = waiting.range(..expected).map(|frame| frame.len() as u64).sum();
        let gone = backlog.drain(Budget { packets, bytes: u64::MAX }, |frames| {
            for (_, _, packet) in frames.iter() {
                assert_eq!(Some(content(frames, packet)), waiting.pop_front());
            }
            Delivery::default()
        });
        assert_eq!(gone, (expected, bytes));
        assert_eq!(backlog.len(), waiting.len());
    }
}

fn content(frames: &Frames<'_>, packet: &Packet) -> Vec<u8> {
    let mut bytes = frames.batch.head(packet).to_vec();
    for span in frames.batch.spans(packet) {
        let mut piece = vec![0; span.len() as usize];
        frames.batch.source().read_span(*span, &mut piece);
        bytes.extend(piece);
    }
    bytes
}

#[test]
fn wherever_the_ring_is_filled_to_its_end_and_over_it_no_frame_touches_another() {
    for start in 1..SIZE - 1 {
        for len in (14..SIZE).step_by(9) {
            let mut world = World::new();
            // One goes, so that the ring begins here; one stays, so that it does not begin anew.
            assert!(world.push(start) && world.push(1));
            world.drain(1);
            world.fill(len);
            world.drain(1);
            world.fill(len);
            // Others fit between those.
            world.drain(world.waiting.len() / 2);
            world.fill(len / 2);
            while !world.waiting.is_empty() {
                world.drain(PACKETS);
            }
            assert!(world.backlog.is_empty() && world.push(SIZE), "all of it is free again");
            world.drain(1);
        }
    }
}
