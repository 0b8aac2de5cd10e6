//! The counts equal Linux's: for an exchange and for an interrupt, our drivers make the same accesses as Linux's drivers in the
//! recordings (`tests/traces`).
//!
//! The packets per doorbell and per interrupt in bulk depend on the stack and the processor. A trace of a translated guest tells
//! nothing about another guest's.

use std::path::Path;

use nicety_adapter::trace::{Access, Event, Trace};
use nicety_adapters::{Entry, find};
use nicety_trials::exchanges::{Exchanges, Step, from_each, phase, steps, tally, usual, without};

use crate::messages::{exchanges, incoming, outgoing};

const KERNELS: [&str; 2] = ["6.1", "6.12"];
/// Phases of a trace with bulk traffic.
const BULK: [&str; 3] = ["transmit", "receive", "transmit without segmentation"];

fn recorded(adapter: &str, kernel: &str) -> (&'static Entry, Trace) {
    let name = format!("{adapter}-linux-{kernel}.trace");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces").join(&name);
    let text = std::fs::read_to_string(&path).unwrap();
    let trace = Trace::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    (find(adapter).unwrap(), trace)
}

/// Linux's sequences for an exchange, each from the doorbell of the request.
fn linux_exchanges(adapter: &str, kernel: &str, doorbell: &str) -> Exchanges {
    let (entry, trace) = recorded(adapter, kernel);
    from_each(&steps(entry, phase(&trace, "exchange")), doorbell)
}

/// Our driver's sequence for an exchange is Linux's, and it costs these reads, writes and interrupts.
fn exchanges_as_linux(adapter: &str, doorbell: &str, cost: [usize; 3]) {
    let run = exchanges(adapter, false);
    let ours = from_each(&steps(find(adapter).unwrap(), &run.events), doorbell);
    let (ours, share) = usual(&ours);
    assert!(share > 0.99, "our driver does {ours:?} in {share} of all exchanges only");
    for kernel in KERNELS {
        let exchanges = linux_exchanges(adapter, kernel, doorbell);
        let (linux, share) = usual(&exchanges);
        println!("{adapter}, Linux {kernel}, in {:.0} % of its exchanges: {}", share * 100.0, linux.join(", "));
        // The other exchanges include a timer's work, or a new throttle interval.
        assert!(share >= 0.75, "{exchanges:?}");
        assert_eq!(ours, linux, "with kernel {kernel}");
        assert_eq!(tally(linux), cost, "with kernel {kernel}");
    }
}

/// Linux also makes each sequence that our driver makes for an interrupt in bulk (doorbells left out), and both have the same most
/// frequent sequence.
fn interrupts_as_linux(adapter: &str, first: &str, doorbells: &[&str]) {
    let entry = find(adapter).unwrap();
    let handled = |events: &[Step]| from_each(&without(events, doorbells), first);
    for kernel in KERNELS {
        let (_, trace) = recorded(adapter, kernel);
        let mut linux = Exchanges::new();
        for name in BULK {
            for (steps, times) in handled(&steps(entry, phase(&trace, name))) {
                *linux.entry(steps).or_default() += times;
            }
        }
        println!("{adapter}, Linux {kernel}: {linux:?}");
        for run in [outgoing(adapter, false), incoming(adapter, false)] {
            let ours = handled(&steps(entry, &run.events));
            for steps in ours.keys() {
                assert!(linux.contains_key(steps), "Linux {kernel} never does {steps:?}, only {linux:?}");
            }
            assert_eq!(usual(&ours).0, usual(&linux).0, "with kernel {kernel}");
        }
    }
}

/// The largest advance of a doorbell in one write: receive buffers given back together.
fn largest_step<'e>(entry: &Entry, events: impl IntoIterator<Item = &'e Event>, register: &str, ring: u64) -> u64 {
    let mut last = None;
    let mut most = 0;
    for event in events {
        let Event::Access(Access { write: true, region, offset, value, .. }) = event else { continue };
        if (entry.register)(*region, *offset).is_some_and(|name| name.word == register) {
            most = last.map_or(most, |last| most.max((value + ring - last) % ring));
            last = Some(*value);
        }
    }
    most
}

#[test]
fn an_exchange_on_the_e1000_is_linux_s_three_reads_four_writes_and_one_interrupt() {
    exchanges_as_linux("e1000", "W TDT", [3, 4, 1]);
}

#[test]
fn an_exchange_on_vmxnet3_is_linux_s_doorbell_interrupt_and_unmasking() {
    exchanges_as_linux("vmxnet3", "W TXPROD[0]", [0, 2, 1]);
}

#[test]
fn an_interrupt_in_bulk_takes_the_e1000_s_driver_linux_s_accesses() {
    interrupts_as_linux("e1000", "R ICR", &["interrupt", "W TDT", "W RDT"]);
}

#[test]
fn an_interrupt_in_bulk_takes_vmxnet3_s_driver_linux_s_accesses() {
    interrupts_as_linux("vmxnet3", "interrupt 0", &["W TXPROD[0]"]);
}

#[test]
fn the_e1000_s_buffers_are_given_back_as_many_at_a_time_as_linux_gives() {
    let entry = find("e1000").unwrap();
    let ours = largest_step(entry, &incoming("e1000", false).events, "RDT", 256);
    for kernel in KERNELS {
        let (_, trace) = recorded("e1000", kernel);
        assert_eq!(ours, largest_step(entry, phase(&trace, "receive"), "RDT", 256), "with kernel {kernel}");
    }
    assert_eq!(ours, 16);
}

#[test]
fn vmxnet3_tells_of_no_receive_buffers_as_linux_does_not() {
    let tells = |steps: &[Step]| steps.iter().any(|step| step.starts_with("W RXPROD"));
    let entry = find("vmxnet3").unwrap();
    assert!(!tells(&steps(entry, &incoming("vmxnet3", false).events)));
    for kernel in KERNELS {
        let (_, trace) = recorded("vmxnet3", kernel);
        BULK.iter().for_each(|name| assert!(!tells(&steps(entry, phase(&trace, name)))));
    }
}

/// Our driver differs here. Linux's lets the device interrupt for sent packets (`virtqueue_enable_cb_delayed` in its `start_xmit`).
/// Ours reclaims them when it next sends or polls. Both are allowed (VIRTIO 1.2, 2.7.7). So an exchange under Linux takes one
/// interrupt more than `messages.rs` counts; the kick is the same.
#[test]
fn an_exchange_on_virtio_net_is_linux_s_kick_and_one_interrupt_less() {
    let run = exchanges("virtio-net", false);
    let ours = from_each(&steps(find("virtio-net").unwrap(), &run.events), "kick 1");
    assert_eq!(usual(&ours).0, ["kick 1", "interrupt 0"]);
    for kernel in KERNELS {
        let linux = linux_exchanges("virtio-net", kernel, "kick 1");
        assert_eq!(usual(&linux).0, ["kick 1", "interrupt 1", "interrupt 0"], "with kernel {kernel}");
    }
}
