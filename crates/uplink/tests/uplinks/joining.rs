//! Joining is invisible: a receiver that takes no large packets gets the frames that arrived over the stream.

use std::io::Write;
use std::os::unix::net::UnixStream;

use crate::common::*;
use nicety_adapter::{Batch, Counters, PACKET_BYTES, Time, Uplink, Wants};
use nicety_uplink::Stream;

const WHOLE: Wants = Wants { frame_max: PACKET_BYTES, tcp4: true, tcp6: true, udp: true, partial: true, ..PLAIN };

/// The frames of one TCP packet, cut and checked as on a wire.
fn cut(data: &[u8]) -> Vec<Vec<u8>> {
    cut_by(1448, data)
}

/// Like [`cut`], with `mss` payload bytes in each frame.
fn cut_by(mss: u16, data: &[u8]) -> Vec<Vec<u8>> {
    let segment = tso().segment.map(|segment| nicety_adapter::Segment { mss, ..segment });
    frames(&Sender::new(&[(partial(data), nicety_adapter::Offload { segment, ..tso() })]).batch, PLAIN)
}

/// An end that has received these frames at once.
fn sent(frames: &[Vec<u8>]) -> (Stream, UnixStream) {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("joining-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let path = directory.join(NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_string());
    let mut stream = Stream::listen(&path).unwrap();
    let mut peer = UnixStream::connect(&path).unwrap();
    fetch(&mut stream, &mut Counters::default(), Time::ZERO);
    let bytes: Vec<u8> =
        frames.iter().flat_map(|frame| [&(frame.len() as u32).to_be_bytes()[..], frame].concat()).collect();
    peer.write_all(&bytes).unwrap();
    (stream, peer)
}

/// Gives all batches that arrive to `look`.
fn each(stream: &mut Stream, counters: &mut Counters, mut look: impl FnMut(&Batch)) {
    loop {
        let (batch, progress) = fetch(stream, counters, Time::ZERO);
        look(&batch);
        stream.complete(&batch);
        if progress.armed {
            return;
        }
    }
}

/// Number of packets that these frames become. Also checks that a receiver without large packets gets the same frames.
fn joined(frames_sent: &[Vec<u8>]) -> usize {
    let (mut stream, _peer) = sent(frames_sent);
    let (mut packets, mut got, mut counters) = (0, Vec::new(), Counters::default());
    each(&mut stream, &mut counters, |batch| {
        packets += batch.len();
        got.extend(frames(batch, PLAIN));
    });
    assert!(got == frames_sent, "{} frames of {} are the same", got.len(), frames_sent.len());
    assert_eq!(counters.transmitted().frames, frames_sent.len() as u64);
    let bytes: usize = frames_sent.iter().map(Vec::len).sum();
    assert_eq!(counters.transmitted().bytes, bytes as u64);
    packets
}

/// Corrects the TCP checksum after a change (smoltcp's sum, not ours).
fn summed(mut frame: Vec<u8>) -> Vec<u8> {
    use smoltcp::wire::{EthernetFrame, IpAddress, Ipv4Packet, TcpPacket};
    let mut ethernet = EthernetFrame::new_unchecked(&mut frame[..]);
    let mut ip = Ipv4Packet::new_unchecked(ethernet.payload_mut());
    ip.fill_checksum();
    let (source, target): (IpAddress, IpAddress) = (ip.src_addr().into(), ip.dst_addr().into());
    TcpPacket::new_unchecked(ip.payload_mut()).fill_checksum(&source, &target);
    frame
}

#[test]
fn the_frames_of_a_packet_become_that_packet_again() {
    let data = payload(60_000);
    let frames_sent = cut(&data);
    assert_eq!(frames_sent.len(), 42);
    let (mut stream, _peer) = sent(&frames_sent);
    let mut counters = Counters::default();
    let mut packets = Vec::new();
    each(&mut stream, &mut counters, |batch| {
        packets.extend(batch.packets().iter().map(|packet| (packet.frames(), packet.offload)));
        if !batch.is_empty() {
            assert!(frames(batch, WHOLE) == [partial(&data)], "byte for byte what the sender had");
        }
    });
    assert_eq!(packets, [(42, tso())]);
    assert_eq!(joined(&frames_sent), 1);
}

/// The same segment over IPv6 (RFC 8200 section 3), made by hand; smoltcp computes its checksum.
fn over_ipv6(frame: &[u8]) -> Vec<u8> {
    use smoltcp::wire::{Ipv6Address, TcpPacket};
    let mut tcp = frame[34..].to_vec();
    let [source, target] = [2, 1].map(|last| Ipv6Address::new(0xfd00, 0, 0, 0, 0, 0, 0, last));
    TcpPacket::new_unchecked(&mut tcp[..]).fill_checksum(&source.into(), &target.into());
    let len = (tcp.len() as u16).to_be_bytes();
    let header = [&[0x60, 0, 0, 0, len[0], len[1], 6, 64], &source.octets()[..], &target.octets()].concat();
    [&frame[..12], &[0x86, 0xdd], &header, &tcp].concat()
}

/// The same segment with one more byte of payload.
fn longer(mut frame: Vec<u8>) -> Vec<u8> {
    frame.push(7);
    let len = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&len.to_be_bytes());
    summed(frame)
}

#[test]
fn a_packet_grows_to_65535_bytes_with_its_ip_header_and_no_further() {
    const MAX: usize = 65_535;
    // The header's length field: IPv4's total length counts the header (RFC 791 section 3.1), IPv6's payload length does not (RFC
    // 8200 section 3).
    for (headers, field, total) in [(20 + 20, 16, MAX), (40 + 20, 18, MAX - 40)] {
        let segments = |longer_by_one: bool| {
            let mut frames = cut_by(1500 - headers as u16, &payload(MAX - headers));
            let last = frames.pop().unwrap();
            frames.push(if longer_by_one { longer(last) } else { last });
            if headers == 60 { frames.iter().map(|frame| over_ipv6(frame)).collect() } else { frames }
        };
        assert_eq!(joined(&segments(false)), 1, "{headers} bytes of headers");
        let (mut stream, _peer) = sent(&segments(false));
        each(&mut stream, &mut Counters::default(), |batch| {
            for packet in frames(batch, WHOLE) {
                assert_eq!(packet.len(), 14 + MAX);
                assert_eq!(usize::from(u16::from_be_bytes([packet[field], packet[field + 1]])), total);
            }
        });
        assert_eq!(joined(&segments(true)), 2, "{headers} bytes of headers, and a byte more");
    }
}

#[test]
fn what_does_not_follow_stays_apart_and_as_it_came() {
    let frames_sent = cut(&payload(1448 * 4));
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frames = frames_sent.clone();
        change(&mut frames[1]);
        frames[1] = summed(std::mem::take(&mut frames[1]));
        joined(&frames)
    };
    assert_eq!(joined(&frames_sent), 1);
    let fields: [(&str, usize, u8); 10] = [
        ("the type of service", 15, 4),
        ("the identification", 19, 1),
        ("the fragment's place", 21, 1),
        ("the time to live", 22, 1),
        ("another address", 29, 1),
        ("another port", 35, 1),
        ("a gap in the sequence", 40, 1),
        ("another acknowledgement", 45, 1),
        ("another window", 49, 1),
        ("another station", 5, 1),
    ];
    for (what, at, bit) in fields {
        assert!((2..=4).contains(&with(&|frame| frame[at] ^= bit)), "{what}");
    }
    for flag in [0x01, 0x02, 0x04, 0x20, 0x40, 0x80] {
        assert_eq!(with(&|frame| frame[47] |= flag), 3, "flag {flag:#x}");
    }
    // PSH ends a packet: the next frame begins another one.
    assert_eq!(with(&|frame| frame[47] |= 8), 2);
}

#[test]
fn damage_is_handed_on_as_it_came() {
    let frames_sent = cut(&payload(1448 * 4));
    for at in [24, 50, 60, 1500] {
        let mut frames = frames_sent.clone();
        frames[2][at] ^= 0x10;
        assert_eq!(joined(&frames), 3, "byte {at}");
    }
}

#[test]
fn short_padded_odd_and_foreign_frames_stay_alone() {
    let mut padded = tcp(b"x");
    padded.resize(60, 0);
    let one = |frame: &[u8]| joined(&[frame.to_vec(), frame.to_vec()]);
    assert_eq!(one(&padded), 2);
    assert_eq!(one(&tcp(b"")), 2, "an acknowledgement");
    assert_eq!(one(&payload(1514)), 2);
    assert_eq!(one(&payload(15)), 2);
    assert_eq!(one(&tcp(&payload(1400))), 2, "sent twice");
    assert_eq!(one(&udp(&payload(1000), [2, 0, 0, 0, 0, 2], smoltcp::wire::Ipv4Address::new(10, 9, 8, 1), 9)), 2);
}

#[test]
fn a_checksum_that_is_written_the_other_way_is_handed_on_as_it_came() {
    // Both forms of zero verify; each sender may write either.
    let frames_sent = cut(&payload(1448 * 4));
    let zero = |at: usize, balance: usize, written: [u8; 2]| {
        let mut frames = frames_sent.clone();
        let frame = &mut frames[1];
        // Adding the checksum to a summed word makes the checksum zero.
        let sum = u32::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
        let word = u32::from(u16::from_be_bytes([frame[balance], frame[balance + 1]])) + sum;
        let word = (word & 0xffff) + (word >> 16);
        frame[balance..balance + 2].copy_from_slice(&(word as u16).to_be_bytes());
        frame[at..at + 2].copy_from_slice(&written);
        joined(&frames)
    };
    assert_eq!(zero(50, 1000, [0, 0]), 3, "TCP");
    assert_eq!(zero(50, 1000, [0xff, 0xff]), 1, "TCP");
    assert_eq!(zero(24, 18, [0xff, 0xff]), 3, "IPv4");
}

#[test]
fn a_budget_counts_what_is_being_joined() {
    let frames_sent = cut(&payload(1448 * 10));
    let (mut stream, _peer) = sent(&frames_sent);
    for (bytes, frames) in [(1, 1), (3000, 3), (1 << 20, 6)] {
        let (mut batch, mut counters) = (Batch::new(), Counters::default());
        let budget = nicety_adapter::Budget { packets: 64, bytes };
        stream.fetch(nicety_adapter::PortId(1), budget, &mut batch, &mut counters, Time::ZERO);
        assert_eq!(counters.transmitted().frames, frames, "{bytes}");
        stream.complete(&batch);
    }
}

#[test]
fn any_mixture_of_frames_arrives_as_it_was_sent() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below
    };
    let mut packets = 0;
    for _ in 0..60 {
        let mut frames_sent = Vec::new();
        while frames_sent.len() < 40 {
            let mut frames = cut(&payload(1 + random(20_000)));
            for frame in &mut frames {
                match random(24) {
                    0 => {
                        let at = random(frame.len());
                        frame[at] ^= 1 << random(8);
                    }
                    1 => {
                        let at = random(54);
                        frame[at] ^= 1 << random(8);
                        let ip = smoltcp::wire::Ipv4Packet::new_checked(&frame[14..]);
                        if ip.is_ok_and(|ip| smoltcp::wire::TcpPacket::new_checked(ip.payload()).is_ok()) {
                            *frame = summed(std::mem::take(frame));
                        }
                    }
                    2 => frame.truncate(14 + random(80)),
                    _ => {}
                }
            }
            if random(4) == 0 {
                let (one, other) = (random(frames.len()), random(frames.len()));
                frames.swap(one, other);
            }
            frames_sent.extend(frames);
        }
        packets += joined(&frames_sent);
    }
    assert!((60..1200).contains(&packets), "{packets} packets of more than 2400 frames: most were joined");
}
