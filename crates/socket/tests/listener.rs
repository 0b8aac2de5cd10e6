//! The socket in the file system.

#[path = "../../peer/tests/lingering/mod.rs"]
mod lingering;

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lingering::lingering;
use nicety_socket::{Accepted, Access, Account, ListenError, Listener, Place, check};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{getegid, geteuid};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use tempfile::TempDir;

/// A directory for one test, removed at the end.
struct Room(TempDir);

impl Room {
    fn new() -> Room {
        Room(TempDir::new().unwrap())
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("vm.sock")
    }
}

#[test]
fn the_socket_is_its_owners_alone_and_goes_when_the_listener_goes() {
    let place = Room::new();
    let listener = Listener::bind(place.socket()).unwrap();
    assert_eq!(std::fs::metadata(listener.path()).unwrap().permissions().mode() & 0o777, 0o600);
    drop(listener);
    assert!(!place.socket().exists());
}

#[test]
fn a_path_that_somebody_serves_is_left_to_him() {
    let place = Room::new();
    let first = Listener::bind(place.socket()).unwrap();
    let error = Listener::bind(place.socket()).unwrap_err();
    assert!(matches!(error, ListenError::InUse(_)));
    assert!(
        error.to_string().ends_with("is served by another process or another port: stop it or choose another path")
    );
    assert!(place.socket().exists());
    drop(first);
}

#[test]
fn a_socket_that_nobody_serves_any_more_is_replaced() {
    let place = Room::new();
    drop(UnixListener::bind(place.socket()).unwrap());
    let path = place.socket();
    assert!(UnixStream::connect(&path).is_err());
    let listener = Listener::bind(&path).unwrap();
    drop(UnixStream::connect(&path).unwrap());
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn a_folder_that_is_missing_or_none_or_not_ours_is_named_with_what_to_do() {
    let place = Room::new();
    let folder = place.0.path().join("missing");
    let error = Listener::bind(folder.join("vm.sock")).unwrap_err().to_string();
    assert!(
        error.ends_with(&format!("vm.sock has no folder: make {} or choose another path", folder.display())),
        "{error}"
    );
    std::fs::write(&folder, "a file").unwrap();
    let error = Listener::bind(folder.join("vm.sock")).unwrap_err();
    assert!(matches!(error, ListenError::NoFolder { .. }), "{error}");
    // Root may write everywhere, so this checks the text that other users get.
    let error = ListenError::NotAllowed { path: "/root/vm.sock".into(), user: 7, errno: rustix::io::Errno::ACCESS };
    let said = error.to_string();
    assert!(said.contains("/root/vm.sock") && said.contains("user 7 may not write to /root: "), "{said}");
}

#[test]
fn a_file_system_that_keeps_no_sockets_is_told_as_such() {
    for folder in ["/proc", "/proc/self", "/sys", "/sys/kernel"] {
        let error = Listener::bind(format!("{folder}/vm.sock")).unwrap_err();
        // Users other than root may not even try in some of these folders.
        let known = matches!(error, ListenError::NoPlace { .. } | ListenError::NotAllowed { .. });
        assert!(known, "{error:?}");
        assert!(error.to_string().starts_with(&format!("the socket {folder}/vm.sock cannot be made: ")), "{error}");
    }
    let said = Listener::bind("/proc/vm.sock").unwrap_err().to_string();
    assert!(said.contains("/proc is no place for sockets (") && said.contains("choose a path"), "{said}");
}

#[test]
fn what_is_not_a_socket_is_never_removed() {
    let place = Room::new();
    std::fs::write(place.socket(), "precious").unwrap();
    assert!(matches!(Listener::bind(place.socket()), Err(ListenError::NotASocket(_))));
    assert_eq!(std::fs::read(place.socket()).unwrap(), b"precious");
    std::fs::remove_file(place.socket()).unwrap();
    std::os::unix::fs::symlink(place.0.path().join("nowhere"), place.socket()).unwrap();
    assert!(matches!(Listener::bind(place.socket()), Err(ListenError::NotASocket(_))));
}

#[test]
fn a_listener_does_not_remove_the_socket_of_its_successor() {
    let place = Room::new();
    let first = Listener::bind(place.socket()).unwrap();
    std::fs::remove_file(place.socket()).unwrap();
    let second = Listener::bind(place.socket()).unwrap();
    drop(first);
    assert!(place.socket().exists());
    drop(second);
}

#[test]
fn a_path_that_does_not_fit_is_refused_with_its_length() {
    let path = PathBuf::from(format!("/tmp/{}", "x".repeat(103)));
    let error = Listener::bind(&path).unwrap_err();
    assert!(matches!(error, ListenError::PathTooLong { length: 108, .. }), "{error}");
    assert!(error.to_string().contains("has 108 bytes; the system's limit is 107"));
}

#[test]
fn one_client_is_taken_with_its_name_and_the_others_are_refused_while_it_is_there() {
    let place = Room::new();
    let listener = Listener::bind(place.socket()).unwrap();
    assert!(matches!(listener.accept(false), Ok(Accepted::Nobody)));
    let _first = UnixStream::connect(place.socket()).unwrap();
    let Accepted::Client(_socket, Some(peer)) = listener.accept(false).unwrap() else { panic!("a client") };
    assert_eq!(peer.pid, std::process::id() as i32);
    let mut second = UnixStream::connect(place.socket()).unwrap();
    assert!(matches!(listener.accept(true), Ok(Accepted::Refused(_, Some(_)))));
    assert_eq!(std::io::Read::read(&mut second, &mut [0]).unwrap(), 0, "it is hung up on");
}

#[test]
fn nobody_waits_until_what_a_refused_client_has_sent_is_closed() {
    let (done, finished) = mpsc::channel();
    thread::spawn(move || {
        let place = Room::new();
        let listener = Listener::bind(place.socket()).unwrap();
        let client = UnixStream::connect(place.socket()).unwrap();
        let (socket, _unread) = lingering();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        let sent = [socket.as_fd()];
        assert!(rights.push(SendAncillaryMessage::ScmRights(&sent)));
        sendmsg(&client, &[IoSlice::new(&[0])], &mut rights, SendFlags::empty()).unwrap();
        drop((socket, client));
        assert!(matches!(listener.accept(true), Ok(Accepted::Refused(..))));
        done.send(()).unwrap();
        // The thread holds the TCP peer until the test ends: without that peer close(2) does not linger.
        thread::park();
    });
    finished.recv_timeout(Duration::from_secs(20)).expect("it waits for a descriptor to be closed");
}

#[test]
fn a_socket_of_messages_keeps_to_the_same_rules() {
    let place = Room::new();
    let listener = Listener::bind_messages(place.socket()).unwrap();
    assert_eq!(std::fs::metadata(place.socket()).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(Listener::bind_messages(place.socket()), Err(ListenError::InUse(_))));
    assert!(matches!(Listener::bind(place.socket()), Err(ListenError::InUse(_))), "whatever it is a socket of");
    drop(listener);
    assert!(!place.socket().exists());
}

fn account(id: u32) -> Option<Account> {
    Some(Account { id, name: format!("n{id}") })
}

#[test]
fn a_socket_is_for_whom_it_is_to_be_whatever_the_umask_says() {
    let place = Room::new();
    let ours = getegid().as_raw();
    for mode in [0o600, 0o660, 0o666] {
        let listener = Listener::bind_for(place.socket(), &Access { owner: None, group: account(ours), mode }).unwrap();
        let found = std::fs::metadata(listener.path()).unwrap();
        assert_eq!((found.mode() & 0o7777, found.gid()), (mode, ours));
    }
    if !geteuid().is_root() {
        return;
    }
    let others = Access { owner: account(4711), group: account(4712), mode: 0o660 };
    let listener = Listener::bind_for(place.socket(), &others).unwrap();
    let found = std::fs::metadata(listener.path()).unwrap();
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (4711, 4712, 0o660));
    // A socket that a killed daemon left is its successor's, even if its owner is another user.
    let left = place.0.path().join("left.sock");
    drop(UnixListener::bind(&left).unwrap());
    std::os::unix::fs::chown(&left, Some(4711), None).unwrap();
    assert!(matches!(Listener::bind(&left), Err(ListenError::NotOurs { uid: 4711, .. })));
    assert!(Listener::bind_for(&left, &others).is_ok());
}

#[test]
fn who_may_not_give_a_socket_away_is_told_so_before_there_is_one() {
    let place = Room::new();
    let path = place.socket();
    let refused = std::thread::scope(|scope| {
        let without_rights = || {
            // By this capability alone root may give files away.
            let mut ours = capabilities(None).unwrap();
            ours.effective -= CapabilitySet::CHOWN;
            set_capabilities(None, ours).unwrap();
            let to = |owner, group| Access { owner, group, mode: 0o660 };
            [to(None, account(4712)), to(account(4711), account(4712))].map(|access| {
                let checked = check(&path, &access).unwrap_err().to_string();
                assert_eq!(Listener::bind_for(&path, &access).unwrap_err().to_string(), checked);
                checked
            })
        };
        scope.spawn(without_rights).join().unwrap()
    });
    assert!(refused[0].contains("cannot be given to group n4712: user "), "{refused:?}");
    assert!(refused[1].contains("cannot be given to user n4711: user "), "{refused:?}");
    assert!(!path.exists());
}

#[test]
fn a_check_says_what_binding_would_say_and_makes_and_removes_nothing() {
    let place = Room::new();
    let owners = Access::default();
    let says = |path: PathBuf| {
        let said = check(&path, &owners).unwrap_err().to_string();
        assert_eq!(Listener::bind(&path).unwrap_err().to_string(), said);
    };
    says(place.0.path().join("missing/vm.sock"));
    says("/proc/vm.sock".into());
    says(format!("/tmp/{}", "x".repeat(103)).into());
    std::fs::write(place.0.path().join("file"), "").unwrap();
    says(place.0.path().join("file"));
    says(place.0.path().join("file/vm.sock"));
    assert_eq!(check(place.socket(), &owners).unwrap(), Place::Free);
    assert!(!place.socket().exists());
    drop(UnixListener::bind(place.socket()).unwrap());
    assert_eq!(check(place.socket(), &owners).unwrap(), Place::Stale);
    assert!(place.socket().exists());
    let _listener = Listener::bind(place.socket()).unwrap();
    assert_eq!(check(place.socket(), &owners).unwrap(), Place::Served);
}

#[test]
fn a_quiet_check_sees_who_listens_by_any_name_of_its_folder_and_connects_to_nobody() {
    let place = Room::new();
    let check = |path: &std::path::Path| nicety_socket::check_quietly(path, &Access::default()).unwrap();
    assert_eq!(check(&place.socket()), Place::Free);
    let listener = Listener::bind(place.socket()).unwrap();
    let alias = place.socket().parent().unwrap().join("alias");
    std::os::unix::fs::symlink(".", &alias).unwrap();
    for path in [place.socket(), alias.join(place.socket().file_name().unwrap())] {
        assert_eq!(check(&path), Place::Served);
    }
    assert!(matches!(listener.accept(false), Ok(Accepted::Nobody)));
    drop(listener);
    drop(std::os::unix::net::UnixListener::bind(place.socket()).unwrap());
    assert_eq!(check(&place.socket()), Place::Stale);
}

#[test]
fn a_socket_that_another_process_may_go_on_with_is_left_there_until_it_is_ours() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vm.sock");
    let first = Listener::bind(&path).unwrap();
    let copy = || first.as_fd().try_clone_to_owned().unwrap();
    drop(Listener::go_on(copy(), &path).unwrap());
    assert!(path.exists(), "the first one goes on");
    let mut next = Listener::go_on(copy(), &path).unwrap();
    next.own();
    let _client = std::os::unix::net::UnixStream::connect(&path).unwrap();
    assert!(matches!(next.accept(false), Ok(Accepted::Client(..))));
    drop(next);
    assert!(!path.exists());
}
