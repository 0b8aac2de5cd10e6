//! Plays a recorded trace against a fresh adapter: every read must give the recorded server's answer.
//!
//! A trace has a driver's accesses but not its memory. So registers that announce work in memory are not written ([`NOT_PLAYED`]),
//! no frame moves, and registers that depend on traffic are not compared once the recorded driver had traffic ([`TRAFFIC`]).
//! Everything else is: identity, EEPROM, PHY, link, reset, filters, commands, configuration space.

use std::fmt;

use nicety_adapter::Reset;
use nicety_adapter::trace::{Access, Event, Region, RegisterName, Trace};
use nicety_adapters::{Entry, find};

use crate::guest::driver;
use crate::rig::Rig;

/// Bytes of the recorded guest's memory: its rings may be anywhere in it.
const MEMORY: usize = 256 << 20;
/// Virtual time from one access to the next.
const STEP_NS: u64 = 1_000;
/// The first phase of a stored trace with frames.
const FIRST_TRAFFIC: &str = "address";

/// Doorbells, by driver: indices of rings in the recorded guest's memory.
pub const NOT_PLAYED: [(&str, &[&str]); 2] =
    [("e1000", &["TDT", "RDT"]), ("vmxnet3", &["TXPROD", "RXPROD", "RXPROD2"])];

/// Registers whose values depend on traffic or on an adapter's events: not compared after the first traffic.
pub const TRAFFIC: [(&str, &[&str]); 1] = [(
    "e1000",
    &[
        "ICR", "TPR", "TPT", "TOTL", "TOTH", "TORL", "TORH", "GPRC", "GPTC", "GORCL", "GORCH", "GOTCL", "GOTCH",
        "BPRC", "BPTC", "MPRC", "MPTC", "PRC64", "PRC127", "PRC255", "PRC511", "PRC1023", "PRC1522", "PTC64", "PTC127",
        "PTC255", "PTC511", "PTC1023", "PTC1522", "TSCTC", "RNBC", "MPC",
    ],
)];

/// Amounts of a trace that were compared and played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Reads with the recorded answer.
    pub compared: usize,
    /// Reads that were played but not compared.
    pub traffic: usize,
    /// Writes that were played.
    pub written: usize,
    /// Writes that were not played.
    pub not_played: usize,
}

/// A read with another answer than the recorded one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The trace's line.
    pub line: usize,
    /// Its phase.
    pub phase: String,
    /// The recorded read.
    pub recorded: Access,
    /// The register's name.
    pub register: Option<RegisterName>,
    /// The value now.
    pub answered: u64,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Access { region, offset, width, value, .. } = self.recorded;
        let digits = width as usize * 2;
        write!(f, "line {}, in `{}`: read of {region} {offset:#06x}", self.line, self.phase)?;
        if let Some(register) = self.register {
            write!(f, " ({register})")?;
        }
        write!(f, ": recorded 0x{value:0digits$x}, answered 0x{:0digits$x}", self.answered)
    }
}

fn listed(list: &[(&str, &[&str])], adapter: &str, register: Option<RegisterName>) -> bool {
    let driver = driver(adapter).name;
    let words = list.iter().find(|(name, _)| *name == driver).map_or(&[][..], |(_, words)| words);
    register.is_some_and(|register| words.contains(&register.word))
}

/// Plays a trace. Returns its first difference, or the amounts compared.
///
/// # Panics
/// If no adapter has the name that the trace gives.
pub fn replay(trace: &Trace) -> Result<Coverage, Box<Difference>> {
    let entry = find(&trace.adapter).unwrap_or_else(|| panic!("no adapter is called {}", trace.adapter));
    let mut player = Player { entry, rig: Rig::new(entry, MEMORY, false), phase: "", traffic: false };
    let mut coverage = Coverage::default();
    for (line, record) in &trace.records {
        player.rig.pass(STEP_NS);
        match &record.event {
            Event::Access(access) if !access.has_value() => {}
            Event::Access(access) => player.access(*line, *access, &mut coverage)?,
            Event::Reset => player.rig.port.reset(Reset::Function, player.rig.now),
            Event::Mark(phase) => {
                player.phase = phase;
                player.traffic |= phase == FIRST_TRAFFIC;
            }
            // Interrupts, and the VMM's delivery of them, depend on traffic. Rings are memory.
            Event::Interrupt(_) | Event::Line(_) | Event::Irqs { .. } | Event::Kick(_) => {}
            Event::Connect | Event::Disconnect | Event::Lost(_) => {}
        }
    }
    Ok(coverage)
}

struct Player<'t> {
    entry: &'static Entry,
    rig: Rig,
    phase: &'t str,
    traffic: bool,
}

impl Player<'_> {
    fn access(&mut self, line: usize, access: Access, coverage: &mut Coverage) -> Result<(), Box<Difference>> {
        let Access { write, region, offset, width, value } = access;
        let (port, now) = (&self.rig.port, self.rig.now);
        let (name, register) = (self.entry.about.name, (self.entry.register)(region, offset));
        let mut bytes = value.to_le_bytes();
        let data = &mut bytes[..width as usize];
        if write {
            if listed(&NOT_PLAYED, name, register) {
                coverage.not_played += 1;
                return Ok(());
            }
            coverage.written += 1;
            match region {
                Region::Bar(bar) => {
                    vmxnet3::before_write(&self.rig, self.entry, access);
                    port.write(bar, offset, data, now);
                }
                Region::Config => port.config_write(offset as u16, data, now),
                Region::Rom => {}
            }
            self.rig.settle();
            return Ok(());
        }
        match region {
            Region::Bar(bar) => port.read(bar, offset, data, now),
            Region::Config => port.config_read(offset, data, now),
            Region::Rom => return Ok(()),
        }
        let answered = u64::from_le_bytes(bytes);
        if self.traffic && listed(&TRAFFIC, name, register) {
            coverage.traffic += 1;
        } else if answered == value {
            coverage.compared += 1;
        } else {
            let phase = self.phase.to_owned();
            return Err(Box::new(Difference { line, phase, recorded: access, register, answered }));
        }
        Ok(())
    }
}

/// A structure in memory, which a trace does not have, configures vmxnet3. When the recorded driver activates the device, a
/// structure like Linux's is written to the recorded address (structures: vmxnet3_defs.h, upt1_defs.h).
mod vmxnet3 {
    use super::{Access, Entry, Region, Rig};

    const CMD: u64 = 0x20;
    const DSAL: u64 = 0x10;
    const ACTIVATE: u64 = 0xcafe_0000;
    /// Rings, then queue descriptors, at addresses that no kernel uses for its own.
    const RINGS: u64 = 0x20_0000;
    const QUEUES: u64 = 0x10_0000;
    const QUEUE_BYTES: u64 = 256;
    /// Descriptors of each ring.
    const SIZE: u32 = 512;

    pub(super) fn before_write(rig: &Rig, entry: &Entry, access: Access) {
        let activates = access.region == Region::Bar(1) && access.offset == CMD && access.value == ACTIVATE;
        if entry.about.name != "vmxnet3" || !activates {
            return;
        }
        let mut address = [0; 8];
        let (low, high) = address.split_at_mut(4);
        rig.port.read(1, DSAL, low, rig.now);
        rig.port.read(1, DSAL + 8, high, rig.now);
        let shared = u64::from_le_bytes(address);
        let put = |at: u64, bytes: &[u8]| rig.memory.write(at, bytes).expect("the recorded guest's memory");
        put(shared, &0xbabe_fee1u32.to_le_bytes());
        // Checksums, VLAN, LRO; the queue descriptors; MTU; pieces; one queue in each direction.
        put(shared + 24, &0xdu64.to_le_bytes());
        put(shared + 40, &QUEUES.to_le_bytes());
        put(shared + 56, &1500u32.to_le_bytes());
        put(shared + 60, &[18, 0, 1, 1]);
        // Vectors that mask themselves; two vectors, the second for events.
        put(shared + 80, &[1, 2, 1]);
        let queue = |at: u64, places: &[(u64, u64)], sizes: &[u32]| {
            places.iter().for_each(|(offset, place)| put(at + offset, &place.to_le_bytes()));
            (0..).zip(sizes).for_each(|(index, size)| put(at + 56 + 4 * index, &size.to_le_bytes()));
        };
        let ring = |number: u64| RINGS + number * 0x1_0000;
        queue(QUEUES, &[(16, ring(0)), (32, ring(1))], &[SIZE, 0, SIZE]);
        queue(QUEUES + QUEUE_BYTES, &[(16, ring(2)), (24, ring(3)), (32, ring(4))], &[SIZE, SIZE, 2 * SIZE]);
    }
}
