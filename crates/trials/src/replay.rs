//! Plays a recorded trace against a fresh adapter: every read must give the recorded server's answer.
//!
//! A trace has a driver's accesses but not its memory. So registers that announce work in memory are not written, no frame arrives,
//! and registers that depend on traffic are not compared once the recorded driver had traffic (`replay/left_out.rs`). Everything
//! else is: identity, EEPROM, PHY, link, reset, filters, commands, configuration space.

mod left_out;
mod structures;
mod window;

use std::fmt;

use nicety_adapter::Reset;
use nicety_adapter::trace::{Access, Event, Region, RegisterName, Trace};
use nicety_adapters::{Entry, find};

use self::left_out::LeftOut;
use self::window::{Window, Word};
use crate::guest::driver;
use crate::rig::Rig;

/// Bytes of the recorded guest's memory: its rings may be anywhere in it.
const MEMORY: usize = 256 << 20;
/// Virtual time from one access to the next.
const STEP_NS: u64 = 1_000;
/// The first phase of a stored trace with frames.
const FIRST_TRAFFIC: &str = "address";

/// Amounts of a trace that were compared and played.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Lines of the reads with the recorded answer.
    pub compared: Vec<usize>,
    /// Reads that were played but not compared.
    pub traffic: usize,
    /// Reads of received frames' bytes through a data port, which were played but not compared.
    pub frames: usize,
    /// Writes that were played.
    pub written: usize,
    /// Writes that were not played.
    pub not_played: usize,
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Coverage { compared, traffic, frames, written, not_played } = self;
        let compared = compared.len();
        write!(f, "{compared} reads compared, {traffic} not, {frames} of frames; ")?;
        write!(f, "{written} writes played, {not_played} not")
    }
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

/// Plays a trace. Returns its first difference, or the amounts compared.
///
/// # Panics
/// If no adapter has the name that the trace gives.
pub fn replay(trace: &Trace) -> Result<Coverage, Box<Difference>> {
    let entry = find(&trace.adapter).unwrap_or_else(|| panic!("no adapter is called {}", trace.adapter));
    let left_out = left_out::of(driver(entry.about.name).name);
    let (rig, window) = (Rig::new(entry, MEMORY, false), Window::default());
    let mut player = Player { entry, left_out, rig, window, phase: "", traffic: false };
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
            // A player makes calls, with their memory.
            Event::Call(_) => {}
        }
    }
    Ok(coverage)
}

struct Player<'t> {
    entry: &'static Entry,
    left_out: LeftOut,
    rig: Rig,
    window: Window,
    phase: &'t str,
    traffic: bool,
}

impl Player<'_> {
    fn access(&mut self, line: usize, access: Access, coverage: &mut Coverage) -> Result<(), Box<Difference>> {
        let register = (self.entry.register)(access.region, access.offset);
        let word = register.map(|register| self.window.word(register));
        if access.write {
            self.write(access, word, coverage);
            return Ok(());
        }
        let Access { region, offset, width, value, .. } = access;
        let (port, now) = (&self.rig.port, self.rig.now);
        let mut bytes = [0; 8];
        let data = &mut bytes[..width as usize];
        match region {
            Region::Bar(bar) => port.read(bar, offset, data, now),
            Region::Config => port.config_read(offset, data, now),
            Region::Rom => return Ok(()),
        }
        self.rig.settle();
        let answered = u64::from_le_bytes(bytes);
        if self.traffic && word == Some(left_out::DATA_PORT) {
            coverage.frames += 1;
        } else if word.is_some_and(|word| self.left_out.is_read(word, self.traffic)) {
            coverage.traffic += 1;
        } else if answered == value {
            coverage.compared.push(line);
        } else {
            let phase = self.phase.to_owned();
            return Err(Box::new(Difference { line, phase, recorded: access, register, answered }));
        }
        Ok(())
    }

    fn write(&mut self, access: Access, word: Option<Word>, coverage: &mut Coverage) {
        if word.is_some_and(|word| self.left_out.is_written(word)) {
            coverage.not_played += 1;
            return;
        }
        coverage.written += 1;
        let Access { region, offset, width, value, .. } = access;
        let (bytes, now) = (value.to_le_bytes(), self.rig.now);
        let data = &bytes[..width as usize];
        if let Some(word) = word {
            structures::before_write(&self.rig, self.entry, &self.window, word, value);
            self.window.written(word, value);
        }
        match region {
            Region::Bar(bar) => {
                self.rig.port.write(bar, offset, data, now);
            }
            Region::Config => self.rig.port.config_write(offset as u16, data, now),
            Region::Rom => {}
        }
        self.rig.settle();
    }
}
