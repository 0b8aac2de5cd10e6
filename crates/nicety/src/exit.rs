//! How a command ends: the exit codes that `nicety --help` lists.

use std::process::ExitCode;

use nicety_daemon::host::ReadError;

/// Why a command did not do its work, as an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The work was begun and failed.
    Failed = 1,
    /// The command line or the host file is wrong.
    Usage = 2,
    /// Something that the command needs is missing on this machine.
    Missing = 3,
    /// Ctrl-C came before the work was done.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// An exit code, and what the person reads on stderr.
#[derive(Debug)]
pub struct Failure {
    /// The code.
    pub exit: Exit,
    /// What happened and what to do.
    pub message: String,
}

impl Failure {
    /// A failure with a message.
    pub fn new(exit: Exit, message: impl ToString) -> Failure {
        Failure { exit, message: message.to_string() }
    }

    /// For `map_err`.
    pub fn with<E: ToString>(exit: Exit) -> impl Fn(E) -> Failure {
        move |error| Failure::new(exit, error)
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Failure {
        let message = match &error {
            ReadError::Wrong(errors) => {
                let s = if errors.list.len() == 1 { "" } else { "s" };
                format!(
                    "{errors}\n{} mistake{s} in the host file; docs/host-file.md explains every key",
                    errors.list.len()
                )
            }
            other => other.to_string(),
        };
        Failure::new(Exit::Usage, message)
    }
}
