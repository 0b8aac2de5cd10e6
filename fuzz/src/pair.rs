//! The far end of a pair uplink, written by hand: a broken or hostile peer daemon (crates/uplink/src/message.rs has the format).

use std::path::PathBuf;
use std::sync::Arc;

use nicety_adapter::{Checksum, Offload, PortId, SegmentKind};
use nicety_adapters::find;
use nicety_plane::doubles::Memo;
use nicety_plane::{End, Port, Turn};
use nicety_trials::hostile::packets;
use nicety_trials::random::Random;
use nicety_trials::rig::Rig;
use nicety_trials::working;
use nicety_uplink::Pair;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

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
    let (Some(entry), Ok(())) = (find("virtio-net"), connected) else { return };
    let mut random = Random::of_bytes(rest);
    let mut rig = Rig::new(entry, working::MEMORY, first & 2 != 0);
    let mut guest = working::begin(entry.about.name, &mut rig, &mut Random::new(first.into()));
    let Ok(port) = Port::new(PortId(2), End::link(Box::new(pair)), Box::new(Memo::default()), 1 << 20) else {
        return;
    };
    let (port, mut turn) = (Arc::new(port), Turn::new());
    if rig.plane.join(Arc::clone(&port)).is_err() {
        return;
    }
    if first & 1 != 0 {
        let _ = rustix::net::send(&peer, b"\0nicety\0\x01\0\x10\0\xff\x01\x01\0", SendFlags::NOSIGNAL);
    }
    for _ in 0..MESSAGES {
        if random.spent() {
            break;
        }
        match random.below(8) {
            0 => rig.far.ends().outgoing.push_back(packets::any(&mut random, true)),
            1 => {
                let (packet, offload) = packets::any(&mut random, false);
                if let Some(guest) = &mut guest {
                    guest.send(&mut rig, &packet, &offload);
                    guest.attend(&mut rig);
                }
            }
            2 => {
                let mut bytes = vec![0; random.below(40) as usize];
                bytes.fill_with(|| random.below(256) as u8);
                let _ = rustix::net::send(&peer, &bytes, SendFlags::NOSIGNAL);
            }
            _ => {
                let _ = rustix::net::send(&peer, &message(&mut random), SendFlags::NOSIGNAL);
            }
        }
        rig.uplink.ready();
        port.ready();
        rig.now = rig.now.after_ns(1_000_000);
        for _ in 0..3 {
            rig.step();
            while rig.plane.turn(&port, &mut turn, rig.now).unfinished {}
        }
        let mut bytes = [0; 64];
        while rustix::net::recv(&peer, &mut bytes, RecvFlags::DONTWAIT).is_ok_and(|(_, len)| len > 0) {}
        rig.far.ends().incoming.clear();
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
