//! VMMs that come to a port that is taken: however fast they come back, one a second is sent away, and none waits for that once the
//! port is free. Each with one worker and with two.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;
mod logged;

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use logged::{PATIENCE, Stage, lines_of};
use nicety_daemon::report::Condition;
use nicety_vfio_user::Client;
use nicety_vhost_user::frontend::Frontend;

/// More than there are seconds in [`PATIENCE`].
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

/// Comes while the port is taken, and is hung up on.
fn is_sent_away(stage: &Stage) {
    let mut second = UnixStream::connect(stage.socket()).unwrap();
    second.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(second.read(&mut [0]).unwrap(), 0, "it is closed");
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
            // Nor does a message let it in.
            first.is_served();
        }
        let most = stage.most_lines().min(begun.elapsed().as_secs() + 1);
        assert!(refused <= most, "{adapter}: {refused} were refused, and not {most}: one a second");
        stage.daemon.stop();
        let said = lines_of(&stage.name).iter().filter(|line| line.contains("the port has one already")).count() as u64;
        assert_eq!(said, refused, "{adapter}");
    }
}

fn a_port_whose_vmm_has_gone_takes_the_next_one_at_once_whoever_was_refused_before(workers: usize) {
    for adapter in ["e1000", "virtio-net"] {
        let stage = Stage::new(&format!("{adapter}-taken-over"), adapter, workers);
        let end = Instant::now() + PATIENCE;
        for round in 0..ROUNDS {
            let first = First::take(&stage, adapter);
            is_sent_away(&stage);
            drop(first);
            stage.until_is(Condition::Waiting);
            assert!(Instant::now() < end, "{adapter}: {round} of {ROUNDS} rounds within {PATIENCE:?}: each waits");
        }
    }
}

fn a_daemon_is_told_to_end_while_somebody_is_left_waiting(workers: usize) {
    for adapter in ["e1000", "virtio-net"] {
        let stage = Stage::new(&format!("{adapter}-taken-end"), adapter, workers);
        let _first = First::take(&stage, adapter);
        is_sent_away(&stage);
        let mut waiting = UnixStream::connect(stage.socket()).unwrap();
        waiting.set_read_timeout(Some(PATIENCE)).unwrap();
        stage.daemon.stop();
        // What nobody took in is closed, or reset.
        assert!(!waiting.read(&mut [0]).is_ok_and(|count| count > 0));
        assert!(!stage.socket().exists());
    }
}

with_one_worker_and_with_two!(
    a_vmm_that_comes_back_to_a_taken_port_is_refused_once_a_second,
    a_port_whose_vmm_has_gone_takes_the_next_one_at_once_whoever_was_refused_before,
    a_daemon_is_told_to_end_while_somebody_is_left_waiting,
);
