//! A port that is saved in one daemon and restored in another, under a guest that brings its memory and eventfds along; and ports
//! that cannot be. Each test runs with one worker and with two.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;
#[allow(dead_code, reason = "other tests use more of it")]
mod nic;
mod stage;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nic::{BUFFERS, Nic, RINGS};
use nicety_adapter::snapshot::RestoreError;
use nicety_daemon::report::{Condition, PortReport};
use nicety_daemon::saved::{PortState, SaveError};
use nicety_host::Doorbells;
use nicety_memory::{Map, Mapping, Rights};
use nicety_vfio_user::codec::irqs::INTX;
use nicety_vfio_user::{Client, IrqAction, IrqData, IrqSet};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use stage::Stage;

/// 8254x manual, chapter 13: interrupt cause (cleared by a read), cause set, mask set; link status change.
const ICR: u64 = 0xc0;
const ICS: u64 = 0xc8;
const IMS: u64 = 0xd0;
const LINK: u32 = 4;
/// Transmit descriptor head and tail, receive descriptor tail.
const TDH: u64 = 0x3810;
const TDT: u64 = 0x3818;
const RDT: u64 = 0x2818;

fn set(nic: &mut Nic, action: IrqAction, data: IrqData<'_>) {
    nic.client.set_irqs(IrqSet { index: INTX, start: 0, count: 1, action, data }).unwrap();
}

fn write(nic: &mut Nic, register: u64, value: u32) {
    nic.client.region_write(0, register, &value.to_le_bytes()).unwrap();
}

fn connect(nic: &mut Nic, event: &OwnedFd) {
    set(nic, IrqAction::Trigger, IrqData::Connect(vec![event.try_clone().unwrap().into()]));
}

/// Waits until the eventfd is signalled, exactly once.
fn wait_for_signal(event: &OwnedFd) {
    let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(event, PollFlags::IN)], Some(&patience)), Ok(1));
    let mut bytes = [0; 8];
    rustix::io::read(event, &mut bytes).unwrap();
    assert_eq!(u64::from_ne_bytes(bytes), 1);
}

/// Moves the VMM to a port of another daemon with everything except interrupts.
fn go(nic: &mut Nic, to: &Stage, number: usize) {
    nic.client = Client::connect(to.socket(number)).unwrap();
    nic.map(RINGS).unwrap();
    nic.map(BUFFERS).unwrap();
}

fn a_guest_goes_on_in_another_daemon_with_its_rings_and_its_masks(workers: usize) {
    let (old, new) = (Stage::new(workers, &["e1000", "e1000"]), Stage::new(workers, &["e1000", "e1000"]));
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let mut nic = Nic::new(&old, 1);
    let _others = [Nic::new(&old, 2), Nic::new(&new, 2)];
    connect(&mut nic, &event);
    write(&mut nic, IMS, LINK);
    write(&mut nic, ICS, LINK);
    wait_for_signal(&event);
    nic.send().unwrap();
    old.until("64 frames", || old.taken(2) == 64);
    nic.read(8).unwrap();

    let state = old.daemon.save("vm1").unwrap();
    assert_eq!(state.adapter().unwrap().0, "e1000");
    go(&mut nic, &new, 1);
    old.until("the port is free", || PortReport::of(&old.view(1)).condition == Condition::Waiting);
    connect(&mut nic, &event);
    new.daemon.restore("vm1", PortState::from_bytes(&state.to_bytes()).unwrap()).unwrap();

    nic.read(8).unwrap();
    let silent = poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&Timespec::default()));
    assert_eq!(silent, Ok(0), "the line is up, and masked by its last delivery");
    set(&mut nic, IrqAction::Unmask, IrqData::All);
    wait_for_signal(&event);
    assert_eq!(nic.read(ICR).unwrap() & LINK, LINK);
    assert_eq!(nic.read(TDH).unwrap(), 64);
    nic.send().unwrap();
    new.until("64 frames more", || new.taken(2) == 64);
    nic.read(8).unwrap();
    assert_eq!(nic.read(TDH).unwrap(), 128);
    assert_eq!(new.view(1).state.counters.guest_errors(), 0);
}

fn a_saved_port_hears_takes_and_sends_nothing_until_it_is_restored(workers: usize) {
    let stage = Stage::new(workers, &["e1000", "e1000"]);
    let (mut nic, mut other) = (Nic::new(&stage, 1), Nic::new(&stage, 2));
    let state = stage.daemon.save("vm1").unwrap();
    assert_eq!(stage.daemon.save("vm1").unwrap().adapter(), state.adapter(), "it may be saved again");
    assert_eq!(PortReport::of(&stage.view(1)).condition, Condition::Saved);
    let reads = stage.view(1).state.counters.reads;
    let asks = thread::spawn(move || {
        nic.send().unwrap();
        nic.read(TDH).map(|head| (nic, head))
    });
    other.send().unwrap();
    other.read(8).unwrap();
    stage.until("64 frames dropped", || stage.view(1).state.counters.receive_drops.iter().sum::<u64>() == 64);
    // Time enough to serve the message.
    thread::sleep(Duration::from_millis(50));
    assert!(!asks.is_finished());
    assert_eq!((stage.view(1).state.counters.reads, stage.taken(1), stage.taken(2)), (reads, 0, 0));
    stage.daemon.restore("vm1", state).unwrap();
    let (mut nic, _) = asks.join().unwrap().unwrap();
    stage.until("64 frames", || stage.taken(2) == 64);
    nic.repost().unwrap();
    other.send().unwrap();
    stage.until("64 frames back", || stage.taken(1) == 64);
}

fn a_saved_port_whose_vmm_goes_is_free_and_as_new(workers: usize) {
    let stage = Stage::new(workers, &["e1000"]);
    let mut nic = Nic::new(&stage, 1);
    nic.read(8).unwrap();
    stage.daemon.save("vm1").unwrap();
    drop(nic);
    stage.until("it is free", || PortReport::of(&stage.view(1)).condition == Condition::Waiting);
    let mut next = Nic::new(&stage, 1);
    assert_eq!(next.read(TDH).unwrap(), 0);
    let state = &stage.view(1).state;
    assert!(state.driven && !state.stopped);
}

fn what_cannot_be_saved_or_restored_is_refused_and_nothing_changes(workers: usize) {
    let stage = Stage::new(workers, &["e1000", "igb", "virtio-net", "e1000", "e1000"]);
    let (save, restore) = (
        |name: &str| stage.daemon.save(name).unwrap_err(),
        |name: &str, state| stage.daemon.restore(name, state).unwrap_err(),
    );
    assert!(matches!(save("vm1"), SaveError::NoVm));
    assert!(matches!(save("vm3"), SaveError::NoFunction(_)));
    assert!(matches!(save("vm9"), SaveError::Missing(_)));
    let _nic = Nic::new(&stage, 1);
    let state = stage.daemon.save("vm1").unwrap();
    assert!(matches!(restore("vm2", state.clone()), SaveError::NoVm));
    let mut igb = Client::connect(stage.socket(2)).unwrap();
    igb.device_info().unwrap();
    let wrong = restore("vm2", state.clone());
    assert_eq!(wrong.to_string(), "this is the state of a \"e1000\", not of a \"igb\"");
    let mut busy = Nic::new(&stage, 4);
    assert!(matches!(restore("vm4", state.clone()), SaveError::InUse));
    assert_eq!(busy.read(TDH).unwrap(), 0);
    // A state of a newer version. Its version number is the byte after the name.
    let mut bytes = state.to_bytes();
    let at = bytes.windows(5).position(|bytes| bytes == b"e1000").unwrap() + 5;
    bytes[at] = 99;
    let mut idle = Client::connect(stage.socket(5)).unwrap();
    idle.device_info().unwrap();
    let newer = restore("vm5", PortState::from_bytes(&bytes).unwrap());
    assert!(matches!(newer, SaveError::State(RestoreError::Version { found: 99, .. })), "{newer}");
    assert!(!stage.view(5).state.stopped && !stage.view(2).state.stopped);
    stage.daemon.restore("vm5", state).unwrap();
}

fn mapped(stage: &Stage, number: u8, adapter: &str) {
    let mut spec = stage.spec(number, adapter);
    spec.config.doorbells = Some(Doorbells::Mapped);
    stage.daemon.open(spec).unwrap();
}

/// The new page has the content of the old one. Writes to it ring the doorbell.
fn a_guest_with_mapped_doorbells_goes_on_in_another_daemon(workers: usize) {
    for adapter in ["e1000e", "igb"] {
        let (old, new) = (Stage::new(workers, &[]), Stage::new(workers, &[]));
        for stage in [&old, &new] {
            mapped(stage, 1, adapter);
            stage.daemon.open(stage.spec(2, "e1000")).unwrap();
        }
        let mut nic = Nic::new(&old, 1);
        let _others = [Nic::new(&old, 2), Nic::new(&new, 2)];
        nic.map_registers();
        nic.send().unwrap();
        // The port may not have polled the page yet.
        let state = old.daemon.save("vm1").unwrap();
        let before = old.taken(2);
        go(&mut nic, &new, 1);
        old.until("the port is free", || PortReport::of(&old.view(1)).condition == Condition::Waiting);
        nic.map_registers();
        assert_eq!(nic.shown(TDT), 0, "{adapter}");
        new.daemon.restore("vm1", PortState::from_bytes(&state.to_bytes()).unwrap()).unwrap();
        assert_eq!((nic.shown(TDT), nic.shown(RDT)), (64, 255), "{adapter}");
        new.until("64 frames in all", || before + new.taken(2) == 64);
        nic.send().unwrap();
        new.until("64 frames more", || before + new.taken(2) == 128);
        assert_eq!(nic.read(TDH).unwrap(), 128, "{adapter}");
        assert_eq!(new.view(1).state.counters.guest_errors(), 0, "{adapter}");
    }
}

/// Writes during the stop are not lost. They come after the state.
fn a_guest_with_mapped_doorbells_that_rings_while_it_is_saved_is_heard_when_it_is_restored(workers: usize) {
    let stage = Stage::new(workers, &["e1000"]);
    mapped(&stage, 2, "e1000e");
    let (_other, mut nic) = (Nic::new(&stage, 1), Nic::new(&stage, 2));
    nic.map_registers();
    nic.read(8).unwrap();
    stage.daemon.save("vm2").unwrap();
    nic.send().unwrap();
    // Time enough to serve the doorbell.
    thread::sleep(Duration::from_millis(50));
    let again = stage.daemon.save("vm2").unwrap();
    assert_eq!(stage.taken(1), 0);
    stage.daemon.restore("vm2", again).unwrap();
    stage.until("64 frames", || stage.taken(1) == 64);
}

/// vmxnet3, chapter of BAR 0: a mask for each vector, 8 bytes apart.
fn masks_in_a_mapped_page_go_along(workers: usize) {
    let (old, new) = (Stage::new(workers, &[]), Stage::new(workers, &[]));
    let page = |stage: &Stage| {
        let mut vm = Client::connect(stage.socket(1)).unwrap();
        vm.device_info().unwrap();
        let region = vm.region_info(0).unwrap();
        let mapping = Mapping::of_file(region.fd.unwrap(), region.offset, region.areas[0].size, true).unwrap();
        (vm, Map::default().with(0, Arc::new(mapping), Rights::BOTH).unwrap())
    };
    let masks = |page: &Map| {
        let mut bytes = [0; 4 * 8];
        page.read(0, &mut bytes).unwrap();
        [0, 1, 2, 3].map(|vector| bytes[8 * vector])
    };
    [&old, &new].into_iter().for_each(|stage| mapped(stage, 1, "vmxnet3"));
    let (_vm, first) = page(&old);
    let before = masks(&first);
    for vector in [1, 3] {
        first.write(8 * vector, &[before[vector as usize] ^ 1, 0, 0, 0]).unwrap();
    }
    let state = old.daemon.save("vm1").unwrap();
    let (_vm, second) = page(&new);
    assert_eq!(masks(&second), before);
    new.daemon.restore("vm1", state).unwrap();
    assert_eq!(masks(&second), masks(&first));
    assert_ne!(masks(&second), before);
}

with_one_worker_and_with_two!(
    a_guest_goes_on_in_another_daemon_with_its_rings_and_its_masks,
    a_saved_port_hears_takes_and_sends_nothing_until_it_is_restored,
    a_saved_port_whose_vmm_goes_is_free_and_as_new,
    what_cannot_be_saved_or_restored_is_refused_and_nothing_changes,
    a_guest_with_mapped_doorbells_goes_on_in_another_daemon,
    a_guest_with_mapped_doorbells_that_rings_while_it_is_saved_is_heard_when_it_is_restored,
    masks_in_a_mapped_page_go_along,
);
