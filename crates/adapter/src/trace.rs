//! A driver's accesses to its device as text, one line each: to be read, compared, sent and replayed.
//!
//! ```text
//! nicety-trace 2
//! port vm1
//! adapter e1000
//! connect @1200345
//! R bar0 0x0008 4 0x00000a83 @1201007  # STATUS
//! W bar0 0x00d8 4 0xffffffff @1201822  # IMC
//! line up @1203377
//! ```
//! The first lines are the header; then each line is an [`Event`] and its time, in microseconds since the daemon's start. Kept
//! traces have no times, so that two of them differ only where the drivers behaved differently. Text behind a `#` is for the reader.
//! docs/traces.md describes the format.

mod made;

use std::fmt;
use std::str::FromStr;

pub use crate::access::{Access, Region, RegisterName, VALUE_BYTES};
use crate::tape::Entry;
use crate::time::Time;
pub use made::Made;

/// The first line of every trace.
pub const VERSION: &str = "nicety-trace 2";
/// A VMM's change of interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqChange {
    /// The VMM masks them.
    Mask,
    /// The VMM unmasks them.
    Unmask,
    /// The VMM connects or disconnects their eventfds.
    Connect,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The guest accessed the device.
    Access(Access),
    /// The guest kicked a ring.
    Kick(u16),
    /// The adapter raised this MSI or MSI-X vector, or signalled completions on this ring.
    Interrupt(u16),
    /// The adapter changed its INTx line.
    Line(bool),
    /// The VMM changed interrupts of an index (0: INTx, 1: MSI, 2: MSI-X).
    Irqs {
        /// Kind of interrupt.
        index: u32,
        /// The change.
        change: IrqChange,
        /// The first interrupt.
        start: u32,
        /// Number of interrupts.
        count: u32,
    },
    /// The VMM reset the device.
    Reset,
    /// A VMM connected.
    Connect,
    /// The VMM disconnected.
    Disconnect,
    /// This many events were lost: they came faster than they could be written.
    Lost(u64),
    /// A comment by the trace's author: the title of the next part.
    Mark(String),
    /// A call of the adapter, with its inputs: a [`Player`](crate::tape::Player) makes it again.
    Call(Box<Entry>),
}

/// An event and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedEvent {
    /// The time, if known.
    pub at: Option<Time>,
    /// The event.
    pub event: Event,
}

/// A whole trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The port that it was recorded at.
    pub port: String,
    /// Its adapter.
    pub adapter: String,
    /// The part number of a long trace; `None` for a trace in one part.
    pub part: Option<u64>,
    /// The settings that the adapter was made with. Traces with calls have them.
    pub made: Option<Made>,
    /// The events with their line numbers, from 1.
    pub records: Vec<(usize, TimedEvent)>,
}

/// Reasons why a text is not a trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct TraceError {
    /// Number of the line, from 1.
    pub line: usize,
    /// The mistake in that line, and the expected text.
    pub what: String,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Access(access) => {
                let Access { write, region, offset, width, value } = access;
                write!(f, "{} {region} {offset:#06x} {width}", if *write { 'W' } else { 'R' })?;
                if access.has_value() {
                    write!(f, " 0x{value:0digits$x}", digits = *width as usize * 2)?;
                }
                Ok(())
            }
            Event::Kick(ring) => write!(f, "kick {ring}"),
            Event::Interrupt(vector) => write!(f, "interrupt {vector}"),
            Event::Line(level) => write!(f, "line {}", if *level { "up" } else { "down" }),
            Event::Irqs { index, change, start, count } => {
                let change = match change {
                    IrqChange::Mask => "mask",
                    IrqChange::Unmask => "unmask",
                    IrqChange::Connect => "connect",
                };
                write!(f, "irqs {index} {change} {start} {count}")
            }
            Event::Reset => f.write_str("reset"),
            Event::Connect => f.write_str("connect"),
            Event::Disconnect => f.write_str("disconnect"),
            Event::Lost(count) => write!(f, "lost {count}"),
            Event::Mark(what) => write!(f, "mark {what}"),
            Event::Call(entry) => write!(f, "call {entry}"),
        }
    }
}

impl fmt::Display for TimedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.event.fmt(f)?;
        self.at.map_or(Ok(()), |at| write!(f, " @{}", at.0 / 1_000))
    }
}

/// A word as a number, decimal or after `0x`.
fn number<T: TryFrom<u64>>(word: Option<&str>, what: &str) -> Result<T, String> {
    let word = word.ok_or_else(|| format!("{what} is missing"))?;
    let value = match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    };
    let fits = value.and_then(|value| T::try_from(value).ok());
    fits.ok_or_else(|| format!("{what} cannot be `{word}`"))
}

impl FromStr for TimedEvent {
    type Err = String;

    fn from_str(line: &str) -> Result<TimedEvent, String> {
        let line = line.split('#').next().unwrap_or_default().trim();
        let (line, at) = match line.rsplit_once('@') {
            Some((before, time)) => {
                let micros: u64 = number(Some(time), "the time")?;
                (before.trim_end(), Some(Time(micros.saturating_mul(1_000))))
            }
            None => (line, None),
        };
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut words = rest.split_whitespace();
        let event = match verb {
            "mark" => return Ok(TimedEvent { at, event: Event::Mark(rest.trim().to_owned()) }),
            "call" => return Ok(TimedEvent { at, event: Event::Call(Box::new(rest.parse()?)) }),
            "R" | "W" => Event::Access(access(verb == "W", &mut words)?),
            "kick" => Event::Kick(number(words.next(), "the ring")?),
            "interrupt" => Event::Interrupt(number(words.next(), "the vector")?),
            "line" => match words.next() {
                Some("up") => Event::Line(true),
                Some("down") => Event::Line(false),
                _ => return Err("a line goes `up` or `down`".to_owned()),
            },
            "irqs" => irqs(&mut words)?,
            "reset" => Event::Reset,
            "connect" => Event::Connect,
            "disconnect" => Event::Disconnect,
            "lost" => Event::Lost(number(words.next(), "how many")?),
            _ => {
                let known = "R, W, kick, interrupt, line, irqs, reset, connect, disconnect, lost, mark, call";
                return Err(format!("`{verb}` is no event: {known}"));
            }
        };
        match words.next() {
            Some(word) => Err(format!("`{word}` is one word too many")),
            None => Ok(TimedEvent { at, event }),
        }
    }
}

fn access<'a>(write: bool, words: &mut impl Iterator<Item = &'a str>) -> Result<Access, String> {
    let region = words.next().ok_or("the region is missing")?.parse()?;
    let offset = number(words.next(), "the offset")?;
    let width = number(words.next(), "the width")?;
    let mut access = Access { write, region, offset, width, value: 0 };
    if access.has_value() {
        access.value = number(words.next(), "the value")?;
        if width < 8 && access.value >> (8 * width) != 0 {
            return Err(format!("the value {:#x} has more than {width} bytes", access.value));
        }
    }
    Ok(access)
}

fn irqs<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<Event, String> {
    let index = number(words.next(), "the kind")?;
    let change = match words.next() {
        Some("mask") => IrqChange::Mask,
        Some("unmask") => IrqChange::Unmask,
        Some("connect") => IrqChange::Connect,
        _ => return Err("a VMM's change is `mask`, `unmask` or `connect`".to_owned()),
    };
    let start = number(words.next(), "the first")?;
    Ok(Event::Irqs { index, change, start, count: number(words.next(), "how many")? })
}

impl Trace {
    /// The header lines of a file.
    pub fn header(port: &str, adapter: &str, part: Option<u64>, made: Option<Made>) -> String {
        let part = part.map(|part| format!("part {part}\n")).unwrap_or_default();
        let made = made.map(|made| format!("{made}\n")).unwrap_or_default();
        format!("{VERSION}\nport {port}\nadapter {adapter}\n{part}{made}")
    }

    /// Parses a file's text.
    pub fn parse(text: &str) -> Result<Trace, TraceError> {
        let mut lines = (1..).zip(text.lines());
        let wrong = |line, what: String| TraceError { line, what };
        match lines.next() {
            Some((_, VERSION)) => {}
            other => {
                let found = other.map_or("", |(_, line)| line);
                return Err(wrong(1, format!("`{found}` is not `{VERSION}`: no trace, or one of another version")));
            }
        }
        let mut trace =
            Trace { port: String::new(), adapter: String::new(), part: None, made: None, records: Vec::new() };
        for (at, line) in lines {
            let content = line.split('#').next().unwrap_or_default().trim();
            match content.split_once(' ') {
                _ if content.is_empty() => {}
                Some(("port", name)) => trace.port = name.to_owned(),
                Some(("adapter", name)) => trace.adapter = name.to_owned(),
                Some(("made", made)) => trace.made = Some(made.parse().map_err(|what| wrong(at, what))?),
                Some(("part", part)) => {
                    trace.part = Some(number(Some(part), "the part").map_err(|what| wrong(at, what))?);
                }
                _ => trace.records.push((at, content.parse().map_err(|what| wrong(at, what))?)),
            }
        }
        if trace.adapter.is_empty() {
            return Err(wrong(2, "no line `adapter NAME` says what was recorded".to_owned()));
        }
        Ok(trace)
    }
}

#[cfg(test)]
#[path = "trace_test.rs"]
mod tests;
