//! The socket in the file system, with clients that speak the protocol.

use std::path::PathBuf;

use nicety_vfio_user::{Accepted, Client, ClientError, Errno, Listener};

use crate::kit::Model;

/// A directory of the test's own, removed at the end.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        let path = std::env::temp_dir().join(format!("nicety-vfio-user-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Place(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("vm.sock")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_client_is_served_and_a_second_one_is_refused_while_it_is_there() {
    let place = Place::new();
    drop(std::os::unix::net::UnixListener::bind(place.socket()).unwrap());
    let error = Client::connect(place.socket()).unwrap_err();
    assert!(matches!(error, ClientError::Connect { errno: Errno::CONNREFUSED, .. }), "{error}");
    let listener = Listener::bind(place.socket()).unwrap();
    assert!(matches!(listener.accept(false), Ok(Accepted::Nobody)));
    let path = place.socket();
    let guest = std::thread::spawn(move || Client::connect(path).unwrap());
    let (socket, peer) = loop {
        match listener.accept(false).unwrap() {
            Accepted::Client(socket, peer) => break (socket, peer),
            _ => std::thread::yield_now(),
        }
    };
    assert_eq!(peer.unwrap().pid, std::process::id() as i32);
    let server = crate::kit::serve(socket, Model::new());
    let mut guest = guest.join().unwrap();
    let path = place.socket();
    let second = std::thread::spawn(move || Client::connect(path).unwrap_err());
    while !matches!(listener.accept(true).unwrap(), Accepted::Refused(Some(_))) {
        std::thread::yield_now();
    }
    assert!(matches!(second.join().unwrap(), ClientError::Session(_)));
    guest.reset().unwrap();
    drop(guest);
    server.join().unwrap();
}
