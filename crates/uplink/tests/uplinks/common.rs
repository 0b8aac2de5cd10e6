//! Fills an uplink, takes frames out of it, and checks them with smoltcp.

use nicety_adapter::{
    Batch, Budget, Counters, Frames, Offload, Pick, PortId, Progress, Scratch, Time, Unfolded, Uplink, Wants,
};
use nicety_memory::{Map, Rights, Span};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetFrame, IpAddress, IpProtocol, Ipv4Address, Ipv4Packet, Ipv4Repr, TcpPacket, UdpPacket, UdpRepr,
};

pub use crate::packets::*;

/// A receiver without offloads: everything is cut, computed and verified.
pub const PLAIN: Wants =
    Wants { frame_max: 1514, tcp4: false, tcp6: false, udp: false, partial: false, strip: 0, verify: true };

/// A UDP packet to an address, with complete checksums.
pub fn udp(payload: &[u8], hardware: [u8; 6], target: Ipv4Address, port: u16) -> Vec<u8> {
    let source = Ipv4Address::new(10, 9, 8, 2);
    let udp = UdpRepr { src_port: 1000, dst_port: port };
    let ip = Ipv4Repr {
        src_addr: source,
        dst_addr: target,
        next_header: IpProtocol::Udp,
        payload_len: 8 + payload.len(),
        hop_limit: 64,
    };
    ethernet(ip, hardware, |out| {
        let mut packet = UdpPacket::new_unchecked(out);
        let (source, target) = (IpAddress::Ipv4(source), IpAddress::Ipv4(target));
        let fill = |out: &mut [u8]| out.copy_from_slice(payload);
        udp.emit(&mut packet, &source, &target, payload.len(), fill, &ChecksumCapabilities::default());
    })
}

/// Checks a frame as a receiver's stack would, and returns its TCP payload.
pub fn checked_payload(frame: &[u8]) -> Vec<u8> {
    let frame = EthernetFrame::new_checked(frame).expect("an Ethernet frame");
    let ip = Ipv4Packet::new_checked(frame.payload()).expect("an IPv4 packet");
    assert!(ip.verify_checksum(), "the header's checksum");
    let tcp = TcpPacket::new_checked(ip.payload()).expect("a TCP segment");
    assert!(tcp.verify_checksum(&ip.src_addr().into(), &ip.dst_addr().into()), "the TCP checksum");
    tcp.payload().to_vec()
}

/// Offers frames until some are refused, and returns their sender. Fails if `most` frames are taken.
pub fn fill(uplink: &mut impl Uplink, counters: &mut Counters, most: u64) -> Sender {
    let sender = Sender::new(&vec![(tcp(&payload(1400)), Offload::default()); 64]);
    let mut offered = 0;
    let refused = loop {
        offered += 64;
        let delivery = sender.deliver(uplink, counters, Time::ZERO);
        if delivery.refused() != 0 {
            break delivery.refused().count_ones();
        }
        assert!(offered < most);
    };
    assert_eq!(counters.taken().packets + u64::from(refused), offered);
    sender
}

/// Checks that the uplink takes the refused frames now, and then wants no wake-up.
pub fn check_has_room(uplink: &mut impl Uplink, sender: &Sender, counters: &mut Counters) {
    assert_eq!(uplink.wake(), Some(Time::ZERO), "the refused ones are wanted");
    assert_eq!(sender.deliver(uplink, counters, Time::ZERO).refused(), 0);
    assert_eq!(uplink.wake(), None);
}

/// Fetches once.
pub fn fetch(uplink: &mut impl Uplink, counters: &mut Counters, now: Time) -> (Batch, Progress) {
    let mut batch = Batch::new();
    let progress = uplink.fetch(PortId(1), Budget::TURN, &mut batch, counters, now);
    (batch, progress)
}

/// The frames of a batch, as a receiver with these wants gets them.
pub fn frames(batch: &Batch, wants: Wants) -> Vec<Vec<u8>> {
    let target = Map::private(128 << 10).unwrap();
    let mut span = Span::default();
    let take = |whole| {
        span = whole;
        true
    };
    target.translate(0, 128 << 10, Rights::WRITE, take).unwrap();
    let mut out = Vec::new();
    for packet in 0..batch.len() as u16 {
        let pick = Pick::whole(packet);
        let picks = [pick];
        let frames = Frames::new(batch, &picks);
        let unfolded = Unfolded::new(&frames, pick, wants).expect("a packet that can be taken");
        let mut scratch = Scratch::new();
        for index in 0..unfolded.count() {
            let mut piece = unfolded.piece(index, &mut scratch).unwrap();
            let len = piece.len() as usize;
            piece.write(&target, &[span]);
            let mut bytes = vec![0; len];
            target.read_span(span, &mut bytes);
            out.push(bytes);
        }
    }
    out
}

/// Waits until an uplink's descriptor is readable. False after two seconds.
pub fn readable(uplink: &impl Uplink) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let fd = uplink.descriptor().expect("a descriptor");
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 2, tv_nsec: 0 })).unwrap() > 0
}
