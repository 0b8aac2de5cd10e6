//! Coalescing, as the driver configures it (vmxnet3_ethtool.c, `vmxnet3_set_coalesce`).

use nicety_adapter::{Batch, Time};

use crate::data::plain;
use crate::guest::{Guest, MAC, Offload, Open, SHARED, payload};
use crate::packets::udp4;

const GET: u32 = 0xf00d_000b;
const SET: u32 = 0xcafe_000e;
/// Address of the driver's structure.
const SCHEME: u64 = 0x7000;
const DISABLED: [u32; 4] = [0; 4];
const ADAPTIVE: [u32; 4] = [1, 0, 0, 0];

/// Issues the command with this structure. Returns its answer.
fn command(guest: &mut Guest, number: u32, words: [u32; 4]) -> u32 {
    guest.put(SCHEME, &words.map(u32::to_le_bytes).concat());
    guest.put32(SHARED + 704, 1);
    guest.put32(SHARED + 708, 16);
    guest.put64(SHARED + 712, SCHEME);
    guest.command(number)
}

fn scheme(guest: &mut Guest) -> [u32; 4] {
    assert_eq!(command(guest, GET, [u32::MAX; 4]), 0);
    [0, 4, 8, 12].map(|at| guest.get32(SCHEME + at))
}

fn with(words: [u32; 4]) -> Guest {
    let mut guest = Guest::opened(Open::default());
    assert_eq!(command(&mut guest, SET, words), 0);
    guest
}

/// Whether the queue's vector has fired; the driver's handler unmasks it again.
fn fired(guest: &mut Guest) -> bool {
    guest.tick();
    let fired = guest.out.messages.contains(0);
    guest.out = Default::default();
    guest.write(0, 0, 0);
    fired
}

fn receive(guest: &mut Guest) {
    guest.deliver(&plain(&udp4(MAC, 1, &payload(64))));
    guest.receive(0, true);
}

fn later(guest: &mut Guest, us: u64) {
    guest.now = Time(guest.now.0 + 1000 * us);
}

#[test]
fn the_driver_reads_the_scheme_that_is_in_force_and_a_reset_takes_it_back() {
    let mut guest = Guest::opened(Open::default());
    assert_eq!(scheme(&mut guest), ADAPTIVE);
    for words in [DISABLED, [2, 0, 7, 128], [3, 4000, 0, 0], ADAPTIVE, [3, 100, 0, 0]] {
        assert_eq!(command(&mut guest, SET, words), 0);
        assert_eq!(scheme(&mut guest), words);
    }
    guest.command(0xcafe_0002);
    assert_eq!(guest.open(Open::default()), 0);
    assert_eq!(scheme(&mut guest), ADAPTIVE);
}

#[test]
fn a_scheme_that_cannot_be_is_refused_and_changes_nothing() {
    let mut guest = with([3, 4000, 0, 0]);
    for words in [[4, 0, 0, 0], [3, 99, 0, 0], [3, 100_001, 0, 0], [2, 64, 129, 1], [2, 64, 1, 129], [u32::MAX; 4]] {
        assert_eq!(command(&mut guest, SET, words), u32::MAX, "{words:?}");
    }
    // Its address is outside of memory, or the structure is too short.
    guest.put64(SHARED + 712, u64::MAX - 3);
    assert_eq!((guest.command(SET), guest.command(GET)), (u32::MAX, u32::MAX));
    guest.put64(SHARED + 712, SCHEME);
    guest.put32(SHARED + 708, 15);
    assert_eq!(guest.command(SET), u32::MAX);
    assert_eq!(scheme(&mut guest), [3, 4000, 0, 0]);
    assert_eq!(guest.counters.guest_errors(), 9);
    let mut older = Guest::opened(Open { version: 2, data: 0, ..Open::default() });
    assert_eq!(command(&mut older, SET, DISABLED), u32::MAX, "version 2 has no such command");
}

#[test]
fn a_rate_bounds_the_interrupts_of_received_frames_whether_they_are_few_or_many() {
    // 4000 a second: 250 microseconds.
    let mut guest = with([3, 4000, 0, 0]);
    let mut interrupts = 0;
    for _ in 0..1000 {
        receive(&mut guest);
        later(&mut guest, 10);
        interrupts += u32::from(fired(&mut guest));
    }
    assert!((38..=41).contains(&interrupts), "{interrupts} in 10 ms");
    later(&mut guest, 250);
    fired(&mut guest);
    receive(&mut guest);
    assert!(fired(&mut guest), "the first after a pause is told at once");
    receive(&mut guest);
    later(&mut guest, 240);
    assert!(!fired(&mut guest));
    later(&mut guest, 10);
    assert!(fired(&mut guest), "and no frame is forgotten");
}

#[test]
fn a_static_depth_is_how_many_frames_are_told_together_or_half_a_millisecond() {
    let mut guest = with([2, 0, 4, 8]);
    for _ in 0..3 {
        for frame in 1..=8 {
            receive(&mut guest);
            assert_eq!(fired(&mut guest), frame == 8, "frame {frame}");
        }
    }
    receive(&mut guest);
    later(&mut guest, 499);
    assert!(!fired(&mut guest));
    later(&mut guest, 1);
    assert!(fired(&mut guest));
    let sent = |guest: &mut Guest| {
        let mut batch = Batch::new();
        guest.send(0, &[&udp4([2; 6], 1, &payload(64))], Offload::default());
        guest.fetch_into(0, &mut batch);
        guest.complete_of(&batch);
        fired(guest)
    };
    assert_eq!([0; 8].map(|_| sent(&mut guest)), [false, false, false, true, false, false, false, true]);
}

#[test]
fn without_coalescing_each_frame_and_each_completion_is_told_at_once() {
    let mut guest = with(DISABLED);
    for _ in 0..20 {
        guest.deliver(&plain(&udp4(MAC, 1, &payload(1400))));
        guest.receive(0, true);
        assert!(fired(&mut guest));
        let mut batch = Batch::new();
        guest.send(0, &[&udp4([2; 6], 1, &payload(64))], Offload::default());
        guest.fetch_into(0, &mut batch);
        guest.complete_of(&batch);
        assert!(fired(&mut guest));
    }
}
