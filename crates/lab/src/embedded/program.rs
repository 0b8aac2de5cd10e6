//! The program whose hidden commands the processes of a rig run.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

/// First argument of the hidden command that runs a guest.
pub(super) const GUEST: &str = "guest";
/// First argument of the hidden command that becomes another program. That program ends when its parent does.
pub(super) const EXEC: &str = "exec";

/// The command line of the hidden commands and of the daemon.
#[derive(Clone, Debug)]
pub struct Program {
    /// The program.
    pub path: PathBuf,
    /// Arguments that make it a guest; they come before those of [`guest_main`](super::guest_main).
    pub hidden: Vec<OsString>,
    /// Arguments that make it a daemon; they come before the host file's path.
    pub serve: Vec<OsString>,
}

impl Program {
    /// The hidden command of this first argument.
    pub(super) fn hidden(&self, word: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.hidden).arg(word);
        command
    }
}
