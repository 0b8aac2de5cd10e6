//! The thread that applies configurations, and writes the last known state.

use std::path::PathBuf;
use std::sync::Weak;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use nicety_host::{FabricGroups, in_one_line};
use tokio::sync::mpsc::UnboundedSender;
use tracing::{info, warn};

use super::around::{Changes, InForce, NotNow};
use super::{Job, Note, kept};

/// Between two tries of a configuration that waits.
const AGAIN: Duration = Duration::from_secs(1);

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
        let mut file = kept::Written::new(path);
        // A configuration that fits this host only once another change is confirmed or undone. The fabric was told of it.
        let mut waits: Option<(i64, String)> = None;
        loop {
            let job = match &waits {
                None => work.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(_) => work.recv_timeout(AGAIN),
            };
            nicety_sandbox::forget_refused_here();
            let is_new = matches!(job, Ok(Job::Apply(..)));
            let note = match (job, waits.take()) {
                (Ok(Job::Apply(revision, text)), _) | (Err(RecvTimeoutError::Timeout), Some((revision, text))) => {
                    match apply(live, revision, &text) {
                        Ok(()) => Note::Applied(revision, Ok(())),
                        Err(NotNow::Refused(why)) => Note::Applied(revision, Err(why)),
                        Err(NotNow::Waits(why)) => {
                            waits = Some((revision, text));
                            if !is_new {
                                continue;
                            }
                            warn!("version {revision} of the fabric's configuration is not in force yet: {why}");
                            Note::Delayed(revision, why)
                        }
                    }
                }
                (Ok(Job::Keep(state)), still) => {
                    waits = still;
                    Note::Kept(file.write(&state))
                }
                (Err(RecvTimeoutError::Timeout), None) => continue,
                (Err(RecvTimeoutError::Disconnected), _) => return,
            };
            if notes.send(note).is_err() {
                return;
            }
        }
    }
}

fn apply(live: &Weak<dyn Changes>, revision: i64, text: &str) -> Result<(), NotNow> {
    let live = live.upgrade().ok_or_else(|| NotNow::Refused("the daemon ends".to_owned()))?;
    let groups = FabricGroups::parse(text).map_err(|errors| NotNow::Refused(in_one_line(&errors)))?;
    let InForce { plan, failed, not_kept } = live.apply_groups(&groups)?;
    let plan = in_one_line(&plan);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    /// A host on which another change waits, at the first question.
    #[derive(Default)]
    struct Busy(AtomicUsize);

    impl Changes for Busy {
        fn apply_groups(&self, _groups: &FabricGroups) -> Result<InForce, NotNow> {
            match self.0.fetch_add(1, Ordering::Relaxed) {
                0 => Err(NotNow::Waits("a change waits".to_owned())),
                _ => Ok(InForce { plan: String::new(), failed: Vec::new(), not_kept: None }),
            }
        }
    }

    #[test]
    fn a_configuration_that_has_to_wait_is_reported_and_is_in_force_when_it_fits() {
        let (jobs, work) = channel();
        let (notes, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let busy = Arc::new(Busy::default());
        let changes: Arc<dyn Changes> = Arc::clone(&busy) as _;
        let thread = std::thread::spawn(move || {
            Waiting { work, notes, path: PathBuf::new() }.run(&Arc::downgrade(&changes));
        });
        jobs.send(Job::Apply(7, "format = 1\n".to_owned())).unwrap();
        assert!(matches!(heard.blocking_recv(), Some(Note::Delayed(7, why)) if why == "a change waits"));
        assert!(matches!(heard.blocking_recv(), Some(Note::Applied(7, Ok(())))));
        assert_eq!(busy.0.load(Ordering::Relaxed), 2);
        jobs.send(Job::Apply(8, "format = \n".to_owned())).unwrap();
        assert!(matches!(heard.blocking_recv(), Some(Note::Applied(8, Err(why))) if why.contains("format")));
        drop(jobs);
        thread.join().unwrap();
    }
}
