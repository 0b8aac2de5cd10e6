//! Commands to QEMU, what comes back, and the state machines that hold a conversation.

use std::fmt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A command to QEMU.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// Its name in QMP's reference, `query-status`.
    pub name: &'static str,
    /// Its arguments, an object.
    pub arguments: Value,
    /// Whether QEMU runs it even while its main loop is stuck (`exec-oob`). Few commands allow this; `yank` does.
    pub is_out_of_band: bool,
}

impl Command {
    /// A command that QEMU's main loop runs, in order.
    pub fn new(name: &'static str, arguments: Value) -> Command {
        Command { name, arguments, is_out_of_band: false }
    }
}

/// Why QEMU did not run a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{desc}")]
pub struct Failure {
    /// QEMU's class, mostly `GenericError`.
    pub class: String,
    /// QEMU's own words.
    pub desc: String,
}

/// The result of a command.
pub type Answer = Result<Value, Failure>;

/// Something that QEMU has sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// The answer to the command that [`Monitor::send`](crate::Monitor::send) numbered so.
    Answer {
        /// The command's number.
        id: u64,
        /// Its result.
        result: Answer,
    },
    /// An event.
    Event {
        /// Its name, `STOP`.
        name: String,
        /// Its data; `null` if it has none.
        data: Value,
        /// QEMU's host clock when it happened: time since 1970, in microseconds. Zero if QEMU cannot read that clock.
        at: Duration,
    },
}

/// A version of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
    /// The third number.
    pub micro: u32,
}

impl Version {
    /// The version in `query-version`'s answer, or in a greeting's `version`.
    pub fn read(answer: &Value) -> Option<Version> {
        let number = |name: &str| answer["qemu"][name].as_u64().and_then(|number| u32::try_from(number).ok());
        Some(Version { major: number("major")?, minor: number("minor")?, micro: number("micro")? })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.micro)
    }
}

/// A conversation with one QEMU: a state machine without I/O.
pub trait Dialogue {
    /// The next command, to be sent now. Its number comes back by [`Dialogue::sent`] before anything else is called.
    fn command(&mut self, now: Instant) -> Option<Command>;

    /// The number of the command that [`Dialogue::command`] gave.
    fn sent(&mut self, id: u64);

    /// Something that QEMU has sent. Answers to others' commands are ignored.
    fn hear(&mut self, item: &Item, now: Instant);

    /// When [`Dialogue::command`] must be called again at the latest.
    fn wake_at(&self) -> Option<Instant>;
}
