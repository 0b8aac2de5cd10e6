//! The message when a guest ended before its shell or command did.

use nicety_guests::Error;

use crate::exit::{Exit, Failure};

/// The kernel's last message (kernel/reboot.c: kernel_power_off, kernel_restart, kernel_halt), and its meaning here: a guest that
/// restarts does not come back.
const BY_ITSELF: [(&str, &str); 3] = [
    ("reboot: Power down", "the guest has powered itself off"),
    ("reboot: Restarting system", "the guest has restarted, and so it has ended"),
    ("reboot: System halted", "the guest has halted itself"),
];

/// Sentence about a guest that ended itself in order; `None` if it ended otherwise.
pub fn ended_by_itself(error: &Error) -> Option<&'static str> {
    let Error::Gone { console, .. } = error else { return None };
    let last = console.lines().rfind(|line| !line.trim().is_empty())?;
    BY_ITSELF.iter().find(|(words, _)| last.contains(words)).map(|(_, sentence)| *sentence)
}

/// The lab's error with its exit code.
pub fn failure(error: Error) -> Failure {
    let exit = match &error {
        Error::Stopped => Exit::Interrupted,
        Error::NoCache
        | Error::NoMemoryFolder { .. }
        | Error::Program { .. }
        | Error::NoMirror { .. }
        | Error::Apt { .. } => Exit::Missing,
        _ => Exit::Failed,
    };
    if let Some(sentence) = ended_by_itself(&error) {
        return Failure::new(exit, format!("{sentence}; what ran in it has no exit code"));
    }
    match error {
        Error::Gone { console, .. } => {
            Failure::new(exit, format!("the guest has ended unexpectedly; its console ended with\n{console}"))
        }
        Error::Late { limit, console, .. } => {
            Failure::new(exit, format!("the guest did not answer within {limit:?}; its console ended with\n{console}"))
        }
        Error::Command { code, said, .. } => {
            Failure::new(exit, format!("the guest could not be prepared (code {code}):\n{said}"))
        }
        other => Failure::new(exit, other),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn gone(console: &str) -> Error {
        Error::Gone { command: "exec 4<>/dev/tty0".to_owned(), console: console.to_owned() }
    }

    #[test]
    fn a_guest_that_ends_itself_is_told_by_its_kernels_last_words() {
        let sentence = |console| ended_by_itself(&gone(console));
        assert_eq!(sentence("noise\nreboot: Power down\n"), Some("the guest has powered itself off"));
        assert_eq!(sentence("[    1.5] reboot: System halted"), Some("the guest has halted itself"));
        let restarted = sentence("reboot: Restarting system with command 'x'");
        assert_eq!(restarted, Some("the guest has restarted, and so it has ended"));
        assert_eq!(sentence("reboot: Power down\nKernel panic - not syncing: x"), None);
        assert_eq!(sentence(""), None);
        assert_eq!(ended_by_itself(&Error::Stopped), None);
    }

    #[test]
    fn the_script_is_never_shown_and_the_end_of_the_console_is() {
        let (command, limit) = ("exec 4<>/dev/tty0".to_owned(), Duration::from_secs(1));
        let panic = "Kernel panic - not syncing: x".to_owned();
        for error in [
            gone(&panic),
            Error::Late { command: command.clone(), limit, console: panic.clone() },
            Error::Command { command, code: 1, said: panic.clone() },
        ] {
            let failure = failure(error);
            assert_eq!(failure.exit, Exit::Failed);
            assert!(failure.message.ends_with(&panic) && !failure.message.contains("tty0"), "{}", failure.message);
        }
    }
}
