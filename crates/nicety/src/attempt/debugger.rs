//! `nicety try --gdb`: the guest's kernel waits, before its first instruction, for a debugger in another terminal.
//!
//! The kernel is a program, so gdb attaches to it as to any other. It is not gdb's child: then the guest's shell and gdb would share a
//! terminal.

use std::fs;
use std::path::Path;

use crate::exit::{Exit, Failure};

/// The debugger.
const GDB: &str = "gdb";
/// Stops itself, then becomes the kernel.
const HOLD: [&str; 4] = ["sh", "-c", "kill -STOP $$; exec \"$@\"", "sh"];
/// Signals that a user-mode kernel uses itself: page faults, ticks, interrupts of devices.
const OWN_SIGNALS: &str = "SIGSEGV SIGALRM SIGVTALRM SIGIO SIGUSR1 SIGUSR2 SIGCHLD SIGWINCH SIGPIPE";

/// The command prefix of the kernel.
pub fn hold() -> Vec<String> {
    HOLD.map(str::to_owned).into()
}

/// Checks that the debugger is there.
pub fn check() -> Result<(), Failure> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&paths).any(|folder| folder.join(GDB).is_file()) {
        return Ok(());
    }
    let what = "the program `gdb` is missing: install the package `gdb`, or leave out --gdb and attach another debugger to the \
                process of the guest's kernel (`linux`)";
    Err(Failure::new(Exit::Missing, what))
}

/// The debugger's command for a held kernel, and notes. The command is the first line that begins with blanks.
pub fn advice(process: u32, kernel: &Path) -> String {
    let mut text = format!(
        "the guest's kernel waits for gdb; in another terminal:\n  \
         {GDB} -q -p {process} -ex 'set print inferior-events off' -ex 'handle {OWN_SIGNALS} pass nostop noprint' \
         -ex 'handle SIGSTOP nopass nostop noprint' -ex 'tcatch exec' -ex continue\n\
         it stops where the kernel begins; then, for example: break e1000_probe, continue"
    );
    if !has_lines(kernel) {
        text.push_str(
            "\nnote: this kernel has its functions' names but no source lines: build one with CONFIG_DEBUG_INFO_DWARF_TOOLCHAIN_DEFAULT=y \
             (docs/driver-developers.md), and name it with --kernel",
        );
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if !matches!(scope.trim(), "" | "0") {
        text.push_str(
            "\nnote: this machine lets only root attach a debugger: run it with sudo, or allow it with \
             `sudo sysctl kernel.yama.ptrace_scope=0`",
        );
    }
    text
}

/// Whether a program has debugging information: the name of its section is in the table of names at the file's end.
fn has_lines(kernel: &Path) -> bool {
    const NAME: &[u8] = b".debug_info\0";
    fs::read(kernel).is_ok_and(|program| program.windows(NAME.len()).any(|part| part == NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_is_a_command_for_this_process() {
        let text = advice(4321, Path::new("/no/kernel"));
        let command = text.lines().find(|line| line.starts_with("  ")).unwrap();
        assert!(
            command.starts_with("  gdb -q -p 4321 -ex ") && command.ends_with(" -ex 'tcatch exec' -ex continue"),
            "{text}"
        );
        assert!(text.contains("CONFIG_DEBUG_INFO_DWARF_TOOLCHAIN_DEFAULT=y"), "{text}");
    }

    #[test]
    fn a_program_with_debugging_information_is_known_by_its_section() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("linux");
        fs::write(&file, b"\x7fELF.text\0.debug_info\0").unwrap();
        assert!(has_lines(&file));
        fs::write(&file, b"\x7fELF.text\0").unwrap();
        assert!(!has_lines(&file));
    }
}
