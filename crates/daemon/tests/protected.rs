//! VMs that are protected, at instants that a real QEMU does not let a test choose: the test plays both QEMUs and their guests.

mod hosts;
mod played;
mod rings_guest;
mod upgrade;

use std::io::Read;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use hosts::{Hosts, Side, folder, goes_alone, terms};
use nicety_daemon::protection::{Terms, VmRole, Wish};
use played::Qemu;
use rings_guest::until;
use serde_json::{Value, json};

#[test]
fn no_frame_of_an_epoch_leaves_before_the_other_host_has_loaded_the_copy_that_closed_it() {
    let mut hosts = Hosts::joining(terms());
    hosts.here.send(1);
    until("a frame before the first copy", || hosts.here.heard() == [1]);
    let (bases, state) = hosts.save();
    hosts.goes_on(bases, false);
    hosts.here.send(2);
    // The load is held back: nothing of it leaves meanwhile.
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(hosts.here.heard(), [1]);
    hosts.load(&state, [0, 0]);
    hosts.here.qemu().event("MIGRATION", &json!({"status": "colo"}));
    hosts.here.state("protected");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(hosts.here.heard(), [1], "the second frame is of the next epoch");
    let (bases, state) = hosts.save();
    let there = hosts.there.guest.stop();
    hosts.load(&state, there);
    hosts.goes_on(bases, false);
    until("the second frame", || hosts.here.heard() == [1, 2]);
}

/// A guest whose driver resets its adapters: no ring says that a copy was loaded, and QEMU's word does. Its event of the copy before is late.
#[test]
fn a_resume_that_is_late_acknowledges_no_copy_of_a_vm_whose_ports_stand_still() {
    let mut hosts = Hosts::protected(terms());
    let runs = |hosts: &Hosts, is: bool| {
        hosts.there.qemu().answers("query-status", json!({"return": {"status": "colo", "running": is}}));
    };
    runs(&hosts, false);
    hosts.here.send(3);
    hosts.here.guest.stop();
    hosts.here.guest.front.reset().unwrap();
    hosts.here.qemu().event("STOP", &Value::Null);
    let state = hosts.here.guest.save();
    hosts.here.qemu().event("RESUME", &Value::Null);
    hosts.there.guest.stop();
    hosts.there.guest.load(&state);
    let asked = hosts.there.qemu().count("query-status");
    hosts.there.qemu().event("RESUME", &Value::Null);
    until("a question", || hosts.there.qemu().count("query-status") > asked);
    std::thread::sleep(Duration::from_millis(200));
    assert!(!hosts.here.heard().contains(&3), "the twin is loading");
    runs(&hosts, true);
    hosts.there.qemu().event("RESUME", &Value::Null);
    until("the frame", || hosts.here.heard().contains(&3));
}

#[test]
fn an_owner_whose_qemu_is_killed_between_two_copies_hands_over_and_what_no_copy_has_never_leaves() {
    for is_saved in [false, true] {
        let mut hosts = Hosts::protected(terms());
        goes_alone(hosts.there.qemu());
        hosts.here.send(3);
        if is_saved {
            // In the middle of a copy: saved here, and not loaded there.
            hosts.save();
        }
        hosts.kill_here();
        hosts.there.qemu().hears("x-colo-lost-heartbeat");
        hosts.there.state("alone");
        assert_eq!((hosts.there.report().role, hosts.there.report().takeovers), (VmRole::Owner, 1));
        hosts.there.send(4);
        until("a frame of the new owner", || hosts.there.heard().last() == Some(&4));
        assert!(!hosts.here.heard().contains(&3), "{:?}", hosts.here.heard());
        drop(hosts.folder);
    }
}

#[test]
fn a_twin_that_is_killed_while_it_joins_or_later_costs_no_frame() {
    for is_protected in [false, true] {
        let mut hosts = if is_protected { Hosts::protected(terms()) } else { Hosts::joining(terms()) };
        goes_alone(hosts.here.qemu());
        if is_protected {
            hosts.here.send(5);
            assert!(!hosts.here.heard().contains(&5), "it waits for a copy");
        }
        hosts.kill_there();
        hosts.here.state("alone");
        if is_protected {
            until("what has waited", || hosts.here.heard().contains(&5));
        }
        hosts.here.send(6);
        until("a frame of a VM that is alone", || hosts.here.heard().contains(&6));
        assert_eq!(hosts.there.report().takeovers, 0);
    }
}

#[test]
fn an_owner_that_no_copy_answers_goes_on_alone_and_its_twin_ends() {
    let mut hosts = Hosts::protected(Terms { silence: Duration::from_secs(1), ..terms() });
    goes_alone(hosts.here.qemu());
    let (bases, _lost) = hosts.save();
    hosts.here.guest.start(bases);
    hosts.here.send(7);
    hosts.here.qemu().hears("x-colo-lost-heartbeat");
    hosts.there.qemu().hears("quit");
    hosts.here.state("alone");
    until("what has waited", || hosts.here.heard().contains(&7));
    let why = hosts.here.report().why_not.unwrap();
    assert!(why.contains("takes no copy any more"), "{why}");
}

/// The lease is away: nothing leaves without it, and it is said.
#[test]
fn an_owner_that_does_not_reach_the_lease_is_isolated_and_goes_on_when_it_is_back() {
    let mut hosts = Hosts::protected(terms());
    hosts.exchange_lease();
    // A twin whose owner speaks to it does not ask: both stay what they are.
    hosts.here.state("isolated");
    let why = hosts.here.report().why_not.unwrap();
    assert!(why.contains("the lease does not answer") && why.contains("it is a folder"), "{why}");
    hosts.here.send(8);
    let (bases, state) = hosts.save();
    let there = hosts.there.guest.stop();
    hosts.load(&state, there);
    hosts.goes_on(bases, false);
    std::thread::sleep(Duration::from_millis(200));
    assert!(!hosts.here.heard().contains(&8));
    hosts.exchange_lease();
    hosts.here.state("protected");
    until("the frame", || hosts.here.heard().contains(&8));
}

#[test]
fn errors_of_qemu_are_told_in_its_own_words_and_the_vm_goes_on() {
    let folder = folder();
    let mut here = Side::new(folder.path(), "a", "b", false, terms());
    here.qemu()
        .answers("migrate-set-capabilities", json!({"error": {"class": "GenericError", "desc": "no x-colo today"}}));
    goes_alone(here.qemu());
    here.state("alone");
    here.guest.start([0, 0]);
    let there = Side::new(folder.path(), "b", "a", true, terms());
    here.qemu().hears("migrate-set-capabilities");
    until("the failure", || here.report().why_not.is_some_and(|why| why.contains("QEMU does not copy its VM")));
    here.send(1);
    until("a frame", || here.heard() == [1]);
    // Nothing was protected, so nothing can be handed over; and a VM that is not here cannot be either.
    let refused = here.daemon.wish("guest", Wish::FailOver).unwrap_err();
    assert!(refused.contains("not protected"), "{refused}");
    let refused = there.daemon.wish("guest", Wish::Stop).unwrap_err();
    assert!(refused.contains("does not run here"), "{refused}");
    assert!(here.daemon.wish("gast", Wish::Stop).unwrap_err().contains("guest"));
}

/// Its sockets stay open, as those of a QEMU that writes its core: nobody tells that it is dead.
#[test]
fn a_qemu_that_hangs_gives_its_vm_to_the_twin_in_the_middle_of_a_copy_too() {
    for is_saved in [false, true] {
        let mut hosts = Hosts::protected(terms());
        goes_alone(hosts.there.qemu());
        if is_saved {
            hosts.save();
        }
        hosts.here.qemu().hang();
        hosts.there.qemu().hears("x-colo-lost-heartbeat");
        hosts.there.state("alone");
        hosts.there.send(9);
        until("a frame of the new owner", || hosts.there.heard().contains(&9));
        assert!(!hosts.there.qemu().has_heard("quit"));
    }
}

/// The lease names the twin in one step, and the owner's QEMU ends after that.
#[test]
fn a_vm_that_is_handed_over_goes_on_at_the_twin_which_the_lease_names_before_its_qemu_ends() {
    let mut hosts = Hosts::protected(terms());
    goes_alone(hosts.there.qemu());
    hosts.here.send(3);
    let lease = hosts.folder.path().join("leases/guest.lease");
    let line = |name: &str| {
        let text = std::fs::read_to_string(&lease).unwrap();
        text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned())).unwrap()
    };
    let (owner, heir) = (line("holder"), line("peer"));
    hosts.here.daemon.wish("guest", Wish::FailOver).unwrap();
    assert_eq!((line("holder"), line("past")), (heir, owner));
    hosts.here.qemu().hears("quit");
    hosts.there.state("alone");
    assert_eq!((hosts.there.report().takeovers, hosts.there.qemu().has_heard("quit")), (1, false));
    hosts.there.send(4);
    until("a frame of the new owner", || hosts.there.heard().last() == Some(&4));
    assert!(!hosts.here.heard().contains(&3), "no copy has it");
}

/// The twin cannot reach the lease, so the handover is refused after a while.
#[test]
fn administrators_who_want_a_handover_at_once_are_all_told_what_comes_of_it() {
    let hosts = Hosts::protected(terms());
    hosts.exchange_lease();
    let answers: Vec<_> = std::thread::scope(|scope| {
        let asks = [(); 3].map(|()| scope.spawn(|| hosts.here.daemon.wish("guest", Wish::FailOver)));
        asks.into_iter().map(|ask| ask.join().unwrap().unwrap_err()).collect()
    });
    assert!(answers.iter().all(|answer| answer.contains("does not reach the lease")), "{answers:?}");
}

/// Its ports close first. The copies end with them, and the lease must not be told that the VM goes on alone.
#[test]
fn a_daemon_that_is_stopped_leaves_its_vm_to_the_twin() {
    let mut hosts = Hosts::protected(terms());
    goes_alone(hosts.there.qemu());
    hosts.here.daemon.stop();
    hosts.there.state("alone");
    assert_eq!((hosts.there.report().role, hosts.there.report().takeovers), (VmRole::Owner, 1));
    hosts.there.send(4);
    until("a frame of the new owner", || hosts.there.heard().contains(&4));
}

/// Something between the daemon and QEMU is started again, or an administrator removes the socket's client.
#[test]
fn a_control_socket_that_is_cut_ends_no_vm() {
    let mut hosts = Hosts::protected(terms());
    goes_alone(hosts.here.qemu());
    // As real ones answer while they copy.
    hosts.here.qemu().answers("query-colo-status", json!({"return": {"mode": "primary", "last-mode": "none"}}));
    hosts.here.qemu().cut();
    hosts.here.state("alone");
    hosts.here.send(5);
    until("a frame", || hosts.here.heard().contains(&5));
    std::thread::sleep(Duration::from_millis(500));
    assert!(!hosts.here.qemu().has_heard("quit"), "its VM runs");
    assert_eq!(hosts.there.report().takeovers, 0);
}

/// A part of this test that is a process of its own. It ends with the test.
struct Part(std::process::Child);

impl Part {
    fn start(role: &str, folder: &Path) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap());
        process.args(["--exact", "--nocapture", "a_stale_twin_that_does_not_quit_is_killed_and_nobody_else"]);
        process.env("NICETY_TEST_PART", role).env("NICETY_TEST_FOLDER", folder).stdin(Stdio::piped());
        Self(process.spawn().unwrap())
    }

    fn has_ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ended = (self.0.kill(), self.0.wait());
    }
}

/// A QEMU that waits, and answers `quit` without ending; or a program between it and the daemon, as socat.
fn play(role: &str, folder: &Path) {
    let _played = match role {
        "between" => {
            let (listener, hidden) = (UnixListener::bind(folder.join("b.qmp")).unwrap(), folder.join("hidden.qmp"));
            std::thread::spawn(move || {
                let (client, _) = listener.accept().unwrap();
                let qemu = UnixStream::connect(hidden).unwrap();
                let (mut from, mut to) = (client.try_clone().unwrap(), qemu.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut from, &mut to).unwrap());
                std::io::copy(&mut &qemu, &mut &client).unwrap();
            });
            None
        }
        socket => {
            let qemu = Qemu::at(&folder.join(socket), true);
            qemu.answers("quit", json!({"return": {}}));
            Some(qemu)
        }
    };
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).unwrap();
}

/// By the process that listens at its control socket. Something that stands between is not QEMU: the answer is a sentence.
#[test]
fn a_stale_twin_that_does_not_quit_is_killed_and_nobody_else() {
    if let (Ok(role), Some(folder)) = (std::env::var("NICETY_TEST_PART"), std::env::var_os("NICETY_TEST_FOLDER")) {
        return play(&role, Path::new(&folder));
    }
    for is_between in [false, true] {
        let folder = folder();
        let mut here = Side::new(folder.path(), "a", "b", false, terms());
        here.state("alone");
        let there = Side::without(folder.path(), "b", "a", terms());
        let mut qemu = Part::start(if is_between { "hidden.qmp" } else { "b.qmp" }, folder.path());
        let mut between = is_between.then(|| {
            until("QEMU's socket", || folder.path().join("hidden.qmp").exists());
            Part::start("between", folder.path())
        });
        if !is_between {
            // A copy has begun, and its owner dies: what the twin has is of no use. Without descriptors no copy begins.
            here.qemu().hears("migrate");
            here.qemu.take().unwrap().kill(&folder.path().join("a.qmp"));
        }
        there.state("stale");
        if let Some(between) = &mut between {
            until("a sentence", || there.report().why_not.is_some_and(|why| why.contains("has not ended within 2s")));
            let why = there.report().why_not.unwrap();
            let words = format!(
                "its control socket is another program's (process {}), which takes no descriptors",
                between.0.id()
            );
            assert!(why.contains(&words) && why.contains("No file descriptor supplied via SCM_RIGHTS"), "{why}");
            assert!(why.contains("systemctl kill -s KILL its unit"), "{why}");
            assert_eq!((between.has_ended(), qemu.has_ended()), (None, None));
        } else {
            until("its end", || qemu.has_ended().is_some());
            assert_eq!(qemu.has_ended().unwrap().signal(), Some(9));
            until("nobody", || there.report().why_not.is_some_and(|why| !why.contains("has not ended")));
        }
    }
}
