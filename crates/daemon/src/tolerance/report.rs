//! The state of a log, for reports.

use std::fmt;

use nicety_adapter::count;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The log of a port at another daemon, before which none of the port's frames leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToleranceReport {
    /// Address of the other daemon.
    pub peer: String,
    /// Whether the other daemon follows. If not, frames leave without it.
    pub protected: bool,
    /// Why it does not. `null`: it follows, or was not reached yet.
    pub why_not: Option<String>,
    /// Calls of the adapter so far.
    pub calls: u64,
    /// Calls that the other daemon lacks. 0 if it does not follow.
    pub lag_calls: u64,
    /// Bytes sent to it so far.
    pub sent_bytes: u64,
    /// Bytes received from it so far.
    pub received_bytes: u64,
    /// Median of the times from a message to its acknowledgement, of the last 512. `null`: there was none.
    pub commit_median_microseconds: Option<u64>,
    /// Longest of these times.
    pub commit_most_microseconds: Option<u64>,
    /// Packets that wait for acknowledgements.
    pub gate_packets: u64,
    /// Their bytes.
    pub gate_bytes: u64,
    /// Whether the guest waits, too, because there are so many of them.
    pub gate_is_full: bool,
}

/// Prints it as `nicety ft status` and `nicety ports` show it.
impl fmt::Display for ToleranceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.protected, &self.why_not) {
            (true, _) => write!(f, "protected by {}, which lacks {}", self.peer, count(self.lag_calls, "call"))?,
            (false, Some(why)) => write!(f, "not protected: {}: {why}", self.peer)?,
            (false, None) => write!(f, "not protected: {} was not reached yet", self.peer)?,
        }
        write!(f, "; {}; log {} bytes out, {} in", count(self.calls, "call"), self.sent_bytes, self.received_bytes)?;
        if let (Some(median), Some(most)) = (self.commit_median_microseconds, self.commit_most_microseconds) {
            write!(f, "; commit {median} µs in the median, {most} µs at most")?;
        }
        write!(f, "; gate {}, {} bytes", count(self.gate_packets, "packet"), self.gate_bytes)?;
        if self.gate_is_full { f.write_str(", and the guest waits") } else { Ok(()) }
    }
}
