//! Taps without a daemon: comments on frames, filters, slow readers.

use std::task::{Context as Poller, Poll, Waker};
use std::time::Duration;

use nicety_adapter::Checksum;
use nicety_frame::vlan::{Tag, Tci};
use nicety_memory::Map;
use nicety_switch::{Limits, Switch};

use super::*;
use file::Names;

const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
const B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];

/// A switch of three ports, a batch from port 0, and its plan.
struct World {
    switch: Switch,
    map: Arc<Map>,
    batch: Batch,
    plan: Plan,
}

impl World {
    fn new() -> Self {
        let switch = Switch::new(Limits::default());
        (0..3).for_each(|port| switch.join(PortId(port), ()).unwrap());
        Self { switch, map: Arc::new(Map::private(1 << 20).unwrap()), batch: Batch::new(), plan: Plan::new() }
    }

    /// Sends frames of these lengths from port 0 to this address.
    fn send(&mut self, target: [u8; 6], lengths: &[u32], offload: Offload) {
        self.batch.start(&self.map, PortId(0), 0);
        for (index, length) in lengths.iter().enumerate() {
            let at = index as u64 * 2048;
            let mut frame = [&target[..], &A, &[8, 0, 0x45]].concat();
            frame.extend((frame.len()..*length as usize).map(|byte| byte as u8));
            self.map.write(at, &frame).unwrap();
            let mut draft = self.batch.draft(0).unwrap();
            draft.push(at, *length).unwrap();
            draft.finish(offload, 0).unwrap();
        }
        self.switch.forward(&self.batch, Time(5), &mut self.plan);
    }

    fn show(&self, tap: &Arc<dyn Watcher>) {
        tap.ingress(&self.batch, &self.plan, Time(5));
    }
}

fn scope() -> Scope {
    Scope { ports: None, stage: None, drops: false, filter: None, snap: u32::MAX }
}

fn encoder(reader: Reader) -> Encoder {
    let names: Names = (0..3).map(|port| (PortId(port), format!("vm{port}"))).collect();
    Encoder::new(reader, Duration::from_secs(1), names)
}

/// A packet block: interface, direction, comment, bytes.
type Seen = (u32, u32, String, Vec<u8>);

/// Decodes an encoder's blocks: packets, and statistics (interface, seen, lost).
fn decoded(bytes: &[u8]) -> (Vec<Seen>, Vec<(u32, u64, u64)>) {
    let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().unwrap());
    let long = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
    let (mut packets, mut statistics, mut at) = (Vec::new(), Vec::new(), 0);
    while at < bytes.len() {
        let len = word(at + 4) as usize;
        match word(at) {
            6 => {
                let captured = word(at + 20) as usize;
                let mut option = at + 28 + captured.next_multiple_of(4);
                let (mut direction, mut comment) = (0, String::new());
                while word(option) != 0 {
                    let (code, size) = (word(option) & 0xffff, (word(option) >> 16) as usize);
                    match code {
                        1 => comment = String::from_utf8(bytes[option + 4..option + 4 + size].to_vec()).unwrap(),
                        2 => direction = word(option + 4),
                        _ => {}
                    }
                    option += 4 + size.next_multiple_of(4);
                }
                packets.push((word(at + 8), direction, comment, bytes[at + 28..at + 28 + captured].to_vec()));
            }
            5 => statistics.push((word(at + 8), long(at + 24), long(at + 36))),
            _ => {}
        }
        at += len;
    }
    (packets, statistics)
}

fn all(encoder: &mut Encoder) -> Vec<Seen> {
    let mut seen = Vec::new();
    while let Poll::Ready(Some(blocks)) = encoder.poll(&mut Poller::from_waker(Waker::noop())) {
        seen.extend(decoded(&blocks).0);
    }
    seen
}

#[test]
fn what_comes_in_is_told_with_where_it_goes_and_why_it_does_not() {
    let mut world = World::new();
    let (tap, reader) = tap(scope());
    let mut encoder = encoder(reader);
    world.send(B, &[60, 10], Offload::default());
    world.show(&tap);
    world.switch.addresses().learn(nicety_frame::Mac(B), 0, PortId(1), Time(5));
    world.send(B, &[60], Offload::default());
    world.show(&tap);
    let comments: Vec<_> =
        all(&mut encoder).into_iter().map(|(_, direction, comment, frame)| (direction, comment, frame.len())).collect();
    let expected = [("to vm1 and 1 more", 60), ("dropped: too-short", 10), ("to vm1", 60)];
    assert_eq!(comments, expected.map(|(comment, len)| (1, comment.to_owned(), len)));
}

#[test]
fn what_is_offered_is_told_with_its_edit_and_its_fate() {
    let mut world = World::new();
    let (tap, reader) = tap(scope());
    let mut encoder = encoder(reader);
    world.send(B, &[60], Offload::default());
    let tag = Tag::customer(Tci::new(0, false, 7));
    let fates = [Fate::Taken, Fate::Waits, Fate::Dropped(Reason::Filtered)];
    let offered = fates.map(|fate| (Pick { edit: Edit::Tag(tag), ..Pick::whole(0) }, fate));
    tap.egress(PortId(2), &world.batch, &offered, Time(5));
    let seen = all(&mut encoder);
    let comments = ["", "; waits in the receive buffer", "; dropped: filtered"];
    let comments = comments.map(|end| format!("from vm0; tag 7 was put in{end}"));
    assert_eq!(seen.iter().map(|(.., comment, _)| comment.clone()).collect::<Vec<_>>(), comments);
    assert!(
        seen.iter()
            .all(|(_, direction, _, frame)| *direction == 2 && frame.len() == 64 && frame[12..16] == [0x81, 0, 0, 7])
    );
}

#[test]
fn only_drops_only_a_stage_only_ports_and_only_what_the_filter_wants() {
    let mut world = World::new();
    // `greater 100`, as libpcap compiles it.
    let greater = Program::new(&[(128, 0, 0, 0), (53, 0, 1, 100), (6, 0, 0, 262_144), (6, 0, 0, 0)]).unwrap();
    let scopes = [
        Scope { drops: true, ..scope() },
        Scope { stage: Some(Stage::Egress), ..scope() },
        Scope { ports: Some(vec![PortId(2)]), ..scope() },
        Scope { filter: Some(greater), snap: 20, ..scope() },
    ];
    let (taps, mut encoders): (Vec<_>, Vec<_>) =
        scopes.map(tap).into_iter().map(|(tap, reader)| (tap, encoder(reader))).unzip();
    world.send(B, &[60, 10, 200], Offload::default());
    for tap in &taps {
        world.show(tap);
        for port in [1, 2].map(PortId).into_iter().filter(|port| tap.watches_egress(*port)) {
            tap.egress(
                port,
                &world.batch,
                &[(Pick::whole(0), Fate::Taken), (Pick::whole(2), Fate::Dropped(Reason::NoVm))],
                Time(5),
            );
        }
    }
    let lengths: Vec<Vec<usize>> =
        encoders.iter_mut().map(|encoder| all(encoder).iter().map(|seen| seen.3.len()).collect()).collect();
    assert_eq!(lengths, [vec![10, 200, 200], vec![60, 200, 60, 200], vec![60, 200], vec![20, 20, 20]]);
}

#[test]
fn a_checksum_that_was_left_to_the_adapter_is_made() {
    let mut world = World::new();
    let (tap, reader) = tap(scope());
    let mut encoder = encoder(reader);
    world.send(B, &[60], Offload { checksum: Checksum::Partial { start: 34, field: 50 }, segment: None });
    world.show(&tap);
    let frame = all(&mut encoder).remove(0).3;
    let covered = nicety_frame::checksum::sum(&frame[34..]);
    // The field holds the sum of the pseudo-header, which must be added.
    assert_eq!(covered.word(0x3233).fold(), 0xffff, "a sum with its checksum is all ones: RFC 1071");
}

#[test]
fn who_reads_slowly_loses_frames_which_the_file_counts_and_memory_is_bounded() {
    let mut world = World::new();
    let (tap, reader) = tap(scope());
    let mut encoder = encoder(reader);
    encoder.begin(&[PortId(0), PortId(1)]);
    world.send(B, &[1500; 64], Offload::default());
    let rounds = 2 * WAITING_MAX / (64 * 1500);
    for _ in 0..rounds {
        world.show(&tap);
    }
    let waiting = encoder.waiting();
    assert!(waiting <= WAITING_MAX && waiting > WAITING_MAX - 2 * 64 * 1500, "{waiting} bytes");
    let seen = all(&mut encoder).len() as u64;
    let all_of_them = 64 * rounds as u64;
    let (_, statistics) = decoded(&encoder.statistics(Duration::from_secs(2)));
    assert_eq!(statistics, [(0, all_of_them, all_of_them - seen)]);
    assert!(seen < all_of_them && encoder.waiting() == 0);
    // Nothing has changed, but a disconnected reader must still be noticed.
    assert_eq!(decoded(&encoder.statistics(Duration::from_secs(3))).1.len(), 1);
}

#[test]
fn a_port_that_takes_anothers_number_is_another_interface() {
    let mut world = World::new();
    let (tap, reader) = tap(scope());
    let mut encoder = encoder(reader);
    encoder.begin(&[PortId(0)]);
    world.send(B, &[60], Offload::default());
    world.show(&tap);
    assert_eq!(all(&mut encoder)[0].0, 0);
    encoder.rename([(PortId(0), "vm7".to_owned())].into());
    world.show(&tap);
    let seen = all(&mut encoder);
    assert_eq!((seen[0].0, seen[0].2.as_str()), (1, "to a port that has gone and 1 more"));
    // Only the port's own frames count: the frame before its block was another port's.
    assert_eq!(decoded(&encoder.statistics(Duration::ZERO)).1, [(1, 0, 0)]);
}
