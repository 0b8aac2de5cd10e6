//! The far end of a pair uplink, written by hand: a broken or hostile peer daemon (crates/uplink/src/message.rs has the format).

use std::path::PathBuf;

use nicety_adapter::{Checksum, Offload, SegmentKind};
use nicety_trials::hostile::packets;
use nicety_trials::random::Random;
use nicety_uplink::Pair;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::session::{Session, junk};

/// Messages of one session.
const MESSAGES: usize = 64;

/// Bit 0 of the first byte: the peer starts with a hello.
pub fn run(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else { return };
    let path = PathBuf::from(format!("/tmp/nicety-fuzz-{}.sock", std::process::id()));
    let Ok(pair) = Pair::listen(&path) else { return };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok(peer) = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None) else { return };
    let connected = SocketAddrUnix::new(&path).and_then(|address| rustix::net::connect(&peer, &address));
    if connected.is_err() {
        return;
    }
    let mut random = Random::of_bytes(rest);
    let Some(mut session) = Session::begin(Box::new(pair), first & 2 != 0, first) else { return };
    if first & 1 != 0 {
        let _ = rustix::net::send(&peer, b"\0nicety\0\x01\0\x10\0\xff\x01\x01\0", SendFlags::NOSIGNAL);
    }
    for _ in 0..MESSAGES {
        if random.spent() {
            break;
        }
        match random.below(8) {
            0 => session.wire_sends(&mut random),
            1 => session.guest_sends(&mut random),
            2 => _ = rustix::net::send(&peer, &junk(&mut random), SendFlags::NOSIGNAL),
            _ => _ = rustix::net::send(&peer, &message(&mut random), SendFlags::NOSIGNAL),
        }
        session.turns();
        let mut bytes = [0; 64];
        while rustix::net::recv(&peer, &mut bytes, RecvFlags::DONTWAIT).is_ok_and(|(_, len)| len > 0) {}
    }
}

/// A packet with its header. Now and then one of the two is slightly wrong.
fn message(random: &mut Random) -> Vec<u8> {
    let (packet, Offload { checksum, segment }) = packets::any(random, true);
    let mut header = [0; 16];
    header[0] = 1;
    match checksum {
        Checksum::AsIs => {}
        Checksum::Verified => header[1] = 1,
        Checksum::Partial { start, field } => {
            header[1] = 2;
            header[4..6].copy_from_slice(&start.to_le_bytes());
            header[6..8].copy_from_slice(&field.to_le_bytes());
        }
    }
    if let Some(segment) = segment {
        header[2] = if segment.kind == SegmentKind::Tcp { 1 } else { 2 };
        header[8..10].copy_from_slice(&segment.mss.to_le_bytes());
        header[10..12].copy_from_slice(&segment.headers.to_le_bytes());
    }
    header[12..].copy_from_slice(&(packet.len() as u32).to_le_bytes());
    if random.one_in(4) {
        let at = random.below(16) as usize;
        header[at] = random.below(256) as u8;
    }
    let mut out = [&header[..], &packet].concat();
    if random.one_in(16) {
        out.truncate(random.below(out.len() as u64 + 1) as usize);
    }
    out
}
