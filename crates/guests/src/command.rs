//! Programs of the host: run to their end, behind a prefix, or ended with this process.

use std::process::{Command, Stdio};

use super::error::{Error, tail};

/// Program of [`ends_with_us`].
pub(super) const STARTER: &str = "setpriv";

/// Runs a program to its end. The error contains its error output.
pub(super) fn run(command: &mut Command, doing: impl Fn() -> String) -> Result<(), Error> {
    let failed = |said: String| Error::Run { doing: doing(), said };
    let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(|e| failed(e.to_string()))?;
    let output = child.wait_with_output().map_err(|e| failed(e.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(format!("{}\n{}", output.status, tail(&String::from_utf8_lossy(&output.stderr), 8))))
}

/// `command` with a command prefix.
pub(super) fn entered(entrance: &[String], command: Command) -> Command {
    let Some((program, arguments)) = entrance.split_first() else { return command };
    let mut entering = Command::new(program);
    entering.args(arguments).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => entering.env(name, value),
            None => entering.env_remove(name),
        };
    }
    entering
}

/// The command prefix that makes a program end with its parent, for programs without QEMU's option for that. It requests the signal
/// (prctl(2), PR_SET_PDEATHSIG), and then checks that the parent still lived at that time. The program's own words follow.
pub(super) fn ends_with_us() -> Command {
    let mut command = Command::new(STARTER);
    command.args(["--pdeathsig", "KILL", "sh", "-c", "[ \"$PPID\" = \"$0\" ] && exec \"$@\""]);
    command.arg(std::process::id().to_string());
    command
}
