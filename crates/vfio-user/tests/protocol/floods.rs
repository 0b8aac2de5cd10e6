//! Floods of messages: one call handles a bounded number, and none is lost.

use crate::kit::{DeviceCall, Raw, message, words};

const POSTED: u32 = 0x10;
/// Most messages of one call, of any kind.
const MAX: u32 = 256;

/// Calls until nothing is left, and checks that none handles more than `most` messages. Returns how many calls handled some.
fn calls(raw: &mut Raw, messages: u32, most: u32) -> u32 {
    let (mut handled, mut calls) = (0, 0);
    while handled < messages {
        let progress = raw.turn().unwrap();
        assert!((1..=most).contains(&progress.handled), "{} messages in one call, not 1 to {most}", progress.handled);
        handled += progress.handled;
        calls += 1;
        assert_eq!(progress.more, handled < messages, "after {handled} of {messages}");
    }
    calls
}

#[test]
fn of_a_flood_of_small_messages_a_call_handles_256_and_none_is_lost() {
    let mut raw = Raw::ready();
    let write = |value: u32| message(1, 10, POSTED, &[words(&[0, 0, 0, 4]), words(&[value])].concat());
    raw.send(&(0..1500).flat_map(write).collect::<Vec<u8>>(), &[]);
    calls(&mut raw, 1500, MAX);
    let expected: Vec<DeviceCall> =
        (0..1500u32).map(|value| DeviceCall::Write(0, 0, value.to_le_bytes().to_vec())).collect();
    assert_eq!(raw.model.calls(), expected);
}

/// A command that takes a device as long as a hundred accesses: three fill a call.
#[test]
fn what_a_device_does_for_a_write_counts_too_also_within_a_message_of_many() {
    let mut raw = Raw::ready();
    raw.model.excess = 100;
    let write = message(1, 10, POSTED, &words(&[0, 0, 0, 4, 7]));
    raw.send(&write.repeat(30), &[]);
    assert_eq!(calls(&mut raw, 30, 3), 10);
    let many: Vec<u8> = (0..10).flat_map(|value| words(&[0, 0, 0, 4, value, 0])).collect();
    raw.send(&message(2, 15, 0, &[&words(&[10, 0])[..], &many].concat()), &[]);
    for written in [3, 6, 9, 10] {
        let progress = raw.turn().unwrap();
        assert_eq!((raw.session.counters().writes, progress.more), (30 + written, written < 10));
        assert!((100..=400).contains(&progress.work), "{}", progress.work);
    }
    let replies = raw.replies();
    assert_eq!((replies[0].id, replies[0].error, &replies[0].payload), (2, 0, &words(&[10, 0])));
    assert_eq!(raw.model.bytes[..4], [9, 0, 0, 0], "in their order");
}

#[test]
fn what_a_vmm_sends_together_is_handled_together() {
    let mut raw = Raw::ready();
    let write = message(1, 10, POSTED, &words(&[0, 0, 0, 4, 7]));
    let read = message(2, 9, 0, &words(&[0, 0, 0, 4]));
    raw.send(&[write.repeat(100), read.clone()].concat(), &[]);
    assert_eq!(calls(&mut raw, 101, MAX), 1);
    // QEMU's VFIO_USER_MULTI_MAX: 200 writes in one message.
    let write = words(&[0, 0, 0, 8, 1, 2]);
    let multi = message(3, 15, POSTED, &[words(&[200, 0]), write.repeat(200)].concat());
    raw.send(&[multi, read].concat(), &[]);
    assert_eq!(calls(&mut raw, 2, MAX), 1);
    assert_eq!(raw.replies().iter().map(|reply| reply.payload[16]).collect::<Vec<_>>(), [7, 1]);
}

#[test]
fn of_a_flood_of_large_reads_a_call_handles_one() {
    let mut raw = Raw::ready();
    raw.send(&message(1, 9, POSTED, &words(&[0, 0, 3, 1 << 20])).repeat(40), &[]);
    calls(&mut raw, 40, 1);
    assert_eq!(raw.session.counters().reads, 40);
    raw.send(&message(1, 9, POSTED, &words(&[0, 0, 3, 4096])).repeat(40), &[]);
    calls(&mut raw, 40, 4);
}

#[test]
fn of_a_flood_of_what_takes_longer_than_a_write_a_call_handles_16() {
    let mut raw = Raw::ready();
    let reset = message(1, 13, POSTED, &[]);
    raw.send(&reset.repeat(1000), &[]);
    calls(&mut raw, 1000, 16);
    let map = message(1, 2, POSTED, &words(&[32, 3, 0, 0, 0x1000, 0, 0x1000, 0]));
    let unmap = message(1, 3, POSTED, &words(&[24, 0, 0x1000, 0, 0x1000, 0]));
    raw.send(&[map, unmap].concat().repeat(300), &[]);
    calls(&mut raw, 600, 16);
    let masked = message(1, 8, POSTED, &words(&[20, 1 | 8, 2, 0, 1]));
    raw.send(&masked.repeat(1000), &[]);
    calls(&mut raw, 1000, 16);
    let calls = raw.model.calls();
    let count = |is: fn(&DeviceCall) -> bool| calls.iter().filter(|call| is(call)).count();
    assert_eq!(count(|call| matches!(call, DeviceCall::Reset)), 1000);
    assert_eq!(count(|call| matches!(call, DeviceCall::Map { .. })), 300);
    assert_eq!(count(|call| matches!(call, DeviceCall::Unmap(_))), 300);
}

#[test]
fn a_message_of_many_writes_is_carried_out_in_parts_before_the_next_one_and_answered_once() {
    const WRITES: u32 = 40_000;
    let mut raw = Raw::ready();
    // The first two go to a region that fails, the others to one that does not.
    let write = |number: u32| words(&[0, 0, if number < 2 { 2 } else { 0 }, 4, number, 0]);
    let writes: Vec<u8> = (0..WRITES).flat_map(write).collect();
    let messages = [
        message(1, 15, 0, &[&words(&[WRITES, 0])[..], &writes].concat()),
        message(2, 15, 0, &[&words(&[WRITES - 2, 0])[..], &writes[48..]].concat()),
        message(3, 9, 0, &words(&[0, 0, 0, 4])),
    ]
    .concat();
    let total = u64::from(2 * WRITES - 2);
    let mut rest = &messages[..];
    while raw.session.counters().reads == 0 {
        let (part, later) = rest.split_at(rest.len().min(1 << 15));
        raw.send(part, &[]);
        rest = later;
        loop {
            let before = raw.session.counters().writes;
            let progress = raw.turn().unwrap();
            let done = raw.session.counters().writes - before;
            assert!(done <= u64::from(MAX), "{done} writes in one call");
            if !progress.more {
                break;
            }
        }
    }
    assert_eq!(raw.session.counters().writes, total);
    let replies = raw.replies();
    assert_eq!(replies.iter().map(|reply| (reply.id, reply.error)).collect::<Vec<_>>(), [(1, 5), (2, 0), (3, 0)]);
    assert_eq!(replies[1].payload, words(&[WRITES - 2, 0]));
    let calls = raw.model.calls();
    let of = |call: &DeviceCall| matches!(call, DeviceCall::Write(..));
    assert!(calls[..calls.len() - 1].iter().all(of) && !of(&calls[calls.len() - 1]), "the read is the last");
    assert_eq!(raw.model.bytes[..4], (WRITES - 1).to_le_bytes());
}
