//! `[daemon] busy_poll` is changed while a guest sends.

use std::path::Path;
use std::time::{Duration, Instant};

use nicety_daemon::live::Consent;
use nicety_host::Host;
use tempfile::TempDir;

use crate::rings_guest::{Guest, until};
use crate::{Stage, begin};

/// A worker that polls all the time looks at a ring for 0.1 s after its last frame, without a notification (docs/host-file.md). It counts
/// from when its turn began, which may be some milliseconds before the frame came.
const SOON: Duration = Duration::from_millis(50);

/// Ports `vm1` and `vm2` with virtio-net. `daemon`: further lines of `[daemon]`.
fn text(workers: usize, daemon: &str) -> String {
    let port = |number: u8| crate::one(number).replace("e1000", "virtio-net");
    format!("[daemon]\nworkers = {workers}\n{daemon}{}{}", port(1), port(2))
}

/// Two guests, of which the first one sends to the second one.
struct Pair {
    sender: Guest,
    receiver: Guest,
    sent: u8,
}

impl Pair {
    /// Sends a frame, and waits until it has arrived. Returns whether the device wanted a notification.
    fn send(&mut self) -> bool {
        self.sent = self.sent.wrapping_add(1);
        let mut frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &[0x88, 0xb5, self.sent]].concat();
        frame.resize(60, 0);
        let (before, notified) = (self.sender.taken(), self.sender.send_as_asked(&frame));
        until("the frame is given back", || self.sender.taken() != before);
        let mut came = Vec::new();
        until("the frame arrives", || {
            came.extend(self.receiver.take());
            !came.is_empty()
        });
        assert_eq!(came, [self.sent]);
        notified
    }

    /// Whether the device wants notifications again sooner than if its ring were polled all the time.
    fn sleeps(&mut self) -> bool {
        let begin = Instant::now();
        self.send();
        loop {
            let wants = self.sender.wants_kicks();
            if begin.elapsed() >= SOON {
                return false;
            }
            if wants {
                return true;
            }
            std::thread::yield_now();
        }
    }
}

fn polling_all_the_time_begins_and_ends_live_while_frames_flow(workers: usize) {
    let place = TempDir::new().unwrap();
    let path = place.path().join("host.toml");
    std::fs::write(&path, text(workers, "")).unwrap();
    let stage = Stage { live: begin(&path), place };
    let [sender, receiver] = [1, 2].map(|number| Guest::new(stage.socket(number)));
    let mut pair = Pair { sender, receiver, sent: 0 };
    let apply = |daemon: &str| {
        let changed = stage.live.apply(&stage.host(&text(workers, daemon)), &Consent::Nothing).unwrap();
        assert_eq!(changed.closed.len(), 0, "no VM is cut off");
        changed.plan.to_string()
    };
    let (always, adaptive) = ("busy_poll = \"always\"\n", "busy_poll = \"adaptive\"\n");
    let changes = [
        (always, "(not set) → always"),
        (adaptive, "always → adaptive"),
        (always, "adaptive → always"),
        ("", "always → (not set)"),
    ];
    until("its ring is polled only while that pays", || pair.sleeps());
    for (text, change) in changes {
        assert_eq!(apply(text), format!("~ daemon: busy_poll {change}\n"));
        let exported = Host::parse(&stage.live.export(), Path::new("/elsewhere/host.toml")).unwrap();
        assert_eq!(exported.daemon.always_polls, text == always);
        if text != always {
            until("its ring is polled only while that pays", || pair.sleeps());
            continue;
        }
        // A turn that began before the change may still ask for a notification.
        until("its ring is polled all the time", || !pair.sleeps());
        let notified = (0..50).filter(|_| pair.send()).count();
        assert!(notified < 25, "{notified} of 50 frames one after the other needed a notification");
    }
}

with_one_worker_and_with_two! {
    polling_all_the_time_begins_and_ends_live_while_frames_flow,
}
