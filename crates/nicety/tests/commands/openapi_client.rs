//! A client that openapi-python-client (a Python package, installed once into the cache) generates from the OpenAPI document works
//! with a daemon.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::python;
use crate::scratch::{Ended, HOST, Scratch, Served};

pub const PACKAGE: &str = "openapi-python-client";
pub const VERSION: &str = "0.29.1";

/// Runs a Python program of this environment, whose other programs it finds.
fn run(programs: &Path, name: &str, args: &[&str], folder: &Path) -> Ended {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all: OsString =
        std::env::join_paths([programs.to_owned()].into_iter().chain(std::env::split_paths(&path))).unwrap();
    let mut command = Command::new(programs.join(name));
    command.args(args).current_dir(folder).env("PATH", all).env("PYTHONDONTWRITEBYTECODE", "1");
    Ended::soon(command)
}

#[test]
fn a_generated_client_lists_adds_changes_captures_and_removes_ports() {
    let Some(programs) = python::programs(PACKAGE, VERSION) else { return };
    let scratch = Scratch::with(HOST);
    let daemon = Served::start(&scratch);
    let (_, document) = scratch.get("/v1/openapi.json");
    std::fs::write(scratch.path().join("openapi.json"), document).unwrap();
    let words =
        ["generate", "--path", "openapi.json", "--output-path", "nicety_client", "--meta", "none", "--fail-on-warning"];
    let made = run(&programs, PACKAGE, &words, scratch.path());
    assert_eq!(made.code, Some(0), "{}{}", made.out, made.err);
    std::fs::write(scratch.path().join("use_client.py"), include_str!("use_client.py")).unwrap();
    let used = run(&programs, "python", &["use_client.py", "nicety-lan.sock"], scratch.path());
    assert!(used.code == Some(0) && used.out.ends_with("done\n"), "{}{}", used.out, used.err);
    // The client's changes were made, and the other ports are as they were.
    assert_eq!(scratch.sockets(), ["nicety-lan.sock", "vm1.sock", "vm2.sock"]);
    assert_eq!(daemon.end(Signal::TERM), Some(0));
}
