//! The rules that every adapter keeps, checked for each adapter by name.

use std::sync::Arc;

use nicety_adapter::{Context, Counters, Face, Offload, Outbox, Reset, Time};
use nicety_adapters::Entry;
use nicety_memory::{Map, count};
use nicety_pci::{Bar, BarKind};
use nicety_plane::Doorbells;

use crate::bus::PortBus;
use crate::guest::{Guest, MEMORY, Net};
use crate::random::Random;
use crate::rig::{MAC, Rig, adapter};

/// Bytes of a BAR that may hold registers.
const REGISTERS: u64 = 0x6000;
/// Bytes of a memory BAR that stands for a few ports.
const PORTS: u64 = 64;

/// Widths at which registers are read and written; 3 is one that no driver uses.
const WIDTHS: [usize; 5] = [1, 2, 3, 4, 8];

/// A reset in any state makes an adapter as new: its saved state is the same, byte for byte.
pub fn reset_equals_new(entry: &Entry) {
    for seed in 0..4 {
        let mut rig = Rig::new(entry, 1 << 20, true);
        let new = adapter(entry).save();
        disturb(&mut rig, seed);
        rig.port.reset(Reset::Bus, rig.now);
        let saved = rig.port.with(rig.now, |adapter, _| adapter.save()).unwrap_or_default();
        assert!(!new.is_empty());
        assert_eq!(saved, new, "{}: after a reset", entry.about.name);
    }
}

/// An adapter that is saved, restored into another and saved again gives the same bytes.
pub fn save_restore_save_is_identical(entry: &Entry) {
    for seed in 0..8 {
        let mut rig = Rig::new(entry, 1 << 20, true);
        disturb(&mut rig, seed);
        let saved = rig.port.with(rig.now, |adapter, _| adapter.save()).unwrap_or_default();
        let mut other = adapter(entry);
        assert_eq!(other.restore(&saved), Ok(()), "{}", entry.about.name);
        assert_eq!(other.save(), saved, "{}: seed {seed}", entry.about.name);
    }
}

/// An adapter refuses saved state that is cut, of another adapter or of another version, and does not change.
pub fn foreign_state_is_refused(entry: &Entry) {
    let mut adapter = adapter(entry);
    let saved = adapter.save();
    let before = saved.clone();
    // Every length near both ends, and samples between them in long state.
    let ends = |cut: &usize| *cut < 512 || *cut + 512 > saved.len() || cut.is_multiple_of(61);
    for cut in (0..saved.len()).filter(ends) {
        assert!(adapter.restore(&saved[..cut]).is_err(), "{}: cut at {cut}", entry.about.name);
    }
    let mut longer = saved;
    longer.push(0);
    assert!(adapter.restore(&longer).is_err());
    assert!(adapter.restore(&nicety_adapter::snapshot::encode("another", 1, &7u8)).is_err());
    assert_eq!(adapter.save(), before);
}

/// Without bus mastering, an adapter never reads or writes memory, whatever the guest does.
pub fn no_dma_without_bus_mastering(entry: &Entry) {
    let rig = Rig::new(entry, 1 << 20, true);
    if rig.port.with_pci(rig.now, |_, _| ()).is_none() {
        return;
    }
    rig.port.config_write(4, &[3, 0], rig.now);
    no_dma(entry, rig);
}

/// In D3hot an adapter does no DMA even with bus mastering (PCIe 4.0, section 5.3.1.4; the power state's place is in PCI PM 1.2,
/// section 3.2.4).
pub fn no_dma_in_d3hot(entry: &Entry) {
    let rig = Rig::new(entry, 1 << 20, true);
    let power = rig.port.with_pci(rig.now, |pci, _| pci.function().capability(1)).flatten();
    let Some(power) = power else { return };
    rig.port.config_write(4, &[7, 0], rig.now);
    rig.port.config_write(power as u16 + 4, &[3], rig.now);
    no_dma(entry, rig);
}

fn no_dma(entry: &Entry, mut rig: Rig) {
    let mut random = Random::new(77);
    let before = contents(&rig);
    for step in 0..20_000 {
        let bar = random.below(4) as u8;
        let offset = random.below(0x6000) & !3;
        let value = random.nasty(1 << 20) as u32;
        count::take();
        // Bypasses the port, which passes no register access in D3hot.
        rig.port.with_pci(rig.now, |pci, cx| pci.write(bar, offset, &value.to_le_bytes(), cx));
        rig.pass(random.below(100_000));
        assert_eq!(count::take(), 0, "{}: step {step}, register {offset:#x} of BAR {bar}", entry.about.name);
        if random.one_in(50) {
            let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9, 8, 6], &[0; 46]].concat();
            rig.far.ends().outgoing.push_back((frame, Offload::default()));
            rig.settle();
        }
    }
    assert_eq!(contents(&rig), before, "{}: memory", entry.about.name);
}

fn contents(rig: &Rig) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    rig.memory.read(0, &mut bytes).expect("the guest's memory");
    bytes
}

/// In D3hot a port's registers read as ones, and writes to them have no effect (PCI PM 1.2, section 5.4.1: only configuration space
/// answers).
pub fn registers_sleep_in_d3hot(entry: &Entry) {
    let rig = Rig::new(entry, 1 << 20, true);
    let power = rig.port.with_pci(rig.now, |pci, _| pci.function().capability(1)).flatten();
    let Some(power) = power else { return };
    let save = || rig.port.with(rig.now, |adapter, _| adapter.save()).unwrap_or_default();
    let answering = || {
        let mut data = [0x5a; 4];
        let places = (0..2).flat_map(|bar| (0..0x40).map(move |register| (bar, 4 * register)));
        let read = |&(bar, offset): &(u8, u64)| {
            rig.port.read(bar, offset, &mut data, rig.now);
            data != [0xff; 4]
        };
        places.filter(read).count()
    };
    rig.port.config_write(4, &[7, 0], rig.now);
    assert!(answering() > 0, "{}: awake", entry.about.name);
    rig.port.config_write(power as u16 + 4, &[3], rig.now);
    let (asleep, before) = (save(), rig.port.state().counters.bad_accesses());
    assert_eq!(answering(), 0, "{}: asleep", entry.about.name);
    for register in 0..0x800 {
        for bar in 0..2 {
            rig.port.write(bar, 4 * register, &0x1234_5678u32.to_le_bytes(), rig.now);
        }
    }
    assert_eq!(save(), asleep, "{}", entry.about.name);
    assert_eq!(rig.port.state().counters.bad_accesses() - before, 0x80 + 0x1000, "{}", entry.about.name);
    let place = Doorbells::place(&rig.port, rig.now);
    if let Some((place, map)) = place.and_then(|place| Some((place, Arc::new(Map::private(place.len as usize).ok()?))))
    {
        // A write to a mapped page of registers sends no message.
        let offset = rig.port.with_pci(rig.now, |pci, _| pci.doorbells()).unwrap_or_default();
        let mut page = Doorbells::new(&rig.port, place, Arc::clone(&map), rig.now);
        let (mut shown, mut left) = (vec![0; place.len as usize], vec![0; place.len as usize]);
        assert_eq!(map.read(0, &mut shown), Ok(()));
        offset.iter().for_each(|offset| assert_eq!(map.write(u64::from(*offset), &[1]), Ok(())));
        page.scan(&rig.port, rig.now);
        assert_eq!(save(), asleep, "{}: mapped", entry.about.name);
        assert_eq!(map.read(0, &mut left), Ok(()));
        assert!(left == shown, "{}: what was not written does not read so", entry.about.name);
    }
    rig.port.config_write(power as u16 + 4, &[0], rig.now);
    assert!(answering() > 0, "{}: awake again", entry.about.name);
}

/// Every register answers reads and writes at every width and offset, without a panic.
pub fn every_register_answers(entry: &Entry) {
    let mut adapter = adapter(entry);
    let mut random = Random::new(5);
    let (mut out, mut counters, memory) = (Outbox::default(), Counters::default(), Map::empty());
    let mut cx = Context::new(&memory, &mut out, &mut counters, Time::ZERO);
    let Face::Pci(pci) = adapter.face() else { return };
    for bar in 0..6u8 {
        let Some(size) = pci.function().bar_kind(usize::from(bar)).map(|bar| bar.size) else { continue };
        // Every offset among the registers; samples of long memories after them.
        let beyond = (REGISTERS..size).step_by(61).chain(size.saturating_sub(80).max(REGISTERS)..size);
        for offset in (0..size.min(REGISTERS)).chain(beyond).chain([u64::MAX - 8, u64::MAX]) {
            for width in WIDTHS {
                let mut data = [0x5a; 8];
                pci.read(bar, offset, &mut data[..width], &mut cx);
                let value = if random.one_in(2) { u64::MAX } else { random.bits() };
                pci.write(bar, offset, &value.to_le_bytes()[..width], &mut cx);
            }
        }
    }
    assert!(counters.bad_accesses() > 0, "{}: accesses of three bytes are counted as bad", entry.about.name);
}

/// A read of any width at any offset gives the bytes of the dwords that it covers; so does a block copy. I/O ports, and BARs as
/// short as a few ports, are excluded: there an index and a data register answer only one width.
pub fn wide_and_narrow_reads_agree(entry: &Entry) {
    let (mut by_dwords, mut by_width) = (adapter(entry), adapter(entry));
    let (Face::Pci(by_dwords), Face::Pci(by_width)) = (by_dwords.face(), by_width.face()) else { return };
    let (mut out, mut counters, memory) = (Outbox::default(), Counters::default(), Map::empty());
    let mut cx = Context::new(&memory, &mut out, &mut counters, Time::ZERO);
    let mut random = Random::new(11);
    for bar in 0..6u8 {
        let Some(Bar { kind, size }) = by_dwords.function().bar_kind(usize::from(bar)) else { continue };
        if kind == BarKind::Io || size <= PORTS {
            continue;
        }
        for offset in (0..size.min(REGISTERS)).step_by(4) {
            let value = (random.bits() as u32).to_le_bytes();
            by_dwords.write(bar, offset, &value, &mut cx);
            by_width.write(bar, offset, &value, &mut cx);
        }
        let (mut distinct, mut is_empty) = (0, true);
        for offset in (0..size.min(REGISTERS)).chain(size.saturating_sub(80)..size) {
            let widths = [1, 2, 3, 4, 8, 64];
            // The longest widths combine the others: samples are enough.
            let widths = if offset % 13 == 0 { &widths[..] } else { &widths[..5] };
            for &width in widths {
                // The bytes from the first dword's beginning.
                let (skip, mut expected, mut data) = ((offset & 3) as usize, [0; 72], [0x5a; 64]);
                for at in (0..skip + width).step_by(4) {
                    by_dwords.read(bar, (offset & !3) + at as u64, &mut expected[at..at + 4], &mut cx);
                }
                by_width.read(bar, offset, &mut data[..width], &mut cx);
                let place = format!("{}: {width} bytes at {offset:#x} of BAR {bar}", entry.about.name);
                assert_eq!(data[..width], expected[skip..skip + width], "{place}");
                distinct += u32::from(data[..width].iter().any(|byte| !matches!(byte, 0 | 0xff)));
                is_empty &= data[..width].iter().all(|byte| *byte == 0xff);
            }
        }
        // An empty flash reads as ones everywhere.
        assert!(distinct > 10 || is_empty, "{}: BAR {bar} holds nothing by which reads could differ", entry.about.name);
    }
}

/// Every register in a mappable page is a polled doorbell: a write there sends no message.
pub fn no_mapped_doorbell_is_overlooked(entry: &Entry) {
    let mut adapter = adapter(entry);
    let (mut out, memory) = (Outbox::default(), Map::empty());
    let Face::Pci(pci) = adapter.face() else { return };
    let Some(place) = pci.mappable() else { return };
    let looked_at = pci.doorbells();
    for offset in (0..place.len as u32).step_by(4) {
        let mut counters = Counters::default();
        let mut cx = Context::new(&memory, &mut out, &mut counters, Time::ZERO);
        pci.write(place.bar, place.offset + u64::from(offset), &[1, 0, 0, 0], &mut cx);
        let register = counters.bad_accesses() == 0;
        assert_eq!(register, looked_at.contains(&offset), "{}: offset {offset:#x}", entry.about.name);
    }
}

/// While the host has the link down, no frame passes an adapter in either direction, and each is counted as dropped. Up again, all pass.
pub fn a_link_that_is_down_passes_no_frame(entry: &Entry) {
    let name = entry.about.name;
    let mut rig = Rig::new(entry, MEMORY, true);
    let mut guest = Guest::new(PortBus::of(&rig), Net::named(name));
    guest.open().expect("a new adapter can be opened");
    let (far, near) = ([2, 0, 0, 0, 0, 9], MAC.0);
    let frame = |to: [u8; 6], from: [u8; 6]| [&to[..], &from, &[0x88, 0xb5], &[0x5a; 46]].concat();
    let sum = |drops: &[u64]| drops.iter().sum::<u64>();
    for (is_up, passed) in [(true, 1), (false, 0), (true, 1)] {
        rig.port.set_link(is_up, rig.now);
        rig.settle();
        guest.attend(&mut |_, _| ()).expect("a driver that works");
        rig.pass(20_000_000);
        let before = rig.port.state().counters;
        assert!(guest.queue(&frame(far, near), &Offload::default()).expect("a driver that works"), "{name}");
        guest.flush().expect("a driver that works");
        rig.far.ends().outgoing.push_back((frame(near, far), Offload::default()));
        rig.settle();
        let after = rig.port.state().counters;
        let sent = rig.far.ends().incoming.drain(..).count() as u64;
        let taken = after.taken().packets - before.taken().packets;
        assert_eq!((sent, taken), (passed, passed), "{name}: out and in, link {is_up}");
        let dropped = [(&before, 1 - passed), (&after, 0)]
            .map(|(counters, more)| (sum(&counters.transmit_drops) + more, sum(&counters.receive_drops) + more));
        assert_eq!(dropped[0], dropped[1], "{name}: counted, link {is_up}");
    }
}

/// Makes random accesses, so that the state is no longer new.
fn disturb(rig: &mut Rig, seed: u64) {
    let mut random = Random::new(seed);
    rig.port.config_write(4, &[7, 0], rig.now);
    for _ in 0..2000 {
        let bar = random.below(3) as u8;
        let offset = random.below(0x6000) & !3;
        rig.port.write(bar, offset, &(random.bits() as u32).to_le_bytes(), rig.now);
    }
    rig.port.with_rings(rig.now, |rings, cx| {
        rings.take_features(rings.features());
        rings.kick(0, cx);
    });
    rig.step();
    count::take();
}
