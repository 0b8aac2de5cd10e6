//! Tapes of every adapter: a session is recorded, and played to a new adapter of the same kind, which does the same to the byte.

use std::sync::Arc;

use nicety_adapter::tape::{Call, Divergence, Entry, Player};
use nicety_adapter::{Checksum, Offload, Reset, Segment, SegmentKind};
use nicety_memory::Map;

use crate::bus::PortBus;
use crate::guest::{Guest, MEMORY, Net};
use crate::hostile;
use crate::random::Random;
use crate::rig::{MAC, Rig, adapter};

const PEER: [u8; 6] = [2, 0, 0, 0, 0, 9];
/// Longer than every moderation timer.
const A_WHILE_NS: u64 = 2_000_000;
/// Bytes of Ethernet, IPv4 and TCP headers.
const HEADERS: usize = 54;
/// A recorded session.
pub struct Session {
    kind: &'static nicety_adapters::Entry,
    /// The tape.
    pub entries: Vec<Entry>,
    /// The adapter's state at the end.
    state: Vec<u8>,
    /// Interrupt messages raised, and rises of the line.
    interrupts: (u64, u64),
    /// Packets that came to the far end of the wire, in order.
    pub sent: Vec<(Vec<u8>, Offload)>,
    /// Packets that the driver received.
    pub received: usize,
}

/// A TCP packet over IPv4 with this payload. Its checksum is still to be made.
fn packet(to: [u8; 6], from: [u8; 6], payload: usize, seed: u8) -> Vec<u8> {
    let mut packet = vec![seed; HEADERS + payload];
    packet[..6].copy_from_slice(&to);
    packet[6..12].copy_from_slice(&from);
    packet[12..HEADERS].fill(0);
    packet[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    packet[16..18].copy_from_slice(&((40 + payload) as u16).to_be_bytes());
    packet[22..24].copy_from_slice(&[64, 6]);
    packet[26..38].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 0x12, 0x34, 0, 80]);
    packet[46..50].copy_from_slice(&[0x50, 0x10, 0x20, 0]);
    packet
}

fn cut() -> Offload {
    let checksum = Checksum::Partial { start: 34, field: 50 };
    Offload { checksum, segment: Some(Segment { kind: SegmentKind::Tcp, mss: 1448, headers: HEADERS as u16 }) }
}

/// A driver at work: frames of all lengths both ways, segmentation, a full ring, the link, a move, a reset, the driver's end and beginning.
struct Life {
    rig: Rig,
    guest: Guest,
    random: Random,
    sent: Vec<(Vec<u8>, Offload)>,
    received: usize,
}

impl Life {
    fn pass(&mut self, ns: u64) {
        self.rig.settle();
        self.rig.pass(ns);
        self.guest.bus.now = self.rig.now;
        let Self { guest, received, .. } = self;
        guest.attend(&mut |_, _| *received += 1).expect("the driver works");
        self.rig.settle();
        self.sent.extend(self.rig.far.ends().incoming.drain(..));
    }

    fn send(&mut self, packet: &[u8], offload: &Offload) {
        while !self.guest.queue(packet, offload).expect("the driver works") {
            self.guest.flush().expect("the driver works");
            self.pass(A_WHILE_NS);
        }
    }

    fn round(&mut self, number: usize) {
        let features = self.guest.features();
        for _ in 0..self.random.below(12) {
            let (payload, seed) = (self.random.below(1400) as usize, self.random.bits() as u8);
            self.send(&packet(PEER, MAC.0, payload, seed), &Offload::default());
        }
        let largest = features.segment_bytes as usize;
        if largest > 6000 && self.random.one_in(3) {
            let payload = 3000 + self.random.below(largest.min(60_000) as u64 - 3000 - HEADERS as u64) as usize;
            self.send(&packet(PEER, MAC.0, payload, number as u8), &cut());
        }
        self.guest.flush().expect("the driver works");
        // More than a ring holds, at times.
        let burst = if self.random.one_in(8) { 700 } else { 12 };
        for _ in 0..self.random.below(burst) {
            let (payload, seed) = (self.random.below(1400) as usize, self.random.bits() as u8);
            let offload = if self.random.one_in(10) { cut() } else { Offload::default() };
            let payload = if offload.segment.is_some() { 4 * payload } else { payload };
            self.rig.far.ends().outgoing.push_back((packet(MAC.0, PEER, payload, seed), offload));
        }
        let ns = self.random.below(A_WHILE_NS);
        self.pass(ns);
    }

    fn event(&mut self, number: usize) {
        match number % 20 {
            5 => {
                self.rig.port.set_link(false, self.rig.now);
                self.pass(A_WHILE_NS);
                self.rig.port.set_link(true, self.rig.now);
            }
            10 => {
                let saved = self.rig.port.stop(self.rig.now).expect("it has an adapter");
                self.pass(A_WHILE_NS);
                let restored = self.rig.port.restore(&saved, self.rig.now);
                assert_eq!(restored, Some(Ok(())));
            }
            15 => {
                self.guest.close().expect("the driver closes");
                self.rig.port.reset(Reset::Function, self.rig.now);
                self.guest.open().expect("the driver opens");
            }
            _ => {}
        }
        self.pass(A_WHILE_NS);
    }
}

impl Session {
    /// A session of an adapter with its driver, of so many rounds. After some of them something rare happens.
    pub fn of_a_driver(kind: &'static nicety_adapters::Entry, rounds: usize) -> Self {
        let memory = Arc::new(Map::private(MEMORY).expect("private memory"));
        let (rig, tape) = Rig::recorded(kind, memory, true);
        let mut guest = Guest::new(PortBus::of(&rig), Net::named(kind.about.name));
        guest.open().expect("the driver opens");
        let mut life = Life { rig, guest, random: Random::new(36), sent: Vec::new(), received: 0 };
        for number in 0..rounds {
            life.round(number);
            life.event(number);
        }
        let Life { rig, sent, received, .. } = life;
        Self { sent, received, ..Self::of(kind, &rig, &tape) }
    }

    /// A session of an adapter with a hostile guest.
    pub fn of_a_hostile_guest(kind: &'static nicety_adapters::Entry, seed: u64, steps: u64) -> Self {
        let (rig, tape) = hostile::record(kind, seed, steps);
        Self::of(kind, &rig, &tape)
    }

    fn of(kind: &'static nicety_adapters::Entry, rig: &Rig, tape: &crate::rig::Tape) -> Self {
        let state = rig.port.save(rig.now).expect("it has an adapter").state;
        let asked = rig.memo.asked().clone();
        let entries = std::mem::take(&mut *tape.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        Self { kind, entries, state, interrupts: (asked.raised, asked.edges), sent: Vec::new(), received: 0 }
    }

    /// Plays entries to a new adapter. Returns its state, its interrupts, and the packets that it sent.
    #[allow(clippy::type_complexity)]
    fn play(&self, entries: &[Entry]) -> Result<(Vec<u8>, (u64, u64), Vec<(Vec<u8>, Offload)>), Box<Divergence>> {
        let mut player = Player::new(adapter(self.kind));
        let (mut interrupts, mut line, mut sent) = ((0, 0), false, Vec::new());
        for entry in entries {
            let out = player.play(entry)?;
            interrupts.0 += u64::from(out.messages.len());
            let level = out.line.unwrap_or(line);
            interrupts.1 += u64::from(level && !line);
            line = level;
            if matches!(entry.call, Call::Fetch { .. }) {
                sent.extend(player.sent().iter().cloned());
            }
        }
        Ok((player.adapter().save(), interrupts, sent))
    }

    /// A new adapter does the same: frames, interrupts, state; and so it does with the tape's text.
    pub fn plays(&self) {
        let name = self.kind.about.name;
        let text: Vec<String> = self.entries.iter().map(Entry::to_string).collect();
        let read: Vec<Entry> =
            text.iter().map(|line| line.parse().unwrap_or_else(|error| panic!("{line}: {error}"))).collect();
        assert!(read == self.entries, "{name}: the text says the same");
        let (state, interrupts, sent) = self.play(&read).unwrap_or_else(|divergence| panic!("{name}: {divergence}"));
        assert!(state == self.state, "{name}: state");
        assert!(interrupts.0 >= self.interrupts.0 && interrupts.1 >= self.interrupts.1, "{name}: {interrupts:?}");
        if !self.sent.is_empty() {
            assert_eq!(sent.len(), self.sent.len(), "{name}: packets");
            assert!(sent == self.sent, "{name}: packets");
        }
    }

    /// So many changes of inputs, all over the tape, are noticed, each at its entry or later.
    pub fn notices_changes(&self, count: usize) {
        let name = self.kind.about.name;
        let able = self.entries.iter().map(|entry| change(&mut entry.clone())).zip(0..);
        let able: Vec<usize> = able.filter_map(|(can, number)| can.then_some(number)).collect();
        assert!(able.len() >= count, "{name}");
        for number in able.iter().step_by(able.len().div_ceil(count)) {
            let mut entries = self.entries.clone();
            change(&mut entries[*number]);
            let divergence = self.play(&entries).err().unwrap_or_else(|| panic!("{name}: call {number} was changed"));
            assert!(divergence.number >= *number as u64, "{name}: {divergence}");
        }
    }
}

/// Changes an input that the adapter cannot ignore, if the entry has one: the last byte of a frame that it takes.
fn change(entry: &mut Entry) -> bool {
    let Call::Deliver(offer) = &mut entry.call else { return false };
    let Some(last) = offer.packets.first_mut().and_then(|packet| packet.bytes.last_mut()) else { return false };
    *last ^= 1;
    // A frame that is not taken is not looked at.
    !entry.read.is_empty()
}
