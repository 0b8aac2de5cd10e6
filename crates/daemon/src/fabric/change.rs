//! The thread that applies configurations, and writes the last known state.

use std::path::PathBuf;
use std::sync::Weak;
use std::sync::mpsc::Receiver;

use nicety_host::FabricGroups;
use tokio::sync::mpsc::UnboundedSender;
use tracing::{info, warn};

use super::around::{Changes, InForce};
use super::{Job, Note, kept};

/// What the thread needs.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) work: Receiver<Job>,
    pub(super) notes: UnboundedSender<Note>,
    /// The file of the last known state.
    pub(super) path: PathBuf,
}

impl Waiting {
    /// Ends with the session.
    pub(super) fn run(self, live: &Weak<dyn Changes>) {
        let Self { work, notes, path } = self;
        for job in work {
            nicety_sandbox::forget_refused_here();
            let note = match job {
                Job::Apply(revision, text) => Note::Applied(revision, apply(live, revision, &text)),
                Job::Keep(state) => Note::Kept(kept::write(&path, &state)),
            };
            if notes.send(note).is_err() {
                return;
            }
        }
    }
}

fn apply(live: &Weak<dyn Changes>, revision: i64, text: &str) -> Result<(), String> {
    let live = live.upgrade().ok_or("the daemon ends")?;
    let in_one_line = |text: String| text.replace('\n', "; ");
    let groups = FabricGroups::parse(text).map_err(|errors| in_one_line(errors.to_string()))?;
    let InForce { plan, failed, not_kept } = live.apply_groups(&groups).map_err(in_one_line)?;
    let plan = in_one_line(plan.trim_end().to_owned());
    if !plan.is_empty() {
        info!("version {revision} of the fabric's configuration is in force: {plan}");
    }
    // Networks have their numbers, and frames go by these. Ports that could not be changed are named.
    if !failed.is_empty() {
        warn!("version {revision} of the fabric's configuration is not in force for all: {}", failed.join("; "));
    }
    if let Some(why) = not_kept {
        warn!("what runs was not kept: {why}");
    }
    Ok(())
}
