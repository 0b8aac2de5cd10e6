//! A kill at every message of an upgrade, of the old daemon and of the new one, under a guest in QEMU.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nicety_keeper::Start;

use crate::killed::{answered, guest_with};
use crate::stage::SOON;
use crate::steps::{Plan, Relay, Victim};

/// Names the socket for orders and the host file of the process that is the keeper.
const ORDERS: &str = "NICETY_TEST_ORDERS";
const HOST_FILE: &str = "NICETY_TEST_HOST_FILE";
const ADAPTERS: [&str; 3] = ["e1000", "vmxnet3", "virtio-net-pci"];

/// Not a test of its own: the keeper of the test below. Each connection is an order, a line, and gets a line.
#[test]
fn the_keeper_of_the_swept_upgrades() {
    let (Some(orders), Some(host)) = (std::env::var_os(ORDERS), std::env::var_os(HOST_FILE)) else { return };
    let (relay, listener) = (Arc::new(Relay::default()), UnixListener::bind(orders).unwrap());
    let listens = Arc::clone(&relay);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map(Result::unwrap) {
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            let mut plan = listens.plan.lock().unwrap();
            let answer = match line.trim().split_once(' ') {
                Some((victim, left)) => {
                    let victim = if victim == "Old" { Victim::Old } else { Victim::New };
                    let old = listens.pids().last().copied().unwrap_or_default();
                    *plan = Some(Plan { victim, begun: false, left: left.parse().unwrap(), old, came: None });
                    "it waits".to_owned()
                }
                None => plan.take().and_then(|plan| plan.came).unwrap_or_default(),
            };
            writeln!(stream, "{answer}").unwrap();
        }
    });
    let program = PathBuf::from(env!("CARGO_BIN_EXE_nicety"));
    let ended = relay.keep(&Start { program, arguments: vec!["serve".into(), host] }).unwrap();
    assert_eq!(ended.code(), Some(0));
}

/// The answer of the keeper to an order.
fn ordered(socket: &Path, order: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    writeln!(stream, "{order}").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer.trim().to_owned()
}

#[test]
#[ignore = "only with --full: upgraded/steps.rs kills in the usual run"]
fn a_guest_in_qemu_lives_through_a_kill_at_any_message_of_an_upgrade() {
    let dir = tempfile::tempdir().unwrap();
    let (orders, keeper) = (dir.path().join("orders"), dir.path().join("keeper"));
    let script = format!(
        "#!/bin/sh\n{ORDERS}='{}' {HOST_FILE}=\"$2\" exec '{}' swept::the_keeper_of_the_swept_upgrades --exact --nocapture\n",
        orders.display(),
        std::env::current_exe().unwrap().display()
    );
    std::fs::write(&keeper, script).unwrap();
    std::fs::set_permissions(&keeper, PermissionsExt::from_mode(0o755)).unwrap();
    let (mut stage, mut guest) = guest_with(&ADAPTERS, &keeper, "");
    let control = stage.served.socket("control.sock");
    for victim in [Victim::Old, Victim::New] {
        for step in 0.. {
            ordered(&orders, &format!("{victim:?} {step}"));
            // Only who is in its namespace is a user to the daemon.
            let upgrade = format!("'{}' upgrade --control {}", env!("CARGO_BIN_EXE_nicety"), control.display());
            let upgraded = stage.namespace.run(&upgrade, SOON);
            let came = ordered(&orders, "end");
            stage.wait_until("a daemon", || stage.served.counts().is_some());
            (1..).take(ADAPTERS.len()).for_each(|number| answered(&stage, &mut guest, number));
            let said = upgraded.as_ref().map_or_else(ToString::to_string, ToString::to_string);
            println!("{victim:?} at {step}, {came:?}: {}", said.lines().next().unwrap_or_default());
            if came.is_empty() {
                assert!(step >= 12 && upgraded.is_ok(), "{step}: {said}\n{}", stage.served.log());
                break;
            }
        }
    }
    let log = stage.served.log();
    assert!(!log.contains("disconnected") && !log.contains("loses its adapter"), "{log}");
}
