//! Frames between two guests with our own front end: memory file, eventfds, rings.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nicety_adapter::RingPlace;
use nicety_memory::{Map, Mapping, Rights, shared_file};
use nicety_vhost_user::Ended;
use nicety_vhost_user::frontend::{Bells, Frontend, Shared};

use crate::port::{Served, TestPort, serve};

const BASE: u64 = 0x1_0000_0000;
const LEN: u64 = 0x10_0000;
const VERSION_1: u64 = 1 << 32;
const LIMIT: Duration = Duration::from_secs(10);

fn place(ring: u16) -> RingPlace {
    let at = BASE + 0x8000 * u64::from(ring);
    RingPlace { size: 16, descriptors: at, driver: at + 0x1000, device: at + 0x2000 }
}

struct Guest {
    served: Served,
    front: Frontend,
    memory: Arc<Map>,
    file: OwnedFd,
    receive: Bells,
    transmit: Bells,
}

impl Guest {
    fn new() -> Self {
        let file = shared_file("guest", LEN).unwrap();
        let mapping = Mapping::of_file(file.try_clone().unwrap(), 0, LEN, true).unwrap();
        let memory = Arc::new(Map::default().with(BASE, Arc::new(mapping), Rights::BOTH).unwrap());
        let port = TestPort::new(None);
        let (served, stream) = serve(&port);
        let mut front = Frontend::from_socket(stream.into());
        let (receive, transmit) = connect(&mut front, &file);
        Self { served, front, memory, file, receive, transmit }
    }

    /// Makes one descriptor available, as entry `index` of the ring.
    fn offer(&self, ring: u16, index: u16, address: u64, len: u32, flags: u16) {
        let place = place(ring);
        let words = [&address.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &[0; 2]].concat();
        self.memory.write(place.descriptors + 16 * u64::from(index), &words).unwrap();
        self.memory.write(place.driver + 4 + 2 * u64::from(index), &index.to_le_bytes()).unwrap();
        self.memory.write(place.driver + 2, &(index + 1).to_le_bytes()).unwrap();
    }

    fn used(&self, ring: u16) -> u16 {
        let mut index = [0; 2];
        self.memory.read(place(ring).device + 2, &mut index).unwrap();
        u16::from_le_bytes(index)
    }
}

fn shared(file: &OwnedFd) -> Shared<'_> {
    Shared { base: BASE, len: LEN, fd: file.as_fd(), offset: 0 }
}

fn connect(front: &mut Frontend, file: &OwnedFd) -> (Bells, Bells) {
    assert_eq!(front.negotiate(VERSION_1).unwrap(), VERSION_1);
    front.share(&[shared(file)]).unwrap();
    (front.start(0, place(0), 0).unwrap(), front.start(1, place(1), 0).unwrap())
}

const FRAME: &[u8; 74] =
    b"\x02\0\0\0\0\x02\x02\0\0\0\0\x01\x88\xb5a frame of the local experimental ethertype, 802 clause 9.2.";

#[test]
fn a_frame_goes_from_one_guest_to_the_other_and_both_are_called() {
    let (one, two) = (Guest::new(), Guest::new());
    two.offer(0, 0, BASE + 0x8_0000, 2048, 2);
    one.memory.write(BASE + 0x8_0000 + 12, FRAME).unwrap();
    one.offer(1, 0, BASE + 0x8_0000, 12 + FRAME.len() as u32, 0);
    one.transmit.kick.ring().unwrap();
    one.served.port.kicked(1);
    assert_eq!(one.served.port.forward(&two.served.port), 1);
    assert!(one.transmit.wait(LIMIT).unwrap() && two.receive.wait(LIMIT).unwrap());
    assert_eq!((one.used(1), two.used(0)), (1, 1));
    let mut got = [0; FRAME.len()];
    two.memory.read(BASE + 0x8_0000 + 12, &mut got).unwrap();
    assert_eq!(&got, FRAME);
    assert!(!one.transmit.wait(Duration::ZERO).unwrap(), "one call for one frame");
}

#[test]
fn a_front_end_that_comes_again_goes_on_where_its_rings_stand() {
    let mut one = Guest::new();
    let two = Guest::new();
    for index in 0..3 {
        one.offer(1, index, BASE + 0x8_0000, 100, 0);
    }
    assert_eq!(one.served.port.forward(&two.served.port), 3);
    assert_eq!(one.front.stop(1).unwrap(), 3);
    // The front end disconnects without a message, and returns with base 0.
    let port = one.served.port.clone();
    drop(one.front);
    assert!(matches!(one.served.ended(), Ended::Gone));
    let (served, stream) = serve(&port);
    one.front = Frontend::from_socket(stream.into());
    (one.receive, one.transmit) = connect(&mut one.front, &one.file);
    one.served = served;
    assert_eq!(port.forward(&two.served.port), 0, "nothing is sent twice");
    one.offer(1, 3, BASE + 0x8_0000, 100, 0);
    assert_eq!(port.forward(&two.served.port), 1);
    assert_eq!(one.used(1), 4);
    drop(one.front);
    assert!(matches!(one.served.ended(), Ended::Gone));
}

/// QEMU replaces a region that grows, shrinks or is split.
#[test]
fn a_ring_whose_memory_is_taken_away_and_offered_again_goes_on() {
    let (mut one, two) = (Guest::new(), Guest::new());
    let forwarded = |one: &Guest, index| {
        one.offer(1, index, BASE + 0x8_0000, 100, 0);
        one.served.port.forward(&two.served.port)
    };
    assert_eq!(forwarded(&one, 0), 1);
    one.front.share(&[]).unwrap();
    assert_eq!(forwarded(&one, 1), 0, "its ring is nowhere");
    one.front.share(&[shared(&one.file)]).unwrap();
    assert_eq!(forwarded(&one, 2), 2, "without a kick");
    one.front.unshare(&shared(&one.file)).unwrap();
    assert_eq!(forwarded(&one, 3), 0);
    one.front.share_more(&shared(&one.file)).unwrap();
    assert_eq!((forwarded(&one, 4), one.used(1)), (2, 5));
}

/// User-Mode Linux never sends GET_VRING_BASE. If a driver leaves its device, its rings are disabled, and the next driver's rings
/// may have the same addresses.
#[test]
fn a_ring_that_was_only_disabled_begins_anew_at_the_same_place() {
    let (mut one, two) = (Guest::new(), Guest::new());
    for index in 0..3 {
        one.offer(1, index, BASE + 0x8_0000, 100, 0);
    }
    assert_eq!(one.served.port.forward(&two.served.port), 3);
    one.front.enable(1, false).unwrap();
    // The driver's own reset takes back its offered buffers and clears the ring.
    one.memory.write(place(1).descriptors, &[0; 0x3000]).unwrap();
    one.transmit = one.front.start(1, place(1), 0).unwrap();
    one.offer(1, 0, BASE + 0x8_0000, 100, 0);
    assert_eq!(one.served.port.forward(&two.served.port), 1);
    assert_eq!(one.used(1), 1, "counted from the beginning");
    assert!(one.transmit.wait(LIMIT).unwrap());
}

#[test]
fn frames_of_a_started_disabled_ring_are_given_back_and_go_nowhere() {
    let (mut one, two) = (Guest::new(), Guest::new());
    one.front.enable(1, false).unwrap();
    for index in 0..3 {
        one.offer(1, index, BASE + 0x8_0000, 100, 0);
    }
    one.transmit.kick.ring().unwrap();
    one.served.port.kicked(1);
    assert_eq!((one.served.port.forward(&two.served.port), one.used(1)), (0, 3));
    assert!(one.transmit.wait(LIMIT).unwrap());
    one.front.enable(1, true).unwrap();
    one.offer(1, 3, BASE + 0x8_0000, 100, 0);
    assert_eq!((one.served.port.forward(&two.served.port), one.used(1)), (1, 4), "the new one alone");
}

#[test]
fn the_next_driver_of_disabled_rings_may_take_other_features_and_that_of_enabled_ones_may_not() {
    const MAC: u64 = 1 << 5;
    let mut one = Guest::new();
    let refused = one.front.negotiate(VERSION_1 | MAC).unwrap_err();
    assert_eq!(refused.to_string(), "the back end refused SetFeatures");
    for ring in [0, 1] {
        one.front.enable(ring, false).unwrap();
    }
    assert_eq!(one.front.negotiate(VERSION_1 | MAC).unwrap(), VERSION_1 | MAC);
}

#[test]
fn a_front_end_that_vanishes_with_frames_in_its_ring_leaves_nothing_behind() {
    let one = Guest::new();
    for index in 0..8 {
        one.offer(1, index, BASE + 0x8_0000, 100, 0);
    }
    drop(one.front);
    assert!(matches!(one.served.ended(), Ended::Gone));
}

/// A log of the pages up to the end of memory.
struct Log(OwnedFd);

impl Log {
    const LEN: u64 = (BASE + LEN) / 4096 / 8;

    fn new() -> Self {
        Self(shared_file("log", Self::LEN).unwrap())
    }

    /// Takes the logged pages out of the log, numbered from the start of memory.
    fn take(&self) -> Vec<u64> {
        let mut bits = vec![0; Self::LEN as usize];
        rustix::io::pread(&self.0, &mut bits, 0).unwrap();
        rustix::io::pwrite(&self.0, &vec![0; bits.len()], 0).unwrap();
        let pages = (0..8 * Self::LEN).filter(|page| bits[*page as usize / 8] >> (page % 8) & 1 != 0);
        pages.map(|page| page - BASE / 4096).collect()
    }
}

#[test]
fn pages_that_the_device_writes_are_logged_while_the_log_is_on_and_its_rings_run_on() {
    let (one, mut two) = (Guest::new(), Guest::new());
    one.memory.write(BASE + 0x8_0000 + 12, FRAME).unwrap();
    let mut index = 0;
    let mut deliver = |two: &Guest| {
        // A buffer on two pages.
        two.offer(0, index, BASE + 0x8_0fe0, 2048, 2);
        one.offer(1, index, BASE + 0x8_0000, 12 + FRAME.len() as u32, 0);
        index += 1;
        assert_eq!(one.served.port.forward(&two.served.port), 1);
        assert_eq!(two.used(0), index);
    };
    let log = Log::new();
    two.front.share_log(log.0.as_fd(), Log::LEN).unwrap();
    deliver(&two);
    assert_eq!(log.take(), [0; 0], "it is off");
    two.front.log(VERSION_1, true).unwrap();
    log.take();
    deliver(&two);
    let written = log.take();
    assert!([2, 0x80, 0x81].iter().all(|page| written.contains(page)), "used ring and buffer: {written:x?}");
    // The driver may write the transmit ring's device area meanwhile, to enable notifications.
    assert!(written.iter().all(|page| [2, 0xa, 0x80, 0x81].contains(page)), "{written:x?}");
    // QEMU shares a larger log when memory grows, and another region.
    let larger = Log::new();
    two.front.share_log(larger.0.as_fd(), Log::LEN).unwrap();
    log.take();
    two.front.share(&[shared(&two.file)]).unwrap();
    deliver(&two);
    assert_eq!(log.take(), [0; 0], "it was given back");
    assert!(larger.take().contains(&0x80));
    two.front.log(VERSION_1, false).unwrap();
    larger.take();
    deliver(&two);
    assert_eq!(larger.take(), [0; 0]);
    assert_eq!(two.front.stop(0).unwrap(), 4, "no ring was begun anew");
}

#[test]
fn pages_written_before_a_log_is_given_and_those_that_the_last_one_still_has_are_in_the_next() {
    let (one, mut two) = (Guest::new(), Guest::new());
    one.memory.write(BASE + 0x8_0000 + 12, FRAME).unwrap();
    let mut index = 0;
    let mut deliver = |two: &Guest, page: u64| {
        two.offer(0, index, BASE + 4096 * page, 2048, 2);
        one.offer(1, index, BASE + 0x8_0000, 12 + FRAME.len() as u32, 0);
        index += 1;
        assert_eq!(one.served.port.forward(&two.served.port), 1);
        assert_eq!(two.used(0), index);
    };
    // QEMU turns the log on, starts the rings, and gives its log a millisecond later.
    two.front.log(VERSION_1, true).unwrap();
    deliver(&two, 0x90);
    two.front.share(&[shared(&two.file)]).unwrap();
    deliver(&two, 0x91);
    let [first, second] = [(); 2].map(|()| Log::new());
    two.front.share_log(first.0.as_fd(), Log::LEN).unwrap();
    let written = first.take();
    assert!([2, 0x90, 0x91].iter().all(|page| written.contains(page)), "before the first: {written:x?}");
    // It gives another one without having read the rest of the last.
    deliver(&two, 0x92);
    two.front.share_log(second.0.as_fd(), Log::LEN).unwrap();
    let written = second.take();
    assert!([2, 0x92].iter().all(|page| written.contains(page)), "the rest of the first: {written:x?}");
    assert!(!written.contains(&0x90), "it was read: {written:x?}");
    // What a log had when it was turned off is nobody's.
    deliver(&two, 0x93);
    two.front.log(VERSION_1, false).unwrap();
    two.front.log(VERSION_1, true).unwrap();
    let third = Log::new();
    two.front.share_log(third.0.as_fd(), Log::LEN).unwrap();
    let written = third.take();
    assert!(!written.contains(&0x93), "{written:x?}");
}

/// A log of one bit per page ends at 32 TiB. The front end's own log is refused there, too.
#[test]
fn pages_that_cannot_be_logged_before_a_log_is_given_are_told_of_with_what_follows() {
    let mut one = Guest::new();
    one.front.log(VERSION_1, true).unwrap();
    one.served.port.look(|inside| assert_eq!(inside.refused, [""; 0]));
    one.front.share(&[Shared { base: 1 << 45, ..shared(&one.file) }]).unwrap();
    let said = one.served.port.look(|inside| std::mem::take(&mut inside.refused));
    assert_eq!(said.len(), 1, "{said:?}");
    for words in ["memory ends beyond 32 TiB", "its guest may read old bytes", "begin it again"] {
        assert!(said[0].contains(words), "{said:?}");
    }
    // Memory that can be logged is, and nothing is said.
    one.front.share(&[shared(&one.file)]).unwrap();
    one.served.port.look(|inside| assert_eq!(inside.refused, [""; 0]));
}

#[test]
fn a_ring_that_stops_logs_a_page_that_nobody_writes() {
    let mut one = Guest::new();
    let log = Log::new();
    one.front.share_log(log.0.as_fd(), Log::LEN).unwrap();
    one.front.stop(0).unwrap();
    assert_eq!(log.take(), [0; 0], "it is off");
    one.front.log(VERSION_1, true).unwrap();
    log.take();
    one.front.stop(1).unwrap();
    let logged = log.take();
    assert!(logged.contains(&1), "{logged:x?}");
    // Both rings stand still, so nothing but their stop logs a page.
    one.front.stop(0).unwrap();
    assert_eq!(log.take(), [1]);
}

#[test]
fn a_log_that_cannot_be_one_is_refused() {
    for (bytes, len) in [(4096, 8192), (4096, 4092), (4096, 0)] {
        let mut one = Guest::new();
        let file = shared_file("log", bytes).unwrap();
        one.front.share_log(file.as_fd(), len).unwrap_err();
    }
    let mut one = Guest::new();
    assert!(one.front.log(VERSION_1 | 1 << 1, true).is_err(), "other features, while rings run");
}

/// The adapter's state in the file: `crates/adapters/tests/virtio_net/killed.rs`.
#[test]
fn what_is_kept_of_a_ring_is_for_a_back_end_that_was_killed_and_not_for_one_that_stopped_it() {
    let mut one = Guest::new();
    let file = one.front.inflight(5, 16).unwrap();
    for page in [0, 1] {
        rustix::io::pwrite(&file, &[9; 8], page * 4096).unwrap();
    }
    one.front.keep_inflight(file.as_fd(), 5, 16).unwrap();
    one.front.stop(1).unwrap();
    drop(one.front);
    assert!(matches!(one.served.ended(), Ended::Gone));
    let kept = [0, 1].map(|page| {
        let mut word = [1; 8];
        rustix::io::pread(&file, &mut word, page * 4096).unwrap();
        word
    });
    assert_eq!(kept, [[9; 8], [0; 8]]);
}

/// A packed ring at the place of ring 1, with the record of an ended session that sent some frames.
struct Packed {
    memory: Arc<Map>,
    file: OwnedFd,
    record: Arc<Map>,
}

const RING_PACKED: u64 = 1 << 34;
/// The base of a new packed ring: both positions 0, both wrap counters 1.
const NEW: u32 = 0x8000_8000;

impl Packed {
    fn new() -> Self {
        let packed = Self::empty();
        packed.offer(0);
        packed.offer(1);
        assert_eq!(packed.frames_taken(NEW, place(1)), 2);
        packed
    }

    fn empty() -> Self {
        let file = shared_file("guest", LEN).unwrap();
        let mapping = Mapping::of_file(file.try_clone().unwrap(), 0, LEN, true).unwrap();
        let memory = Arc::new(Map::default().with(BASE, Arc::new(mapping), Rights::BOTH).unwrap());
        let record = Arc::new(Map::private(5 * 4096).unwrap());
        Self { memory, file, record }
    }

    /// Makes the first lap's descriptor in this slot available.
    fn offer(&self, slot: u16) {
        let buffer = BASE + 0x8_0000;
        self.memory.write(buffer + 12, FRAME).unwrap();
        let len = 12 + FRAME.len() as u32;
        let words =
            [&buffer.to_le_bytes()[..], &len.to_le_bytes(), &slot.to_le_bytes(), &0x80u16.to_le_bytes()].concat();
        self.memory.write(place(1).descriptors + 16 * u64::from(slot), &words).unwrap();
    }

    /// Number of frames that the next back end takes from the ring.
    fn frames_taken(&self, base: u32, place: RingPlace) -> usize {
        self.frames_taken_after(base, place, || {})
    }

    /// Like `frames_taken`, with descriptors that the driver makes available after the ring has started.
    fn frames_taken_after(&self, base: u32, place: RingPlace, offer: impl FnOnce()) -> usize {
        let port = TestPort::new(None);
        port.look(|inside| inside.record = Some(Arc::clone(&self.record)));
        let (served, stream) = serve(&port);
        let mut front = Frontend::from_socket(stream.into());
        front.negotiate(VERSION_1 | RING_PACKED).unwrap();
        front.share(&[shared(&self.file)]).unwrap();
        let _bells = front.start(1, place, base).unwrap();
        offer();
        let count = port.forward(&TestPort::new(None));
        drop(front);
        assert!(matches!(served.ended(), Ended::Gone));
        count
    }
}

#[test]
fn a_packed_ring_that_begins_at_0_is_in_its_first_lap_only_if_no_descriptor_was_ever_available() {
    let packed = Packed::empty();
    assert_eq!(packed.frames_taken_after(0, place(1), || packed.offer(0)), 1);
    assert_eq!(
        packed.frames_taken_after(0, place(1), || packed.offer(0)),
        0,
        "a later lap, which that descriptor is not of"
    );
}

#[test]
fn a_packed_ring_whose_front_end_keeps_nothing_goes_on_where_the_back_end_that_was_killed_has_recorded() {
    let packed = Packed::new();
    for slot in 2..16 {
        packed.offer(slot);
        assert_eq!(packed.frames_taken(NEW, place(1)), 1, "slot {slot}");
    }
}

#[test]
fn what_is_recorded_of_a_packed_ring_counts_for_no_other_ring_and_for_no_other_life_of_it() {
    // A driver started the ring anew while no back end was there. DPDK's virtio-user gives one position for both.
    for base in [NEW, NEW & 0xffff] {
        let packed = Packed::empty();
        (0..3).for_each(|slot| packed.offer(slot));
        assert_eq!(packed.frames_taken(base, place(1)), 3);
        packed.memory.write(place(1).descriptors, &[0; 256]).unwrap();
        packed.offer(0);
        assert_eq!(packed.frames_taken(base, place(1)), 1, "{base:#x}");
    }
    // A front end sends the ring's position itself.
    let packed = Packed::new();
    packed.offer(5);
    assert_eq!(packed.frames_taken(0x8005_8005, place(1)), 1);
    // A ring at another place, or of another size.
    for other in [RingPlace { device: place(1).device + 64, ..place(1) }, RingPlace { size: 15, ..place(1) }] {
        let packed = Packed::new();
        packed.offer(2);
        assert_eq!(packed.frames_taken(NEW, other), 0);
    }
    // The ring is stopped in order.
    let packed = Packed::new();
    let port = TestPort::new(None);
    port.look(|inside| inside.record = Some(Arc::clone(&packed.record)));
    let (_served, stream) = serve(&port);
    let mut front = Frontend::from_socket(stream.into());
    front.negotiate(VERSION_1 | RING_PACKED).unwrap();
    front.share(&[shared(&packed.file)]).unwrap();
    let _bells = front.start(1, place(1), NEW).unwrap();
    assert_eq!(front.stop(1).unwrap(), 0x8002_8002);
    let mut word = [1; 8];
    packed.record.read(4096, &mut word).unwrap();
    assert_eq!(word, [0; 8]);
}
