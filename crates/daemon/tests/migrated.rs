//! Guests whose VMM moves them to another host, or copies them to one again and again, and their daemon is replaced meanwhile: what their
//! front end has begun goes on.

mod rings_guest;
mod upgrade;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nicety_daemon::daemon::Daemon;
use nicety_daemon::serve;
use nicety_host::Host;
use nicety_memory::shared_file;
use rings_guest::{BUFFERS, Guest, two_ports, until};
use tempfile::TempDir;

const LOG_BYTES: u64 = 4096;
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
        let (folder, host, daemon) = two_ports();
        let [guest, sender] = ["vm1.sock", "vm2.sock"].map(|name| Guest::new(folder.path().join(name)));
        Self { _folder: folder, host, daemon: Some(daemon), guest, sender, sent: 0 }
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

/// A daemon with one port, vm1, with these further lines, and a guest there whose rings do not run yet.
fn elsewhere(more: &str) -> (TempDir, Arc<Daemon>, Guest) {
    let folder = TempDir::new().unwrap();
    let text = format!(
        "[[port]]\nname = \"vm1\"\nadapter = \"virtio-net\"\nmac = \"52:54:00:00:00:01\"\nsocket = \"vm1.sock\"\n{more}"
    );
    let host = Host::parse(&text, &folder.path().join("host.toml")).unwrap();
    let daemon = Arc::new(serve::start(serve::prepare(&host, None).unwrap()).unwrap());
    let guest = Guest::waiting(folder.path().join("vm1.sock"));
    (folder, daemon, guest)
}

fn addresses(daemon: &Daemon) -> Vec<String> {
    let mut all: Vec<String> = daemon.addresses().iter().map(|learned| learned.address.to_string()).collect();
    all.sort();
    all
}

fn received(daemon: &Daemon) -> u64 {
    daemon.views()[0].state.counters.taken().packets
}

#[test]
fn learned_addresses_and_counters_go_with_a_guest_and_its_port_s_policy_there_decides_which() {
    let mut stage = Stage::new();
    stage.guest.send([0x52, 0x54, 0, 0, 0, 1], 0);
    stage.guest.send([0x52, 0x54, 0, 0, 9, 9], 0);
    stage.receive();
    until("two frames that are taken", || stage.guest.taken() == 2);
    stage.guest.stop();
    let state = stage.guest.save();

    let (_folder, daemon, mut guest) = elsewhere("");
    guest.load(&state);
    assert_eq!(addresses(&daemon), ["52:54:00:00:00:01", "52:54:00:00:09:09"]);
    assert_eq!(received(&daemon), 1);
    // As each checkpoint passes a state: counts are not added.
    guest.load(&state);
    assert_eq!(received(&daemon), 1);

    let (_folder, daemon, mut guest) = elsewhere("forged_transmits = \"reject\"\n");
    guest.load(&state);
    assert_eq!(addresses(&daemon), ["52:54:00:00:00:01"], "it may send from its own address alone");
    let (_folder, daemon, mut guest) = elsewhere("vlan = 7\n");
    guest.load(&state);
    assert_eq!(addresses(&daemon), [""; 0], "it is in another network");
}

#[test]
fn a_state_that_is_cut_foreign_or_of_tomorrow_is_refused_with_its_reason_and_the_guest_goes_on() {
    let mut stage = Stage::new();
    stage.guest.send([0x52, 0x54, 0, 0, 0, 1], 0);
    until("a frame that is taken", || stage.guest.taken() == 1);
    stage.guest.stop();
    let state = stage.guest.save();
    let (_folder, daemon, mut guest) = elsewhere("");
    let mut newer = state.clone();
    // The envelope's name with its length, then the version.
    newer["nicety-port".len() + 1] += 1;
    let foreign = [&b"\x05other\x01"[..], &state].concat();
    for (what, state) in [("cut", &state[..state.len() - 1]), ("newer", &newer), ("foreign", &foreign), ("none", b"")] {
        guest.load(state);
        assert_eq!((addresses(&daemon), received(&daemon)), (Vec::new(), 0), "{what}");
    }
    guest.load(&vec![0xff; 1 << 20]);
    // Whatever a VMM passes: each byte in turn is another one.
    for at in 0..state.len() {
        let mut other = state.clone();
        other[at] ^= 0x81;
        guest.load(&other);
    }
    guest.start([0, 0]);
    guest.send([0x52, 0x54, 0, 0, 7, 7], 0);
    until("a frame that is taken", || guest.taken() == 1);
    until("its address", || addresses(&daemon).contains(&"52:54:00:00:07:07".to_owned()));
}

#[test]
fn a_port_without_device_state_offers_none_so_that_its_guest_may_move_to_an_earlier_daemon() {
    let (_folder, _daemon, mut guest) = elsewhere("device_state = false\n");
    let (_from, to) = std::io::pipe().unwrap();
    assert!(guest.front.save_state(to.as_fd()).is_err(), "no front end that has asked for the features asks for it");
}
