//! A test's own user and network namespace, with taps, which needs no root rights.

mod again;

use std::fs::File;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Runs the named test of this file again, in its own namespaces. Returns true inside them.
pub fn inside(test: &str) -> bool {
    again::inside(test, "-Urn", || {
        let driver = File::options().read(true).write(true).open("/dev/net/tun").err();
        let no_driver = driver.map(|error| format!("/dev/net/tun: {error}"));
        let no_ipv6 = || (!std::fs::exists("/proc/sys/net/ipv6").unwrap()).then(|| "no IPv6".to_owned());
        no_driver.or_else(|| again::refusal(&["-Urn", "ip", "link"], "unshare -Urn ip link")).or_else(no_ipv6)
    })
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
