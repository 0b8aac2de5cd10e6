//! Stands still between two messages, while another process takes over the port.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use nicety_memory::DirtyLog;
use nicety_peer::Table;
use nicety_vhost_user::NotSaved;

use crate::run::image::FrontImage;

/// The port as its thread has saved it.
pub type Front = (FrontImage, Table);

/// The same, while workers may still write into its guest's memory.
pub struct Standing {
    /// The port.
    pub image: FrontImage,
    /// Its descriptors.
    pub table: Table,
    /// A log of our own for the pages that workers write, in place of the front end's file.
    pub own_log: Option<Arc<DirtyLog>>,
}

impl Standing {
    /// The workers stand still too.
    pub fn finish(mut self) -> Front {
        if let (Some(session), Some(log)) = (&mut self.image.session, &self.own_log) {
            session.log_again(log);
        }
        (self.image, self.table)
    }
}

impl std::fmt::Debug for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Standing").field("image", &self.image).finish_non_exhaustive()
    }
}

/// The requests of a thread that stops the port, and the answer.
#[derive(Debug, Default)]
pub(super) struct Pause {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    asked: bool,
    /// The port is to be saved without its front end.
    without: bool,
    stands: Option<Result<Standing, NotSaved>>,
}

impl Pause {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn is_asked(&self) -> bool {
        self.state().asked
    }

    /// Asks the thread to stand still. Wake it.
    pub(super) fn ask(&self, without: bool) {
        let mut state = self.state();
        (state.asked, state.without, state.stands) = (true, without, None);
    }

    /// The thread goes on.
    pub(super) fn resume(&self) {
        let mut state = self.state();
        (state.asked, state.stands) = (false, None);
        self.changed.notify_all();
    }

    /// Waits until the thread stands still. `None` if it does not in time.
    pub(super) fn front(&self, end: Instant) -> Option<Result<Standing, NotSaved>> {
        let within = end.saturating_duration_since(Instant::now());
        let waits = |state: &mut State| state.stands.is_none();
        let waited = self.changed.wait_timeout_while(self.state(), within, waits);
        let (mut state, _) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        state.stands.take()
    }

    /// Stands still, if the thread was asked to: saves the port, and waits.
    /// `save` hears whether that is to be without the front end.
    pub(super) fn stand(&self, save: impl FnOnce(bool) -> Result<Standing, NotSaved>) {
        let (asked, without) = {
            let state = self.state();
            (state.asked, state.without)
        };
        if !asked {
            return;
        }
        let saved = save(without);
        let mut state = self.state();
        state.stands = Some(saved);
        self.changed.notify_all();
        while state.asked {
            // The bound only guards against a lost notification.
            let waited = self.changed.wait_timeout(state, Duration::from_secs(1));
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }
}
