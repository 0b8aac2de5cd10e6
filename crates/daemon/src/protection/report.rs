//! The state of a VM's protection, for reports.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Stand-stills that a median is of.
const STOPS: usize = 512;

/// The role of a VM on this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VmRole {
    /// Its QEMU is not there, or was not asked yet.
    #[default]
    Absent,
    /// It runs here.
    Owner,
    /// Its copy is here.
    Twin,
}

/// The protection of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmReport {
    /// Its name.
    pub name: String,
    /// The VM's role on this host.
    pub role: VmRole,
    /// Whether the VM goes on at the other host if this one dies.
    pub protected: bool,
    /// Its state: `protected`, `alone`, `joining`, `isolated`, and so on.
    pub state: String,
    /// Why it is not protected. `null`: it is.
    pub why_not: Option<String>,
    /// The other host.
    pub peer: String,
    /// The copy under way, counted from the protection's begin.
    pub epoch: u64,
    /// Copies that the twin lacks.
    pub lag_epochs: u64,
    /// Median of the times for which the VM stood still for a copy, in microseconds, of the last 512. `null`: there was none.
    pub stop_median_microseconds: Option<u64>,
    /// Longest of these times.
    pub stop_most_microseconds: Option<u64>,
    /// Bytes of QEMU's stream in this protection, both directions.
    pub stream_bytes: u64,
    /// Bytes on the wire in this protection, both directions, with encryption and the daemons' own messages.
    pub wire_bytes: u64,
    /// Packets that wait for a copy.
    pub gate_packets: u64,
    /// Their bytes.
    pub gate_bytes: u64,
    /// Takeovers by this daemon.
    pub takeovers: u64,
    /// From the first sign that the owner is lost to the VM that runs here, at the last takeover, in microseconds. `null`: there was none.
    pub takeover_microseconds: Option<u64>,
    /// Packets that waited in the other host's gate when the copy was made with which the VM went on here, at the last takeover. At most so
    /// many that the guest has sent were never seen. `null`: there was no takeover.
    pub takeover_unseen_packets: Option<u64>,
    /// Their bytes.
    pub takeover_unseen_bytes: Option<u64>,
}

/// Prints it as `nicety ft status` shows it.
impl fmt::Display for VmReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.role {
            VmRole::Absent => "not here",
            VmRole::Owner if self.protected => "runs here, protected",
            VmRole::Owner => "runs here, not protected",
            VmRole::Twin => "its copy is here",
        };
        write!(f, "{}: {what}", self.name)?;
        // That word says no more.
        if self.state != "absent" {
            write!(f, " ({})", self.state)?;
        }
        write!(f, "; peer {}", self.peer)?;
        if let Some(why) = &self.why_not {
            write!(f, "\n    {why}")?;
        }
        if let (Some(median), Some(most)) = (self.stop_median_microseconds, self.stop_most_microseconds) {
            write!(
                f,
                "\n    copy {}, {} behind; stands still {median} µs in the median, {most} µs at most",
                self.epoch, self.lag_epochs
            )?;
        }
        if self.wire_bytes > 0 {
            write!(f, "\n    link {} bytes, of which {} are QEMU's", self.wire_bytes, self.stream_bytes)?;
        }
        if self.gate_packets > 0 {
            write!(f, "; gate {} packets, {} bytes", self.gate_packets, self.gate_bytes)?;
        }
        if let Some(took) = self.takeover_microseconds {
            write!(f, "\n    takeovers {}, the last one in {took} µs", self.takeovers)?;
            if let (Some(packets), Some(bytes)) = (self.takeover_unseen_packets, self.takeover_unseen_bytes) {
                write!(f, "; the other host held {packets} packets, {bytes} bytes, that nobody may have seen")?;
            }
        }
        Ok(())
    }
}

/// Times for which a VM stood still.
#[derive(Debug, Default)]
pub(super) struct Stops(VecDeque<u64>);

impl Stops {
    pub fn push(&mut self, stop: Duration) {
        if self.0.len() == STOPS {
            self.0.pop_front();
        }
        self.0.push_back(u64::try_from(stop.as_micros()).unwrap_or(u64::MAX));
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Median and most.
    pub fn figures(&self) -> (Option<u64>, Option<u64>) {
        let mut sorted: Vec<u64> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        (sorted.get(sorted.len() / 2).copied(), sorted.last().copied())
    }
}
