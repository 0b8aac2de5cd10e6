//! `nicety confirm`, and the options `--confirm` and `--check-reach` of changes: a change that takes itself back.
//!
//! The daemon undoes a change that nobody confirms in time. So this command may be cut off from its user, or end, at any moment.

use std::path::Path;
use std::time::Duration;

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
/// Answers in a row after which an address counts as reached.
const ANSWERS: u32 = 3;

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
        let mut reach = guard.check_reach.map(Reach::open).transpose()?;
        if let Some(reach) = &mut reach
            && !reach.answers(1, BEFORE)
        {
            let what = format!("{} does not answer echo requests from here now: nothing was done", reach.address());
            return Err(Failure::new(Exit::Failed, what));
        }
        Ok(Self { confirm: guard.confirm, reach })
    }

    /// The request, of a change that is undone unless it is confirmed.
    pub fn ask(&self, change: Ask) -> Ask {
        match self.confirm.or(self.reach.as_ref().map(|_| CHECKS)) {
            Some(seconds) => Ask::ToConfirm { change: Box::new(change), seconds },
            None => change,
        }
    }

    /// After the change: looks whether the address answers, and says what is left to do. `waiting` is of the daemon's answer. `is_change`: the
    /// daemon has changed something.
    pub fn end(self, socket: &Path, waiting: Option<WaitingChange>, is_change: bool) -> Result<(), Failure> {
        let Some(WaitingChange { seconds_left, .. }) = waiting else {
            if is_change && (self.confirm.is_some() || self.reach.is_some()) {
                let what = "this daemon is of a version without `nicety confirm`: the change is in force, and stays";
                return Err(Failure::new(Exit::Failed, what));
            }
            return Ok(());
        };
        let Self { confirm, reach } = self;
        let Some(mut reach) = reach else {
            let what = "`nicety confirm` keeps it, `nicety confirm --undo` undoes it";
            output::tell(format_args!("note: it is undone in {seconds_left} s: {what}"));
            return Ok(());
        };
        let address = reach.address();
        if !reach.answers(ANSWERS, AFTER.min(Duration::from_secs(seconds_left))) {
            return Err(match settled(socket, Ask::Undo) {
                Ok(_) => Failure::new(Exit::Failed, format!("{address} does not answer: the change was undone")),
                Err(Failure { exit, message }) => Failure::new(exit, format!("{address} does not answer: {message}")),
            });
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

/// Says that a change waits.
pub fn note(waiting: Option<&WaitingChange>) {
    if let Some(waiting) = waiting {
        output::tell(format_args!("note: {waiting}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_does_not_take_changes_back_is_said_to_have_made_one_that_stays() {
        let end = |confirm, is_change| Guarded { confirm, reach: None }.end(Path::new("/none"), None, is_change);
        let refused = end(Some(60), true).unwrap_err();
        assert!(refused.message.ends_with("the change is in force, and stays"), "{refused}");
        assert!(end(Some(60), false).is_ok() && end(None, true).is_ok());
    }
}
