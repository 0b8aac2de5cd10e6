//! A port's log lines, rate-limited: guests, VMMs and clients cause them and must not fill the disk. Each kind of line has a
//! burst, then one line a minute (a token bucket). Suppressed lines are counted. The count comes with the next line of the kind,
//! after a minute without one, or when the port closes.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use nicety_adapter::{PortId, Time, count};
use tracing::{debug, info, warn};

use crate::clock::Clock;
use crate::run::inbox::{Inbox, Note};
use crate::run::journal::{Again, NotKept};

/// The burst: lines of a kind at once.
const BURST: u32 = 8;
/// After the burst: one line of a kind in this time.
const PAUSE: Duration = Duration::from_secs(60);

/// A port for which the keeper had no room is kept again by then, or the log says so.
const PASSES: Duration = Duration::from_secs(1);

/// [`PortLog::due`] when no count is pending.
const NOTHING: u64 = u64::MAX;

/// The kind of a line. Each kind has its own limit, so that a flood of one hides no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A VMM connected.
    Connected,
    /// The port connects to its VMM, but no VMM listens yet.
    NotListening,
    /// The port connects to its VMM, but the VMM cannot be reached or is silent.
    Unreached,
    /// A VMM disconnected.
    Gone,
    /// A VMM was disconnected because its port is closed.
    Closed,
    /// A second VMM was refused.
    Occupied,
    /// A connection could not be accepted.
    NotAccepted,
    /// A connection could not be watched or served.
    NotServed,
    /// A VMM was disconnected because it sent nothing.
    Silent,
    /// A VMM was disconnected because it stopped within a message.
    Stopped,
    /// A VMM was disconnected because it did not read its answers.
    Unread,
    /// A VMM was disconnected, or its port stopped, because it took shared memory back.
    Damaged,
    /// A VMM was disconnected because it broke the protocol, or its socket failed.
    Broken,
    /// The VM reset its adapter.
    Reset,
    /// The port's state was saved.
    Saved,
    /// A state was restored.
    Restored,
    /// The VM does not share its memory.
    Unshared,
    /// The VM's memory is empty.
    Blank,
    /// A memory region was refused.
    Memory,
    /// A message was refused.
    Refused,
    /// A queue is stopped.
    Stalled,
    /// The guest's driver made a mistake.
    GuestError,
    /// The adapter was refused an access to guest memory.
    RefusedAccess,
    /// An uplink has no peer.
    Vacant,
    /// The uplink's peer is back.
    Back,
    /// Two uplinks lead into one network, and one of them is blocked.
    Looped,
    /// The port uses another link of a team.
    Moved,
    /// The port has failed.
    Failed,
    /// The port's policy refuses the VM's frames.
    Forbidden,
    /// The port would not survive a kill of this process.
    NotKept,
    /// It would again.
    KeptAgain,
    /// The VMM has given up requests that were not answered in time.
    Late,
}

impl Kind {
    /// Whether the line needs no action.
    fn is_usual(self) -> bool {
        matches!(
            self,
            Self::Connected
                | Self::NotListening
                | Self::Gone
                | Self::Closed
                | Self::Reset
                | Self::Saved
                | Self::Restored
                | Self::Back
                | Self::Moved
                | Self::KeptAgain
        )
    }

    /// Whether the line tells why a connection ended or failed. `nicety ports` shows it while the port waits.
    fn is_end(self) -> bool {
        matches!(
            self,
            Self::NotAccepted
                | Self::NotServed
                | Self::Silent
                | Self::Stopped
                | Self::Unread
                | Self::Damaged
                | Self::Broken
        )
    }

    /// The subject of suppressed lines.
    fn about(self) -> &'static str {
        match self {
            Self::Connected => "of connections that came",
            Self::NotListening => "of VMMs that did not listen yet",
            Self::Unreached => "of VMMs that could not be reached",
            Self::Gone => "of connections that went",
            Self::Closed => "of connections that a closed port had",
            Self::Occupied => "of connections that were refused: the port has one already",
            Self::NotAccepted => "of connections that were not accepted",
            Self::NotServed => "of what could not be served",
            Self::Silent => "of connections that said nothing",
            Self::Stopped => "of connections that stopped within a message",
            Self::Unread => "of connections that did not take their answers",
            Self::Damaged => "of memory that was taken back",
            Self::Broken => "of connections that were ended for what came",
            Self::Reset => "of resets by the VM",
            Self::Saved => "of states that were saved",
            Self::Restored => "of states that were restored",
            Self::Unshared => "of memory that is not shared",
            Self::Blank => "of memory that nobody has written to",
            Self::Memory => "of memory that was not taken",
            Self::Refused => "of messages that were refused",
            Self::Stalled => "of queues that the guest broke",
            Self::GuestError => "of guest errors",
            Self::RefusedAccess => "of accesses to memory that is not mapped",
            Self::Vacant => "of an uplink that nothing can pass",
            Self::Back => "of an uplink that is well again",
            Self::Looped => "of uplinks that lead into one network",
            Self::Moved => "of other links that the port uses",
            Self::Failed => "of a port that has failed",
            Self::Forbidden => "of frames that the port's policy refused",
            Self::NotKept => "of a port that would not survive a kill",
            Self::KeptAgain => "of a port that would survive a kill again",
            Self::Late => "of requests that a VMM gave up",
        }
    }
}

/// A token bucket of lines.
#[derive(Debug)]
pub struct Share {
    left: u32,
    /// The time at which `left` was last updated.
    since: Time,
    suppressed: u64,
}

impl Default for Share {
    fn default() -> Self {
        Self { left: BURST, since: Time::ZERO, suppressed: 0 }
    }
}

impl Share {
    /// Whether a line may be written now. If so, returns the number of lines suppressed before it.
    pub fn admit(&mut self, now: Time) -> Option<u64> {
        let allowed = self.take(now);
        if allowed.is_none() {
            self.suppressed += 1;
        }
        allowed
    }

    fn take(&mut self, now: Time) -> Option<u64> {
        let grown = now.since(self.since).as_secs() / PAUSE.as_secs();
        if grown > 0 {
            let grown = u32::try_from(grown).unwrap_or(BURST);
            self.left = self.left.saturating_add(grown).min(BURST);
            self.since = now;
        }
        self.left = self.left.checked_sub(1)?;
        Some(std::mem::take(&mut self.suppressed))
    }

    /// The number of suppressed lines, if it may be logged now.
    fn take_suppressed(&mut self, now: Time) -> Option<u64> {
        if self.suppressed > 0 { self.take(now) } else { None }
    }

    /// The time of the next allowed line, if none is left.
    fn next(&self) -> Time {
        self.since.after(PAUSE)
    }
}

/// A line with the count of lines suppressed before it.
pub fn counted(what: impl Display, suppressed: u64) -> String {
    match suppressed {
        0 => what.to_string(),
        1 => format!("{what} (and 1 such line that was left out)"),
        suppressed => format!("{what} (and {} that were left out)", count(suppressed, "such line")),
    }
}

/// The log of one port.
#[derive(Debug)]
pub struct PortLog {
    id: PortId,
    name: String,
    adapter: &'static str,
    clock: Clock,
    /// The inbox of the worker that logs the counts.
    inbox: Arc<Inbox>,
    shares: Mutex<BTreeMap<Kind, Share>>,
    /// The time at which the counts may be logged, in nanoseconds. [`NOTHING`] if there are none.
    due: AtomicU64,
    /// The time and the reason of the last connection's end, if it ended with an error.
    ended: Mutex<Option<(Time, String)>>,
    /// Why the port would not survive a kill of this process, since when, and whether that was logged.
    not_kept: Mutex<Option<(String, Time, bool)>>,
}

impl PortLog {
    /// The log of the port with this name and number, its worker's inbox, and its adapter.
    pub fn new(id: PortId, name: &str, adapter: &'static str, clock: Clock, inbox: Arc<Inbox>) -> Self {
        let (name, due) = (name.to_owned(), AtomicU64::new(NOTHING));
        let (shares, ended, not_kept) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { id, name, adapter, clock, inbox, shares, due, ended, not_kept }
    }

    /// The clock of its times.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The reason for disconnecting a VMM that speaks the other protocol, with advice.
    pub fn wrong_protocol(&self, spoken: &str, ours: &str) -> String {
        let Self { name, adapter, .. } = self;
        format!(
            "it speaks {spoken}, and this port is {adapter}, which is reached by {ours}: `nicety attach {name}` prints the words \
             for it"
        )
    }

    /// The port's name.
    pub fn port(&self) -> &str {
        &self.name
    }

    /// Whether the port would survive a kill of this process. A reason that soon passes is not logged.
    pub(crate) fn keeps(&self, lacks: Option<&NotKept>) {
        let now = self.clock.now();
        let mut not_kept = self.not_kept();
        let Some(NotKept { why, again }) = lacks else {
            if let Some((_, _, true)) = not_kept.take() {
                drop(not_kept);
                self.say(Kind::KeptAgain, "its VM would survive again if this process were killed");
            }
            return;
        };
        let (since, was_logged) = match &*not_kept {
            Some((before, since, logged)) => (*since, *logged && before == why),
            None => (now, false),
        };
        let is_logged = was_logged || *again != Again::Soon || now.since(since) >= PASSES;
        *not_kept = Some((why.clone(), since, is_logged));
        drop(not_kept);
        if is_logged && !was_logged {
            self.say(Kind::NotKept, format_args!("its VM would not survive if this process were killed: {why}"));
        }
    }

    /// Why the port would not survive a kill of this process. `None`: it would, or nobody keeps it.
    pub fn why_not_kept(&self) -> Option<String> {
        self.not_kept().as_ref().map(|(why, ..)| why.clone())
    }

    fn not_kept(&self) -> MutexGuard<'_, Option<(String, Time, bool)>> {
        self.not_kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Logs a line, if the limit allows.
    pub fn say(&self, kind: Kind, what: impl Display) {
        self.say_of(kind, None, what);
    }

    /// Like [`PortLog::say`], with a process.
    pub fn say_of(&self, kind: Kind, pid: Option<i32>, what: impl Display) {
        if kind.is_end() {
            *self.ended() = Some((self.clock.now(), what.to_string()));
        } else if kind == Kind::Gone {
            *self.ended() = None;
        }
        if let Some(suppressed) = self.admit(kind) {
            self.write(kind, pid, counted(what, suppressed));
        }
    }

    fn ended(&self) -> MutexGuard<'_, Option<(Time, String)>> {
        self.ended.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The time since the last connection ended with an error, and the error. `None` if it just closed.
    pub fn last_end(&self) -> Option<(Duration, String)> {
        let ended = self.ended().clone();
        ended.map(|(at, why)| (self.clock.now().since(at), why))
    }

    fn shares(&self) -> MutexGuard<'_, BTreeMap<Kind, Share>> {
        self.shares.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn admit(&self, kind: Kind) -> Option<u64> {
        let now = self.clock.now();
        let mut shares = self.shares();
        let share = shares.entry(kind).or_default();
        let allowed = share.admit(now);
        let next = share.next();
        if allowed.is_none() && self.due.load(Ordering::Relaxed) == NOTHING {
            self.wake_at(next);
        }
        allowed
    }

    /// Call this with the shares locked, so that two threads cannot disagree.
    fn wake_at(&self, next: Time) {
        self.due.store(next.0, Ordering::Relaxed);
        self.inbox.push(Note::Wake(self.id, next));
    }

    /// Writes the line. Call this without the lock on the shares: the log may be slow.
    fn write(&self, kind: Kind, pid: Option<i32>, what: impl Display) {
        let port = self.name.as_str();
        if kind == Kind::GuestError {
            debug!(port, pid, "{what}");
        } else if kind.is_usual() {
            info!(port, pid, "{what}");
        } else {
            warn!(port, pid, "{what}");
        }
    }

    /// Logs the counts of suppressed lines as far as the limit allows, and schedules the rest. Called in each turn of the port.
    pub fn settle(&self, now: Time) {
        if self.due.load(Ordering::Relaxed) > now.0 {
            return;
        }
        let mut counts = Vec::new();
        {
            let mut shares = self.shares();
            for (kind, share) in shares.iter_mut() {
                counts.extend(share.take_suppressed(now).map(|suppressed| (*kind, suppressed)));
            }
            self.due.store(NOTHING, Ordering::Relaxed);
            let next = shares.values().filter(|share| share.suppressed > 0).map(Share::next).min();
            if let Some(next) = next {
                self.wake_at(next);
            }
        }
        for (kind, suppressed) in counts {
            self.tell(kind, suppressed);
        }
    }

    fn tell(&self, kind: Kind, suppressed: u64) {
        let were = if suppressed == 1 { "was" } else { "were" };
        self.write(kind, None, format_args!("{} {were} left out: {}", count(suppressed, "line"), kind.about()));
    }
}

impl Drop for PortLog {
    fn drop(&mut self) {
        let shares = std::mem::take(&mut *self.shares());
        for (kind, share) in shares.iter().filter(|(_, share)| share.suppressed > 0) {
            self.tell(*kind, share.suppressed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO.after(Duration::from_secs(seconds))
    }

    #[test]
    fn a_million_complaints_are_a_few_lines_and_then_one_a_minute() {
        let mut share = Share::default();
        let mut lines = |times: u64, seconds: u64| {
            let allowed: Vec<u64> = (0..times).filter_map(|_| share.admit(at(seconds))).collect();
            allowed
        };
        assert_eq!(lines(1_000_000, 5), [0; 8]);
        assert_eq!(lines(1000, 59), [0u64; 0]);
        assert_eq!(lines(1000, 61), [1_000_992], "what was left out is told once");
        assert_eq!(lines(1000, 120), [0u64; 0]);
        assert_eq!(lines(1, 121), [1999]);
        assert_eq!(lines(1000, 86_400), [0; 8], "a day of peace");
    }

    #[test]
    fn what_was_left_out_is_told_once_when_its_minute_is_over_and_takes_a_line() {
        let mut share = Share::default();
        let _a_flood: Vec<_> = (0..100).filter_map(|_| share.admit(at(5))).collect();
        assert_eq!((share.take_suppressed(at(59)), share.next()), (None, at(60)));
        assert_eq!((share.take_suppressed(at(60)), share.take_suppressed(at(60))), (Some(92), None));
        assert_eq!((share.admit(at(61)), share.admit(at(120))), (None, Some(1)));
    }

    #[test]
    fn one_line_is_one_line() {
        let counts = [0, 1, 2].map(|suppressed| counted("a line", suppressed));
        let [one, two] = ["(and 1 such line that was left out)", "(and 2 such lines that were left out)"];
        assert_eq!(counts, ["a line".to_owned(), format!("a line {one}"), format!("a line {two}")]);
    }

    fn wakes(inbox: &Inbox) -> Vec<Time> {
        let mut notes = Vec::new();
        inbox.take(&mut notes);
        let time = |note: &Note| match note {
            Note::Wake(PortId(7), time) => *time,
            note => panic!("{note:?}"),
        };
        notes.iter().map(time).collect()
    }

    #[test]
    fn a_worker_is_woken_once_for_what_was_left_out_however_much_it_was_and_again_for_the_rest() {
        let inbox = Arc::new(Inbox::new().unwrap());
        let log = PortLog::new(PortId(7), "vm1", "e1000", Clock::start(), Arc::clone(&inbox));
        for kind in [Kind::Reset, Kind::Memory] {
            (0..1000).for_each(|_| log.say(kind, "a line"));
        }
        assert_eq!(wakes(&inbox).len(), 1);
        // Earlier turns do not schedule anything.
        log.settle(Time::ZERO);
        assert_eq!(wakes(&inbox), []);
        log.settle(at(1_000_000));
        assert_eq!(wakes(&inbox), [], "all is told");
        let none_left = |log: &PortLog| log.shares().values().all(|share| share.suppressed == 0);
        assert!(none_left(&log) && log.due.load(Ordering::Relaxed) == NOTHING);
    }
}
