//! Tests the API against its own OpenAPI document with schemathesis (a Python package, installed once into the cache). Every
//! request, allowed by the document or not, gets an answer that the document describes, and what it allows is refused by a named rule
//! only (`schemathesis_hooks.py`).

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::thread;

use nicety_trials::scope::is_full;
use rustix::process::Signal;

use crate::python;
use crate::scratch::{HOST, Scratch, Served};

const VERSION: &str = "4.32.5";
const GROUP: &str = "port_group = \"web\"\n\n[[port_group]]\nname = \"web\"\nvlan = 10\n";

/// Relays TCP connections to a UNIX socket. Returns the port's number.
fn relay(socket: &Path) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (number, socket) = (listener.local_addr().unwrap().port(), socket.to_owned());
    let carry = |mut from: TcpStream, mut to: UnixStream| {
        let (mut back, mut answer) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        thread::spawn(move || {
            let _either_closed = io::copy(&mut answer, &mut back);
            let _ = back.shutdown(Shutdown::Both);
        });
        thread::spawn(move || {
            let _either_closed = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    };
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            if let Ok(daemon) = UnixStream::connect(&socket) {
                carry(client, daemon);
            }
        }
    });
    number
}

#[test]
#[ignore = "only with --full: a generated client has all requests in the usual run"]
fn schemathesis_finds_nothing() {
    let Some(programs) = python::programs("schemathesis", VERSION) else { return };
    let scratch = Scratch::with(&(HOST.to_owned() + GROUP));
    let daemon = Served::start(&scratch);
    let socket = scratch.path().join("nicety-lan.sock");
    let url = format!("http://127.0.0.1:{}/v1/openapi.json", relay(&socket));
    // The coverage phase takes two thirds of a normal run's time: four thousand requests.
    let (examples, phases) =
        if is_full() { ("300", "examples,coverage,fuzzing,stateful") } else { ("5", "examples,fuzzing,stateful") };
    let mut tried = Command::new(programs.join("st"));
    tried.args(["run", &url, "--seed", "1", "--max-examples", examples, "--request-timeout", "10", "--no-color"]);
    tried.args(["--phases", phases]);
    // Types cannot describe all rules of a host file. The hooks' own check takes the place of this one: it names the others.
    tried.args(["--exclude-checks", "positive_data_acceptance"]);
    std::fs::write(scratch.path().join("schemathesis_hooks.py"), include_str!("schemathesis_hooks.py")).unwrap();
    tried.env("SCHEMATHESIS_HOOKS", "schemathesis_hooks").env("PYTHONDONTWRITEBYTECODE", "1");
    let output = tried.current_dir(scratch.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert_eq!(daemon.end(Signal::TERM), Some(0));
}
