//! Another process makes sockets for this one: no confined thread makes any.

use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::channel;
use std::time::Duration;

use nicety_sandbox::{Folders, Grant, Kind, begin, confine, refusals, sockets_are_made_elsewhere, spawn};

const SOON: Duration = Duration::from_secs(20);

#[test]
fn a_thread_for_changes_makes_no_socket_if_another_process_does_and_still_its_files() {
    let place = tempfile::tempdir().unwrap();
    sockets_are_made_elsewhere();
    begin().unwrap();
    let mut folders = Folders::new();
    folders.grant(place.path(), Grant::Write);
    // Before this thread is confined: a socket that is there already.
    let path = place.path().to_owned();
    let _theirs = UnixListener::bind(path.join("theirs")).unwrap();
    confine(&folders, u8::MAX).unwrap();
    assert_eq!(UnixListener::bind(path.join("first")).unwrap_err().kind(), ErrorKind::PermissionDenied);
    for kind in Kind::ALL {
        let (send, receive) = channel();
        let path = path.join(format!("{kind:?}"));
        let made = move || send.send(UnixListener::bind(path).map(drop).map_err(|error| error.kind())).unwrap();
        let thread = spawn(kind, "hostile", 0, made).unwrap();
        assert_eq!(receive.recv_timeout(SOON).unwrap(), Err(ErrorKind::PermissionDenied), "{kind:?}");
        thread.join().unwrap();
    }
    assert!(refusals().iter().any(|refusal| refusal.kind == Kind::ControlChange && refusal.call == "bind"));
    // The state file, and the removal of a socket.
    let (send, receive) = channel();
    let files = move || {
        let written =
            std::fs::write(path.join("state"), "text").and_then(|()| std::fs::remove_file(path.join("state")));
        let joined = UnixStream::connect(path.join("theirs")).map(drop);
        send.send((written.is_ok(), joined.is_ok(), std::fs::remove_file(path.join("theirs")).is_ok())).unwrap();
    };
    let thread = spawn(Kind::ControlChange, "control-change", 0, files).unwrap();
    assert_eq!(receive.recv_timeout(SOON).unwrap(), (true, true, true));
    thread.join().unwrap();
}
