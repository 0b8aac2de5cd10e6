//! The port's state, which goes with a guest that moves.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;

use nicety_vhost_user::STATE_BYTES_MAX;
use nicety_vhost_user::frontend::Frontend;

use crate::port::{Served, TestPort, serve};

fn front(port: &Arc<TestPort>) -> (Served, Frontend) {
    let (served, stream) = serve(port);
    let mut front = Frontend::from_socket(stream.into());
    front.negotiate(1 << 32).unwrap();
    (served, front)
}

/// Passes these bytes as a state, and ends it or not: what the port was given.
fn load(front: &mut Frontend, port: &TestPort, state: &[u8], ends: bool) -> Result<Vec<u8>, String> {
    let (from, mut to) = std::io::pipe().unwrap();
    front.load_state(from.as_fd()).unwrap();
    drop(from);
    // More than a pipe holds is read meanwhile.
    let _refused_at_some_point = to.write_all(state);
    let kept = (!ends).then(|| to.try_clone().unwrap());
    drop(to);
    front.check_state().unwrap();
    drop(kept);
    port.look(|inside| inside.loaded.pop().unwrap())
}

#[test]
fn a_state_is_written_whole_at_once_and_one_that_comes_is_loaded_when_the_front_end_says_that_it_has_passed_it() {
    let port = TestPort::new(None);
    let (_served, mut front) = front(&port);
    let state: Vec<u8> = (0..STATE_BYTES_MAX as u32).map(|at| at as u8).collect();
    port.look(|inside| inside.state = state.clone());
    let (mut from, to) = std::io::pipe().unwrap();
    front.save_state(to.as_fd()).unwrap();
    drop(to);
    let mut saved = Vec::new();
    from.read_to_end(&mut saved).unwrap();
    front.check_state().unwrap();
    assert!(saved == state);
    assert!(load(&mut front, &port, &state, true).unwrap() == state);
    assert_eq!(load(&mut front, &port, b"", true), Ok(Vec::new()));
    assert!(front.check_state().is_err(), "nothing is passed on now");
}

#[test]
fn a_state_that_is_too_long_endless_or_does_not_end_is_not_loaded_and_the_front_end_goes_on() {
    let port = TestPort::new(None);
    let (_served, mut front) = front(&port);
    let why = load(&mut front, &port, &vec![7; STATE_BYTES_MAX + 1], true).unwrap_err();
    assert!(why.contains("it has 49153 bytes, and no state of a port has more than 49152"), "{why}");
    let why = load(&mut front, &port, &vec![7; 40 << 20], true).unwrap_err();
    assert!(why.contains("more than 16777216 bytes"), "{why}");
    let why = load(&mut front, &port, b"half", false).unwrap_err();
    assert_eq!(why, "it does not end");
    assert_eq!(load(&mut front, &port, b"whole", true), Ok(b"whole".to_vec()));
}

#[test]
fn a_state_for_which_a_pipe_has_no_room_fails_at_once_and_nobody_waits() {
    let port = TestPort::new(None);
    let (_served, mut front) = front(&port);
    port.look(|inside| inside.state = vec![1; 100]);
    let (from, mut to) = std::io::pipe().unwrap();
    to.write_all(&vec![0; 64 << 10]).unwrap();
    front.save_state(to.as_fd()).unwrap();
    assert!(front.check_state().is_err());
    let refused = port.look(|inside| inside.refused.pop().unwrap());
    assert!(refused.contains("was not written to the front end's pipe"), "{refused}");
    drop(from);
    // Nor is it for a descriptor that cannot be written.
    let (from, _to) = std::io::pipe().unwrap();
    front.save_state(from.as_fd()).unwrap();
    assert!(front.check_state().is_err());
}
