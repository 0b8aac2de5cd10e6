//! A new daemon that fails at each step. The old one goes on, its VMM notices nothing, and the answer says why.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use nicety_host::Host;
use nicety_keeper::{FDS_MAX, kind as keeper};
use nicety_vfio_user::Client;
use tempfile::TempDir;

use super::*;
use crate::run::image::Image;
use crate::serve;
use crate::serve::handover::{Offer, bytes_of};

/// The step at which the new daemon fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fails {
    /// The keeper does not start it.
    NotStarted,
    /// It ends before it says anything.
    AtOnce,
    /// It is another program.
    Foreign,
    /// It ends when it has the offer.
    Offered,
    /// It does not understand the offer.
    RefusesOffer,
    /// It ends when it is prepared.
    Prepared,
    /// It ends when it has all images.
    Imaged,
    /// It refuses the images.
    RefusesImages,
    /// It says nothing any more when it has all images.
    Hangs,
    /// It does not fail before it is told to go on, and ends then.
    Gone,
}

const REFUSES: [(Fails, &str); 9] = [
    (Fails::NotStarted, "no such program"),
    (Fails::AtOnce, "it ended with exit code 7"),
    (Fails::Foreign, "no nicety"),
    (Fails::Offered, "it ended with exit code 7"),
    (Fails::RefusesOffer, "this is too new"),
    (Fails::Prepared, "it ended with exit code 7"),
    (Fails::Imaged, "it ended with exit code 7"),
    (Fails::RefusesImages, "this is too new"),
    (Fails::Hangs, "no answer within 3s"),
];

/// Plays the keeper and the new daemon. Returns the number of ports in the images.
fn heir(keeper: &Channel, fails: Fails) -> usize {
    let asked = keeper.receive(PREPARES).unwrap();
    assert_eq!((asked.kind, asked.text().as_str()), (keeper::UPGRADE, "/usr/bin/nicety"));
    if fails == Fails::NotStarted {
        keeper.send(keeper::REFUSED, b"no such program", &[], PREPARES).unwrap();
        return 0;
    }
    let (ours, theirs) = Channel::pair().unwrap();
    keeper.send(keeper::STARTED, b"", &[theirs.as_fd()], PREPARES).unwrap();
    drop(theirs);
    let ports = new_daemon(ours, fails);
    // The keeper sees a process's end.
    let _old_daemon_gone = keeper.send(keeper::ENDED, b"it ended with exit code 7", &[], PREPARES);
    ports
}

fn new_daemon(channel: Channel, fails: Fails) -> usize {
    let refuse = || channel.send(kind::REFUSED, b"this is too new", &[], PREPARES).unwrap();
    match fails {
        Fails::AtOnce => return 0,
        Fails::Foreign => {
            rustix::net::send(channel.as_fd(), &[9, 1], rustix::net::SendFlags::empty()).unwrap();
            return 0;
        }
        _ => channel.send(kind::HELLO, b"0.2.0", &[], PREPARES).unwrap(),
    }
    let offer = wanted(&channel, kind::OFFER, PREPARES).unwrap();
    match fails {
        Fails::Offered => return 0,
        Fails::RefusesOffer => {
            refuse();
            return 0;
        }
        _ => assert_eq!(offer.fds.len(), 2, "the offer, and the control socket"),
    }
    channel.send(kind::PREPARED, b"", &[], PREPARES).unwrap();
    if fails == Fails::Prepared {
        return 0;
    }
    let mut ports = 0;
    loop {
        let message = channel.receive(PREPARES).unwrap();
        match message.kind {
            kind::IMAGE => {
                let bytes = bytes_of(message.fds.into_iter().next()).unwrap();
                ports += Image::from_bytes(&bytes).unwrap().ports.len();
            }
            kind::DESCRIPTORS => assert!((1..=FDS_MAX).contains(&message.fds.len())),
            kind::END => break,
            other => panic!("message {other}"),
        }
    }
    match fails {
        Fails::RefusesImages => refuse(),
        // Until the old daemon has given up and closed its end.
        Fails::Hangs => _ = channel.receive(2 * PREPARES),
        Fails::Gone => {
            channel.send(kind::TAKEN, b"", &[], PREPARES).unwrap();
            assert_eq!(channel.receive(PREPARES).unwrap().kind, kind::GO);
        }
        _ => {}
    }
    ports
}

/// A daemon with two ports, and a VMM at the first.
struct Old {
    daemon: Arc<Daemon>,
    offer: Offer,
    vmm: Client,
    _folder: TempDir,
}

impl Old {
    fn new() -> Old {
        let folder = tempfile::tempdir().unwrap();
        let port = |number: u8| {
            format!(
                "[[port]]\nname = \"vm{number}\"\nadapter = \"e1000\"\nmac = \"52:54:00:00:00:{number:02x}\"\n\
                 socket = \"vm{number}.sock\"\n"
            )
        };
        let text = format!("[daemon]\nworkers = 2\n{}{}", port(1), port(2));
        let path = folder.path().join("host.toml");
        let host = Host::parse(&text, &path).unwrap();
        let daemon = Arc::new(serve::start(serve::prepare(&host, None).unwrap()).unwrap());
        let vmm = Client::connect(folder.path().join("vm1.sock")).unwrap();
        let ids = daemon.numbers();
        let running = host.document.text();
        let origin_ns = daemon.clock_origin_ns();
        let offer = Offer { path, file: text, running, origin_ns, ids, groups: None };
        Old { daemon, offer, vmm, _folder: folder }
    }

    /// Upgrades to a program that fails there. Returns the answer, how often the workers were stopped and went on, and the number of
    /// ports that the new daemon saw.
    fn upgrade(&self, fails: Fails) -> (Result<Upgraded, UpgradeError>, Vec<bool>, usize) {
        let (ours, theirs) = Channel::pair().unwrap();
        let (control, _) = Channel::pair().unwrap();
        let stops = std::sync::Mutex::new(Vec::new());
        let note = |stop| stops.lock().unwrap().push(stop);
        let player = std::thread::spawn(move || heir(&theirs, fails));
        let (kept, program) = (KeptBy::from(ours), PathBuf::from("/usr/bin/nicety"));
        let control = OwnedFd::from(control);
        let upgraded = upgrade(
            &kept,
            &program,
            &self.daemon,
            Offering { offer: &self.offer, control: control.as_fd(), page: None },
            &[],
            &note,
        );
        drop(kept);
        let ports = player.join().unwrap();
        (upgraded, stops.into_inner().unwrap(), ports)
    }

    /// The VMM is served: it reads the identity of its adapter.
    fn check(&mut self, when: Fails) {
        let mut identity = [0; 4];
        self.vmm.region_read(7, 0, &mut identity).unwrap_or_else(|error| panic!("{when:?}: {error}"));
        assert_eq!(identity, [0x86, 0x80, 0x0e, 0x10], "{when:?}");
    }
}

#[test]
fn a_new_daemon_that_fails_at_any_step_changes_nothing_and_the_answer_says_why() {
    let mut old = Old::new();
    for (fails, why) in REFUSES {
        let (upgraded, stops, ports) = old.upgrade(fails);
        let error = upgraded.unwrap_err();
        assert!(matches!(error, UpgradeError::Refused(_)), "{fails:?}: {error:?}");
        let words = error.to_string();
        assert!(
            words.contains(why) && words.ends_with("nothing was changed, and this daemon goes on"),
            "{fails:?}: {words}"
        );
        let is_imaged = matches!(fails, Fails::Imaged | Fails::RefusesImages | Fails::Hangs);
        assert_eq!(ports, if is_imaged { 2 } else { 0 }, "{fails:?}");
        let is_stopped = is_imaged || fails == Fails::Prepared;
        assert_eq!(stops, if is_stopped { vec![true, false] } else { vec![] }, "{fails:?}");
        old.check(fails);
    }
}

#[test]
fn a_new_daemon_that_fails_when_it_has_all_ports_takes_them_along_and_the_old_one_stands_still() {
    let old = Old::new();
    let (upgraded, stops, ports) = old.upgrade(Fails::Gone);
    assert!(matches!(upgraded, Err(UpgradeError::Lost(_))), "{upgraded:?}");
    assert_eq!((stops, ports), (vec![true], 2));
    // Its workers never go on: two processes would write to one guest's memory.
    let _never_dropped = std::mem::ManuallyDrop::new(old);
}
