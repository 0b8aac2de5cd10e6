//! The runs of a batch, before they are sent: each message is one that the kernel gets.

#[path = "../../tests/packets/mod.rs"]
#[allow(dead_code, reason = "other tests take the rest")]
mod packets;

use std::collections::{BTreeMap, BTreeSet};

use nicety_adapter::{Edit, Offload, Time};
use nicety_frame::{Tag, Tci, Vni};

use super::super::hops::{Hop, Hops};
use super::super::networks::Network;
use super::super::sockets::Sockets;
use super::*;
use packets::{Sender, payload, tcp};

const VLAN: u16 = 10;

/// A segment of a message: its flow, its place in the flow, and its length.
type Segment = (u16, u8, usize);

/// A message: the socket, and what it sends.
type Sent = (u8, Vec<Segment>);

/// A TCP segment of a flow, which its source port names. Its sequence number is its place in the flow.
fn segment(flow: u16, number: u8, bytes: usize) -> Vec<u8> {
    let mut frame = tcp(&payload(bytes));
    frame[34..36].copy_from_slice(&flow.to_be_bytes());
    frame[41] = number;
    frame
}

/// The messages for these frames of VLAN 10.
fn messages(frames: &[Vec<u8>], peers: u8) -> Vec<Sent> {
    let sender = Sender::new(&frames.iter().map(|frame| (frame.clone(), Offload::default())).collect::<Vec<_>>());
    let edit = Edit::Tag(Tag::customer(Tci::new(0, false, VLAN)));
    let picks: Vec<Pick> = (0..frames.len() as u16).map(|packet| Pick { edit, ..Pick::whole(packet) }).collect();
    let vni = Vni::new(5010).unwrap();
    let hops = Hops::new(1);
    hops.set_networks(&[Network { vlan: Some(VLAN), vni }]);
    let own = IpAddr::from([127, 0, 0, 1]);
    // Of this test's own process, at any port.
    let sockets = Sockets::open(SocketAddr::new(own, 0), std::process::id().into()).unwrap();
    let peer = |last: u8| Hop { address: IpAddr::from([127, 0, 0, 2 + last]), networks: None };
    hops.set(&(0..peers).map(peer).collect::<Vec<_>>());
    let (mut table, mut leaving) = (hops.lock(), Leaving::new().unwrap());
    let networks = table.networks();
    let sockets = &sockets.sending;
    let mut guide = Guide {
        own,
        table: &mut table,
        networks: &networks,
        port: 9,
        frame_max: 1500,
        sockets,
        seed: 1,
        now: Time::ZERO,
    };
    let mut counters = Counters::default();
    let delivery = leaving.write_all(&Frames::new(&sender.batch, &picks), &mut guide, &mut counters);
    assert_eq!((delivery.refused(), counters.receive_drops.iter().sum::<u64>()), (0, 0));
    leaving.end_run(&guide);
    let segments = |message: &Message| {
        let Departing { span, segment, .. } = message.departing;
        let mut bytes = vec![0; span.len() as usize];
        leaving.buffers.map().read_span(span, &mut bytes);
        let size = if segment == 0 { bytes.len() } else { segment.into() };
        let of = |datagram: &[u8]| {
            let frame = &datagram[HEADER_BYTES as usize..];
            (u16::from_be_bytes([frame[34], frame[35]]), frame[41], frame.len())
        };
        (message.socket, bytes.chunks(size).map(of).collect())
    };
    leaving.messages.iter().map(segments).collect()
}

#[test]
fn frames_of_flows_in_turn_are_one_message_for_each_flow_at_most_and_keep_their_order() {
    const FLOWS: usize = 8;
    let frames: Vec<_> =
        (0..64).map(|frame| segment(40_000 + (frame % FLOWS) as u16, (frame / FLOWS) as u8, 1000)).collect();
    let found = messages(&frames, 1);
    assert!(found.len() <= FLOWS, "{} messages", found.len());
    let mut flows = BTreeMap::<u16, Vec<u8>>::new();
    found.iter().flat_map(|(_, segments)| segments).for_each(|(flow, number, _)| {
        flows.entry(*flow).or_default().push(*number);
    });
    assert_eq!(flows.len(), FLOWS);
    assert!(flows.values().all(|numbers| *numbers == [0, 1, 2, 3, 4, 5, 6, 7]), "{flows:?}");
    // The frames of a flow follow each other, so that the other end joins them to one packet.
    let changes = |segments: &[Segment]| segments.windows(2).filter(|pair| pair[0].0 != pair[1].0).count();
    let changed: usize = found.iter().map(|(_, segments)| changes(segments)).sum();
    assert_eq!(changed + found.len(), FLOWS);
    let sockets: BTreeSet<u8> = found.iter().map(|(socket, _)| *socket).collect();
    assert_eq!(sockets.len(), found.len(), "one message for each socket");
    assert!(sockets.len() >= 4, "flows have many sockets: {sockets:?}");
}

#[test]
fn a_longer_frame_and_one_behind_a_shorter_one_begin_another_message() {
    let lengths = |found: Vec<Sent>| {
        found
            .iter()
            .map(|(_, segments)| segments.iter().map(|(_, number, len)| (*number, len - 54)).collect::<Vec<_>>())
            .collect::<Vec<_>>()
    };
    let frames: Vec<_> =
        (0..6).zip([100, 100, 50, 100, 200, 200]).map(|(number, bytes)| segment(1, number, bytes)).collect();
    let wanted = vec![vec![(0, 100), (1, 100), (2, 50)], vec![(3, 100)], vec![(4, 200), (5, 200)]];
    assert_eq!(lengths(messages(&frames, 1)), wanted);
    // A copy for each of two hosts.
    let twice: Vec<_> = wanted.iter().flat_map(|run| [run.clone(), run.clone()]).collect();
    assert_eq!(lengths(messages(&frames, 2)), twice);
}
