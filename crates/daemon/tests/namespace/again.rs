//! A test that runs itself again in namespaces of its own. Tests of other crates take this file by its path.

use std::io::Write as _;
use std::process::Command;

const INSIDE: &str = "NICETY_TEST_INSIDE";

/// Runs the named test of this program again, under `unshare` with this option. Returns true in that run. With an obstacle the test is
/// skipped.
pub fn inside(test: &str, option: &str, obstacle: impl FnOnce() -> Option<String>) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if let Some(reason) = obstacle() {
        // Writes past the harness, which captures the output of tests that pass.
        let _stdout_closed = writeln!(std::io::stdout(), "\nSKIPPED {test}: {}", reason.trim());
        return false;
    }
    let mut again = Command::new("unshare");
    again.arg(option).arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]).env(INSIDE, "1");
    let output = again.output().unwrap();
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}{error}");
    print!("{out}");
    eprint!("{error}");
    false
}

/// The reason why `unshare` does not run these words here, if it does not. `what` names what they try.
pub fn refusal(words: &[&str], what: &str) -> Option<String> {
    match Command::new("unshare").args(words).output() {
        Err(error) => Some(format!("unshare: {error}")),
        Ok(output) if !output.status.success() => Some(format!("{what}: {}", String::from_utf8_lossy(&output.stderr))),
        Ok(_) => None,
    }
}
