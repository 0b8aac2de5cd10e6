//! A VMM that floods its port with messages: how many of them are handled before those of another port of the same worker.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nicety_adapter::Face;
use nicety_adapters::{Settings, find};
use nicety_frame::Mac;
use nicety_plane::{End, Port};
use nicety_switch::Limits;
use nicety_vfio_user::{Interrupts, Listener};
use tempfile::TempDir;

use super::fair_test::Silent;
use super::*;
use crate::device::{PortDevice, irq_layout};
use crate::port_log::PortLog;
use crate::shell::Signals;

const VERSION: u16 = 1;
const READ: u16 = 9;
const POSTED: u32 = 0x10;
/// As many reads as come with one call of the kernel.
const FLOOD: u64 = 2000;
/// More rounds than anything here takes.
const ROUNDS: usize = 100;

/// A message (vfio-user.rst, "Header").
fn message(command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
    let size = 16 + payload.len() as u32;
    [&[1, 0][..], &command.to_ne_bytes(), &size.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 4], payload].concat()
}

/// The 82540EM's STATUS register is read.
fn status(flags: u32) -> Vec<u8> {
    message(READ, flags, &[8u32, 0, 0, 4].map(u32::to_ne_bytes).concat())
}

/// A port of the worker's, at a socket in this folder.
fn open(worker: &mut Worker, id: PortId, folder: &Path) -> PathBuf {
    let settings = Settings::new(Mac([0x52, 0x54, 0, 0, 0, id.0 as u8]));
    let mut adapter = (find("e1000").unwrap().create)(&settings).unwrap();
    let Face::Pci(pci) = adapter.face() else { panic!("it is a function") };
    let interrupts = Arc::new(Interrupts::new(irq_layout(pci)));
    let port = Arc::new(Port::new(id, End::Adapter(adapter), Box::new(Silent), 1 << 16).unwrap());
    worker.plane.join(Arc::clone(&port)).unwrap();
    let log = Arc::new(PortLog::new(id, "vm", "e1000", worker.clock, Arc::clone(&worker.inbox)));
    let signals = Arc::new(Signals::function(Arc::clone(&interrupts)));
    let device = PortDevice::new(Arc::clone(&log), Arc::clone(&port), interrupts, signals, worker.clock);
    let path = folder.join(format!("{}.sock", id.0));
    let listener = Listener::bind(&path).unwrap();
    let link = Link::Function { listener, device: Box::new(device), session: None };
    worker.serve(Service::new(log, port, Arc::default(), link));
    path
}

/// Some rounds of the worker, until that is so. None sleeps: its bell has been rung.
fn rounds(worker: &mut Worker, mut done: impl FnMut(&Worker) -> bool) {
    let mut events = Vec::with_capacity(EVENTS);
    for _ in 0..ROUNDS {
        if done(worker) {
            return;
        }
        rustix::io::write(worker.inbox.bell(), &1u64.to_ne_bytes()).unwrap();
        worker.round(&mut events);
    }
    panic!("not within {ROUNDS} rounds");
}

/// What has come, if anything has.
fn has_come(client: &mut UnixStream) -> bool {
    let mut bytes = [0; 4096];
    client.read(&mut bytes).is_ok_and(|count| count > 0)
}

/// A client that has exchanged versions.
fn connect(worker: &mut Worker, path: &Path) -> UnixStream {
    let mut client = UnixStream::connect(path).unwrap();
    client.set_nonblocking(true).unwrap();
    client.write_all(&message(VERSION, 0, b"\0\0\0\0{}\0")).unwrap();
    rounds(worker, |_| has_come(&mut client));
    client
}

/// Reads that this port's session has carried out.
fn reads(worker: &Worker, id: PortId) -> u64 {
    match &worker.services[&id].link {
        Link::Function { session: Some(talk), .. } => talk.session.counters().reads,
        _ => panic!("a session"),
    }
}

#[test]
fn a_neighbours_message_is_answered_before_a_flood_is_done_and_the_flood_is_done_though_no_byte_comes_any_more() {
    let folder = TempDir::new().unwrap();
    let plane = Arc::new(Plane::new(Limits::default()));
    let mut worker = Worker::new(plane, Clock::start(), Arc::new(Inbox::new().unwrap())).unwrap();
    let [flooded, other] = [1, 2].map(PortId);
    let paths = [flooded, other].map(|id| open(&mut worker, id, folder.path()));
    let [mut flood, mut neighbour] = paths.map(|path| connect(&mut worker, &path));
    // The flood is there before the neighbour's message.
    flood.write_all(&status(POSTED).repeat(FLOOD as usize)).unwrap();
    for _ in 0..3 {
        let before = reads(&worker, flooded);
        neighbour.write_all(&status(0)).unwrap();
        rounds(&mut worker, |_| has_come(&mut neighbour));
        let meanwhile = reads(&worker, flooded) - before;
        assert!(
            (1..=512).contains(&meanwhile),
            "{meanwhile} messages of the flood were handled before the neighbour's"
        );
    }
    rounds(&mut worker, |worker| reads(worker, flooded) == FLOOD);
    assert!(worker.behind.is_empty());
    assert_eq!(reads(&worker, other), 3);
    // Whoever goes in the middle of a flood is forgotten.
    flood.write_all(&status(POSTED).repeat(FLOOD as usize)).unwrap();
    rounds(&mut worker, |worker| !worker.behind.is_empty());
    worker.remove(flooded);
    assert!(worker.behind.is_empty());
}
