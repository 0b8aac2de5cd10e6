//! The same inputs give the same bytes, with every adapter.

use nicety_lab::replay::{GuestTime, Input, Machine, Replica};
use proptest::prelude::*;

use crate::help::{Client, Random, Task, adapters, settings};

/// One input, and what followed.
struct Taken {
    at: GuestTime,
    input: Input,
    out: Vec<Vec<u8>>,
    history: u64,
    wake: Option<GuestTime>,
}

/// Latest end of a session. TCP repeats a lost segment after a second, and after two, four and so on.
const LIMIT: GuestTime = GuestTime(120_000_000);

/// A client's session with a guest over a network that delays, loses, repeats and spoils frames by chance.
fn session(adapter: &str, task: Task, seed: u64, faults: u64) -> (Replica, Client, Vec<Taken>) {
    let mut replica = Replica::new(&settings(adapter)).unwrap();
    let mut client = Client::new(task, seed | 1);
    let mut random = Random(seed);
    let mut log = Vec::new();
    let mut now = GuestTime(0);
    // Frames on their way: time of arrival, whether to the guest, bytes.
    let mut flying: Vec<(GuestTime, bool, Vec<u8>)> = Vec::new();
    let fly = |random: &mut Random, flying: &mut Vec<_>, now: GuestTime, to_guest: bool, mut frame: Vec<u8>| {
        let delay = 20 + random.below(60);
        if faults > 0 && random.below(100) < faults {
            match random.below(3) {
                0 => return,
                1 => flying.push((GuestTime(now.0 + delay + 300), to_guest, frame.clone())),
                _ => {
                    let at = random.below(frame.len() as u64) as usize;
                    frame[at] ^= 1 << random.below(8);
                }
            }
        }
        flying.push((GuestTime(now.0 + delay), to_guest, frame));
    };
    while !client.done() && client.broken.is_none() && now < LIMIT {
        let due = [client.wake(), replica.wake(), flying.iter().map(|(at, ..)| *at).min()];
        let Some(next) = due.into_iter().flatten().min() else { break };
        now = next.max(now);
        let mut give = |replica: &mut Replica, input: Input| {
            let mut out = Vec::new();
            replica.take(now, &input, &mut out);
            log.push(Taken { at: now, input, out: out.clone(), history: replica.history(), wake: replica.wake() });
            out
        };
        let mut sent = Vec::new();
        if replica.wake().is_some_and(|at| at <= now) {
            sent.append(&mut give(&mut replica, Input::Wake));
        }
        let (landed, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut flying).into_iter().partition(|(at, ..)| *at <= now);
        flying = rest;
        for (_, to_guest, frame) in landed {
            match to_guest {
                true => sent.append(&mut give(&mut replica, Input::Frame(frame))),
                false => client.frame(frame),
            }
        }
        for frame in sent {
            fly(&mut random, &mut flying, now, false, frame);
        }
        for frame in client.run(now) {
            fly(&mut random, &mut flying, now, true, frame);
        }
    }
    (replica, client, log)
}

fn replay(adapter: &str, task: Task, seed: u64, faults: u64) {
    let (first, client, log) = session(adapter, task, seed, faults);
    let told = format!("{adapter}, {task:?}, seed {seed}");
    assert_eq!(first.failure(), None, "{told}");
    assert_eq!(client.broken, None, "{told}");
    assert!(client.done(), "{told}: {} answers in {} inputs", client.answered(), log.len());
    let mut second = Replica::new(&settings(adapter)).unwrap();
    for (index, taken) in log.iter().enumerate() {
        let mut out = Vec::new();
        second.take(taken.at, &taken.input, &mut out);
        assert_eq!(out, taken.out, "{told}: frames of input {index}");
        assert_eq!(second.history(), taken.history, "{told}: accesses of input {index}");
        assert_eq!(second.wake(), taken.wake, "{told}: wake-up after input {index}");
    }
    assert_eq!(second.state(), first.state(), "{told}");
    assert_eq!(second.memory_digest(), first.memory_digest(), "{told}");
}

#[test]
fn an_echo_replays_to_the_same_bytes_with_every_adapter() {
    for adapter in adapters() {
        replay(adapter, Task { bytes: 60_000, ahead: 9_000 }, 7, 0);
    }
}

#[test]
fn an_input_that_differs_by_a_bit_gives_another_history() {
    let task = Task { bytes: 3_000, ahead: 3_000 };
    let (first, _, log) = session("e1000", task, 9, 0);
    let last = log.iter().rposition(|taken| matches!(taken.input, Input::Frame(_))).unwrap();
    let mut second = Replica::new(&settings("e1000")).unwrap();
    for (index, taken) in log.iter().enumerate() {
        let mut input = taken.input.clone();
        if let (Input::Frame(frame), true) = (&mut input, index == last) {
            frame[20] ^= 1;
        }
        second.take(taken.at, &input, &mut Vec::new());
        assert_eq!(second.history() == taken.history, index < last, "input {index}");
    }
    assert_ne!(second.state(), first.state());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_session_over_a_bad_network_replays_to_the_same_bytes(
        seed in any::<u64>(),
        faults in 0..8_u64,
        adapter in proptest::sample::select(adapters()),
        bytes in 1..30_000_usize,
    ) {
        replay(adapter, Task { bytes, ahead: 6_000 }, seed, faults);
    }
}
