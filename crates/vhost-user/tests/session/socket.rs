//! Sockets in the file system.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use nicety_vhost_user::frontend::{Frontend, FrontendError};
use nicety_vhost_user::{Accepted, ListenError, Listener, Session};

use crate::port::TestPort;

fn directory(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("nicety-vhost-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn a_socket_is_its_owners_alone_serves_and_goes() {
    let directory = directory("owner");
    let path = directory.join("vm.sock");
    let listener = Listener::bind(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(listener.accept(false).unwrap(), Accepted::Nobody));
    assert!(matches!(Listener::bind(&path), Err(ListenError::InUse(_))));
    assert!(matches!(listener.accept(true).unwrap(), Accepted::Refused(..)), "the other's look whether it is served");
    let front = std::thread::spawn({
        let path = path.clone();
        move || Frontend::connect(path).unwrap().negotiate(1 << 32).unwrap()
    });
    // The connection may take a moment: wait for the listener, not for a fixed time.
    let mut ready = [rustix::event::PollFd::new(&listener, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut ready, Some(&rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 })).unwrap();
    let Accepted::Client(socket, peer) = listener.accept(false).unwrap() else { panic!("a client") };
    assert_eq!(peer.unwrap().pid, std::process::id() as i32);
    Session::new(socket, TestPort::new(None)).unwrap().run();
    assert_eq!(front.join().unwrap(), 1 << 32);
    drop(listener);
    assert!(!path.exists());
    std::fs::remove_dir(directory).unwrap();
}

#[test]
fn a_stale_socket_is_replaced_and_anything_else_is_left_alone() {
    let directory = directory("stale");
    let path = directory.join("vm.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(matches!(Frontend::connect(&path), Err(FrontendError::Connect { .. })));
    drop(Listener::bind(&path).unwrap());
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(Listener::bind(&path), Err(ListenError::NotASocket(_))));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    let long = directory.join("x".repeat(120));
    let error = Listener::bind(&long).unwrap_err();
    assert!(matches!(error, ListenError::PathTooLong { .. }));
    assert!(error.to_string().contains("107"), "{error}");
    std::fs::remove_dir_all(directory).unwrap();
}
