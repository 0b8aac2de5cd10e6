//! End of a command: the exit codes that `nicety --help` lists, and the message on standard error.

use std::fmt;
use std::process::ExitCode;

use nicety_host::ReadError;

/// The reason why a command did not do its work, as an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The work was begun and failed.
    Failed = 1,
    /// The command line or the host file is wrong.
    Usage = 2,
    /// Something that the command needs is missing on this machine.
    Missing = 3,
    /// `lab diff`: a figure is worse.
    Worse = 4,
    /// `lab diff`: none is worse, but no figure could be judged, or one of the first result is not in the second.
    Unjudged = 5,
    /// Ctrl-C came before the work was done.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// An exit code, and the message for stderr.
#[derive(Debug)]
pub struct Failure {
    /// The code.
    pub exit: Exit,
    /// The message: the cause and the remedy.
    pub message: String,
}

impl Failure {
    /// A failure with a message.
    pub fn new(exit: Exit, message: impl ToString) -> Failure {
        Failure { exit, message: message.to_string() }
    }

    /// A function for `map_err`.
    pub fn with<E: ToString>(exit: Exit) -> impl Fn(E) -> Failure {
        move |error| Failure::new(exit, error)
    }
}

/// The message, with the program's name on each line: terminals and journals mix the output of several programs.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, line) in self.message.lines().enumerate() {
            write!(f, "{}nicety: {line}", if index == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Failure {
        let message = match &error {
            ReadError::Wrong(errors) => {
                let mistakes = nicety_adapter::count(errors.list.len() as u64, "mistake");
                format!("{errors}\n{mistakes} in the host file; docs/host-file.md explains every key")
            }
            other => other.to_string(),
        };
        Failure::new(Exit::Usage, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_a_failure_names_the_program() {
        let failure = Failure::new(Exit::Failed, "host.toml:2: one\nhost.toml:3: two\n");
        assert_eq!(failure.to_string(), "nicety: host.toml:2: one\nnicety: host.toml:3: two");
    }
}
