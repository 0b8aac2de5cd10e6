//! A test's own user and network namespace, with taps, which needs no root rights.

use std::fs::File;
use std::io::Write as _;
use std::process::{Command, Stdio};

const INSIDE: &str = "NICETY_NAMESPACE_TEST_INSIDE";

/// Runs the named test of this file again, in its own namespaces. Returns true inside them.
pub fn inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let driver = File::options().read(true).write(true).open("/dev/net/tun").map(drop);
    let namespaces = Command::new("unshare").args(["-Urn", "ip", "link"]).output();
    let reason = match (driver, namespaces) {
        (Err(error), _) => Some(format!("/dev/net/tun: {error}")),
        (_, Err(error)) => Some(format!("unshare: {error}")),
        (_, Ok(output)) if !output.status.success() => {
            Some(format!("unshare -Urn ip link: {}", String::from_utf8_lossy(&output.stderr)))
        }
        _ if !std::fs::exists("/proc/sys/net/ipv6").unwrap() => Some("no IPv6".to_owned()),
        _ => None,
    };
    if let Some(reason) = reason {
        // Write past the test harness, which swallows the output of tests that pass.
        let _stdout_closed = writeln!(std::io::stdout(), "\nSKIPPED {test}: {}", reason.trim());
        return false;
    }
    let mut again = Command::new("unshare");
    again.arg("-Urn").arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]).env(INSIDE, "1");
    let output = again.output().unwrap();
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}{error}");
    print!("{out}");
    false
}

/// Runs `ip` with these options and each of these lines; returns what it shows.
pub fn ip_with(options: &[&str], lines: &str) -> String {
    let mut child = Command::new("ip");
    child.args(options).args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "ip {lines}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs `ip` with each of these lines; returns what it shows.
pub fn ip(lines: &str) -> String {
    ip_with(&[], lines)
}
