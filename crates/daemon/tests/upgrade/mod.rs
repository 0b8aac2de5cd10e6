//! Replaces a daemon by another one in this process. The test plays the keeper.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nicety_daemon::daemon::Daemon;
use nicety_daemon::handover::give::{UpgradeError, upgrade};
use nicety_daemon::handover::take::Taking;
use nicety_daemon::handover::{Offer, Offering, Upgraded};
use nicety_host::Host;
use nicety_keeper::{Channel, KeptBy, kind};

const WITHIN: Duration = Duration::from_secs(20);

/// The daemon that goes on, and what the old one says. The old one's workers stand still for ever.
#[allow(dead_code, reason = "not every test has a daemon of its own")]
pub fn replaced(old: Arc<Daemon>, host: &Host) -> (Arc<Daemon>, Upgraded) {
    let (new, upgraded) = replaced_without(&old, host, &[]);
    let _never_dropped = std::mem::ManuallyDrop::new(old);
    (new.unwrap(), upgraded.unwrap())
}

/// The same without the VMs of these ports. Without a new daemon the old one goes on.
pub fn replaced_without(
    old: &Daemon,
    host: &Host,
    without: &[String],
) -> (Option<Arc<Daemon>>, Result<Upgraded, UpgradeError>) {
    let ids = old.names().into_iter().map(|(id, name)| (name, id.0)).collect();
    let text = host.document.text();
    let (path, origin_ns) = (host.path.clone(), old.clock_origin_ns());
    let offer = Offer { path, file: text.clone(), running: text, origin_ns, ids, groups: None };
    let (ours, theirs) = Channel::pair().unwrap();
    let (control, _far) = Channel::pair().unwrap();
    let control = OwnedFd::from(control);
    std::thread::scope(|scope| {
        let heir = scope.spawn(move || {
            assert_eq!(theirs.receive(WITHIN).unwrap().kind, kind::UPGRADE);
            let (near, far) = Channel::pair().unwrap();
            theirs.send(kind::STARTED, b"", &[far.as_fd()], WITHIN).unwrap();
            drop(far);
            let taking = Taking::begin(near).unwrap();
            let host = taking.host().unwrap().host;
            let daemon = taking.start(&host).unwrap();
            let taken = taking.take(&daemon, &host);
            taken.iter().for_each(|taken| taken.tell());
            // Nobody has ended it: the channel to the keeper stays open until here.
            (taken.ok().map(|_| Arc::new(daemon)), theirs)
        });
        let kept = KeptBy::from(ours);
        let offering = Offering { offer: &offer, control: control.as_fd(), page: None };
        let upgraded = upgrade(&kept, "/usr/bin/nicety".as_ref(), old, offering, without, &|_| {});
        drop(kept);
        let (new, _keeper) = heir.join().unwrap();
        (new, upgraded)
    })
}

/// The new daemon ends when it is prepared, and has got whatever comes then: the old one goes on. What the old one says.
#[allow(dead_code, reason = "not every test has a new daemon that ends")]
pub fn refused(old: &Daemon, host: &Host) -> UpgradeError {
    const HELLO: u8 = 1;
    const PREPARED: u8 = 3;
    const END: u8 = 6;
    let ids = old.names().into_iter().map(|(id, name)| (name, id.0)).collect();
    let text = host.document.text();
    let (path, origin_ns) = (host.path.clone(), old.clock_origin_ns());
    let offer = Offer { path, file: text.clone(), running: text, origin_ns, ids, groups: None };
    let (ours, theirs) = Channel::pair().unwrap();
    let (control, _far) = Channel::pair().unwrap();
    let control = OwnedFd::from(control);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            assert_eq!(theirs.receive(WITHIN).unwrap().kind, kind::UPGRADE);
            let (near, far) = Channel::pair().unwrap();
            theirs.send(kind::STARTED, b"", &[far.as_fd()], WITHIN).unwrap();
            drop(far);
            near.send(HELLO, b"0.2.0", &[], WITHIN).unwrap();
            near.receive(WITHIN).unwrap();
            near.send(PREPARED, b"", &[], WITHIN).unwrap();
            while near.receive(WITHIN).unwrap().kind != END {}
            drop(near);
            theirs.send(kind::ENDED, b"it ended with exit code 7", &[], WITHIN).unwrap();
        });
        let kept = KeptBy::from(ours);
        let offering = Offering { offer: &offer, control: control.as_fd(), page: None };
        upgrade(&kept, "/usr/bin/nicety".as_ref(), old, offering, &[], &|_| {}).unwrap_err()
    })
}
