use super::*;
use crate::counters::{Counters, Reason};
use crate::{Context, Outbox};
use nicety_memory::Map;

fn tail(value: u64) -> GuestError {
    let name = RegisterName { word: "TDT", index: Some(1) };
    let place = ErrorPlace::Register { name, at: Some((Region::Bar(0), 0x3918)) };
    GuestError { place, value, expected: "a tail within the ring" }
}

#[test]
fn an_entry_names_its_place_the_value_and_the_expectation() {
    assert_eq!(tail(0x200).to_string(), "TDT[1] (bar0 0x3918): 0x200; expected a tail within the ring");
    let shown = |place: ErrorPlace| place.to_string();
    let access = |write, width| ErrorPlace::Access { write, region: Region::Bar(1), offset: 0x18, width };
    assert_eq!(shown(access(true, 3)), "write of 3 bytes at bar1 0x0018");
    assert_eq!(shown(access(false, 1)), "read of 1 byte at bar1 0x0018");
    assert_eq!(shown(ErrorPlace::transmit(2, 5)), "transmit queue 2, descriptor 5");
    assert_eq!(shown(ErrorPlace::Ring(Queue::Control)), "the control queue");
    let csr = RegisterName { word: "IADR", index: Some(0) };
    assert_eq!(shown(ErrorPlace::Register { name: csr, at: None }), "IADR[0]");
}

#[test]
fn the_last_ones_are_kept_in_order() {
    let mut errors = GuestErrors::default();
    assert_eq!(errors.iter().count(), 0);
    (1..=100).for_each(|value| errors.note(tail(value), Time(value * 1000)));
    let kept: Vec<u64> = errors.iter().map(|entry| entry.error.value).collect();
    assert_eq!(kept, (69..=100).collect::<Vec<u64>>());
    assert_eq!((errors.noted(), errors.since(98).count()), (100, 2));
    assert_eq!(errors.iter().last().unwrap().at, Time(100_000));
}

#[test]
fn equal_ones_in_a_row_are_one_entry() {
    let mut errors = GuestErrors::default();
    [1, 2, 2, 2, 1].into_iter().for_each(|value| errors.note(tail(value), Time(value)));
    let times: Vec<u64> = errors.iter().map(|entry| entry.times).collect();
    assert_eq!(times, [1, 3, 1]);
    let said: Vec<String> = errors.since(1).map(NotedError::to_string).collect();
    assert_eq!(said[0], "TDT[1] (bar0 0x3918): 0x2; expected a tail within the ring (3 times)");
    assert_eq!(errors.since(4).count(), 1, "an entry that came again is new");
}

#[test]
fn the_time_is_the_ports_though_the_adapters_clock_is_another_after_a_restore() {
    let mut errors = GuestErrors::default();
    errors.set_shift(-500);
    errors.note(tail(1), Time(1000));
    errors.set_shift(5000);
    errors.note(tail(2), Time(7000));
    let times: Vec<Time> = errors.iter().map(|entry| entry.at).collect();
    assert_eq!(times, [Time(1500), Time(2000)]);
}

#[test]
fn a_drop_counts_as_a_guest_error_only_if_the_driver_caused_it() {
    let (mut out, mut counters, memory) = (Outbox::default(), Counters::default(), Map::empty());
    let mut cx = Context::new(&memory, &mut out, &mut counters, Time::ZERO);
    let place = ErrorPlace::transmit(0, 7);
    for reason in [Reason::LinkDown, Reason::QueueOff, Reason::NotShared, Reason::BadAddress, Reason::BadOffload] {
        cx.drop_transmit(reason, place, 0xbad, None);
    }
    for reason in [Reason::Filtered, Reason::TooLong, Reason::BufferFull, Reason::BadAddress] {
        cx.drop_receive(reason, || (ErrorPlace::receive(0, 3), 0xbad), None);
    }
    assert_eq!((counters.guest_errors(), counters.errors().iter().count()), (3, 3));
    assert_eq!(counters.transmit_drops.iter().chain(&counters.receive_drops).sum::<u64>(), 9);
    assert!(out.stalled.contains(Outbox::GUEST_ERROR), "the port reports it after the call");
}

#[test]
fn an_access_to_a_hole_is_counted_apart_from_guest_errors() {
    let (mut out, mut counters, memory) = (Outbox::default(), Counters::default(), Map::empty());
    let mut cx = Context::new(&memory, &mut out, &mut counters, Time::ZERO);
    cx.holes(0, false, Region::Bar(0), 0x10, &[0; 4]);
    cx.holes(2, true, Region::Bar(0), 0x5c, &[1, 2, 3]);
    assert_eq!((counters.guest_errors(), counters.bad_accesses()), (0, 2));
    let said: Vec<String> = counters.errors().iter().map(NotedError::to_string).collect();
    assert_eq!(said, ["write of 3 bytes at bar0 0x005c: 0x30201; expected a register there, and this width"]);
}
