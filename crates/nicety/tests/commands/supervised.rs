//! A daemon that a service manager started, by the manager's side of sd_notify(3) and of the journal's native protocol.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;

use rustix::process::Signal;

use crate::scratch::{HOST, Scratch, Served, TIMEOUT};

/// The manager's socket.
struct Manager(UnixDatagram);

impl Manager {
    fn new(scratch: &Scratch) -> Manager {
        let socket = UnixDatagram::bind(scratch.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        Manager(socket)
    }

    /// The next message that is not just a sign of life.
    fn next(&self) -> String {
        loop {
            let mut bytes = [0; 4096];
            // With a timeout a signal to this process, whatever it is for, ends the call (signal(7)).
            let count = match self.0.recv(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                count => count.expect("a message in time"),
            };
            let text = String::from_utf8(bytes[..count].to_vec()).unwrap();
            if text.trim() != "WATCHDOG=1" {
                return text;
            }
        }
    }
}

#[test]
fn the_manager_is_told_when_the_sockets_listen_what_is_served_of_reloads_and_of_the_end() {
    let scratch = Scratch::with(HOST);
    let manager = Manager::new(&scratch);
    let served = Served::by(&scratch, "NOTIFY_SOCKET=$PWD/notify exec \"$0\" serve");
    assert_eq!(manager.next(), "READY=1\nSTATUS=2 ports, 0 with a VM; no uplink\n");
    assert_eq!(scratch.sockets(), ["nicety-lan.sock", "vm1.sock", "vm2.sock"]);
    // Without vm1.
    let (head, vm2) = (HOST.split_once("[[port]]").unwrap().0, HOST.rsplit_once("[[port]]").unwrap().1);
    std::fs::write(scratch.path().join("host.toml"), format!("{head}[[port]]{vm2}")).unwrap();
    served.signal(Signal::HUP);
    // sd_notify(3): with the time at which the reload began, by CLOCK_MONOTONIC in microseconds.
    let reloading = manager.next();
    let time = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap_or_else(|| panic!("{reloading:?}"));
    assert!(time.trim().parse::<u64>().unwrap() > 0);
    assert_eq!(manager.next(), "READY=1\n");
    assert_eq!(scratch.sockets(), ["nicety-lan.sock", "vm2.sock"], "the reload is done by then");
    assert_eq!(manager.next(), "STATUS=1 port, 0 with a VM; no uplink\n");
    served.signal(Signal::TERM);
    assert_eq!(manager.next(), "STOPPING=1\nSTATUS=ending\n");
}

#[test]
fn the_watchdog_hears_of_the_daemon_more_often_than_it_asks_for() {
    let scratch = Scratch::with(HOST);
    let manager = Manager::new(&scratch);
    let words = "NOTIFY_SOCKET=$PWD/notify WATCHDOG_USEC=600000 WATCHDOG_PID=$$ exec \"$0\" serve";
    let served = Served::by(&scratch, words);
    assert!(manager.next().starts_with("READY=1\n"));
    for _ in 0..3 {
        manager.0.set_read_timeout(Some(std::time::Duration::from_millis(600))).unwrap();
        let mut bytes = [0; 64];
        let count = manager.0.recv(&mut bytes).expect("a sign of life in time");
        assert_eq!(&bytes[..count], b"WATCHDOG=1\n");
    }
    assert_eq!(served.end(Signal::TERM), Some(0));
}
