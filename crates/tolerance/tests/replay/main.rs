//! The same calls give the same bytes, with every adapter.

#[path = "../help/mod.rs"]
mod help;

use help::{Client, Random, Task, adapters, settings};
use nicety_tolerance::{Application, Call, GuestTime, Machine, Replica};
use proptest::prelude::*;

/// One call, and what followed.
struct Taped {
    at: GuestTime,
    call: Call,
    out: Vec<Vec<u8>>,
    history: u64,
    wake: Option<GuestTime>,
}

/// The number of the call that made an image, and its bytes.
type Image = (usize, Vec<u8>);

/// Latest end of a session. TCP repeats a lost segment after a second, and after two, four and so on.
const LIMIT: GuestTime = GuestTime(120_000_000);

/// A client's session with a guest over a network that delays, loses, repeats and spoils frames by chance.
fn session(
    adapter: &str,
    application: Application,
    task: Task,
    seed: u64,
    faults: u64,
) -> (Replica, Client, Vec<Taped>) {
    let (replica, client, tape, _) = imaged(adapter, application, task, seed, faults, u64::MAX);
    (replica, client, tape)
}

/// The same, of a guest that goes on from an image of itself before one in so many frames: the images, each with the number of the
/// call after which it was made.
fn imaged(
    adapter: &str,
    application: Application,
    task: Task,
    seed: u64,
    faults: u64,
    every: u64,
) -> (Replica, Client, Vec<Taped>, Vec<Image>) {
    let mut images = Vec::new();
    let mut chance = Random(seed ^ 0x1ace);
    let mut replica = Replica::new(&settings(adapter, application)).unwrap();
    let mut client = Client::new(task, seed | 1);
    let mut random = Random(seed);
    let mut tape = Vec::new();
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
        let mut call = |replica: &mut Replica, call: Call| {
            let mut out = Vec::new();
            if call == Call::Renew {
                images.push((tape.len(), replica.renew(now, &mut out).expect("an image")));
            } else {
                replica.call(now, &call, &mut out);
            }
            tape.push(Taped { at: now, call, out: out.clone(), history: replica.history(), wake: replica.wake() });
            out
        };
        let mut sent = Vec::new();
        // Not at timers: they begin again with each image, and would never end.
        let arrives = flying.iter().any(|(at, to_guest, _)| *to_guest && *at <= now);
        if arrives && every != u64::MAX && chance.below(every) == 0 {
            sent.append(&mut call(&mut replica, Call::Renew));
        }
        if replica.wake().is_some_and(|at| at <= now) {
            sent.append(&mut call(&mut replica, Call::Wake));
        }
        let (landed, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut flying).into_iter().partition(|(at, ..)| *at <= now);
        flying = rest;
        for (_, to_guest, frame) in landed {
            match to_guest {
                true => sent.append(&mut call(&mut replica, Call::Frame(frame))),
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
    (replica, client, tape, images)
}

/// A guest that is restored from each image makes the same calls as the one that it was made of, and the connection lives.
fn restore(adapter: &str, application: Application, task: Task, seed: u64, faults: u64, every: u64) -> usize {
    let (first, client, tape, images) = imaged(adapter, application, task.clone(), seed, faults, every);
    let told = format!("{adapter}, {task:?}, seed {seed}, {} images in {} calls", images.len(), tape.len());
    assert_eq!(first.failure(), None, "{told}");
    assert_eq!(client.broken, None, "{told}");
    assert!(client.done(), "{told}: {} answers", client.answered());
    for (made, image) in &images {
        let mut other = Replica::new(&settings(adapter, application)).unwrap();
        let mut out = Vec::new();
        other.restore(tape[*made].at, image, &mut out).unwrap();
        assert!(tape[*made].out.ends_with(&out), "{told}: frames of image {made}");
        assert_eq!((other.history(), other.wake()), (tape[*made].history, tape[*made].wake), "{told}: image {made}");
        // After the next image nothing of this one is left.
        let mut renewed = 0;
        for (index, taped) in tape.iter().enumerate().skip(made + 1) {
            let mut out = Vec::new();
            if taped.call == Call::Renew {
                renewed += 1;
                other.renew(taped.at, &mut out).unwrap();
            } else {
                other.call(taped.at, &taped.call, &mut out);
            }
            assert_eq!(out, taped.out, "{told}: frames of call {index} after image {made}");
            assert_eq!(other.history(), taped.history, "{told}: accesses of call {index} after image {made}");
            assert_eq!(other.wake(), taped.wake, "{told}: wake-up after call {index}, image {made}");
            if renewed == 1 {
                break;
            }
        }
        if renewed == 0 {
            assert_eq!(other.state(), first.state(), "{told}: image {made}");
            assert_eq!(other.memory_digest(), first.memory_digest(), "{told}: image {made}");
        }
    }
    images.len()
}

fn replay(adapter: &str, application: Application, task: Task, seed: u64, faults: u64) {
    let (first, client, tape) = session(adapter, application, task.clone(), seed, faults);
    let told = format!("{adapter}, {task:?}, seed {seed}");
    assert_eq!(first.failure(), None, "{told}");
    assert_eq!(client.broken, None, "{told}");
    assert!(client.done(), "{told}: {} answers in {} calls", client.answered(), tape.len());
    let mut second = Replica::new(&settings(adapter, application)).unwrap();
    for (index, taped) in tape.iter().enumerate() {
        let mut out = Vec::new();
        second.call(taped.at, &taped.call, &mut out);
        assert_eq!(out, taped.out, "{told}: frames of call {index}");
        assert_eq!(second.history(), taped.history, "{told}: accesses of call {index}");
        assert_eq!(second.wake(), taped.wake, "{told}: wake-up after call {index}");
    }
    assert_eq!(second.state(), first.state(), "{told}");
    assert_eq!(second.memory_digest(), first.memory_digest(), "{told}");
}

#[test]
fn an_echo_replays_to_the_same_bytes_with_every_adapter() {
    for adapter in adapters() {
        replay(adapter, Application::Echo, Task::Echo { bytes: 60_000, ahead: 9_000 }, 7, 0);
    }
}

#[test]
fn a_store_replays_to_the_same_bytes_with_every_adapter() {
    for adapter in adapters() {
        replay(adapter, Application::Store, Task::Store { keys: 40 }, 8, 0);
    }
}

#[test]
fn a_guest_goes_on_from_its_image_to_the_same_bytes_with_every_adapter() {
    let mut images = 0;
    for adapter in adapters() {
        images += restore(adapter, Application::Echo, Task::Echo { bytes: 60_000, ahead: 9_000 }, 7, 0, 20);
        images += restore(adapter, Application::Store, Task::Store { keys: 20 }, 8, 0, 20);
    }
    println!("{images} images");
    assert!(images > 20);
}

/// Connections that begin, that end, and with bytes on their way in both directions.
#[test]
fn a_connection_survives_an_image_before_every_frame() {
    restore("e1000", Application::Echo, Task::Echo { bytes: 20_000, ahead: 9_000 }, 9, 0, 1);
    restore("virtio-net", Application::Store, Task::Store { keys: 5 }, 10, 0, 1);
}

#[test]
fn an_image_of_another_version_is_refused_and_the_guest_is_as_it_was() {
    let mut guest = Replica::new(&settings("e1000", Application::Echo)).unwrap();
    let mut image = guest.renew(GuestTime(5), &mut Vec::new()).unwrap();
    let history = guest.history();
    image[0] += 1;
    let refused = guest.restore(GuestTime(5), &image, &mut Vec::new()).unwrap_err();
    assert_eq!(refused, "the image of the guest: it is of version 2, and this build reads version 1");
    assert_eq!(guest.history(), history);
}

#[test]
fn a_call_that_differs_by_a_bit_gives_another_history() {
    let task = Task::Echo { bytes: 3_000, ahead: 3_000 };
    let (first, _, tape) = session("e1000", Application::Echo, task, 9, 0);
    let last = tape.iter().rposition(|taped| matches!(taped.call, Call::Frame(_))).unwrap();
    let mut second = Replica::new(&settings("e1000", Application::Echo)).unwrap();
    for (index, taped) in tape.iter().enumerate() {
        let mut call = taped.call.clone();
        if let (Call::Frame(frame), true) = (&mut call, index == last) {
            frame[20] ^= 1;
        }
        second.call(taped.at, &call, &mut Vec::new());
        assert_eq!(second.history() == taped.history, index < last, "call {index}");
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
        replay(adapter, Application::Echo, Task::Echo { bytes, ahead: 6_000 }, seed, faults);
    }

    #[test]
    fn a_session_over_a_bad_network_goes_on_from_its_images(
        seed in any::<u64>(),
        faults in 0..8_u64,
        adapter in proptest::sample::select(adapters()),
        bytes in 1..30_000_usize,
    ) {
        restore(adapter, Application::Echo, Task::Echo { bytes, ahead: 6_000 }, seed, faults, 20);
    }
}
