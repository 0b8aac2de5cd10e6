//! VMMs that connect to a port that is taken. However fast they reconnect, one a second is refused, and none waits for that once
//! the port is free. Each test runs with one worker and with two.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;
mod logged;

use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use logged::{Stage, TIMEOUT, lines_of};
use nicety_daemon::report::Condition;
use nicety_vfio_user::Client;
use nicety_vhost_user::frontend::Frontend;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// More rounds than there are seconds in [`TIMEOUT`].
const ROUNDS: u64 = 30;

/// The VMM that has the port.
enum First {
    VfioUser(Box<Client>),
    VhostUser(Frontend),
}

impl First {
    fn take(stage: &Stage, adapter: &str) -> First {
        let mut first = match adapter {
            "virtio-net" => First::VhostUser(Frontend::connect(stage.socket()).unwrap()),
            _ => First::VfioUser(Box::new(Client::connect(stage.socket()).unwrap())),
        };
        first.is_served();
        first
    }

    fn is_served(&mut self) {
        match self {
            First::VfioUser(client) => client.region_read(7, 0, &mut [0; 4]).unwrap(),
            First::VhostUser(front) => front.negotiate(1 << 32).map(drop).unwrap(),
        }
    }
}

/// Connects while the port is taken, and checks that the port hangs up.
fn is_sent_away(stage: &Stage) {
    let mut second = UnixStream::connect(stage.socket()).unwrap();
    second.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert_eq!(second.read(&mut [0]).unwrap(), 0, "it is closed");
}

/// The socket to which the ending process connects.
const GOES: &str = "NICETY_TEST_VMM_THAT_GOES";

/// A connection whose process has ended. The kernel closes some descriptors of a dead process later (io_uring's, which QEMU
/// uses).
fn of_a_dead_process(stage: &Stage) -> OwnedFd {
    let (own, theirs) = UnixStream::pair().unwrap();
    let mut process = Command::new(std::env::current_exe().unwrap());
    process
        .args(["--exact", "the_process_that_goes", "--nocapture"])
        .env(GOES, stage.socket())
        .stdin(OwnedFd::from(theirs));
    let mut process = process.stdout(Stdio::null()).spawn().unwrap();
    own.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut received = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&own, &mut [IoSliceMut::new(&mut [0])], &mut received, RecvFlags::CMSG_CLOEXEC).unwrap();
    let descriptors = received.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    assert!(process.wait().unwrap().success());
    descriptors.unwrap()
}

/// Not a test of its own: `of_a_dead_process` starts it. It connects, passes its connection on, and ends.
#[test]
fn the_process_that_goes() {
    let Some(socket) = std::env::var_os(GOES) else { return };
    let connection = UnixStream::connect(socket).unwrap();
    let connections = [connection.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut sent = SendAncillaryBuffer::new(&mut space);
    assert!(sent.push(SendAncillaryMessage::ScmRights(&connections)));
    sendmsg(std::io::stdin(), &[IoSlice::new(&[0])], &mut sent, SendFlags::empty()).unwrap();
}

/// A VM that is killed and started again at once finds its port, though the kernel has not closed the first VM's connection yet.
fn a_vmm_waits_for_what_is_left_of_a_dead_one(workers: usize) {
    let stage = Stage::new("e1000-dead", "e1000", workers);
    let left = of_a_dead_process(&stage);
    stage.until("somebody is there", || stage.daemon.views()[0].state.attached);
    let path = stage.socket();
    let second = thread::spawn(move || Client::connect(path).map(|mut client| client.region_read(7, 0, &mut [0; 4])));
    // Time enough to be refused.
    thread::sleep(Duration::from_millis(100));
    drop(left);
    second.join().unwrap().unwrap().unwrap();
    // Another process may hold such a connection. Then the next VMM is refused after all.
    let stage = Stage::new("e1000-handed-on", "e1000", workers);
    let _handed_on = of_a_dead_process(&stage);
    stage.until("somebody is there", || stage.daemon.views()[0].state.attached);
    is_sent_away(&stage);
}

/// QEMU with `-netdev vhost-user,…,reconnect-ms=1000` comes back at once, thousands of times a second.
fn a_vmm_that_comes_back_to_a_taken_port_is_refused_once_a_second(workers: usize) {
    for adapter in ["e1000", "virtio-net"] {
        let stage = Stage::new(&format!("{adapter}-taken"), adapter, workers);
        let mut first = First::take(&stage, adapter);
        let begun = Instant::now();
        let mut refused = 0;
        while refused < 3 {
            is_sent_away(&stage);
            refused += 1;
            // A message of the first VMM does not let it in either.
            first.is_served();
        }
        let most = stage.most_lines().min(begun.elapsed().as_secs() + 1);
        assert!(refused <= most, "{adapter}: {refused} were refused, and not {most}: one a second");
        stage.daemon.stop();
        let logged =
            lines_of(&stage.name).iter().filter(|line| line.contains("the port has one already")).count() as u64;
        assert_eq!(logged, refused, "{adapter}");
    }
}

fn a_port_whose_vmm_has_gone_takes_the_next_one_at_once_whoever_was_refused_before(workers: usize) {
    for adapter in ["e1000", "virtio-net"] {
        let stage = Stage::new(&format!("{adapter}-taken-over"), adapter, workers);
        let end = Instant::now() + TIMEOUT;
        for round in 0..ROUNDS {
            let first = First::take(&stage, adapter);
            is_sent_away(&stage);
            drop(first);
            stage.until_is(Condition::Waiting);
            assert!(Instant::now() < end, "{adapter}: {round} of {ROUNDS} rounds within {TIMEOUT:?}: each waits");
        }
    }
}

fn a_daemon_is_told_to_end_while_somebody_is_left_waiting(workers: usize) {
    for adapter in ["e1000", "virtio-net"] {
        let stage = Stage::new(&format!("{adapter}-taken-end"), adapter, workers);
        let _first = First::take(&stage, adapter);
        is_sent_away(&stage);
        let mut waiting = UnixStream::connect(stage.socket()).unwrap();
        waiting.set_read_timeout(Some(TIMEOUT)).unwrap();
        stage.daemon.stop();
        // A connection that was not accepted is closed or reset.
        assert!(!waiting.read(&mut [0]).is_ok_and(|count| count > 0));
        assert!(!stage.socket().exists());
    }
}

with_one_worker_and_with_two!(
    a_vmm_that_comes_back_to_a_taken_port_is_refused_once_a_second,
    a_port_whose_vmm_has_gone_takes_the_next_one_at_once_whoever_was_refused_before,
    a_daemon_is_told_to_end_while_somebody_is_left_waiting,
    a_vmm_waits_for_what_is_left_of_a_dead_one,
);
