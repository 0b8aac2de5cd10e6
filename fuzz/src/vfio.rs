//! A vfio-user session with a daemon's device behind it (vfio-user.rst, version 0.1).

use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use nicety_adapter::PortId;
use nicety_adapters::REGISTRY;
use nicety_daemon::clock::Clock;
use nicety_daemon::device::{PortDevice, irq_layout};
use nicety_daemon::inbox::Inbox;
use nicety_daemon::mapper::Mapper;
use nicety_daemon::port_log::PortLog;
use nicety_daemon::shell::Signals;
use nicety_trials::hostile::packets;
use nicety_trials::random::Random;
use nicety_trials::rig::Rig;
use nicety_trials::working;
use nicety_vfio_user::codec::Command;
use nicety_vfio_user::{Interrupts, Session};

use crate::peer::{FILE, Peer};

/// Messages in one session: more would only fill the socket.
const MESSAGES: usize = 200;
/// Time limit of a memory change, which takes microseconds.
const CHANGE: Duration = Duration::from_secs(10);
/// DMA mapping flags: readable and writable.
const READ_WRITE: u32 = 3;

/// The first byte chooses the adapter, and whether versions are exchanged first.
pub fn run(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else { return };
    // An adapter that is no PCI function has no such session.
    let entry = &REGISTRY[usize::from(first >> 4) % REGISTRY.len()];
    let mut rig = Rig::new(entry, working::MEMORY, first & 2 != 0);
    let Some(layout) = rig.port.with_pci(rig.now, |pci, _| irq_layout(pci)) else { return };
    let Some((peer, far)) = Peer::connected() else { return };
    let clock = Clock::start();
    let interrupts = Arc::new(Interrupts::new(layout));
    let signals = Arc::new(Signals::function(Arc::clone(&interrupts)));
    let Ok(inbox) = Inbox::new() else { return };
    let log = Arc::new(PortLog::new(PortId(1), "fuzz", entry.about.name, clock, Arc::new(inbox)));
    let (tell, told) = mpsc::channel();
    let mapper = Mapper::new("fuzz", Default::default(), move || tell.send(()).unwrap_or(()));
    let mut device = PortDevice::new(log, Arc::clone(&rig.port), interrupts, signals, mapper, entry.about.dma);
    if first & 4 != 0 {
        let _ = device.map_doorbells();
    }
    let mut session = Session::new(far);
    let mut random = Random::of_bytes(rest);
    if first & 8 != 0 {
        greet(&peer, &mut random);
    }
    for _ in 0..MESSAGES {
        if random.spent() {
            break;
        }
        match random.below(8) {
            0 => {
                let mut bytes = vec![0; random.below(64) as usize];
                bytes.fill_with(|| random.below(256) as u8);
                peer.send(&mut random, &bytes, &[]);
            }
            1 => peer.memory(&mut random),
            2 => rig.far.ends().outgoing.push_back(packets::any(&mut random, true)),
            _ => message(&peer, &mut random),
        }
        let mut over = session.receive(&mut device).is_err();
        while !over && session.is_changing() {
            // The memory thread makes the change, and reports its end.
            told.recv_timeout(CHANGE).expect("a change of memory ends");
            over = session.receive(&mut device).is_err();
        }
        if over {
            break;
        }
        device.scan_doorbells();
        rig.now = clock.now();
        rig.uplink.ready();
        rig.step();
        peer.drain();
        rig.far.ends().incoming.clear();
    }
    session.disconnect(&mut device);
    device.renew();
    rig.port.detach(clock.now());
}

/// Sends VERSION, and maps a window of memory.
fn greet(peer: &Peer, random: &mut Random) {
    let mut body = vec![0, 0, 1, 0];
    body.extend(b"{\"capabilities\":{\"max_msg_fds\":8,\"max_data_xfer_size\":1048576}}\0");
    peer.send(random, &framed(Command::Version as u16, 0, body.len() as u32, &body), &[]);
    let body = dma_map(0, 0, FILE);
    let file: Vec<OwnedFd> = peer.file.try_clone().into_iter().collect();
    peer.send(random, &framed(Command::DmaMap as u16, 0, body.len() as u32, &body), &file);
    // Enables memory decoding and bus mastering through configuration space.
    let body = words(&[4, 0, 7, 2, 7])[..].to_vec();
    let body = [&body[..16], &[7, 0]].concat();
    peer.send(random, &framed(Command::RegionWrite as u16, 0, body.len() as u32, &body), &[]);
}

fn words(of: &[u32]) -> Vec<u8> {
    of.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn dma_map(offset: u64, address: u64, size: u64) -> Vec<u8> {
    let mut body = words(&[32, READ_WRITE]);
    [offset, address, size].iter().for_each(|field| body.extend(field.to_ne_bytes()));
    body
}

/// A whole message whose header states a body of `len` bytes.
fn framed(command: u16, flags: u32, len: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![7, 0];
    bytes.extend(command.to_ne_bytes());
    bytes.extend(words(&[len.wrapping_add(16), flags, 0]));
    bytes.extend(body);
    bytes
}

/// Sends one message, which usually has its command's shape.
fn message(peer: &Peer, random: &mut Random) {
    let command = random.pick(&Command::ALL) as u16;
    let size = |random: &mut Random| random.pick(&[0u64, 1, 4, 8, 0x1000, 0x1_0000, FILE, 1 << 63]);
    let address = |random: &mut Random| {
        if random.one_in(2) { random.pick(&[0u64, 0x1000, 0x10_0000, u64::MAX - 0xfff]) } else { random.nasty(FILE) }
    };
    let (mut wanted, mut bell) = (0, false);
    let mut body = match Command::from_number(command) {
        Some(Command::DmaMap) => {
            wanted = 1;
            dma_map(address(random) & !0xfff, address(random), size(random))
        }
        Some(Command::DmaUnmap) => {
            let mut body = words(&[24, random.below(4) as u32]);
            body.extend(address(random).to_ne_bytes());
            body.extend(size(random).to_ne_bytes());
            body
        }
        Some(Command::RegionRead | Command::RegionWrite) => {
            let offset = if random.one_in(8) { random.nasty(0x2000) } else { random.below(0x6000) };
            let width = random.pick(&[4u32, 4, 4, 2, 1, 8, 64, 3]);
            let mut body = offset.to_ne_bytes().to_vec();
            body.extend(words(&[random.below(10) as u32, width]));
            if command == Command::RegionWrite as u16 {
                let value = random.nasty(FILE).to_ne_bytes();
                body.extend(value.iter().cycle().take(width as usize));
            }
            body
        }
        Some(Command::DeviceSetIrqs) => {
            (wanted, bell) = (random.below(4) as usize, true);
            let flags = 1 << random.below(3) | 8 << random.below(3);
            words(&[20 + 4 * wanted as u32, flags, random.below(6) as u32, random.below(4) as u32, wanted as u32])
        }
        _ => {
            let mut body = words(&[32, 0, random.below(12) as u32, 0, 0, 0, 0, 0]);
            let at = 4 * random.below(8) as usize;
            body[at..at + 4].copy_from_slice(&(random.nasty(FILE) as u32).to_ne_bytes());
            body
        }
    };
    if random.one_in(16) {
        body.truncate(random.below(body.len() as u64 + 1) as usize);
    }
    let len = if random.one_in(16) { random.nasty(4096) as u32 } else { body.len() as u32 };
    let flags = random.pick(&[0u32, 0, 0x10, 1, 0x21, 2]);
    let fds = peer.descriptors(random, wanted, bell);
    peer.send(random, &framed(command, flags, len, &body), &fds);
}
