//! Slow work beside the control thread.

use nicety_sandbox::Kind;
use tokio::sync::{Semaphore, oneshot};

use super::api::{HALFWAY, LACKING, Problem};
use super::budget::Meter;

/// Most changes that run or wait in a thread at once. Further changes wait without a thread.
const CHANGES_MAX: usize = 4;

/// An answer, or the problem.
pub(super) type Answer<T> = Result<T, Box<Problem>>;

/// A place for each thread of a change.
static CHANGES: Semaphore = Semaphore::const_new(CHANGES_MAX);

/// Waits until no thread makes a change.
pub(super) async fn changes_end() {
    let _all = CHANGES.acquire_many(CHANGES_MAX as u32).await;
}

/// Runs slow work beside the control thread, which may not open files. The work is finished even if the client disconnects.
pub(super) async fn beside<T: Send + 'static>(work: impl FnOnce() -> Answer<T> + Send + 'static) -> Answer<T> {
    let meter = Meter::current();
    let charged = move || match meter {
        Some(meter) => meter.charged(work),
        None => work(),
    };
    let place = CHANGES.acquire().await;
    let (send, done) = oneshot::channel();
    let change = move || {
        let mut answer = charged();
        if let Err(problem) = &mut answer {
            problem.detail += &nicety_sandbox::refused_here();
        }
        drop(place);
        let _client_gone = send.send(answer);
    };
    let started = nicety_sandbox::spawn(Kind::ControlChange, "control-change", 0, change);
    match (started, done.await) {
        (_, Ok(answer)) => answer,
        (Err(error), Err(_)) => Err(Problem::new(LACKING, format!("no thread could be started for this: {error}"))),
        (Ok(_), Err(_)) => Err(Problem::new(HALFWAY, "a defect in the daemon ended this; its log has more")),
    }
}
