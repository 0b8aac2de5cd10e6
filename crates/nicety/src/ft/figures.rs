//! What a host measures of itself: the log's traffic, and how long commits take.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nicety_tolerance::{Role, Status};
use serde_json::{Value, json};

/// Commits whose times are kept.
const COMMITS: usize = 1024;
/// Traffic is averaged over the time since the last but one of these moments.
const WINDOW: Duration = Duration::from_secs(2);

/// See the module's page.
pub struct Figures {
    /// Calls that the secondary did not have, and when they were made.
    open: VecDeque<(u64, Instant)>,
    commits: VecDeque<Duration>,
    /// Calls when it was last looked at.
    calls: u64,
    /// Bytes sent and received.
    traffic: [u64; 2],
    /// Two moments at least [`WINDOW`] apart, with the traffic until then.
    marks: [(Instant, [u64; 2]); 2],
}

impl Figures {
    /// Nothing so far.
    pub fn new(now: Instant) -> Self {
        let (open, commits, traffic) = (VecDeque::new(), VecDeque::new(), [0; 2]);
        Self { open, commits, calls: 0, traffic, marks: [(now, traffic); 2] }
    }

    /// Bytes sent to the other host and received from it.
    pub fn add_traffic(&mut self, [sent, received]: [u64; 2], now: Instant) {
        self.traffic = [self.traffic[0] + sent, self.traffic[1] + received];
        if now.duration_since(self.marks[1].0) >= WINDOW {
            self.marks = [self.marks[1], (now, self.traffic)];
        }
    }

    /// Looks at what the guest has done. Only calls that somebody must know are commits.
    pub fn look(&mut self, status: &Status, now: Instant) {
        if status.role != Role::Primary || !status.is_protected {
            self.open.clear();
        } else if status.calls > self.calls {
            self.open.push_back((status.calls, now));
        }
        self.calls = status.calls;
        while let Some((_, at)) = self.open.pop_front_if(|(calls, _)| *calls <= status.known) {
            if self.commits.len() == COMMITS {
                self.commits.pop_front();
            }
            self.commits.push_back(now.duration_since(at));
        }
    }

    /// All of it for a program. `lease`: what is left of it.
    pub fn json(&self, status: &Status, lease: Option<Duration>, now: Instant) -> Value {
        let Status { role, epoch, calls, lag, is_protected, waiting: (frames, bytes), is_held, image, .. } = status;
        let part = match role {
            Role::Founding => "founding",
            Role::Primary => "primary",
            Role::Secondary => "secondary",
            Role::Out(_) => "out",
        };
        let mut commits: Vec<u128> = self.commits.iter().map(Duration::as_micros).collect();
        commits.sort_unstable();
        let seconds = now.duration_since(self.marks[0].0).as_secs_f64().max(1e-3);
        let rate = |index: usize| ((self.traffic[index] - self.marks[0].1[index]) as f64 * 8.0 / seconds) as u64;
        let is_primary = *role == Role::Primary;
        json!({
            "role": part,
            "protected": is_protected,
            "epoch": epoch,
            "calls": calls,
            "lag_calls": lag,
            "log": {
                "sent_bytes": self.traffic[0],
                "received_bytes": self.traffic[1],
                "sent_bits_per_second": rate(0),
                "received_bits_per_second": rate(1),
            },
            "commit_microseconds": {
                "count": commits.len(),
                "median": commits.get(commits.len() / 2),
                "most": commits.last(),
            },
            "joining": image.map(|(bytes, all)| json!({ "image_bytes": all, "taken_bytes": bytes })),
            "gate": { "frames": frames, "bytes": bytes, "holds_guest": is_held },
            "lease_milliseconds": lease.filter(|_| is_primary).map(|lease| lease.as_millis()),
        })
    }
}
