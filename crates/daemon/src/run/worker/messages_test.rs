//! A VMM that floods its port with messages: the number handled before those of another port of the same worker.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nicety_adapter::Face;
use nicety_adapters::{Settings, find};
use nicety_frame::Mac;
use nicety_plane::doubles::Silent;
use nicety_plane::{End, Port};
use nicety_switch::Limits;
use nicety_vfio_user::{Interrupts, Listener};
use tempfile::TempDir;

use super::*;
use crate::run::device::{PortDevice, irq_layout};
use crate::run::mapper::Mapper;
use crate::run::order::{NotFrozen, Without};
use crate::run::port_log::PortLog;
use crate::run::service::QUANTUM;
use crate::run::shell::Signals;
use crate::run::timeout::TIMEOUT;

const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const DMA_UNMAP: u16 = 3;
const READ: u16 = 9;
const WRITE: u16 = 10;
const POSTED: u32 = 0x10;
/// Reads that one system call delivers.
const FLOOD: u64 = 2000;
/// More rounds than any test here needs.
const ROUNDS: usize = 100;

/// A message (vfio-user.rst, "Header").
pub(super) fn message(command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
    let size = 16 + payload.len() as u32;
    [&[1, 0][..], &command.to_ne_bytes(), &size.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 4], payload].concat()
}

/// A read of the 82540EM's STATUS register.
pub(super) fn status(flags: u32) -> Vec<u8> {
    message(READ, flags, &[8u32, 0, 0, 4].map(u32::to_ne_bytes).concat())
}

/// Adds a port to the worker, with a socket in this folder. Returns its interrupts.
pub(super) fn open(
    worker: &mut Worker,
    id: PortId,
    adapter: &'static str,
    folder: &Path,
) -> (PathBuf, Arc<Interrupts>) {
    let settings = Settings::new(Mac([0x52, 0x54, 0, 0, 0, id.0 as u8]));
    let mut adapter = (find(adapter).unwrap().create)(&settings).unwrap();
    let Face::Pci(pci) = adapter.face() else { panic!("it is a function") };
    let interrupts = Arc::new(Interrupts::new(irq_layout(pci)));
    let port = Arc::new(Port::new(id, End::guest(adapter), Box::new(Silent), 1 << 16).unwrap());
    worker.plane.join(Arc::clone(&port)).unwrap();
    let log = Arc::new(PortLog::new(id, "vm", "e1000", worker.clock, Arc::clone(&worker.inbox)));
    let signals = Arc::new(Signals::function(Arc::clone(&interrupts)));
    let inbox = Arc::clone(&worker.inbox);
    let mapper = Mapper::new("vm", Arc::default(), move || inbox.push(Note::Mapped(id)));
    let device = PortDevice::new(Arc::clone(&log), Arc::clone(&port), Arc::clone(&interrupts), signals, mapper, true);
    let path = folder.join(format!("{}.sock", id.0));
    let listener = Listener::bind(&path).unwrap();
    let link = Link::Function { listener, device: Box::new(device), session: None };
    worker.serve(Service::new(log, port, Arc::default(), link));
    (path, interrupts)
}

/// Runs rounds of the worker until `done`.
fn rounds(worker: &mut Worker, mut done: impl FnMut(&Worker) -> bool) {
    for _ in 0..ROUNDS {
        if done(worker) {
            return;
        }
        rounds_made(worker, 1);
    }
    panic!("not within {ROUNDS} rounds");
}

pub(super) fn ring(worker: &Worker) {
    rustix::io::write(worker.inbox.bell(), &1u64.to_ne_bytes()).unwrap();
}

/// Runs this many rounds. The eventfd wakes the worker after each if it sleeps.
pub(super) fn rounds_made(worker: &mut Worker, count: usize) {
    for _ in 0..count {
        ring(worker);
        worker.round(&mut Vec::with_capacity(EVENTS));
    }
}

/// Reads the bytes that have arrived. Returns false if there are none.
fn has_come(client: &mut UnixStream) -> bool {
    let mut bytes = [0; 4096];
    client.read(&mut bytes).is_ok_and(|count| count > 0)
}

/// A client that has negotiated the version.
fn connect(worker: &mut Worker, path: &Path) -> UnixStream {
    connect_with(worker, path, b"{}")
}

/// The same with these capabilities.
pub(super) fn connect_with(worker: &mut Worker, path: &Path, capabilities: &[u8]) -> UnixStream {
    let mut client = UnixStream::connect(path).unwrap();
    client.set_nonblocking(true).unwrap();
    client.write_all(&message(VERSION, 0, &[&[0; 4], capabilities, &[0]].concat())).unwrap();
    rounds(worker, |_| has_come(&mut client));
    client
}

/// Register reads that this port's session has carried out.
fn reads(worker: &Worker, id: PortId) -> u64 {
    match &worker.services[&id].link {
        Link::Function { session: Some(talk), .. } => talk.session.counters().reads,
        _ => panic!("a session"),
    }
}

/// A worker with two ports, and their clients.
pub(super) struct Pair {
    pub worker: Worker,
    pub clients: [UnixStream; 2],
    /// The interrupts of the first port.
    pub interrupts: Arc<Interrupts>,
    folder: TempDir,
}

pub(super) const FLOODED: PortId = PortId(1);
pub(super) const OTHER: PortId = PortId(2);

impl Pair {
    pub fn new(flooded: &'static str) -> Self {
        let folder = TempDir::new().unwrap();
        let plane = Arc::new(Plane::new(Limits::default()));
        let mut worker =
            Worker::new(plane, Clock::start(), Arc::new(Inbox::new().unwrap()), mpsc::channel().1).unwrap();
        let ports = [(FLOODED, flooded), (OTHER, "e1000")];
        let [(flooded, interrupts), (other, _)] =
            ports.map(|(id, adapter)| open(&mut worker, id, adapter, folder.path()));
        let clients = [flooded, other].map(|path| connect(&mut worker, &path));
        Self { worker, clients, interrupts, folder }
    }
}

#[test]
fn a_worker_does_not_sleep_on_messages_that_have_come_and_handles_some_in_each_round() {
    const ALL: u64 = 3 * FLOOD;
    let mut pair = Pair::new("e1000");
    let flood = status(POSTED).repeat(ALL as usize);
    let (mut sent, most) = (0, (QUANTUM / MESSAGE_COST) as u64);
    for round in 0..ROUNDS as u64 {
        // More messages arrive all the time.
        sent += pair.clients[0].write(&flood[sent..]).unwrap_or(0);
        let before = reads(&pair.worker, FLOODED);
        let (waits, slept) = (!pair.worker.unread_sessions.is_empty(), pair.worker.slept);
        // If the worker sleeps nevertheless, this timer ends the sleep.
        pair.worker.timers.push(Reverse((pair.worker.clock.now().after(Duration::from_millis(50)), OTHER)));
        pair.worker.round(&mut Vec::with_capacity(EVENTS));
        let done = reads(&pair.worker, FLOODED);
        if done == ALL {
            assert!(pair.worker.unread_sessions.is_empty());
            return;
        }
        assert!(!waits || pair.worker.slept == slept, "round {round}: nobody would have woken it");
        assert!(pair.worker.unread_sessions.len() <= 1, "round {round}: {:?}", pair.worker.unread_sessions);
        assert!(done - before <= 256, "round {round}: {} messages", done - before);
        assert!(done <= 256 + (round + 1) * most, "round {round}: {done} messages, and not {most} a round");
    }
    panic!("not within {ROUNDS} rounds");
}

/// The guest's frames, timers and late completions wait for a turn. The VMM's messages do not always use up a round's credit.
#[test]
fn a_port_whose_vmm_never_stops_has_its_turns_and_its_messages_between_them() {
    let mut pair = Pair::new("e1000");
    let flood = status(POSTED).repeat(FLOOD as usize);
    let (mut sent, mut turns, mut with_messages) = (0, Vec::new(), 0);
    for round in 0..ROUNDS {
        sent = (sent + pair.clients[0].write(&flood[sent..]).unwrap_or(0)) % flood.len();
        // Queued in each round, as for a guest that always has frames.
        pair.worker.enqueue(FLOODED);
        let before = reads(&pair.worker, FLOODED);
        rounds_made(&mut pair.worker, 1);
        if !pair.worker.services[&FLOODED].schedule.is_queued() {
            turns.push(round);
        }
        with_messages += usize::from(reads(&pair.worker, FLOODED) > before);
    }
    assert!(turns.windows(2).all(|pair| pair[1] - pair[0] <= 4), "{turns:?}");
    assert!(
        with_messages.min(turns.len()) >= ROUNDS / 8,
        "{with_messages} rounds with messages, {} with a turn",
        turns.len()
    );
}

/// A batch in flight to hundreds of ports is in memory that a message may unmap.
#[test]
fn no_message_is_handled_in_the_middle_of_a_flood() {
    let mut pair = Pair::new("e1000");
    pair.clients[0].write_all(&status(POSTED)).unwrap();
    let service = pair.worker.services.get_mut(&FLOODED).unwrap();
    service.turn = Some(Box::default());
    let before = reads(&pair.worker, FLOODED);
    pair.worker.session(FLOODED);
    assert_eq!(reads(&pair.worker, FLOODED), before);
    assert_eq!(pair.worker.unread_sessions, [FLOODED]);
    pair.worker.services.get_mut(&FLOODED).unwrap().turn = None;
    rounds(&mut pair.worker, |worker| reads(worker, FLOODED) > before);
}

/// The VMM stops within a message while a batch is in flight to hundreds of ports.
#[test]
fn a_vm_that_is_sent_away_in_the_middle_of_a_flood_leaves_its_port_to_the_next_one() {
    let mut pair = Pair::new("e1000");
    pair.clients[0].write_all(&status(0)[..20]).unwrap();
    rounds_made(&mut pair.worker, 2);
    pair.worker.services.get_mut(&FLOODED).unwrap().turn = Some(Box::default());
    pair.worker.clock = Clock::begun(2 * TIMEOUT);
    pair.worker.enqueue(FLOODED);
    rounds(&mut pair.worker, |worker| {
        let service = &worker.services[&FLOODED];
        let gone = matches!(&service.link, Link::Function { session: None, .. });
        assert!(!gone || service.turn.is_none(), "in the middle of a flood");
        gone
    });
    let path = pair.folder.path().join(format!("{}.sock", FLOODED.0));
    connect(&mut pair.worker, &path);
}

#[test]
fn a_vmm_that_comes_when_another_has_just_closed_is_not_refused_though_that_ones_last_words_are_not_read_yet() {
    for how in [Shutdown::Both, Shutdown::Write] {
        let Pair { mut worker, clients: [mut first, _other], folder, .. } = Pair::new("e1000");
        first.write_all(&status(POSTED).repeat(FLOOD as usize)).unwrap();
        rounds(&mut worker, |worker| !worker.unread_sessions.is_empty());
        first.shutdown(how).unwrap();
        connect(&mut worker, &folder.path().join(format!("{}.sock", FLOODED.0)));
    }
}

#[test]
fn a_vmm_that_takes_no_answers_keeps_no_worker_awake() {
    let mut pair = Pair::new("e1000");
    let reads_on = |worker: &Worker| match &worker.services[&FLOODED].link {
        Link::Function { session: Some(talk), .. } => talk.session.wants_read(),
        _ => panic!("a session"),
    };
    // Send until the answers fill the socket and the session's own buffer.
    while reads_on(&pair.worker) {
        if let Err(error) = pair.clients[0].write(&status(0).repeat(100)) {
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        }
        rounds_made(&mut pair.worker, 1);
    }
    rounds_made(&mut pair.worker, 3);
    assert!(pair.worker.unread_sessions.is_empty(), "it waits for the socket");
}

/// Maps a memory file of the VMM from address 0 (vfio-user.rst, "VFIO_USER_DMA_MAP").
fn map(client: &UnixStream, memory: &[u8]) {
    let file = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::pwrite(&file, memory, 0).unwrap();
    send(client, &map_of(0, 0, memory.len() as u32, POSTED), &[file.as_fd()]);
}

/// A message that maps a part of a file at an address.
fn map_of(address: u32, offset: u32, len: u32, flags: u32) -> Vec<u8> {
    message(DMA_MAP, flags, &[32u32, 3, offset, 0, address, 0, len, 0].map(u32::to_ne_bytes).concat())
}

/// A message that unmaps a range.
fn unmap_of(address: u32, len: u32) -> Vec<u8> {
    message(DMA_UNMAP, 0, &[24u32, 0, address, 0, len, 0].map(u32::to_ne_bytes).concat())
}

/// Sends a message, with descriptors if there are any.
pub(super) fn send(client: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(rustix::net::SendAncillaryMessage::ScmRights(fds)));
    let slices = [std::io::IoSlice::new(bytes)];
    rustix::net::sendmsg(client, &slices, &mut control, rustix::net::SendFlags::empty()).unwrap();
}

/// A posted write to a register of vmxnet3's BAR 1, or of its configuration space.
fn write(region: u32, offset: u32, value: u32) -> Vec<u8> {
    let words = [offset, 0, region, if region == 7 { 2 } else { 4 }, value].map(u32::to_ne_bytes).concat();
    message(WRITE, POSTED, &words[..if region == 7 { 18 } else { 20 }])
}

/// Structures of vmxnet3's driver (Linux, drivers/net/vmxnet3/vmxnet3_defs.h) for 32 queues each way, all with the same rings.
fn vmxnet3() -> Vec<u8> {
    const SHARED: usize = 0x1000;
    let mut memory = vec![0; 1 << 20];
    let mut put = |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
    put(SHARED, &0xbabe_fee1u32.to_le_bytes());
    put(SHARED + 40, &0x1_0000u64.to_le_bytes());
    put(SHARED + 56, &1500u32.to_le_bytes());
    put(SHARED + 60, &[0, 0, 32, 32]);
    put(SHARED + 80, &[0, 1, 0]);
    for queue in 0..64 {
        let at = 0x1_0000 + 256 * queue;
        for (pointer, ring) in [(16, 0x4_0000u64), (24, 0x5_0000), (32, 0x6_0000)] {
            put(at + pointer, &ring.to_le_bytes());
        }
        for (size, entries) in [(56, 512u32), (60, if queue < 32 { 0 } else { 512 }), (64, 1024)] {
            put(at + size, &entries.to_le_bytes());
        }
    }
    memory
}

/// Activating 64 queues takes longer than hundreds of accesses. Other ports get their rounds in between.
#[test]
fn a_command_that_takes_long_is_one_in_a_round_and_then_others_have_theirs() {
    let mut pair = Pair::new("vmxnet3");
    map(&pair.clients[0], &vmxnet3());
    until(&mut pair.worker, |worker| regions(worker) == 1);
    // Version 6 introduced so many queues.
    let set_up = [write(7, 4, 6), write(1, 0, 1 << 5), write(1, 0x10, 0x1000), write(1, 0x18, 0)].concat();
    let activate = write(1, 0x20, 0xcafe_0000);
    pair.clients[0].write_all(&[set_up, activate.repeat(10)].concat()).unwrap();
    let writes = |worker: &Worker| worker.services[&FLOODED].port.state().counters.writes;
    let mut rounds = Vec::new();
    for round in 0..1000 {
        let before = writes(&pair.worker);
        if before == 13 {
            break;
        }
        rounds_made(&mut pair.worker, 1);
        let done = writes(&pair.worker) - before;
        // The three registers before the first command are in its round.
        assert!(done <= if before == 0 { 4 } else { 1 }, "round {round}: {done} at once");
        rounds.extend((done > 0).then_some(round));
    }
    let state = pair.worker.services[&FLOODED].port.state();
    assert!(state.driven && state.counters.guest_errors() == 0, "{state:?}");
    assert_eq!(rounds.len(), 10);
    assert!(rounds.windows(2).all(|pair| pair[1] - pair[0] >= 8), "each is paid for: {rounds:?}");
}

/// Runs rounds until another thread has done its part.
fn until(worker: &mut Worker, mut done: impl FnMut(&Worker) -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !done(worker) {
        assert!(Instant::now() < end, "not within {TIMEOUT:?}");
        rounds_made(worker, 1);
        std::thread::yield_now();
    }
}

/// The number of memory regions of the flooded port.
fn regions(worker: &Worker) -> usize {
    worker.services[&FLOODED].port.memory().regions()
}

/// Blocks the memory thread of the flooded port, as a VMM can, until the result is dropped.
fn hold(worker: &Worker) -> std::sync::mpsc::Sender<()> {
    match &worker.services[&FLOODED].link {
        Link::Function { device, .. } => device.mapper().hold(),
        _ => panic!("a function"),
    }
}

#[test]
fn while_the_memory_of_a_vmm_is_being_mapped_its_own_messages_wait_and_those_of_others_do_not() {
    let mut pair = Pair::new("e1000");
    let go_on = hold(&pair.worker);
    map(&pair.clients[0], &[0; 4096]);
    pair.clients[0].write_all(&status(0)).unwrap();
    rounds_made(&mut pair.worker, 5);
    for _ in 0..50 {
        pair.clients[1].write_all(&status(0)).unwrap();
        rounds(&mut pair.worker, |_| has_come(&mut pair.clients[1]));
    }
    assert!(!has_come(&mut pair.clients[0]));
    assert_eq!(regions(&pair.worker), 0);
    assert!(pair.worker.unread_sessions.is_empty(), "nothing keeps the worker awake");
    drop(go_on);
    until(&mut pair.worker, |_| has_come(&mut pair.clients[0]));
    assert_eq!(regions(&pair.worker), 1);
}

#[test]
fn a_port_whose_memory_is_being_mapped_is_handed_over_only_without_its_vmm() {
    let mut pair = Pair::new("e1000");
    let go_on = hold(&pair.worker);
    map(&pair.clients[0], &[0; 4096]);
    rounds_made(&mut pair.worker, 5);
    let images = |worker: &mut Worker, without: &Without| {
        let checked = worker.check(without);
        let (done, parts) = mpsc::channel();
        worker.images(without, &done);
        (checked, parts.recv().unwrap().map(drop))
    };
    let busy = Err(NotFrozen::Busy("vm".to_owned()));
    assert_eq!(images(&mut pair.worker, &Without::default()), (busy.clone(), busy));
    // The test names all its ports alike.
    assert_eq!(images(&mut pair.worker, &Without::from(["vm".to_owned()])), (Ok(()), Ok(())));
    drop(go_on);
    until(&mut pair.worker, |worker| regions(worker) == 1);
    assert_eq!(images(&mut pair.worker, &Without::default()), (Ok(()), Ok(())));
}

/// Behind an IOMMU with `iommu.strict=1` a driver maps and unmaps a page or two a frame.
#[test]
fn pages_of_a_file_that_is_mapped_already_come_and_go_without_the_memory_thread_by_a_message_each() {
    const PAGE: u32 = 4096;
    const PAGES: u32 = 32;
    let mut pair = Pair::new("e1000");
    let file = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, u64::from(PAGES * PAGE)).unwrap();
    send(&pair.clients[0], &map_of(0, 0, PAGE, 0), &[file.as_fd()]);
    until(&mut pair.worker, |_| has_come(&mut pair.clients[0]));
    let handled = |worker: &Worker| match &worker.services[&FLOODED].link {
        Link::Function { session: Some(talk), .. } => talk.session.counters().messages_received(),
        _ => panic!("a session"),
    };
    let before = handled(&pair.worker);
    let held = hold(&pair.worker);
    for page in 1..PAGES {
        send(&pair.clients[0], &map_of(page * PAGE, (PAGES - page) * PAGE, PAGE, 0), &[file.as_fd()]);
        rounds(&mut pair.worker, |_| has_come(&mut pair.clients[0]));
    }
    assert_eq!(regions(&pair.worker), PAGES as usize);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert_eq!(maps.matches("/memfd:guest").count(), 1, "one mapping for all");
    // The first region goes too: its file is mapped for the others.
    for page in 0..PAGES - 1 {
        pair.clients[0].write_all(&unmap_of(page * PAGE, PAGE)).unwrap();
        rounds(&mut pair.worker, |_| has_come(&mut pair.clients[0]));
    }
    assert_eq!(regions(&pair.worker), 1);
    assert_eq!(handled(&pair.worker) - before, u64::from(2 * (PAGES - 1)), "a message for each map and each unmap");
    // The last page takes the mapping along: that is the memory thread's.
    pair.clients[0].write_all(&unmap_of((PAGES - 1) * PAGE, PAGE)).unwrap();
    rounds_made(&mut pair.worker, 5);
    assert!(!has_come(&mut pair.clients[0]));
    drop(held);
    until(&mut pair.worker, |_| has_come(&mut pair.clients[0]));
    assert_eq!(regions(&pair.worker), 0);
}

#[test]
fn a_vmm_that_goes_while_its_memory_is_being_mapped_keeps_no_worker_awake_and_leaves_its_port_to_the_next_one() {
    let Pair { mut worker, clients: [first, mut other], folder, .. } = Pair::new("e1000");
    let go_on = hold(&worker);
    map(&first, &[0; 4096]);
    rounds_made(&mut worker, 5);
    drop(first);
    let next = UnixStream::connect(folder.path().join(format!("{}.sock", FLOODED.0))).unwrap();
    // Only the eventfd may keep the worker awake in these rounds.
    rounds_made(&mut worker, 5);
    let mut events = Vec::with_capacity(EVENTS);
    worker.timers.push(Reverse((worker.clock.now().after(Duration::from_millis(50)), OTHER)));
    let slept = worker.slept;
    worker.round(&mut events);
    worker.round(&mut events);
    assert!(worker.slept > slept);
    other.write_all(&status(0)).unwrap();
    rounds(&mut worker, |_| has_come(&mut other));
    drop(go_on);
    let mut next = next;
    next.set_nonblocking(true).unwrap();
    next.write_all(&message(VERSION, 0, b"\0\0\0\0{}\0")).unwrap();
    until(&mut worker, |_| has_come(&mut next));
    assert_eq!(regions(&worker), 0);
}

#[test]
fn a_neighbours_message_is_answered_before_a_flood_is_done_and_the_flood_is_done_though_no_byte_comes_any_more() {
    let (flooded, other) = (FLOODED, OTHER);
    let Pair { mut worker, clients: [mut flood, mut neighbour], folder: _folder, .. } = Pair::new("e1000");
    // The flood arrives before the neighbour's message.
    flood.write_all(&status(POSTED).repeat(FLOOD as usize)).unwrap();
    for _ in 0..3 {
        let before = reads(&worker, flooded);
        neighbour.write_all(&status(0)).unwrap();
        rounds(&mut worker, |_| has_come(&mut neighbour));
        let meanwhile = reads(&worker, flooded) - before;
        assert!(meanwhile <= 512, "{meanwhile} messages of the flood were handled before the neighbour's");
    }
    rounds(&mut worker, |worker| reads(worker, flooded) == FLOOD);
    assert!(worker.unread_sessions.is_empty());
    assert_eq!(reads(&worker, other), 3);
    // A VMM that disconnects in the middle of a flood is forgotten.
    flood.write_all(&status(POSTED).repeat(FLOOD as usize)).unwrap();
    rounds(&mut worker, |worker| !worker.unread_sessions.is_empty());
    worker.remove(&[flooded]);
    assert!(worker.unread_sessions.is_empty());
}
