//! `nicety confirm`, and the options `--confirm` and `--check-reach` of changes: a change that takes itself back.
//!
//! The daemon undoes a change that nobody confirms in time. So this command may be cut off from its user, or end, at any moment.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nicety_control::api::DaemonView;
use nicety_control::{self as control, Ask, Reply};
use nicety_daemon::live::confirm::{Settled, WaitingChange};

use crate::answer::{failure, odd};
use crate::cli::{Confirm, Guard};
use crate::exit::{Exit, Failure};
use crate::find::socket;
use crate::output;
use crate::reach::Reach;

/// The daemon undoes a change after so many seconds if only an address is to answer, and this command ends before that.
const CHECKS: u32 = 60;
/// An address that answers now does so within this time.
const BEFORE: Duration = Duration::from_secs(3);
/// After a change it has longer: bridges learn, and teams agree with their partners.
const AFTER: Duration = Duration::from_secs(15);
/// It must go on to answer for so long. A first answer tells little: until a bridge's next hello (IEEE 802.1D: 2 s), or a neighbour's
/// next look at its ARP cache, frames may still go the old way.
const LASTS: Duration = Duration::from_secs(5);
/// Least seconds to confirm a change that an address decides about.
const CONFIRM_MIN: u32 = 10;
/// Time in which a change shows whose answer was lost.
const SHOWS: Duration = Duration::from_secs(10);
/// Between two looks for it.
const PAUSE: Duration = Duration::from_millis(200);

/// Runs it.
pub fn run(args: &Confirm) -> Result<(), Failure> {
    let socket = socket(&args.which, None)?;
    let (ask, what) = if args.undo { (Ask::Undo, "undone") } else { (Ask::Confirm, "confirmed") };
    let Settled { by, changes, not_kept } = settled(&socket, ask)?;
    output::print(&format!("{what}: {}, by {by}\n", changes.join("; ")))?;
    note_not_kept(not_kept);
    Ok(())
}

fn settled(socket: &Path, ask: Ask) -> Result<Settled, Failure> {
    match control::ask(socket, ask).map_err(failure)? {
        Reply::Settled(settled) => Ok(settled),
        other => Err(odd(&other)),
    }
}

fn note_not_kept(not_kept: Option<String>) {
    if let Some(why) = not_kept {
        output::tell(format_args!("note: that was not kept for a restart of the daemon: {why}"));
    }
}

/// A daemon's answer to a change.
#[derive(Debug)]
pub enum Answer {
    /// Nothing was done.
    Refused,
    /// It was made. `is_change`: something has changed.
    Made {
        /// It waits to be confirmed.
        waiting: Option<WaitingChange>,
        /// Something has changed.
        is_change: bool,
    },
    /// Only a part of it was made, which waits to be confirmed.
    Halfway(Option<WaitingChange>),
    /// No answer came: it may have been made.
    Lost,
}

/// A change that takes itself back, before it is made.
#[derive(Debug)]
pub struct Guarded {
    /// Seconds within which somebody confirms it.
    confirm: Option<u32>,
    reach: Option<Reach>,
}

impl Guarded {
    /// An address that does not answer before the change would tell nothing after it.
    pub fn begin(guard: &Guard) -> Result<Self, Failure> {
        if let (Some(seconds @ ..CONFIRM_MIN), Some(address)) = (guard.confirm, &guard.check_reach) {
            let lasts = LASTS.as_secs();
            let what = format!(
                "{seconds} s to confirm the change are too few beside --check-reach: {address} is asked for at least {lasts} s; write \
                 --confirm {CONFIRM_MIN}s or more"
            );
            return Err(Failure::new(Exit::Usage, what));
        }
        let mut reach = guard.check_reach.clone().map(Reach::open).transpose()?;
        if let Some(reach) = &mut reach
            && !reach.answers(Duration::ZERO, BEFORE)
        {
            let what = format!("{} does not answer echo requests from here now: nothing was done", reach.address());
            return Err(Failure::new(Exit::Failed, what));
        }
        Ok(Self { confirm: guard.confirm, reach })
    }

    /// Seconds after which the daemon undoes the change. `None`: the change stays.
    fn seconds(&self) -> Option<u32> {
        self.confirm.or(self.reach.as_ref().map(|_| CHECKS))
    }

    /// The request, of a change that is undone unless it is confirmed.
    pub fn ask(&self, change: Ask) -> Ask {
        match self.seconds() {
            Some(seconds) => Ask::ToConfirm { change: Box::new(change), seconds },
            None => change,
        }
    }

    /// After the change: looks whether the address answers, and says what is left to do. An address alone confirms only a whole change.
    pub fn end(self, socket: &Path, answer: Answer) -> Result<(), Failure> {
        let Some(seconds) = self.seconds() else { return Ok(()) };
        let (waiting, lacks) = match answer {
            Answer::Refused => return Ok(()),
            Answer::Made { waiting: Some(waiting), .. } => (waiting, None),
            Answer::Made { waiting: None, is_change: false } => return Ok(()),
            Answer::Halfway(Some(waiting)) => (waiting, Some("only a part of the change was made")),
            Answer::Made { waiting: None, .. } | Answer::Halfway(None) => {
                let what = "this daemon is of a version without `nicety confirm`: the change is in force, and stays";
                return Err(Failure::new(Exit::Failed, what));
            }
            Answer::Lost => match own(socket) {
                Some(waiting) => (waiting, Some("it is not known whether the whole change was made")),
                None => {
                    output::tell(format_args!(
                        "note: if the change was made, the daemon undoes it {seconds} s later; `nicety confirm` keeps it"
                    ));
                    return Ok(());
                }
            },
        };
        let Self { confirm, reach } = self;
        let seconds_left = waiting.seconds_left;
        let Some(mut reach) = reach else {
            let what = "`nicety confirm` keeps it, `nicety confirm --undo` undoes it";
            output::tell(format_args!("note: it is undone in {seconds_left} s: {what}"));
            return Ok(());
        };
        let address = reach.address().clone();
        if let Some(lacks) = lacks.filter(|_| confirm.is_none()) {
            return Err(undone(socket, lacks));
        }
        if !reach.answers(LASTS, AFTER.min(Duration::from_secs(seconds_left))) {
            return Err(undone(socket, &format!("{address} does not answer")));
        }
        if confirm.is_some() {
            output::tell(format_args!(
                "note: {address} answers; the change is undone unless `nicety confirm` keeps it"
            ));
            return Ok(());
        }
        let Settled { not_kept, .. } = settled(socket, Ask::Confirm)?;
        output::tell(format_args!("note: {address} answers: the change is confirmed"));
        note_not_kept(not_kept);
        Ok(())
    }
}

/// Undoes the change for this reason. The failure says both.
fn undone(socket: &Path, why: &str) -> Failure {
    match settled(socket, Ask::Undo) {
        Ok(_) => Failure::new(Exit::Failed, format!("{why}: the change was undone")),
        Err(Failure { exit, message }) => Failure::new(exit, format!("{why}: {message}")),
    }
}

/// The change of this process that waits, if the daemon shows one soon: it may still be making it.
fn own(socket: &Path) -> Option<WaitingChange> {
    let end = Instant::now() + SHOWS;
    let by = format!("(process {})", std::process::id());
    loop {
        if let Ok(Reply::Version(DaemonView { waiting: Some(waiting), .. })) = control::ask(socket, Ask::Version) {
            return Some(waiting).filter(|waiting| waiting.by.ends_with(&by));
        }
        if Instant::now() >= end {
            return None;
        }
        sleep(PAUSE);
    }
}

/// Says that a change waits.
pub fn note(waiting: Option<&WaitingChange>) {
    if let Some(waiting) = waiting {
        output::tell(format_args!("note: {waiting}"));
    }
}

#[cfg(test)]
#[path = "confirm_test.rs"]
pub(crate) mod tests;
