//! The socket in the file system, with clients that speak the protocol.

use nicety_vfio_user::codec::Command;
use nicety_vfio_user::{Accepted, Client, ClientError, Errno, Listener, decline};

use crate::kit::{Model, place};

#[test]
fn a_client_is_served_and_a_second_one_is_refused_while_it_is_there() {
    let (_place, vm) = place();
    drop(std::os::unix::net::UnixListener::bind(&vm).unwrap());
    let error = Client::connect(&vm).unwrap_err();
    assert!(matches!(error, ClientError::Connect { errno: Errno::CONNREFUSED, .. }), "{error}");
    let listener = Listener::bind(&vm).unwrap();
    assert!(matches!(listener.accept(false), Ok(Accepted::Nobody)));
    let path = vm.clone();
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
    let path = vm.clone();
    let second = std::thread::spawn(move || Client::connect(path).unwrap_err());
    let refused = loop {
        match listener.accept(true).unwrap() {
            Accepted::Refused(socket, Some(_)) => break socket,
            _ => std::thread::yield_now(),
        }
    };
    while !decline(&refused, Errno::BUSY) {
        std::thread::yield_now();
    }
    let error = second.join().unwrap();
    assert!(matches!(error, ClientError::Refused { command: Command::Version, errno: Errno::BUSY }), "{error}");
    guest.reset().unwrap();
    drop(guest);
    server.join().unwrap();
}
