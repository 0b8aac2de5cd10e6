//! A process that serves one guest, and is killed with it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

use super::spawn::spawn;

/// A process that serves one guest (see the module's page).
#[derive(Debug)]
pub struct Companion(Child);

impl Companion {
    /// Starts the process. It must end by itself when the thread that started it ends.
    ///
    /// # Errors
    /// Those of [`Command::spawn`].
    pub fn start(mut command: Command) -> io::Result<Companion> {
        command.process_group(0).stderr(Stdio::piped());
        spawn(command).map(Companion)
    }

    /// Its standard error, which can be taken once.
    pub(super) fn complaints(&mut self) -> Option<ChildStderr> {
        self.0.stderr.take()
    }

    /// Its process ID, which is also its group's.
    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Ends the process. Returns its exit status if it had already ended by itself.
    pub(super) fn ended(mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
