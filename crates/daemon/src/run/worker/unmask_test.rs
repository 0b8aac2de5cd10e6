//! The unmask eventfd of INTx, and the work of a round for it. A replaced or removed eventfd is not watched.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::messages_test::{FLOODED, Pair, message, rounds_made, send};
use super::waiting::sleep;
use super::*;
use crate::run::service::QUANTUM;

const SET_IRQS: u16 = 8;
const POSTED: u32 = 0x10;
/// DATA_EVENTFD, ACTION_UNMASK and ACTION_TRIGGER of `<linux/vfio.h>`; no data.
const EVENTFD: u32 = 4;
const UNMASK: u32 = 16;
const TRIGGER: u32 = 32;
const NONE: u32 = 1;

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

fn signal(event: &OwnedFd, count: u64) {
    rustix::io::write(event, &count.to_ne_bytes()).unwrap();
}

fn take(event: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    rustix::io::read(event, &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
}

/// SET_IRQS of the INTx line.
fn set(client: &UnixStream, flags: u32, count: u32, fds: &[BorrowedFd<'_>]) {
    let words = [20, flags, 0, 0, count].map(u32::to_ne_bytes).concat();
    send(client, &message(SET_IRQS, POSTED, &words), fds);
}

/// A worker with a port whose line is asserted, the line's interrupt eventfd and its unmask eventfd.
fn raised() -> (Pair, OwnedFd, OwnedFd) {
    let mut pair = Pair::new("e1000");
    let (trigger, unmask) = (event(), event());
    set(&pair.clients[0], EVENTFD | TRIGGER, 1, &[trigger.as_fd()]);
    set(&pair.clients[0], EVENTFD | UNMASK, 1, &[unmask.as_fd()]);
    rounds_made(&mut pair.worker, 3);
    assert!(pair.interrupts.set_line(true));
    assert_eq!(take(&trigger), 1);
    (pair, trigger, unmask)
}

/// Whether nothing would wake the worker.
fn is_silent(worker: &Worker) -> bool {
    let mut events = Vec::with_capacity(EVENTS);
    sleep(&worker.epoll, &mut events, Some(Duration::ZERO)).unwrap();
    events.is_empty()
}

fn received(worker: &Worker) -> u64 {
    match &worker.services[&FLOODED].link {
        Link::Function { session: Some(talk), .. } => talk.session.counters().messages_received(),
        _ => panic!("a session"),
    }
}

#[test]
fn a_round_unmasks_once_for_the_price_of_a_message_however_often_it_is_signalled_and_no_message_comes() {
    let (mut pair, trigger, unmask) = raised();
    let before = received(&pair.worker);
    for round in 0..20 {
        signal(&unmask, 1 << round);
        signal(&unmask, 7);
        rounds_made(&mut pair.worker, 1);
        assert_eq!((take(&trigger), take(&unmask)), (1, 0), "round {round}");
        assert_eq!(pair.worker.services[&FLOODED].credit, QUANTUM - MESSAGE_COST, "round {round}");
    }
    assert_eq!(received(&pair.worker), before);
    rounds_made(&mut pair.worker, 3);
    assert_eq!(take(&trigger), 0, "nobody has unmasked it");
    assert!(is_silent(&pair.worker));
}

#[test]
fn a_port_in_debt_is_unmasked_when_it_has_paid() {
    let (mut pair, trigger, unmask) = raised();
    pair.worker.services.get_mut(&FLOODED).unwrap().credit = -3 * QUANTUM;
    signal(&unmask, 1);
    let mut rounds = 0;
    while take(&trigger) == 0 {
        rounds += 1;
        assert!(rounds < 10);
        rounds_made(&mut pair.worker, 1);
    }
    assert_eq!(rounds, 4, "three bring it to nothing");
}

#[test]
fn one_that_its_vmm_has_replaced_or_taken_away_is_watched_no_longer() {
    let (mut pair, trigger, first) = raised();
    let others: Vec<OwnedFd> = (0..20).map(|_| event()).collect();
    for other in &others {
        set(&pair.clients[0], EVENTFD | UNMASK, 1, &[other.as_fd()]);
    }
    // The kernel delivers the descriptors of one message at a time.
    rounds_made(&mut pair.worker, 30);
    for old in [&first].into_iter().chain(&others[..19]) {
        signal(old, 3);
        assert!(is_silent(&pair.worker));
        assert_eq!((take(old), take(&trigger)), (3, 0));
    }
    signal(&others[19], 1);
    rounds_made(&mut pair.worker, 1);
    assert_eq!(take(&trigger), 1, "the last one counts");
    // A message without a descriptor; QEMU's message that disables the line; a disconnect of the VMM.
    let removals: [fn(&mut Pair); 3] = [
        |pair| set(&pair.clients[0], EVENTFD | UNMASK, 1, &[]),
        |pair| set(&pair.clients[0], NONE | TRIGGER, 0, &[]),
        |pair| pair.clients[0].shutdown(std::net::Shutdown::Both).unwrap(),
    ];
    for remove in removals {
        let unmask = event();
        set(&pair.clients[0], EVENTFD | UNMASK, 1, &[unmask.as_fd()]);
        rounds_made(&mut pair.worker, 3);
        signal(&unmask, 1);
        rounds_made(&mut pair.worker, 1);
        assert_eq!(take(&unmask), 0, "it is watched");
        remove(&mut pair);
        rounds_made(&mut pair.worker, 3);
        signal(&unmask, 3);
        assert!(is_silent(&pair.worker));
        assert_eq!(take(&unmask), 3);
    }
    let service = &pair.worker.services[&FLOODED];
    assert!(matches!(&service.link, Link::Function { session: None, device, .. } if device.unmask().is_none()));
}

#[test]
fn a_pipe_whose_writer_has_gone_keeps_no_worker_awake() {
    let (mut pair, trigger, _unmask) = raised();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    set(&pair.clients[0], EVENTFD | UNMASK, 1, &[reader.as_fd()]);
    rounds_made(&mut pair.worker, 3);
    signal(&writer, 1);
    rounds_made(&mut pair.worker, 1);
    assert_eq!(take(&trigger), 1, "User-Mode Linux has pipes");
    drop(writer);
    rounds_made(&mut pair.worker, 3);
    assert!(is_silent(&pair.worker));
}
