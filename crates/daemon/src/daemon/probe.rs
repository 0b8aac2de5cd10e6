//! Whether all workers still finish their rounds.

use std::sync::mpsc::{Receiver, channel};

use super::Daemon;
use crate::run::inbox::Note;

/// A question to all workers. It stays open until the last of them has answered, however late: the watchdog alone says when that is too
/// late.
#[derive(Debug)]
pub(crate) struct Probe {
    answers: Receiver<()>,
    /// Workers that have not answered.
    pub missing: usize,
}

impl Probe {
    /// Whether every worker has answered.
    pub fn is_answered(&mut self) -> bool {
        while self.missing > 0 && self.answers.try_recv().is_ok() {
            self.missing -= 1;
        }
        self.missing == 0
    }
}

impl Daemon {
    /// Asks every worker for a sign that it finishes its rounds.
    pub(crate) fn probe(&self) -> Probe {
        let (done, answers) = channel();
        for worker in &self.workers {
            worker.inbox.push(Note::Probe(done.clone()));
        }
        Probe { answers, missing: self.workers.len() }
    }
}
