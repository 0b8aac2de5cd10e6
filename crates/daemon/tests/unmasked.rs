//! INTx like in QEMU under KVM. The interrupt is an eventfd, and another eventfd unmasks it, so that the line costs no message
//! (hw/vfio/pci.c, vfio_intx_enable_kvm). The test acts as KVM when the guest has served the line. Each test runs with one worker
//! and with two.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;
mod nic;
mod stage;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nic::Nic;
use nicety_vfio_user::codec::irqs::INTX;
use nicety_vfio_user::{IrqAction, IrqData, IrqSet};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use stage::Stage;

/// Most time for any step of these tests.
const TIMEOUT: Duration = Duration::from_secs(20);
/// 8254x manual, chapter 13: interrupt cause (cleared by a read), cause set, mask set; link status change.
const ICR: u64 = 0xc0;
const ICS: u64 = 0xc8;
const IMS: u64 = 0xd0;
const LINK: u32 = 4;

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

fn signal(event: &OwnedFd) {
    rustix::io::write(event, &1u64.to_ne_bytes()).unwrap();
}

fn take(event: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    rustix::io::read(event, &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
}

/// Waits for the eventfd to be signalled, and takes its count.
fn wait_for_signal(event: &OwnedFd) -> u64 {
    let timeout = Timespec { tv_sec: TIMEOUT.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(event, PollFlags::IN)], Some(&timeout)), Ok(1), "not within {TIMEOUT:?}");
    take(event)
}

fn set(nic: &mut Nic, action: IrqAction, data: IrqData<'_>) {
    nic.client.set_irqs(IrqSet { index: INTX, start: 0, count: 1, action, data }).unwrap();
}

fn write(nic: &mut Nic, register: u64, value: u32) {
    nic.client.region_write(0, register, &value.to_le_bytes()).unwrap();
}

/// QEMU's messages, in order: the interrupt eventfd, masked; the unmask eventfd; unmask.
fn connect(nic: &mut Nic) -> [OwnedFd; 2] {
    let (interrupt, unmask) = (event(), event());
    let copy = |event: &OwnedFd| IrqData::Connect(vec![event.try_clone().unwrap().into()]);
    set(nic, IrqAction::Trigger, copy(&interrupt));
    set(nic, IrqAction::Mask, IrqData::All);
    set(nic, IrqAction::Unmask, copy(&unmask));
    set(nic, IrqAction::Unmask, IrqData::All);
    [interrupt, unmask]
}

fn the_line_that_is_up_still_fires_again_without_a_message_and_one_that_is_down_does_not(workers: usize) {
    let stage = Stage::new(workers, &["e1000"]);
    let mut nic = Nic::new(&stage, 1);
    let [interrupt, unmask] = connect(&mut nic);
    write(&mut nic, IMS, LINK);
    write(&mut nic, ICS, LINK);
    assert_eq!(wait_for_signal(&interrupt), 1);
    let sent = nic.client.counters().messages_sent();
    for _ in 0..100 {
        assert_eq!(take(&interrupt), 0, "masked by its delivery");
        signal(&unmask);
        assert_eq!(wait_for_signal(&interrupt), 1);
    }
    assert_eq!(nic.client.counters().messages_sent(), sent);
    // The driver reads the cause: the line goes down, and the end of its handler unmasks it.
    assert_eq!(nic.read(ICR).unwrap() & LINK, LINK);
    signal(&unmask);
    stage
        .until("it is taken", || poll(&mut [PollFd::new(&unmask, PollFlags::IN)], Some(&Timespec::default())) == Ok(0));
    // The worker has handled the signal when this is answered: a port has one worker.
    nic.read(8).unwrap();
    assert_eq!(take(&interrupt), 0);
    let sent = nic.client.counters().messages_sent();
    write(&mut nic, ICS, LINK);
    assert_eq!(wait_for_signal(&interrupt), 1);
    assert_eq!(nic.client.counters().messages_sent(), sent + 1);
}

/// Like [`connect`]: QEMU does this when the route of the line changes (vfio_intx_update), and when the guest switches to
/// messages and back.
fn an_unmask_eventfd_that_is_replaced_or_disabled_is_forgotten_and_the_next_one_counts(workers: usize) {
    let stage = Stage::new(workers, &["e1000"]);
    let mut nic = Nic::new(&stage, 1);
    write(&mut nic, IMS, LINK);
    write(&mut nic, ICS, LINK);
    for round in 0..20 {
        let [interrupt, unmask] = connect(&mut nic);
        // The line is up. It fires when it is unmasked, and when it is connected unless its last delivery still masks it.
        assert_eq!(wait_for_signal(&interrupt), if round == 0 || round % 2 == 1 { 2 } else { 1 }, "round {round}");
        signal(&unmask);
        assert_eq!(wait_for_signal(&interrupt), 1, "round {round}");
        if round % 2 == 0 {
            nic.client.disable_irqs(INTX).unwrap();
        }
    }
}

/// The port's line is up, and its interrupt's counter is full.
fn a_vmm_that_signals_and_replaces_its_unmask_eventfd_without_end_holds_nobody_up(workers: usize) {
    let stage = Stage::new(workers, &["e1000", "e1000", "e1000"]);
    let [mut hostile, mut sender, mut receiver] = [1, 2, 3].map(|number| Nic::new(&stage, number));
    let [interrupt, unmask] = connect(&mut hostile);
    write(&mut hostile, IMS, LINK);
    write(&mut hostile, ICS, LINK);
    wait_for_signal(&interrupt);
    rustix::io::write(&interrupt, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // A full counter is as good.
                let _ = rustix::io::write(&unmask, &(1u64 << 40).to_ne_bytes());
                std::thread::yield_now();
            }
        });
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                set(&mut hostile, IrqAction::Unmask, IrqData::Connect(vec![unmask.try_clone().unwrap().into()]));
            }
        });
        let (end, mut received) = (Instant::now() + TIMEOUT, 0);
        while received <= 128 && Instant::now() < end {
            sender.send().unwrap();
            receiver.repost().unwrap();
            // GPRC, which a read clears.
            received += receiver.read(0x4074).unwrap();
        }
        over.store(true, Ordering::Relaxed);
        assert!(received > 128, "{received} frames within {TIMEOUT:?}");
    });
    assert!(stage.taken(3) > 128);
}

with_one_worker_and_with_two!(
    the_line_that_is_up_still_fires_again_without_a_message_and_one_that_is_down_does_not,
    an_unmask_eventfd_that_is_replaced_or_disabled_is_forgotten_and_the_next_one_counts,
    a_vmm_that_signals_and_replaces_its_unmask_eventfd_without_end_holds_nobody_up,
);
