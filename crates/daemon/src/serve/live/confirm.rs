//! A change that is undone unless somebody confirms it in time.
//!
//! ```text
//! change with a time ──► waits ── confirm ──────────────► kept, as any other change
//!                          │
//!                          └── the time is over, or undo, or an upgrade ──► what was confirmed before is in force, in one step
//! ```
//! While a change waits, no other one is made but those that no administrator of this host decides on (`beside.rs`). The state file
//! and the keeper have what was confirmed before: a daemon that is killed, replaced or started again serves that.
//!
//! An undo may be refused, because somebody else has taken a socket, say. Then the change stands, is still not what a start serves, and the
//! undo is tried again each `AGAIN`. If a part was undone, the rest is the change that waits.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nicety_host::Host;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};
use utoipa::ToSchema;

use super::plan::Plan;
use super::state::Unconfirmed;
use super::steps::steps;
use super::{ChangeError, Consent, Live, Running, blocked};
use crate::serve::{Reconciled, reconcile};

/// Longest time in seconds that a change may wait to be confirmed.
pub const CONFIRM_MAX: u32 = 24 * 60 * 60;
/// Time until a refused undo is tried again.
const AGAIN: Duration = Duration::from_secs(10);

/// A change is undone unless it is confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confirm {
    /// The time after which it is undone.
    pub within: Duration,
    /// The user and process that makes the change, for the log and for other people.
    pub by: String,
}

/// The limits of a change: the losses of VMs that it may cause, and whether it waits to be confirmed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// The losses that it may cause.
    pub consent: Consent,
    /// `None`: it stays.
    pub confirm: Option<Confirm>,
}

impl From<&Consent> for Terms {
    fn from(consent: &Consent) -> Self {
        Self { consent: consent.clone(), confirm: None }
    }
}

/// A change that waits to be confirmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitingChange {
    /// The user and process that made it.
    pub by: String,
    /// Its lines in a plan.
    pub changes: Vec<String>,
    /// Seconds until it is undone. 0: the time is over.
    pub seconds_left: u64,
    /// Reason why it could not be undone. `null`: nobody has tried.
    #[serde(default)]
    pub not_undone: Option<String>,
}

impl fmt::Display for WaitingChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by, changes, seconds_left, not_undone } = self;
        write!(f, "a change by {by} waits to be confirmed ({})", changes.join("; "))?;
        match not_undone {
            Some(why) => write!(f, "; it could not be undone, and stands: {why}"),
            None => write!(f, ", and is undone in {seconds_left} s"),
        }?;
        f.write_str("; `nicety confirm` keeps it, `nicety confirm --undo` undoes it")
    }
}

/// A change that waits no more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Settled {
    /// The user and process that made it.
    pub by: String,
    /// Its lines in a plan.
    pub changes: Vec<String>,
    /// Reason why this will be lost at a restart of the daemon, or when it is killed. `null`: it will not.
    pub not_kept: Option<String>,
}

/// The running change that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub note: Unconfirmed,
    /// The confirmed state: the host file as it runs, the host file as it was read, and the text of the host file that is not to be served.
    pub host: Host,
    pub file: Host,
    pub refused: Option<Unconfirmed>,
    pub within: Duration,
    pub until: Instant,
}

/// Why a change is undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undo<'a> {
    /// This person wants it.
    By(&'a str),
    /// Nobody has confirmed it in time.
    Late,
    /// The daemon is about to be replaced.
    Upgrade,
}

/// The last change that waited, for whoever confirms it too late or twice.
#[derive(Debug)]
pub(super) struct Last {
    note: Unconfirmed,
    how: String,
    at: Instant,
}

/// The waiting change, for readers. They do not wait for a change that is being made.
#[derive(Debug, Default)]
pub(super) struct Shown(Mutex<Option<ShownChange>>);

#[derive(Clone, Debug)]
struct ShownChange {
    by: String,
    changes: Vec<String>,
    until: Instant,
    /// The next undo.
    next: Instant,
    not_undone: Option<String>,
}

impl Shown {
    fn lock(&self) -> MutexGuard<'_, Option<ShownChange>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn show(&self, waiting: &Waiting) -> WaitingChange {
        let Unconfirmed { by, changes, .. } = waiting.note.clone();
        let (until, not_undone) = (waiting.until, None);
        let shown = ShownChange { by, changes, until, next: until, not_undone };
        let report = shown.report();
        *self.lock() = Some(shown);
        report
    }

    fn hide(&self) {
        *self.lock() = None;
    }

    /// Notes that an undo was refused, and what stands. True if that is news.
    fn refuse(&self, why: &str, changes: &[String]) -> bool {
        let mut shown = self.lock();
        let Some(shown) = &mut *shown else { return false };
        let is_new = shown.not_undone.as_deref() != Some(why) || shown.changes != changes;
        shown.not_undone = Some(why.to_owned());
        shown.changes = changes.to_vec();
        shown.next = Instant::now() + AGAIN;
        is_new
    }
}

impl ShownChange {
    fn report(&self) -> WaitingChange {
        let Self { by, changes, until, next: _, not_undone } = self.clone();
        let left = until.saturating_duration_since(Instant::now());
        let seconds_left = left.as_secs() + u64::from(left.subsec_nanos() > 0);
        WaitingChange { by, changes, seconds_left, not_undone }
    }
}

impl Running {
    /// The state that a start serves: what was confirmed, the host file as it was read then, and what is not confirmed.
    pub(super) fn confirmed(&self) -> (&Host, &Host, Vec<Unconfirmed>) {
        match &self.waiting {
            None => (&self.host, &self.file, self.refused.iter().cloned().collect()),
            Some(Waiting { note, host, file, refused, .. }) => (host, file, with_note(refused.as_ref(), note)),
        }
    }
}

impl Live {
    /// The change that waits to be confirmed. Does not wait for a change that is being made.
    pub fn waiting(&self) -> Option<WaitingChange> {
        self.shown.lock().as_ref().map(ShownChange::report)
    }

    /// When [`Live::undo_late`] is to be called next. `None`: nothing waits.
    pub fn undo_at(&self) -> Option<Instant> {
        self.shown.lock().as_ref().map(|shown| shown.next)
    }

    /// The change that waits is to be undone now: true once, and again after some time if nobody does it.
    pub fn is_late(&self) -> bool {
        let now = Instant::now();
        match &mut *self.shown.lock() {
            Some(shown) if shown.next <= now => {
                shown.next = now + AGAIN;
                true
            }
            _ => false,
        }
    }

    /// No change is made while another one waits.
    pub(super) fn is_free(&self, running: &Running) -> Result<(), ChangeError> {
        match (&running.waiting, self.waiting()) {
            (Some(_), Some(waiting)) => Err(ChangeError::Waits(waiting.to_string())),
            _ => Ok(()),
        }
    }

    /// Before a change that is to be confirmed is made: from now on a start serves what runs without it.
    pub(super) fn begin_to_wait(
        &self,
        running: &Running,
        Confirm { within, by }: &Confirm,
        plan: &Plan,
        file: Option<&Host>,
    ) -> Result<Waiting, ChangeError> {
        let note = Unconfirmed {
            by: by.clone(),
            changes: plan.changes.iter().map(ToString::to_string).collect(),
            file: file.map(|file| file.document.text()),
            waits: true,
        };
        let unconfirmed = with_note(running.refused.as_ref(), &note);
        let kept = self.state.keep(&running.file, &running.host, &unconfirmed);
        kept.map_err(|error| {
            let what = "what was confirmed cannot be kept for the next start";
            ChangeError::Lacking(format!("{what}: {error}{}", nicety_sandbox::refused_here()))
        })?;
        let (host, file, refused) = (running.host.clone(), running.file.clone(), running.refused.clone());
        Ok(Waiting { note, host, file, refused, within: *within, until: Instant::now() + *within })
    }

    /// The change was made, and its time begins.
    pub(super) fn waits(&self, running: &mut Running, waiting: Waiting) -> WaitingChange {
        let waiting = running.waiting.insert(Waiting { until: Instant::now() + waiting.within, ..waiting });
        self.shown.show(waiting)
    }

    /// Keeps the change that waits.
    ///
    /// # Errors
    /// None waits.
    pub fn confirm(&self, by: &str) -> Result<Settled, ChangeError> {
        let mut running = self.running();
        let Some(Waiting { note, .. }) = running.waiting.take() else { return Err(nothing_waits(&running)) };
        self.shown.hide();
        let (how, not_kept) = (format!("confirmed by {by}"), self.unkept(&running));
        info!("{how}: {note}; {}", kept_words(not_kept.as_deref()));
        let settled = Settled { by: note.by.clone(), changes: note.changes.clone(), not_kept };
        running.last = Some(Last { note, how, at: Instant::now() });
        Ok(settled)
    }

    /// Undoes the change that waits, in one step.
    ///
    /// # Errors
    /// None waits. It cannot be undone: what of it stands goes on waiting. Or it was undone, and something that was there before does not
    /// work.
    pub fn undo(&self, why: Undo<'_>) -> Result<Settled, ChangeError> {
        let mut running = self.running();
        // Meanwhile it may have been confirmed, and another one may wait.
        let is_meant = |waiting: &&Waiting| why != Undo::Late || waiting.until <= Instant::now();
        let Some(waiting) = running.waiting.as_ref().filter(is_meant) else { return Err(nothing_waits(&running)) };
        let (target, within) = (waiting.host.clone(), waiting.within);
        let failed = match self.go_back(&mut running, target) {
            Ok(()) => None,
            Err(errors) => Some(errors.join("; ")),
        };
        if let Some(errors) = &failed
            && self.is_left(&mut running, errors)
        {
            return Err(ChangeError::NotUndone(errors.clone()));
        }
        let Some(Waiting { note, file, refused, .. }) = running.waiting.take() else {
            return Err(nothing_waits(&running));
        };
        self.shown.hide();
        running.file = file;
        running.refused = match note.file {
            Some(_) => Some(Unconfirmed { waits: false, ..note.clone() }),
            None => refused,
        };
        let how = match why {
            Undo::By(who) => format!("undone by {who}"),
            Undo::Late => format!("undone, for nobody had confirmed it within {} s", within.as_secs()),
            Undo::Upgrade => "undone, for the daemon was about to be replaced".to_owned(),
        };
        let not_kept = self.unkept(&running);
        let kept = kept_words(not_kept.as_deref());
        match why {
            Undo::By(_) => info!("{how}: {note}; {kept}"),
            Undo::Late | Undo::Upgrade => warn!("{how}: {note}; {kept}"),
        }
        let settled = Settled { by: note.by.clone(), changes: note.changes.clone(), not_kept };
        running.last = Some(Last { note, how, at: Instant::now() });
        let Some(errors) = failed else { return Ok(settled) };
        warn!("the change was undone, and not all works: {errors}");
        Err(ChangeError::UndoneBut(errors))
    }

    /// After an undo that failed: whether something of the change still stands. From now on that is the change that waits: a confirmation
    /// keeps it, and no more.
    fn is_left(&self, running: &mut Running, errors: &str) -> bool {
        let Some(waiting) = &mut running.waiting else { return false };
        let left = self.plan_of(&waiting.host, &running.host).changes;
        if left.is_empty() {
            return false;
        }
        waiting.note.changes = left.iter().map(ToString::to_string).collect();
        let note = waiting.note.clone();
        if self.shown.refuse(errors, &note.changes) {
            let kept = self.unkept(running).map(|why| format!("; that is not kept: {why}")).unwrap_or_default();
            warn!("not undone: {note}: {errors}; it stands, and a start of the daemon does not serve it{kept}");
        }
        true
    }

    /// Undoes the change that waits, if its time is over. The log says so.
    pub fn undo_late(&self) {
        // Somebody may have confirmed it. If it is refused, the log has the reason.
        let _ = self.undo(Undo::Late);
    }

    /// Undoes the change that waits before this daemon is replaced. The error is a sentence.
    pub(super) fn undo_for_upgrade(&self) -> Result<(), String> {
        match self.undo(Undo::Upgrade) {
            Ok(_) | Err(ChangeError::NothingWaits(_) | ChangeError::UndoneBut(_)) => Ok(()),
            Err(why) => Err(why.to_string()),
        }
    }

    /// Makes a host run that was confirmed before. If it fails halfway, the host that runs is what was reached.
    fn go_back(&self, running: &mut Running, target: Host) -> Result<(), Vec<String>> {
        let plan = self.plan_of(&running.host, &target);
        let steps = steps(&plan, &running.host, &target, self.daemon.opener().map(AsRef::as_ref));
        let steps = steps.map_err(|error| match error {
            ChangeError::Lacking(why) => vec![why],
            other => vec![other.to_string()],
        })?;
        let mut why = Vec::new();
        let Ok::<_, Infallible>(Reconciled { host, .. }) =
            reconcile(&self.daemon, Cow::Owned(target), steps, |error| {
                why.push(error.to_string());
                Ok(())
            });
        let host = host.into_owned();
        blocked::log(&running.host, &host);
        running.host = host;
        self.note_after_restart(&plan);
        if why.is_empty() { Ok(()) } else { Err(why) }
    }
}

/// The notes about changes that nobody has confirmed. The host file has one text: the later one.
fn with_note(refused: Option<&Unconfirmed>, note: &Unconfirmed) -> Vec<Unconfirmed> {
    let refused = refused.filter(|_| note.file.is_none());
    refused.into_iter().chain([note]).cloned().collect()
}

/// Whether a start serves what runs, for the log.
fn kept_words(not_kept: Option<&str>) -> String {
    not_kept.map_or_else(|| "kept".to_owned(), |why| format!("not kept: {why}"))
}

/// The answer to who confirms or undoes what waits no more.
fn nothing_waits(running: &Running) -> ChangeError {
    let last = running
        .last
        .as_ref()
        .map(|Last { note, how, at }| format!("; the last one ({note}) was {how}, {} s ago", at.elapsed().as_secs()));
    ChangeError::NothingWaits(last.unwrap_or_default())
}
