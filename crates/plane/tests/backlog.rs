//! Waiting frames leave unchanged and in the order of their lane, wherever in the pool of blocks they lie.

use std::collections::VecDeque;
use std::sync::Arc;

use nicety_adapter::{
    Batch, Budget, Checked, Checksum, Delivery, Frames, Offload, PACKETS, Packet, Pick, PortId, Scratch, Set, Time,
    Unfolded, Wants,
};
use nicety_memory::{Map, Rights};
use nicety_plane::{Backlog, Drained, LaneKey};

/// Bytes of the buffer, which are eight blocks.
const SIZE: u32 = 4096;
const ALL: Budget = Budget { packets: PACKETS, bytes: u64::MAX };

/// A backlog, and the expected packets of each lane.
struct World {
    backlog: Backlog,
    key: fn(u16) -> LaneKey,
    map: Arc<Map>,
    batch: Batch,
    waiting: Vec<VecDeque<Vec<u8>>>,
    frames: u32,
}

impl World {
    fn new(backlog: Backlog, key: fn(u16) -> LaneKey) -> Self {
        let map = Arc::new(Map::private(SIZE as usize).unwrap());
        Self { backlog, key, map, batch: Batch::new(), waiting: vec![VecDeque::new(); 32], frames: 0 }
    }

    fn of_queues() -> Self {
        Self::new(Backlog::of_queues(SIZE).unwrap(), LaneKey::Queue)
    }

    fn of_senders(bytes: u32) -> Self {
        Self::new(Backlog::of_senders(bytes).unwrap(), |port| LaneKey::peer(PortId(port)))
    }

    /// Adds a frame with new content. True if there was room.
    fn push(&mut self, lane: u16, len: u32) -> bool {
        self.push_at(lane, len, Time::ZERO)
    }

    fn push_at(&mut self, lane: u16, len: u32, now: Time) -> bool {
        self.frames += 1;
        let bytes: Vec<u8> = (0..len).map(|at| (5 * self.frames + at) as u8).collect();
        self.map.write(0, &bytes).unwrap();
        self.batch.start(&self.map, PortId(0), 0);
        let mut draft = self.batch.draft(0).unwrap();
        draft.push(0, len).unwrap();
        draft.finish_plain(0);
        let taken = self.backlog.push((self.key)(lane), &self.batch, &self.batch.packets()[0], Pick::whole(0), now);
        if taken {
            self.waiting[usize::from(lane)].push_back(bytes);
        }
        taken
    }

    /// Offers the first frames of an open lane; the receiver refuses all but the first `room`.
    fn drain(&mut self, open: impl Fn(u16) -> bool, room: usize) -> Option<Drained> {
        let mut offered = Vec::new();
        let drained = self.backlog.drain(
            |lane| open(number_of(lane)),
            ALL,
            Time::ZERO,
            |frames| {
                let mut delivery = Delivery::default();
                for (index, _, packet) in frames.iter() {
                    offered.push(content(frames, packet));
                    if index >= room {
                        delivery.refuse(index, 0, 0);
                    }
                }
                delivery
            },
        );
        let drained = drained.ok()?;
        let lane = &mut self.waiting[usize::from(number_of(drained.lane))];
        assert_eq!(offered, lane.range(..offered.len()).cloned().collect::<Vec<_>>(), "in order, byte for byte");
        assert_eq!(drained.packets, offered.len().min(room));
        lane.drain(..drained.packets);
        assert_eq!(self.backlog.len(), self.waiting.iter().map(VecDeque::len).sum::<usize>());
        Some(drained)
    }
}

fn number_of(lane: LaneKey) -> u16 {
    match lane {
        LaneKey::Queue(queue) => queue,
        LaneKey::Peer(lane) => lane.port,
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

fn set(queues: &[u16]) -> Set {
    let mut set = Set::default();
    queues.iter().for_each(|queue| set.insert(*queue));
    set
}

#[test]
fn the_oldest_frame_that_waits_for_a_guests_buffers_is_the_first_of_a_queue_without_room() {
    let mut world = World::of_queues();
    assert_eq!(world.backlog.starved_since(Set::default()), None);
    for (lane, at) in [(2, 50), (2, 20), (5, 60), (7, 10)] {
        assert!(world.push_at(lane, 60, Time(at)));
    }
    assert_eq!(world.backlog.starved_since(set(&[7])), Some(Time(50)), "queue 7 has room");
    assert_eq!(world.backlog.starved_since(set(&[2, 7])), Some(Time(60)));
    assert_eq!(world.backlog.starved_since(set(&[2, 5, 7])), None, "all have: they are about to be offered");
    world.drain(|lane| lane == 2, usize::MAX);
    assert_eq!(world.backlog.starved_since(set(&[7])), Some(Time(60)));
}

#[test]
fn a_frame_whose_checksum_lies_far_behind_waits_with_all_of_its_headers() {
    // RFC 8200, section 4.6: 96 bytes of destination options before TCP.
    let mut frame = vec![0; 600];
    frame[..20].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd, 0x60, 0, 0, 0, 2, 34]);
    (frame[20], frame[54], frame[55], frame[162]) = (60, 6, 11, 0x50);
    let map = Arc::new(Map::private(SIZE as usize).unwrap());
    map.write(0, &frame).unwrap();
    let mut batch = Batch::new();
    batch.start(&map, PortId(0), 0);
    let mut draft = batch.draft(200).unwrap();
    draft.push(0, 600).unwrap();
    draft.finish(Offload { checksum: Checksum::Partial { start: 150, field: 166 }, segment: None }, 0).unwrap();
    let mut backlog = Backlog::of_queues(SIZE).unwrap();
    assert!(backlog.push(LaneKey::Queue(0), &batch, &batch.packets()[0], Pick::whole(0), Time::ZERO));
    let drained = backlog.drain(
        |_| true,
        ALL,
        Time::ZERO,
        |frames| {
            let (target, mut scratch) = (Map::private(SIZE as usize).unwrap(), Scratch::new());
            let wants = Wants { frame_max: 1514, ..Wants::default() };
            let unfolded = Unfolded::new(frames, frames.picks[0], wants).unwrap();
            let mut piece = unfolded.piece(0, &mut scratch).unwrap();
            let mut room = Vec::new();
            target
                .translate(0, 600, Rights::BOTH, |span| {
                    room.push(span);
                    true
                })
                .unwrap();
            assert_eq!(piece.write(&target, &room), Checked::Good);
            let mut got = vec![0; 600];
            target.read(0, &mut got).unwrap();
            // The only other summed word is the one at the offset.
            assert_eq!(got[166..168], (!0x5000u16).to_be_bytes());
            Delivery::default()
        },
    );
    assert!(drained.is_ok());
}

#[test]
fn however_the_pool_is_used_up_and_freed_no_frame_touches_another() {
    for first in [1, 511, 512, 513, 1500] {
        for len in (14..SIZE).step_by(97) {
            let mut world = World::of_queues();
            for round in 0..6u16 {
                assert!(round > 0 || world.push(7, first));
                let mut lane = round;
                while world.push(lane % 3, len) {
                    lane += 1;
                }
                // Removes frames from the middle, and out of order.
                world.drain(|lane| lane == round % 3, 1);
                world.drain(|lane| lane == (round + 1) % 3, usize::from(round));
            }
            while world.drain(|_| true, usize::MAX).is_some() {}
            assert!(world.backlog.is_empty() && world.backlog.used() == 0);
            assert!(world.push(0, SIZE), "all of it is free again");
        }
    }
}

#[test]
fn queues_share_a_buffer_and_a_full_one_holds_back_no_other() {
    let mut world = World::of_queues();
    assert!((0..4).all(|_| world.push(0, 500)) && world.push(1, 500) && world.push(2, 1000) && world.push(1, 3));
    assert!(!world.push(3, 1), "eight blocks are in use");
    assert_eq!(world.backlog.queues(), set(&[0, 1, 2]));
    assert_eq!(world.drain(|lane| lane == 1, usize::MAX).map(|drained| drained.packets), Some(2));
    assert_eq!(
        world.drain(|lane| lane == 0, 1),
        Some(Drained { packets: 1, bytes: 500, wire_bytes: 500, refused: true, ..Drained::default() })
    );
    assert_eq!(world.backlog.queues(), set(&[0, 2]));
    assert_eq!(world.drain(|lane| lane == 5, 1), None);
    assert!(world.push(3, 1024), "what the others gave back");
}

/// How long a burst of full frames at 10 Gbit/s a receive buffer keeps while its guest takes nothing: 0.4 ms by 512 KiB, 54 ms by 64
/// MiB. A frame takes whole blocks of 512 bytes.
#[test]
fn a_burst_is_kept_as_long_as_the_buffer_is_large() {
    /// Bytes of a frame, and of its time on the wire.
    const BYTES: u32 = 1514;
    const WIRE_BITS: u64 = 8 * 1538;
    for (size, kept_frames, kept_us) in [(512 << 10, 341, 419), (64 << 20, 43_690, 53_756)] {
        let mut world = World::new(Backlog::of_queues(size).unwrap(), LaneKey::Queue);
        let mut frames = 0;
        while world.push(0, BYTES) {
            frames += 1;
            world.waiting[0].clear();
        }
        assert_eq!(frames, kept_frames, "{size} bytes");
        assert_eq!(frames * WIRE_BITS / 10_000, kept_us, "µs at 10 Gbit/s");
    }
}

#[test]
fn a_packet_that_was_taken_in_part_goes_on_at_its_next_frame() {
    let mut world = World::of_queues();
    assert!(world.push(4, 300));
    for from in [3u16, 9] {
        let drained = world.backlog.drain(
            |_| true,
            ALL,
            Time::ZERO,
            |frames| {
                let mut delivery = Delivery::default();
                delivery.refuse(0, 4, from.into());
                assert_eq!(frames.picks.len(), 1);
                delivery
            },
        );
        assert_eq!(drained.map(|drained| (drained.packets, drained.refused)), Ok((0, true)));
        let drained = world.backlog.drain(
            |_| true,
            ALL,
            Time::ZERO,
            |frames| {
                assert_eq!(frames.picks[0].from, from);
                Delivery::all_refused(frames)
            },
        );
        assert!(drained.is_ok());
    }
}

#[test]
fn each_sender_has_room_of_its_own_and_its_share_of_what_goes() {
    let mut world = World::of_senders(64 << 10);
    for (sender, len) in [(0, 100), (1, 1514), (2, 4000)] {
        while world.push(sender, len) {}
    }
    assert!(world.push(3, 60), "nobody filled it for the fourth");
    let mut gone = [0; 4];
    let bytes = |gone: &[u64; 4]| gone.iter().sum::<u64>();
    while bytes(&gone) < 96 << 10 {
        let drained = world.drain(|_| true, 3).unwrap();
        gone[usize::from(number_of(drained.lane))] += drained.bytes;
    }
    assert_eq!(gone[3], 60);
    let share = bytes(&gone) as i64 / 3;
    // Equal within a quantum and a frame.
    assert!(gone[..3].iter().all(|&gone| (gone as i64 - share).abs() <= (16 << 10) + 4000), "{gone:?}");
}

#[test]
fn a_sender_is_held_once_and_let_go_when_little_of_it_is_left() {
    let mut world = World::of_senders(SIZE);
    assert!(!world.backlog.hold(PortId(5)), "nothing of it waits");
    while world.push(5, 512) {}
    assert!(world.backlog.hold(PortId(5)) && !world.backlog.hold(PortId(5)) && world.backlog.holds());
    let released = |world: &mut World| world.drain(|_| true, 1).unwrap().released;
    assert_eq!([(); 8].map(|()| released(&mut world)), [false, false, false, false, false, true, false, false]);
    assert!(world.push(5, 1) && world.backlog.hold(PortId(5)));
    assert_eq!(world.backlog.let_all_go(), [PortId(5)]);
    assert!(!world.backlog.holds());
}
