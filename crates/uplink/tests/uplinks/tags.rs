//! Whatever kind of uplink it is, a frame leaves with the tags that the switch says: put in, taken out, replaced or as they were.

use std::io::Read;
use std::os::unix::net::UnixStream;

use crate::common::*;
use crate::pcapng::{options, read};
use nicety_adapter::{Counters, Edit, Frames, Offload, Pick, Time, Uplink};
use nicety_frame::{Tag, Tci};
use nicety_uplink::{Capture, Pair, Stream, Tap};

/// IEEE 802.1Q-2018, 9.6: the type, then three bits of priority, one of drop eligibility, twelve of the VLAN.
const OTHER: [u8; 4] = [0x81, 0, 0x70, 0x2a];
const BROUGHT: [u8; 4] = [0x81, 0, 0xe0, 0x07];
const SERVICE: [u8; 4] = [0x88, 0xa8, 0x20, 0x1e];

/// Frames with and without a tag, the edit of each, and the tag with which it leaves.
fn cases() -> [(bool, Edit, &'static [u8]); 6] {
    [
        (false, Edit::Keep, &[]),
        (true, Edit::Keep, &BROUGHT),
        (true, Edit::Untag, &[]),
        (false, Edit::Tag(Tag::customer(Tci::new(3, true, 42))), &OTHER),
        (true, Edit::Retag(Tag::customer(Tci::new(3, true, 42))), &OTHER),
        (false, Edit::Tag(Tag::service(Tci::new(1, false, 30))), &SERVICE),
    ]
}

fn tagged(frame: &[u8], tag: &[u8]) -> Vec<u8> {
    [&frame[..12], tag, &frame[12..]].concat()
}

/// Sends a frame of each case, and one packet of 3,000 bytes that is cut, with a tag that is put in. Then compares what came, in order.
fn leaves_as_the_switch_says(uplink: &mut impl Uplink, come: impl FnOnce(usize) -> Vec<Vec<u8>>) {
    let plain = tcp(&payload(100));
    let frames = cases().map(|(brings, ..)| (tagged(&plain, if brings { &BROUGHT } else { &[] }), Offload::default()));
    let data = payload(3000);
    let sender = Sender::new(&[&frames[..], &[(partial(&data), tso())]].concat());
    let cut = Edit::Tag(Tag::customer(Tci::new(3, true, 42)));
    let edits = cases().map(|(_, edit, _)| edit).into_iter().chain([cut]);
    let picks: Vec<Pick> = (0..).zip(edits).map(|(packet, edit)| Pick { edit, ..Pick::whole(packet) }).collect();
    let mut counters = Counters::default();
    let delivery = uplink.deliver(&Frames::new(&sender.batch, &picks), &mut counters, Time::ZERO);
    assert_eq!((delivery.refused(), counters.taken().packets), (0, 7), "{:?}", counters.receive_drops);
    let found = come(9);
    let (whole, pieces) = found.split_at(6);
    for ((_, edit, tag), frame) in cases().iter().zip(whole) {
        assert_eq!(*frame, tagged(&plain, tag), "{edit:?}");
    }
    let payloads = pieces.iter().flat_map(|frame| {
        assert_eq!(frame[12..16], OTHER);
        checked_payload(&[&frame[..12], &frame[16..]].concat())
    });
    assert_eq!(payloads.collect::<Vec<u8>>(), data);
}

/// So many frames that come in, but not what a host's stack sends by itself.
fn come_in(uplink: &mut impl Uplink, count: usize) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while found.len() < count && readable(uplink) {
        let (batch, _) = fetch(uplink, &mut Counters::default(), Time::ZERO);
        found.extend(frames(&batch, PLAIN).into_iter().filter(|frame| frame[6..12] == [2, 0, 0, 0, 0, 1]));
        uplink.complete(&batch);
    }
    found
}

#[test]
fn by_a_pair() {
    let (mut one, mut other) = Pair::connected().unwrap();
    leaves_as_the_switch_says(&mut one, |count| come_in(&mut other, count));
}

#[test]
fn by_a_stream() {
    let folder = tempfile::tempdir().unwrap();
    let mut stream = Stream::listen(folder.path().join("s")).unwrap();
    let mut peer = UnixStream::connect(folder.path().join("s")).unwrap();
    fetch(&mut stream, &mut Counters::default(), Time::ZERO);
    leaves_as_the_switch_says(&mut stream, |count| {
        let mut next = || {
            let mut len = [0; 4];
            peer.read_exact(&mut len).unwrap();
            let mut frame = vec![0; u32::from_be_bytes(len) as usize];
            peer.read_exact(&mut frame).unwrap();
            frame
        };
        (0..count).map(|_| next()).collect()
    });
}

#[test]
fn by_a_capture() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.pcapng");
    let mut capture = Capture::create(&path, &options(None)).unwrap();
    leaves_as_the_switch_says(&mut capture, |_| read(&path).into_iter().map(|seen| seen.frame).collect());
}

/// Two taps in a bridge without VLAN filtering, which passes tags as they are.
#[test]
fn by_a_tap() {
    if !crate::tap::inside_as("tags::by_a_tap") {
        return;
    }
    let [mut one, mut other] = ["one", "other"].map(|name| Tap::open(name).unwrap());
    crate::tap::ip("link add br0 type bridge");
    for name in ["one", "other", "br0"] {
        // Without IPv6 the interface sends nothing by itself.
        let _no_ipv6_here = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
    }
    ["one", "other"].iter().for_each(|name| crate::tap::ip(&format!("link set {name} master br0")));
    ["one", "other", "br0"].iter().for_each(|name| crate::tap::ip(&format!("link set {name} up")));
    leaves_as_the_switch_says(&mut one, |count| come_in(&mut other, count));
}

/// Both ends of a veth.
#[test]
fn by_the_queues_of_an_interface() {
    if !crate::xdp::inside_as("tags::by_the_queues_of_an_interface") {
        return;
    }
    crate::xdp::veth(1);
    let (mut one, mut other) = (crate::xdp::one("wire0"), crate::xdp::one("far0"));
    leaves_as_the_switch_says(&mut one, |count| come_in(&mut other, count));
}
