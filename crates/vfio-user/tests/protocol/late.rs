//! A server that stood still for longer than QEMU waits for an answer (hw/vfio-user/proxy.c).

use std::sync::Arc;

use nicety_peer::{Table, Tally};
use nicety_vfio_user::Session;
use rustix::net::{RecvFlags, recv};

use crate::bytes::qemu_version;
use crate::kit::{DeviceCall, Model, Raw, memfd, message, words};

const DMA_MAP: u16 = 2;
const REGION_INFO: u16 = 5;
const READ: u16 = 9;
const WRITE: u16 = 10;
const POSTED: u32 = 0x10;

fn access(count: u32, data: &[u8]) -> Vec<u8> {
    [&[0; 8][..], &words(&[0, count]), data].concat()
}

fn read(id: u16) -> Vec<u8> {
    message(id, READ, 0, &access(4, &[]))
}

fn write(id: u16, value: u8) -> Vec<u8> {
    message(id, WRITE, 0, &access(1, &[value]))
}

/// QEMU's end of the stream (vfio_user_recv_one): of an answer that it does not wait for it reads the header only.
#[derive(Default)]
struct Qemu {
    waits_for: Vec<u16>,
}

impl Qemu {
    /// A session with QEMU.
    fn connect(is_kept: bool) -> (Qemu, Raw) {
        let mut raw = Raw::fresh();
        raw.send(&message(0, 1, 0, &qemu_version()), &[]);
        raw.turn().unwrap();
        assert_eq!(raw.replies().len(), 1);
        assert!(!is_kept || raw.session.keep(None));
        (Qemu::default(), raw)
    }

    /// Sends a request and waits for its answer.
    fn ask(&mut self, raw: &Raw, id: u16, request: &[u8]) {
        raw.send(request, &[]);
        self.waits_for.push(id);
    }

    fn gives_up(&mut self) {
        self.waits_for.clear();
    }

    /// The answers that it waits for: number and bytes of the payload. It ends the session where it panics here.
    fn answers(&mut self, raw: &Raw) -> Vec<(u16, usize)> {
        let mut bytes = vec![0; 1 << 16];
        let (count, _) = recv(&raw.peer, &mut bytes[..], RecvFlags::DONTWAIT).unwrap_or_default();
        let (mut rest, mut answers) = (&bytes[..count], Vec::new());
        while !rest.is_empty() {
            let header = rest.split_off(..16).expect("short read of header");
            let id = u16::from_le_bytes([header[0], header[1]]);
            let size = u32::from_le_bytes(header[4..8].try_into().unwrap()) as usize;
            assert!(size >= 16, "bad header size");
            assert_eq!(header[8], 1, "no error, a reply");
            let Some(at) = self.waits_for.iter().position(|waits| *waits == id) else { continue };
            self.waits_for.remove(at);
            rest.split_off(..size - 16).expect("the whole answer");
            answers.push((id, size - 16));
        }
        answers
    }
}

fn turned(raw: &mut Raw) {
    raw.session.handle(&mut raw.model).unwrap();
    raw.session.finish().unwrap();
    raw.session.flush().unwrap();
}

fn writes(raw: &Raw) -> usize {
    raw.model.calls().iter().filter(|call| matches!(call, DeviceCall::Write(..))).count()
}

/// Requests that QEMU has given up take effect in their order, and leave its stream whole.
#[test]
fn qemu_goes_on_after_requests_that_it_has_given_up_and_the_next_read_has_its_data() {
    for is_kept in [false, true] {
        let (mut qemu, mut raw) = Qemu::connect(is_kept);
        for request in [write(1, 7), read(2), write(3, 8)] {
            qemu.ask(&raw, 0, &request);
        }
        qemu.gives_up();
        raw.session.give_up();
        assert!(raw.session.is_late());
        turned(&mut raw);
        assert!(!raw.session.is_late(), "all are handled");
        assert_eq!((raw.session.take_late_accesses(), raw.session.take_late_accesses()), (3, 0));
        assert_eq!((writes(&raw), qemu.answers(&raw)), (2, vec![]));
        qemu.ask(&raw, 4, &read(4));
        turned(&mut raw);
        assert_eq!((qemu.answers(&raw), raw.session.take_late_accesses()), (vec![(4, 20)], 0));
    }
}

/// It may wait for the last one still: then a header is success.
#[test]
fn a_request_for_which_qemu_may_still_wait_is_answered_by_a_header() {
    for is_kept in [false, true] {
        let (mut qemu, mut raw) = Qemu::connect(is_kept);
        qemu.ask(&raw, 1, &read(1));
        qemu.gives_up();
        qemu.ask(&raw, 2, &read(2));
        raw.session.give_up();
        // This one comes afterwards.
        qemu.ask(&raw, 3, &read(3));
        turned(&mut raw);
        assert_eq!(qemu.answers(&raw), [(2, 0), (3, 20)]);
        assert_eq!(raw.session.take_late_accesses(), 2);
    }
}

/// The process may stand still between two steps of its own.
#[test]
fn answers_that_are_made_and_not_sent_are_cut() {
    for is_kept in [false, true] {
        let (mut qemu, mut raw) = Qemu::connect(is_kept);
        qemu.ask(&raw, 1, &[write(1, 7), read(2)].concat());
        raw.session.handle(&mut raw.model).unwrap();
        qemu.gives_up();
        raw.session.give_up();
        assert_eq!(raw.session.take_late_accesses(), 2);
        raw.session.finish().unwrap();
        raw.session.flush().unwrap();
        assert_eq!(qemu.answers(&raw), []);
        qemu.ask(&raw, 3, &read(3));
        turned(&mut raw);
        assert_eq!(qemu.answers(&raw), [(3, 20)]);
    }
}

/// Posted writes have no answer. A client that attaches a device cannot go on without what it asks for, and disconnects when it has
/// waited for too long.
#[test]
fn nothing_is_lost_of_posted_writes_maps_and_what_qemu_asks_while_it_attaches_a_device() {
    let (mut qemu, mut raw) = Qemu::connect(false);
    raw.send(&message(1, WRITE, POSTED, &access(1, &[7])), &[]);
    qemu.ask(&raw, 2, &message(2, REGION_INFO, 0, &words(&[32, 0, 0, 0, 0, 0, 0, 0])));
    let map = [&words(&[32, 3])[..], &[0; 8], &[0; 8], &0x1000u64.to_le_bytes()].concat();
    raw.send(&message(3, DMA_MAP, 0, &map), &[&memfd(&[0; 4096])]);
    qemu.waits_for.push(3);
    raw.session.give_up();
    turned(&mut raw);
    turned(&mut raw);
    assert_eq!((qemu.answers(&raw), raw.session.take_late_accesses()), (vec![(2, 32), (3, 0)], 0));
}

/// Its answers would be no whole messages to it.
#[test]
fn a_client_that_waits_for_ever_gets_its_whole_answers() {
    for is_kept in [false, true] {
        let mut raw = Raw::ready();
        assert!(!is_kept || raw.session.keep(None));
        raw.send(&[write(1, 7), read(2)].concat(), &[]);
        raw.session.give_up();
        turned(&mut raw);
        let payloads: Vec<usize> = raw.replies().iter().map(|reply| reply.payload.len()).collect();
        assert_eq!((payloads, raw.session.take_late_accesses()), (vec![16, 20], 0));
    }
}

/// A daemon that stood still is killed, whatever it was about to do.
#[test]
fn the_next_process_cuts_the_answers_of_one_that_stood_still_and_was_killed() {
    for step in ["received", "handled", "noted"] {
        let (mut qemu, mut raw) = Qemu::connect(false);
        let page = memfd(&[0; 4096]);
        let [here, next] = [(); 2].map(|()| Arc::new(Tally::of(&page).unwrap()));
        assert!(raw.session.keep(Some(here)));
        qemu.ask(&raw, 1, &[write(1, 7), read(2)].concat());
        let mut batch = None;
        if step != "received" {
            raw.session.handle(&mut raw.model).unwrap();
            batch = raw.session.batch();
        }
        if step == "noted" {
            raw.session.keep_answers(&batch.unwrap());
        }
        let mut table = Table::default();
        let saved = raw.session.save_kept(&mut table).unwrap();
        let session = Session::restore(saved, &mut table).unwrap();
        let mut raw = Raw { session, model: Model::new(), ..raw };
        qemu.gives_up();
        assert!(raw.session.keep(Some(next)));
        raw.session.give_up();
        batch.iter().for_each(|batch| _ = raw.session.pass_over(*batch).unwrap());
        turned(&mut raw);
        assert_eq!((qemu.answers(&raw), writes(&raw)), (vec![], usize::from(step == "received")), "{step}");
        assert!(!raw.session.is_late(), "{step}");
        qemu.ask(&raw, 3, &read(3));
        turned(&mut raw);
        assert_eq!(qemu.answers(&raw), [(3, 20)], "{step}");
    }
}
