//! A front end with an IOMMU, by hand: it answers the back end's questions for translations (docs/interop/vhost-user.rst, "IOMMU
//! support"; `struct vhost_iotlb_msg` of linux/vhost_types.h).

use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use nicety_memory::{Map, Mapping, Rights, shared_file};
use vmm_sys_util::eventfd::EventFd;

use crate::hostile::Raw;
use crate::port::{Served, TestPort, serve};

const VERSION_1: u64 = 1 << 32;
const PROTOCOL: u64 = 1 << 30;
const LOG_ALL: u64 = 1 << 26;
const ACCESS_PLATFORM: u64 = 1 << 33;
/// Messages.
const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const SET_MEM_TABLE: u32 = 5;
const SET_BACKEND_REQ_FD: u32 = 21;
const IOTLB_MSG: u32 = 22;
/// Types of IOTLB messages, and permissions.
const MISS: u8 = 1;
const UPDATE: u8 = 2;
const INVALIDATE: u8 = 3;
const ACCESS_FAIL: u8 = 4;
const READ: u8 = 1;
const WRITE: u8 = 2;

const PAGE: u64 = 4096;
const LEN: u64 = 0x10_0000;
/// The address of the memory in this process.
const USER: u64 = 0x7f00_0000_0000;
/// I/O virtual addresses, as Linux gives them: from 4 GiB downwards. Page n translates to the memory's page n.
const IOVA: u64 = 0xfff0_0000;
/// Pages of the ring's areas, and of the frame.
const TABLE: u64 = 2;
const DRIVER: u64 = 5;
const DEVICE: u64 = 7;
const FRAME: u64 = 11;

/// A front end with an IOMMU.
struct Translated {
    served: Served,
    raw: Raw,
    /// The socket for questions.
    questions: UnixStream,
    memory: Map,
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn message(kind: u8, address: u64, len: u64, user: u64, permission: u8) -> Vec<u8> {
    [words(&[address, len, user]), vec![permission, kind, 0, 0, 0, 0, 0, 0]].concat()
}

impl Translated {
    fn new() -> Self {
        let (served, stream) = serve(&TestPort::new(None));
        let mut raw = Raw(stream);
        raw.negotiate();
        let features = |raw: &mut Raw| u64::from_ne_bytes(raw.exchange(GET_FEATURES, &[]).try_into().unwrap());
        assert_eq!(features(&mut raw) & ACCESS_PLATFORM, 0, "nobody could be asked");
        let (questions, theirs) = UnixStream::pair().unwrap();
        questions.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(raw.result(SET_BACKEND_REQ_FD, &[], &[theirs.as_raw_fd()]), 0);
        assert_ne!(features(&mut raw) & ACCESS_PLATFORM, 0);
        let taken = VERSION_1 | PROTOCOL | ACCESS_PLATFORM;
        assert_ne!(raw.result(SET_FEATURES, &words(&[taken | LOG_ALL]), &[]), 0, "the log has other addresses");
        assert_eq!(raw.result(SET_FEATURES, &words(&[taken]), &[]), 0);
        let file = shared_file("guest", LEN).unwrap();
        let region = [words(&[1]), words(&[0, LEN, USER, 0])].concat();
        assert_eq!(raw.result(SET_MEM_TABLE, &region, &[file.as_raw_fd()]), 0);
        let mapping = Mapping::of_file(file, 0, LEN, true).unwrap();
        let memory = Map::default().with(0, Arc::new(mapping), Rights::BOTH).unwrap();
        Self { served, raw, questions, memory }
    }

    /// Starts ring 1, which sends, at I/O virtual addresses.
    fn start(&mut self) {
        let pair = |first: u32, second: u32| [first, second].map(u32::to_ne_bytes).concat();
        let at = |page: u64| IOVA + page * PAGE;
        let areas = [pair(1, 0), words(&[at(TABLE), at(DEVICE), at(DRIVER), 0])].concat();
        assert_eq!(self.raw.result(8, &pair(1, 16), &[]), 0, "SET_VRING_NUM");
        assert_eq!(self.raw.result(9, &areas, &[]), 0, "SET_VRING_ADDR");
        let bell = EventFd::new(0).unwrap();
        assert_eq!(self.raw.result(12, &words(&[1]), &[bell.as_raw_fd()]), 0, "SET_VRING_KICK");
        assert_eq!(self.raw.result(18, &pair(1, 1), &[]), 0, "SET_VRING_ENABLE");
    }

    /// Makes a frame available, as entry `index` of the ring.
    fn offer(&self, index: u16) {
        let frame = [[0; 12].as_slice(), &[0xff; 6], &[2, 0, 0, 0, 0, 1, 0x88, 0xb5], &[index as u8; 46]].concat();
        self.memory.write(FRAME * PAGE, &frame).unwrap();
        let descriptor = [words(&[IOVA + FRAME * PAGE]), (frame.len() as u32).to_le_bytes().into(), vec![0; 4]];
        self.memory.write(TABLE * PAGE + 16 * u64::from(index), &descriptor.concat()).unwrap();
        self.memory.write(DRIVER * PAGE + 4 + 2 * u64::from(index), &index.to_le_bytes()).unwrap();
        self.memory.write(DRIVER * PAGE + 2, &(index + 1).to_le_bytes()).unwrap();
    }

    /// Waits for a question; returns the page's number and the permission.
    fn question(&mut self) -> (u64, u8) {
        let mut bytes = [0; 12 + 32];
        self.questions.read_exact(&mut bytes).unwrap();
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(4), word(8)), (1, 1, 32), "VHOST_USER_BACKEND_IOTLB_MSG, which needs no reply");
        assert_eq!(bytes[12 + 25], MISS);
        let address = u64::from_ne_bytes(bytes[12..20].try_into().unwrap());
        ((address - IOVA) / PAGE, bytes[12 + 24])
    }

    fn tell(&mut self, body: &[u8]) -> u64 {
        self.raw.result(IOTLB_MSG, body, &[])
    }

    fn update(&mut self, page: u64, permission: u8) -> u64 {
        self.tell(&message(UPDATE, IOVA + page * PAGE, PAGE, USER + page * PAGE, permission))
    }

    fn invalidate(&mut self, page: u64, pages: u64) {
        assert_eq!(self.tell(&message(INVALIDATE, IOVA + page * PAGE, pages * PAGE, 0, 0)), 0);
    }

    fn used(&self) -> u16 {
        let mut index = [0; 2];
        self.memory.read(DEVICE * PAGE + 2, &mut index).unwrap();
        u16::from_le_bytes(index)
    }

    /// Answers questions until a frame is sent. Returns the pages that were asked for.
    fn answered(&mut self, other: &TestPort) -> Vec<(u64, u8)> {
        let mut asked = Vec::new();
        while self.served.port.forward(other) == 0 {
            assert!(asked.len() < 10, "{asked:?}");
            let (page, permission) = self.question();
            asked.push((page, permission));
            assert_eq!(self.update(page, READ | WRITE), 0);
        }
        asked
    }
}

#[test]
fn what_an_iommu_has_not_translated_is_asked_for_and_what_it_takes_back_is_asked_for_again() {
    let (mut guest, other) = (Translated::new(), TestPort::new(None));
    guest.start();
    guest.offer(0);
    let all = [(TABLE, READ), (DRIVER, READ), (DEVICE, WRITE), (FRAME, READ)];
    assert_eq!(guest.answered(&other), all, "each once");
    assert_eq!(guest.used(), 1);
    guest.offer(1);
    assert_eq!(guest.answered(&other), [], "the translations hold");
    // With `iommu.strict=1` after each frame.
    guest.invalidate(FRAME, 1);
    guest.offer(2);
    assert_eq!(guest.answered(&other), [(FRAME, READ)]);
    // A flush of the whole domain.
    guest.invalidate(0, 1 << 20);
    guest.offer(3);
    assert_eq!(guest.answered(&other), all);
    assert_eq!(guest.used(), 4);
    guest.served.port.look(|inside| {
        assert!(inside.refused.len() == 1, "the features alone: {:?}", inside.refused);
        assert_eq!(inside.counters.guest_errors(), 0);
    });
}

/// Nothing of a page that was taken back is read or written, whatever is on its way.
#[test]
fn a_page_that_was_taken_back_is_not_read_any_more() {
    let (mut guest, other) = (Translated::new(), TestPort::new(None));
    guest.start();
    guest.offer(0);
    guest.answered(&other);
    guest.offer(1);
    guest.invalidate(FRAME, 1);
    assert_eq!(guest.served.port.forward(&other), 0);
    guest.served.port.look(|inside| {
        assert!(inside.memory.read(IOVA + FRAME * PAGE, &mut [0]).is_err());
        assert_eq!(inside.counters.transmit_drops.iter().sum::<u64>(), 0, "the frame waits");
    });
    assert_eq!(guest.question(), (FRAME, READ));
}

#[test]
fn a_translation_to_memory_that_is_not_shared_or_of_no_length_is_refused_and_changes_nothing() {
    let mut guest = Translated::new();
    assert_eq!(guest.update(3, READ), 0);
    let (address, whole) = (IOVA + 64 * PAGE, message(UPDATE, IOVA, PAGE, USER, READ));
    for wrong in [
        message(UPDATE, address, PAGE, USER + LEN, READ),
        message(UPDATE, address, 2 * PAGE, USER + LEN - PAGE, READ),
        message(UPDATE, address, PAGE, USER - PAGE, READ),
        message(UPDATE, address, 0, USER, READ),
        message(UPDATE, u64::MAX - 1, PAGE, USER, READ),
        message(UPDATE, address, u64::MAX, USER, READ),
        message(UPDATE, address, PAGE, u64::MAX, READ),
        message(UPDATE, address, PAGE, USER, 0),
        message(UPDATE, address, PAGE, USER, 4),
        message(MISS, address, PAGE, USER, READ),
        message(ACCESS_FAIL, address, PAGE, USER, READ),
        whole[..31].to_vec(),
        [whole, vec![0]].concat(),
    ] {
        assert_ne!(guest.tell(&wrong), 0, "{wrong:?}");
        guest.served.port.look(|inside| assert_eq!(inside.memory.regions(), 1));
    }
    // Larger and smaller ones replace what they overlap.
    let large = message(UPDATE, IOVA, 8 * PAGE, USER, READ);
    assert_eq!(guest.tell(&large), 0);
    guest.served.port.look(|inside| assert_eq!((inside.memory.regions(), inside.memory.mapped_bytes()), (1, 8 * PAGE)));
    assert_eq!(guest.update(4, READ | WRITE), 0);
    guest.served.port.look(|inside| {
        assert_eq!((inside.memory.regions(), inside.memory.mapped_bytes()), (1, PAGE));
        assert!(inside.memory.write(IOVA + 4 * PAGE, &[1]).is_ok());
    });
    guest.invalidate(4, 1);
    guest.served.port.look(|inside| assert_eq!(inside.memory.regions(), 0));
}
