//! Interrupts compared with a short model, for every order of a few steps, and from several threads.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nicety_vfio_user::codec::irqs::{INTX, MSIX};
use nicety_vfio_user::{Errno, Interrupts, IrqAction, IrqData, IrqLayout, IrqSet};

use crate::kit::{Raw, event, take, words};

fn copy(fd: &OwnedFd) -> OwnedFd {
    fd.try_clone().unwrap()
}

fn set(index: u32, action: IrqAction, data: IrqData<'_>) -> IrqSet<'_> {
    IrqSet { index, start: 0, count: 1, action, data }
}

fn layout() -> IrqLayout {
    IrqLayout { intx: true, msi: 1, msix: 70, unmask_eventfd: true }
}

/// Calls `visit` with every sequence of `length` steps.
fn every_sequence<T: Copy>(steps: &[T], length: usize, mut visit: impl FnMut(&[T])) {
    let mut digits = vec![0; length];
    loop {
        visit(&digits.iter().map(|d| steps[*d]).collect::<Vec<_>>());
        let Some(at) = digits.iter().rposition(|d| d + 1 < steps.len()) else { return };
        digits[at] += 1;
        digits[at + 1..].fill(0);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Raise,
    Mask,
    Unmask,
    Connect,
    Disconnect,
    Disable,
    Forget,
}

#[test]
fn every_sequence_of_five_steps_on_a_vector_gives_the_models_interrupts() {
    use Step::*;
    let steps = [Raise, Mask, Unmask, Connect, Disconnect, Disable, Forget];
    let fd = event();
    every_sequence(&steps, 5, |sequence| {
        let irqs = Interrupts::new(IrqLayout { msix: 1, ..IrqLayout::default() });
        // The model: whether an eventfd is connected, masked, pending; and the expected count.
        let (mut connected, mut masked, mut pending, mut arrived) = (false, false, false, 0u64);
        for step in sequence {
            match step {
                Raise => {
                    irqs.raise_msix(0);
                    pending = true;
                }
                Mask => irqs.apply(set(MSIX, IrqAction::Mask, IrqData::All)).unwrap(),
                Unmask => irqs.apply(set(MSIX, IrqAction::Unmask, IrqData::All)).unwrap(),
                Connect => irqs.apply(set(MSIX, IrqAction::Trigger, IrqData::Connect(vec![copy(&fd).into()]))).unwrap(),
                Disconnect => irqs.apply(set(MSIX, IrqAction::Trigger, IrqData::Disconnect)).unwrap(),
                Disable => irqs.apply(IrqSet::disable(MSIX)).unwrap(),
                Forget => irqs.reset(),
            }
            match step {
                Raise | Forget => pending = *step == Raise,
                Mask | Unmask => masked = *step == Mask,
                Connect | Disconnect => connected = *step == Connect,
                Disable => (connected, masked) = (false, false),
            }
            if pending && connected && !masked {
                pending = false;
                arrived += 1;
            }
            assert_eq!(irqs.counters().delivered, arrived, "{sequence:?}");
        }
        assert_eq!(take(&fd), arrived, "{sequence:?}");
        assert_eq!(irqs.counters().delivered, arrived, "{sequence:?}");
    });
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Wire {
    Up,
    Down,
    Mask,
    Unmask,
    Signal,
    Connect,
    Disconnect,
    Disable,
    Forget,
}

#[test]
fn every_sequence_of_five_steps_on_the_line_gives_the_models_interrupts() {
    use Wire::*;
    let steps = [Up, Down, Mask, Unmask, Signal, Connect, Disconnect, Disable, Forget];
    let (fd, resample) = (event(), event());
    every_sequence(&steps, 5, |sequence| {
        let irqs = Interrupts::new(layout());
        irqs.apply(set(INTX, IrqAction::Unmask, IrqData::Connect(vec![copy(&resample).into()]))).unwrap();
        let (mut connected, mut masked, mut level, mut resampled, mut arrived) = (false, false, false, true, 0u64);
        for step in sequence {
            match step {
                Up | Down => {
                    level = *step == Up;
                    irqs.set_line(level);
                }
                Mask => irqs.apply(set(INTX, IrqAction::Mask, IrqData::All)).unwrap(),
                Unmask => irqs.apply(set(INTX, IrqAction::Unmask, IrqData::All)).unwrap(),
                Signal => {
                    rustix::io::write(&resample, &1u64.to_ne_bytes()).unwrap();
                    assert_eq!(irqs.unmask_signalled(), resampled, "{sequence:?}");
                    assert_eq!(take(&resample), u64::from(!resampled), "{sequence:?}");
                }
                Connect => irqs.apply(set(INTX, IrqAction::Trigger, IrqData::Connect(vec![copy(&fd).into()]))).unwrap(),
                Disconnect => irqs.apply(set(INTX, IrqAction::Trigger, IrqData::Disconnect)).unwrap(),
                Disable => irqs.apply(IrqSet::disable(INTX)).unwrap(),
                Forget => irqs.reset(),
            }
            match step {
                Mask => masked = true,
                Unmask => masked = false,
                Signal => masked &= !resampled,
                Connect => connected = true,
                // The client that got the last interrupt is gone, and nobody else would unmask it.
                Disconnect => (connected, masked) = (false, false),
                Disable => (connected, masked, resampled) = (false, false, false),
                // A device in reset drives no line. The client's connections and masks stay.
                Forget => level = false,
                Up | Down => {}
            }
            if level && connected && !masked {
                masked = true;
                arrived += 1;
            }
            assert_eq!(irqs.counters().delivered, arrived, "{sequence:?}");
        }
        assert_eq!(take(&fd), arrived, "{sequence:?}");
        assert_eq!(irqs.counters().delivered, arrived, "{sequence:?}");
    });
}

/// The interrupts that arrive at `fd` in these steps. After `moves` steps everything is saved and restored in other
/// [`Interrupts`].
fn arrive(index: u32, sequence: &[Step], moves: Option<usize>, fd: &OwnedFd) -> u64 {
    use Step::*;
    let mut irqs = Interrupts::new(layout());
    let connect = |irqs: &Interrupts| {
        irqs.apply(set(index, IrqAction::Trigger, IrqData::Connect(vec![copy(fd).into()]))).unwrap();
    };
    let (mut connected, mut level, mut arrived) = (false, false, 0);
    for at in 0..=sequence.len() {
        if moves == Some(at) {
            let saved = irqs.save();
            irqs = Interrupts::new(layout());
            if connected {
                connect(&irqs);
            }
            assert!(irqs.fits(&saved));
            irqs.restore(&saved);
            assert_eq!(irqs.save(), saved);
            if index == INTX {
                irqs.set_line(level);
            }
        }
        match sequence.get(at) {
            Some(Raise) => {
                level = true;
                if index == INTX {
                    irqs.set_line(true)
                } else {
                    irqs.raise_msix(0)
                };
            }
            Some(Mask) => irqs.apply(set(index, IrqAction::Mask, IrqData::All)).unwrap(),
            Some(Unmask) => irqs.apply(set(index, IrqAction::Unmask, IrqData::All)).unwrap(),
            Some(Connect) => connect(&irqs),
            Some(Disconnect) => irqs.apply(set(index, IrqAction::Trigger, IrqData::Disconnect)).unwrap(),
            Some(Disable) => irqs.apply(IrqSet::disable(index)).unwrap(),
            Some(Forget) => {
                level = false;
                irqs.reset();
            }
            None => {}
        }
        connected = match sequence.get(at) {
            Some(Connect) => true,
            Some(Disconnect | Disable) => false,
            _ => connected,
        };
        arrived += take(fd);
    }
    arrived
}

#[test]
fn what_is_saved_after_any_step_and_restored_elsewhere_interrupts_as_if_nothing_had_happened() {
    use Step::*;
    let steps = [Raise, Mask, Unmask, Connect, Disconnect, Disable, Forget];
    let fd = event();
    every_sequence(&steps, 4, |sequence| {
        for index in [INTX, MSIX] {
            let stays = arrive(index, sequence, None, &fd);
            for at in 0..=sequence.len() {
                assert_eq!(arrive(index, sequence, Some(at), &fd), stays, "{index} {sequence:?} moved after {at}");
            }
        }
    });
    let other = Interrupts::new(IrqLayout { msix: 1, ..IrqLayout::default() });
    let irqs = Interrupts::new(layout());
    irqs.raise_msix(69);
    assert!(!other.fits(&irqs.save()));
}

#[test]
fn raises_from_two_threads_while_a_third_masks_are_neither_lost_nor_doubled() {
    let irqs = Arc::new(Interrupts::new(layout()));
    let fd = event();
    irqs.apply(set(MSIX, IrqAction::Trigger, IrqData::Connect(vec![copy(&fd).into()]))).unwrap();
    let (raised, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let raisers: Vec<_> = (0..2)
        .map(|_| {
            let (irqs, raised) = (Arc::clone(&irqs), Arc::clone(&raised));
            std::thread::spawn(move || {
                for _ in 0..20_000 {
                    irqs.raise_msix(0);
                    raised.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let masker = {
        let (irqs, stop) = (Arc::clone(&irqs), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                irqs.apply(set(MSIX, IrqAction::Mask, IrqData::All)).unwrap();
                irqs.apply(set(MSIX, IrqAction::Unmask, IrqData::All)).unwrap();
            }
        })
    };
    raisers.into_iter().for_each(|t| t.join().unwrap());
    stop.store(true, Ordering::Relaxed);
    masker.join().unwrap();
    let counters = irqs.counters();
    assert_eq!(take(&fd), counters.delivered);
    assert_eq!(
        counters.delivered + counters.merged,
        raised.load(Ordering::Relaxed),
        "each arrived or joined one that did"
    );
    assert_eq!(counters.failed, 0);
}

#[test]
fn a_full_eventfd_counts_as_signalled_and_nobody_waits_for_its_reader() {
    let irqs = Interrupts::new(layout());
    // A blocking eventfd, from a careless client.
    let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    irqs.apply(set(MSIX, IrqAction::Trigger, IrqData::Connect(vec![copy(&fd).into()]))).unwrap();
    rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    assert!(irqs.raise_msix(0));
    // The kernel can add one where write(2) would block (eventfd(2)).
    assert_eq!(take(&fd), u64::MAX);
}

#[test]
fn mask_eventfds_and_an_unwatched_unmask_eventfd_are_refused() {
    let irqs = Interrupts::new(IrqLayout { unmask_eventfd: false, ..layout() });
    let connect = || IrqData::Connect(vec![event().into()]);
    assert_eq!(irqs.apply(set(INTX, IrqAction::Mask, connect())), Err(Errno::INVAL));
    assert_eq!(irqs.apply(set(INTX, IrqAction::Unmask, connect())), Err(Errno::INVAL));
    assert_eq!(irqs.apply(set(MSIX, IrqAction::Unmask, connect())), Err(Errno::INVAL));
    assert!(irqs.unmask_eventfd().is_none());
}

/// QEMU's messages under KVM (hw/vfio/pci.c, vfio_intx_enable_kvm), and KVM's signal.
#[test]
fn a_line_that_is_up_fires_again_when_its_unmask_eventfd_is_signalled_though_no_message_comes() {
    let mut raw = Raw::ready();
    let (interrupt, unmask) = (event(), event());
    let set = |flags: u32| words(&[20, flags, INTX, 0, 1]);
    assert_eq!(raw.errno(8, &set(4 | 32), &[&interrupt]), 0, "EVENTFD, TRIGGER");
    assert_eq!(raw.errno(8, &set(1 | 8), &[]), 0, "NONE, MASK");
    assert_eq!(raw.errno(8, &set(4 | 16), &[&unmask]), 0, "EVENTFD, UNMASK");
    let interrupts = Arc::clone(&raw.model.interrupts);
    assert!(!interrupts.set_line(true), "masked");
    assert_eq!(raw.errno(8, &set(1 | 16), &[]), 0, "NONE, UNMASK");
    assert_eq!(take(&interrupt), 1);
    let messages = raw.session.counters().messages_received();
    for count in [1u64, 1000] {
        assert!(!interrupts.unmask_signalled());
        rustix::io::write(&unmask, &count.to_ne_bytes()).unwrap();
        assert!(interrupts.unmask_signalled());
        assert_eq!((take(&interrupt), take(&unmask)), (1, 0), "once, however often");
    }
    assert_eq!(raw.session.counters().messages_received(), messages);
    interrupts.set_line(false);
    rustix::io::write(&unmask, &1u64.to_ne_bytes()).unwrap();
    assert!(interrupts.unmask_signalled());
    assert_eq!(take(&interrupt), 0, "it is down");
    assert!(interrupts.set_line(true), "and unmasked");
}
