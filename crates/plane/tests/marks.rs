//! I/O control marks what leaves by an uplink: its class's code point and priority, whatever a guest wrote there.

mod linked;
mod silent;

use std::sync::{Arc, Mutex};

use nicety_adapter::{Edit, PortId, Time};
use nicety_frame::{Tag, Tci};
use nicety_ioc::{Class, ClassTerms, Match, Terms};
use nicety_plane::{End, Plane, Port, Turn};
use nicety_switch::Limits;
use silent::Silent;

/// An uplink (port 0) and two guests (ports 1 and 2), each a link whose frames the test writes and reads.
struct World {
    plane: Plane,
    ports: Vec<Arc<Port>>,
    wires: Vec<Arc<Mutex<linked::Wire>>>,
    turn: Turn,
}

impl World {
    fn new() -> Self {
        let plane = Plane::new(Limits::default());
        let (mut ports, mut wires) = (Vec::new(), Vec::new());
        for id in 0..3 {
            let (link, wire) = linked::link();
            let port = Port::new(PortId(id), End::link(Box::new(link)), Box::new(Silent), 1 << 20).unwrap();
            let port = Arc::new(port);
            plane.join(Arc::clone(&port)).unwrap();
            ports.push(port);
            wires.push(wire);
        }
        Self { plane, ports, wires, turn: Turn::new() }
    }

    /// Sends frames from a guest, and returns what left by the uplink.
    fn sent(&mut self, from: usize, frames: &[Vec<u8>]) -> Vec<(Vec<u8>, Edit)> {
        self.wires[from].lock().unwrap().outgoing.extend(frames.iter().cloned());
        self.ports.iter().for_each(|port| port.ready());
        while self.ports.iter().any(|port| port.busy(Time::ZERO)) {
            for port in &self.ports {
                while self.plane.turn(port, &mut self.turn, Time::ZERO).unfinished {}
            }
        }
        let mut wire = self.wires[0].lock().unwrap();
        let (frames, edits) = (std::mem::take(&mut wire.incoming), std::mem::take(&mut wire.edits));
        frames.into_iter().zip(edits).collect()
    }
}

const TO_ALL: [u8; 12] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1];

/// IPv4 UDP with a right header checksum, of this traffic class, to be seen by its last byte; with a VLAN tag of this priority.
fn v4(class: u8, number: u8, priority: Option<u8>) -> Vec<u8> {
    let mut header = [0x45, class, 0, 29, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let check = !sum(&header);
    header[10..12].copy_from_slice(&check.to_be_bytes());
    let tag = priority.map(|priority| vec![0x81, 0, priority << 5, 7]).unwrap_or_default();
    [&TO_ALL[..], &tag, &[8, 0], &header, &[0, 9, 0, 9, 0, 9, 0, 0, number]].concat()
}

/// RFC 1071's sum, which is 0xffff over a header with a right checksum.
fn sum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]]))).sum();
    (sum & 0xffff) as u16 + (sum >> 16) as u16
}

fn class(ports: &[u16], dscp: Option<u8>, mark: Option<u8>) -> Class {
    let rule = Match { ports: Some(ports.to_vec()), dscp, ..Match::default() };
    Class { name: "marked".to_owned(), matches: vec![rule], mark_dscp: mark, ..Class::default() }
}

/// The document's words: management's and storage's frames are marked where they leave the host, and guests' own marks count for nothing
/// unless they are trusted.
#[test]
fn a_class_s_frames_leave_with_its_code_point_and_those_that_nobody_trusts_lose_theirs() {
    let mut world = World::new();
    // Port 1 is trusted: its frames of DSCP 46 are voice. All others lose what they bring.
    let rest = Class { name: "vm".to_owned(), mark_dscp: Some(0), ..Class::default() };
    world.ports[0].set_io_control(&[rest, class(&[1], Some(46), Some(34))], Time::ZERO);
    for (from, class, wanted) in [(1, 46 << 2 | 1, 34 << 2 | 1), (1, 10 << 2, 0), (2, 46 << 2 | 3, 3)] {
        // Among frames without an IP header, and in the order in which they were sent.
        let arp = [&TO_ALL[..], &[8, 6], &[0; 46]].concat();
        let frames = [v4(class, 1, None), arp.clone(), v4(class, 2, None)];
        let left = world.sent(from, &frames);
        let [(first, _), (second, _), (third, _)] = &left[..] else { panic!("three frames, not {}", left.len()) };
        // Frames of different classes may overtake one another; those of one do not.
        let marked: Vec<_> = [first, second, third].into_iter().filter(|frame| **frame != arp).collect();
        assert_eq!((marked.len(), marked[0].last(), marked[1].last()), (2, Some(&1), Some(&2)));
        for (frame, number) in marked.into_iter().zip(1..) {
            assert_eq!((frame[15], sum(&frame[14..34])), (wanted, 0xffff), "from port {from}");
            assert_eq!(*frame, v4(wanted, number, None), "nothing else is changed");
        }
        // The other guest gets what was sent.
        let other = std::mem::take(&mut world.wires[3 - from].lock().unwrap().incoming);
        assert_eq!(other, frames);
    }
    let states = world.ports[0].state().classes;
    assert_eq!(states.iter().map(|state| (state.packets, state.waiting)).collect::<Vec<_>>(), [(7, 0), (2, 0)]);
}

#[test]
fn code_point_and_priority_are_marked_together_and_limits_hold_marked_frames_too() {
    let mut world = World::new();
    let marked = Class { mark_pcp: Some(3), ..class(&[1], None, Some(10)) };
    world.ports[0].set_io_control(&[Class::default(), marked.clone()], Time::ZERO);
    let left = world.sent(1, &[v4(0, 1, Some(7))]);
    let tag = Tag::customer(Tci::new(3, false, 7));
    assert_eq!(left, [(v4(10 << 2, 1, Some(7)), Edit::Retag(tag))]);
    // A limit of a megabit: more than 2 ms of it wait.
    let limit = Terms { limit: nicety_adapter::Rate::new(1_000_000), ..Terms::default() };
    let limited = Class { terms: ClassTerms { class: limit, ..ClassTerms::default() }, ..marked };
    world.ports[0].set_io_control(&[Class::default(), limited], Time::ZERO);
    world.wires[1].lock().unwrap().outgoing.extend((0..100).map(|number| v4(0, number, None)));
    world.ports[1].ready();
    for port in [1, 0, 1, 0] {
        let _unfinished = world.plane.turn(&world.ports[port], &mut world.turn, Time::ZERO);
    }
    let sent = world.wires[0].lock().unwrap().incoming.len();
    let waiting = world.ports[0].state().classes[1].waiting;
    assert!(sent < 20 && waiting > 0, "{sent} left, {waiting} wait");
}
