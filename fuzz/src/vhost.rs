//! A vhost-user session over a rig's rings (docs/interop/vhost-user.rst).

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use nicety_adapter::{Context, RingFace};
use nicety_adapters::find;
use nicety_frame::Mac;
use nicety_memory::Map;
use nicety_trials::hostile::packets;
use nicety_trials::random::Random;
use nicety_trials::rig::Rig;
use nicety_vhost_user::{Bell, Kick, Port, ProtocolFeatures, Session};
use rustix::event::{EventfdFlags, eventfd};

use crate::peer::{FILE, Peer};

/// Messages in one session: more would only fill the socket.
const MESSAGES: usize = 200;
/// Address of the peer's memory in its own process, as the peer reports it.
const USER: u64 = 0x7f00_0000_0000;
/// The request numbers of the specification, and two undefined ones.
const REQUESTS: [u32; 32] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 24, 25, 31, 32, 34, 36, 37, 38, 39, 40, 0,
    99,
];
const NEED_REPLY: u32 = 8;

/// The daemon's side of a session, in one thread. At each call of the session, traffic passes and memory changes.
struct DaemonSide(Mutex<State>);

struct State {
    rig: Rig,
    random: Random,
    peer: Arc<Peer>,
}

impl DaemonSide {
    fn inside(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn traffic(&self) {
        let mut inside = self.inside();
        let State { rig, random, peer } = &mut *inside;
        for _ in 0..random.below(3) {
            peer.memory(random);
        }
        let packet = packets::any(random, true);
        rig.far.ends().outgoing.push_back(packet);
        rig.far.ends().incoming.clear();
        let ring = random.below(4) as u16;
        rig.port.with_rings(rig.now, |face, cx| face.kick(ring, cx));
        rig.now = rig.now.after_ns(random.below(1 << 22));
        rig.uplink.ready();
        rig.step();
        peer.drain();
    }
}

impl Port for DaemonSide {
    fn with(&self, act: &mut dyn FnMut(&mut dyn RingFace, &mut Context<'_>)) {
        {
            let inside = self.inside();
            inside.rig.port.with_quiet_rings(inside.rig.now, act);
        }
        self.traffic();
    }

    fn set_memory(&self, map: Arc<Map>) {
        let inside = self.inside();
        inside.rig.port.set_quiet_memory(map, inside.rig.now);
    }

    fn set_kick(&self, _: u16, kick: Kick) {
        if let Kick::Bell(bell) = kick {
            bell.clear();
        }
    }

    fn set_call(&self, _: u16, call: Option<Bell>) {
        if let Some(bell) = call {
            let _ = bell.ring();
        }
    }

    fn set_err(&self, _: u16, _: Option<Bell>) {}

    fn announce(&self, address: [u8; 6]) {
        self.inside().rig.port.announce(Mac(address));
    }

    fn disconnected(&self) {
        let inside = self.inside();
        inside.rig.port.detach(inside.rig.now);
    }
}

/// Bit 0 of the first byte: the session starts as QEMU's does. Bit 1: the wire takes large packets.
pub fn run(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else { return };
    let Some(entry) = find("virtio-net") else { return };
    let Some((peer, far)) = Peer::connected() else { return };
    let peer = Arc::new(peer);
    let mut random = Random::of_bytes(rest);
    // Traffic beside the messages must not use up the input bytes.
    let beside = Random::new(random.below(1 << 16));
    if first & 1 != 0 {
        greet(&peer, &mut random);
    }
    for _ in 0..MESSAGES {
        if random.spent() {
            break;
        }
        if random.one_in(8) {
            let mut bytes = vec![0; random.below(40) as usize];
            bytes.fill_with(|| random.below(256) as u8);
            peer.send(&mut random, &bytes, &[]);
        } else {
            message(&peer, &mut random);
        }
    }
    peer.close();
    let rig = Rig::new(entry, 4096, first & 2 != 0);
    let behind = Arc::new(DaemonSide(Mutex::new(State { rig, random: beside, peer })));
    if let Ok(session) = Session::new(far, behind) {
        session.run();
    }
}

fn framed(request: u32, flags: u32, len: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = [request, flags, len].iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend(body);
    bytes
}

fn numbers(of: &[u64]) -> Vec<u8> {
    of.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// A ring number in the low half, another number in the high half.
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Sends owner, features, memory, and both rings of the first queue pair.
fn greet(peer: &Peer, random: &mut Random) {
    let mut say = |request: u32, body: Vec<u8>, fds: Vec<OwnedFd>| {
        peer.send(random, &framed(request, 1, body.len() as u32, &body), &fds);
    };
    let file = || peer.file.try_clone().into_iter().collect::<Vec<_>>();
    say(3, Vec::new(), Vec::new());
    say(16, numbers(&[ProtocolFeatures::OFFERED.0]), Vec::new());
    say(2, numbers(&[1 << 32 | 1 << 30 | 1 << 15 | 1 << 28]), Vec::new());
    say(5, numbers(&[1, 0, FILE, USER, 0]), file());
    for ring in 0..2u32 {
        let base = USER + 0x1_0000 * u64::from(ring);
        say(8, numbers(&[pair(ring, 64)]), Vec::new());
        say(10, numbers(&[pair(ring, 0)]), Vec::new());
        say(9, numbers(&[pair(ring, 0), base, base + 0x2000, base + 0x1000, 0]), Vec::new());
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        say(12, numbers(&[u64::from(ring)]), kick.into_iter().collect());
        say(18, numbers(&[pair(ring, 1)]), Vec::new());
    }
}

/// Sends one message, which usually has its request's shape.
fn message(peer: &Peer, random: &mut Random) {
    let request = random.pick(&REQUESTS);
    let ring = random.below(4) as u32;
    let (mut wanted, mut bell) = (0, false);
    let place = |random: &mut Random| {
        if random.one_in(4) { random.nasty(FILE) } else { USER + (random.below(FILE) & !0xfff) }
    };
    let mut body = match request {
        2 | 16 => numbers(&[if random.one_in(2) { random.bits() } else { 1 << random.below(40) }]),
        5 => {
            wanted = random.below(3) as usize;
            let mut body = numbers(&[wanted as u64]);
            for index in 0..wanted as u64 {
                let size = random.pick(&[FILE, 0x1000, 0, 1 << 63]);
                body.extend(numbers(&[index * FILE, size, USER + index * FILE, random.pick(&[0, 0x1000, u64::MAX])]));
            }
            body
        }
        6 => {
            wanted = 1;
            numbers(&[random.pick(&[FILE, 0x1000, 64, 4, 1 << 40]), random.pick(&[0, 0x1000, 4, u64::MAX])])
        }
        31 | 32 => {
            wanted = usize::from(request == 32);
            let len = random.pick(&[FILE, 0x5000, 0x1000, 0]);
            let rings = random.pick(&[5u64, 4, 1, 0, 0xffff]);
            numbers(&[len, random.pick(&[0, 0x1000, 8, u64::MAX]), rings | 64 << 16])
        }
        8 | 10 | 18 => numbers(&[pair(ring, random.pick(&[0, 1, 2, 64, 256, 0x8000, 0xffff, 3]))]),
        9 => numbers(&[pair(ring, 0), place(random), place(random), place(random), 0]),
        11 => numbers(&[pair(ring, 0)]),
        12..=14 => {
            (wanted, bell) = (1, true);
            let none = random.one_in(4);
            wanted -= usize::from(none);
            numbers(&[u64::from(ring) | u64::from(none) << 8])
        }
        24 | 25 => {
            let size = random.pick(&[4u32, 12, 60, 0, 256]);
            let mut body = [random.below(64) as u32, size, 0].iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<_>>();
            body.resize(12 + size as usize, 0);
            body
        }
        37 | 38 => {
            wanted = usize::from(request == 37);
            let base = random.below(4) * FILE;
            numbers(&[0, base, random.pick(&[FILE, 0x1000, 0]), USER + base, 0])
        }
        19 | 20 | 39 => numbers(&[random.nasty(FILE)]),
        _ => Vec::new(),
    };
    if random.one_in(16) {
        body.truncate(random.below(body.len() as u64 + 1) as usize);
    }
    let len = if random.one_in(16) { random.nasty(4096) as u32 } else { body.len() as u32 };
    let flags = random.pick(&[1u32, 1 | NEED_REPLY, 1 | NEED_REPLY, 1 | NEED_REPLY, 1 | 4, 0, 2]);
    let fds = peer.descriptors(random, wanted, bell);
    peer.send(random, &framed(request, flags, len, &body), &fds);
}
