//! Limits of users who may only read: they protect the daemon and the other readers. These tests run as root, and act as other
//! users on threads.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;
use tempfile::TempDir;

use super::tests::Fake;
use super::{Ask, Control, Host, ask, prepare};

/// A user number that no account of this machine has.
const READER: u32 = 54_321;

/// A daemon of two ports that every user may query. Prints a note and returns `None` if this process cannot become another user.
fn everybody_may_ask(test: &str) -> Option<(Control, TempDir)> {
    if !geteuid().is_root() {
        // Write past the test harness, which swallows the output of tests that pass.
        let _stdout_closed = writeln!(std::io::stdout(), "\nSKIPPED {test}: only root can be another user");
        return None;
    }
    let dir = TempDir::new().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let text = "[daemon]\ncontrol = \"c.sock\"\ncontrol_mode = \"0666\"\ncontrol_open_to_everybody = true\n\
                [[port]]\nname = \"vm1\"\nadapter = \"e1000\"\nmac = \"52:54:00:12:34:01\"\nsocket = \"vm1.sock\"\n";
    let host = Host::parse(text, &dir.path().join("host.toml")).unwrap();
    let prepared = prepare(&host, &socket(&dir)).unwrap();
    let control = Control::start(prepared, Path::new("/etc/host.toml"), Arc::new(Fake(2))).unwrap();
    Some((control, dir))
}

fn socket(dir: &TempDir) -> PathBuf {
    dir.path().join("c.sock")
}

/// Runs `act` on a thread as another user.
fn as_reader<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let user = Uid::from_raw(READER);
    let act = || {
        set_thread_res_uid(user, user, user).unwrap();
        act()
    };
    std::thread::scope(|scope| scope.spawn(act).join().unwrap())
}

fn request(head: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("{head} HTTP/1.1\r\nhost: n\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// The answer to a request.
fn answer(path: &Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    // The answer may come before the whole request is written.
    let _ = stream.write_all(request);
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    String::from_utf8_lossy(&reply).into_owned()
}

#[test]
fn a_reader_who_connects_without_end_fails_no_change() {
    let Some((control, _dir)) = everybody_may_ask("a_reader_who_connects_without_end_fails_no_change") else { return };
    let (path, ended, connected) = (control.path(), AtomicBool::new(false), AtomicU64::new(0));
    let flood = |hold: usize| {
        as_reader(|| {
            let mut held = std::collections::VecDeque::new();
            while !ended.load(Ordering::Relaxed) {
                match nicety_socket::join(path, rustix::net::SocketType::STREAM) {
                    Ok(socket) => {
                        connected.fetch_add(1, Ordering::Relaxed);
                        held.push_back(socket);
                        if held.len() > hold {
                            held.pop_front();
                        }
                    }
                    Err(_full) => std::thread::yield_now(),
                }
            }
        });
    };
    let failed: Vec<String> = std::thread::scope(|scope| {
        let flood = &flood;
        for hold in [1, 100, 100] {
            scope.spawn(move || flood(hold));
        }
        while connected.load(Ordering::Relaxed) < 1000 {
            std::thread::yield_now();
        }
        let change = || ask(path, Ask::Restart { name: "vm0".into() });
        let mut failed: Vec<String> = (0..40).filter_map(|_| change().err()).map(|error| error.to_string()).collect();
        // A client that waits between connecting and its request.
        for _ in 0..5 {
            let mut client = UnixStream::connect(path).unwrap();
            let before = connected.load(Ordering::Relaxed);
            while connected.load(Ordering::Relaxed) < before + 300 {
                std::thread::yield_now();
            }
            let _ = client.write_all(&request("POST /v1/ports/vm0/restart", b""));
            let mut reply = String::new();
            let _ = client.read_to_string(&mut reply);
            failed.extend(Some(reply).filter(|reply| !reply.starts_with("HTTP/1.1 200 ")));
        }
        ended.store(true, Ordering::Relaxed);
        failed
    });
    assert_eq!(failed, [""; 0]);
}

#[test]
fn a_reader_may_not_plan_and_is_told_so_before_his_body_is_read() {
    let Some((control, _dir)) = everybody_may_ask("a_reader_may_not_plan") else { return };
    // A body that never arrives.
    let head = b"POST /v1/host/plan HTTP/1.1\r\nhost: n\r\nconnection: close\r\ncontent-length: 1000000\r\n\r\n";
    let reply = as_reader(|| answer(control.path(), head));
    assert!(reply.starts_with("HTTP/1.1 403 ") && reply.contains("/v1/problems/may-only-read"), "{reply}");
    assert!(reply.contains("user 54321 may read, and not change"), "{reply}");
}

#[test]
fn a_reader_sees_the_vms_and_has_no_wish_for_them() {
    let Some((control, _dir)) = everybody_may_ask("a_reader_sees_the_vms") else { return };
    let reply = as_reader(|| answer(control.path(), &request("GET /v1/vms", b"")));
    assert!(reply.starts_with("HTTP/1.1 200 ") && reply.contains("\"name\":\"web\""), "{reply}");
    for wish in ["protect", "stop", "failover"] {
        let reply = as_reader(|| answer(control.path(), &request(&format!("POST /v1/vms/web/{wish}"), b"")));
        assert!(reply.starts_with("HTTP/1.1 403 ") && reply.contains("/v1/problems/may-only-read"), "{reply}");
    }
    let reply = answer(control.path(), &request("POST /v1/vms/web/stop", b""));
    assert!(reply.starts_with("HTTP/1.1 200 "), "an administrator may: {reply}");
}

#[test]
fn a_readers_body_is_as_long_as_a_frame_in_hexadecimal_and_no_longer() {
    let Some((control, _dir)) = everybody_may_ask("a_readers_body_is_as_long_as_a_frame") else { return };
    let frame = format!("{{\"port\":\"vm0\",\"frame\":\"{}\"}}", "00".repeat(65536));
    let reply = as_reader(|| answer(control.path(), &request("POST /v1/trace", frame.as_bytes())));
    assert!(reply.starts_with("HTTP/1.1 409 "), "it was taken, by a daemon without a host file: {reply}");
    // A body of the limit is read and taken like the frame above. One byte more is not read.
    for (len, status) in [(256 << 10, 409), ((256 << 10) + 1, 413)] {
        let reply = as_reader(|| answer(control.path(), &request("POST /v1/trace", &vec![b' '; len])));
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{len} bytes: {reply}");
    }
}
