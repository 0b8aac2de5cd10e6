//! Guests whose VMM moves them to another host, or copies them to one again and again, and their daemon is replaced meanwhile: what their
//! front end has begun goes on.

mod rings_guest;
mod upgrade;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nicety_daemon::daemon::Daemon;
use nicety_daemon::serve;
use nicety_host::Host;
use nicety_memory::shared_file;
use rings_guest::{BUFFERS, Guest};
use tempfile::TempDir;

const LOG_BYTES: u64 = 4096;
const TIMEOUT: Duration = Duration::from_secs(60);
const SENDER: [u8; 6] = [0x52, 0x54, 0, 0, 0, 2];

/// A daemon with two guests at virtio-net ports.
struct Stage {
    _folder: TempDir,
    host: Host,
    daemon: Option<Arc<Daemon>>,
    guest: Guest,
    sender: Guest,
    sent: u8,
}

impl Stage {
    fn new() -> Self {
        nicety_sandbox::begin_for_tests();
        let folder = TempDir::new().unwrap();
        let port = |number: u8| {
            format!(
                "[[port]]\nname = \"vm{number}\"\nadapter = \"virtio-net\"\nmac = \"52:54:00:00:00:{number:02x}\"\n\
                 socket = \"vm{number}.sock\"\n"
            )
        };
        let host = Host::parse(&[port(1), port(2)].concat(), &folder.path().join("host.toml")).unwrap();
        let daemon = Some(Arc::new(serve::start(serve::prepare(&host, None).unwrap()).unwrap()));
        let [guest, sender] = ["vm1.sock", "vm2.sock"].map(|name| Guest::new(folder.path().join(name)));
        Self { _folder: folder, host, daemon, guest, sender, sent: 0 }
    }

    fn upgrade(&mut self) {
        let (new, upgraded) = upgrade::replaced(self.daemon.take().unwrap(), &self.host);
        assert_eq!(upgraded.without, [], "nobody is left behind");
        self.daemon = Some(new);
    }

    /// The other guest sends a frame, which is taken.
    fn send(&mut self) {
        self.sender.send(SENDER, self.sent);
        self.sent += 1;
        until("a frame that is taken", || self.sender.taken() == usize::from(self.sent));
    }

    fn receive(&mut self) {
        self.send();
        until("a frame that arrives", || self.guest.received() == usize::from(self.sent));
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !done() {
        assert!(Instant::now() < end, "{what}: not within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether the page of the guest's `number`th receive buffer is in this log.
fn has(log: &OwnedFd, number: u64) -> bool {
    let (page, mut byte) = ((BUFFERS + number * 2048) / 4096, [0]);
    rustix::io::pread(log, &mut byte, page / 8).unwrap();
    byte[0] & 1 << (page % 8) != 0
}

#[test]
fn the_next_daemon_logs_written_pages_where_the_last_one_did() {
    let mut stage = Stage::new();
    let log = shared_file("log", LOG_BYTES).unwrap();
    stage.guest.front.log(stage.guest.features, true).unwrap();
    stage.guest.front.share_log(log.as_fd(), LOG_BYTES).unwrap();
    stage.receive();
    until("a page in the log", || has(&log, 0));
    assert!(!has(&log, 2));
    stage.upgrade();
    stage.receive();
    stage.receive();
    until("a page in the log", || has(&log, 2));
    // It takes a next log, as at each checkpoint.
    let next = shared_file("log", LOG_BYTES).unwrap();
    stage.guest.front.share_log(next.as_fd(), LOG_BYTES).unwrap();
    stage.receive();
    assert!(!has(&next, 4));
    stage.receive();
    until("a page in the next log", || has(&next, 4));
}

#[test]
fn pages_that_were_written_before_a_front_end_has_given_its_log_are_in_it_although_the_daemon_was_replaced() {
    let mut stage = Stage::new();
    stage.guest.front.log(stage.guest.features, true).unwrap();
    stage.receive();
    stage.upgrade();
    let log = shared_file("log", LOG_BYTES).unwrap();
    stage.guest.front.share_log(log.as_fd(), LOG_BYTES).unwrap();
    assert!(has(&log, 0));
}

#[test]
fn frames_for_rings_that_a_front_end_has_stopped_wait_in_the_next_daemon_too() {
    let mut stage = Stage::new();
    stage.receive();
    let bases = stage.guest.stop();
    stage.send();
    stage.upgrade();
    stage.send();
    stage.guest.start(bases);
    until("frames that have waited", || stage.guest.received() == 3);
    assert_eq!([0, 1, 2].map(|number| stage.guest.first_byte(number)), [0, 1, 2], "in order");
}
