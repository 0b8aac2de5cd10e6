//! The thread that asks makes no system call that its kind may not make: a refused one ends this process, with its name.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use nicety_etcd::{Settings, User};
use nicety_lease::{Answer, Asker, LeaseFile, LeaseInEtcd, NodeId, Request, ThirdParty};
use nicety_names::Names;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const SOON: Duration = Duration::from_secs(30);
/// Often, so that looks come between the requests.
const LOOK: Duration = Duration::from_millis(1);

/// Asks as the daemon does: by the poll of another thread.
fn ask((asker, who): (&Asker, NodeId), number: u32, request: Request) -> Result<Answer, String> {
    asker.ask(number, who, request);
    loop {
        if let Some((answered, answer)) = asker.answer() {
            assert_eq!(answered, number);
            return answer.map_err(|error| error.to_string());
        }
        let soon = Timespec { tv_sec: SOON.as_secs().cast_signed(), tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(asker, PollFlags::IN)], Some(&soon)), Ok(1), "its descriptor wakes a poll");
    }
}

fn asker(party: impl ThirdParty + 'static) -> Asker {
    Asker::start(Box::new(party), LOOK).unwrap()
}

#[test]
fn a_lease_in_a_file_is_kept_under_the_filter_of_its_thread() {
    nicety_sandbox::begin_for_tests();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("web.lease");
    let (one, other) = (
        asker(LeaseFile::new(&path, SOON, NodeId(1))),
        asker(LeaseFile::new(&path, Duration::from_millis(30), NodeId(2))),
    );
    assert!(ask((&one, NodeId(1)), 1, Request::Found).unwrap().granted);
    assert!(ask((&one, NodeId(1)), 2, Request::Pair { epoch: 1, peer: NodeId(2) }).unwrap().granted);
    assert!(ask((&one, NodeId(1)), 3, Request::Renew).unwrap().granted);
    // Both wait for the lock, and the second one for the end of the lease.
    let taken = (1..10_000).any(|number| {
        std::thread::sleep(Duration::from_millis(1));
        ask((&other, NodeId(2)), number, Request::Take).unwrap().granted
    });
    assert!(taken && !ask((&one, NodeId(1)), 4, Request::Renew).unwrap().granted);
    // What is refused has its reason, and no more.
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
    let error = ask((&one, NodeId(1)), 5, Request::Renew).unwrap_err();
    assert!(error.contains("it is a link"), "{error}");
    let error = Asker::start(Box::new(LeaseFile::new(&folder.path().join("none/lease"), SOON, NodeId(1))), LOOK);
    let error = error.map(drop).unwrap_err().to_string();
    assert!(!nicety_sandbox::is_on() || error.ends_with("none cannot be used: it is not there"), "{error}");
}

#[test]
fn a_lease_in_etcd_is_kept_under_the_filter_of_its_thread() {
    nicety_sandbox::begin_for_tests();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // A server that has no key, and to which whoever writes comes too late.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let (mut heard, mut bytes) = (Vec::new(), [0; 4096]);
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    heard.extend_from_slice(&bytes[..count]);
                    if !heard.ends_with(b"}") {
                        continue;
                    }
                    let is_login = heard.starts_with(b"POST /v3/auth");
                    heard.clear();
                    let body =
                        if is_login { r#"{"header":{},"token":"abc.1"}"# } else { r#"{"header":{"revision":"1"}}"# };
                    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                    stream.write_all(answer.as_bytes()).unwrap();
                }
            });
        }
    });
    let user = Some(User { name: "ft".to_owned(), password: "p".to_owned() });
    let endpoints = vec![format!("http://{address}").parse().unwrap()];
    // By its name, too.
    let named = vec![format!("http://localhost:{}", address.port()).parse().unwrap()];
    for endpoints in [endpoints, named] {
        let settings = Settings { user: user.clone(), ..Settings::new(endpoints) };
        let lease = LeaseInEtcd::new(settings, Names::start().unwrap(), "vm1", 3 * SOON, NodeId(1)).unwrap();
        let asker = asker(lease);
        assert!(!ask((&asker, NodeId(1)), 1, Request::Renew).unwrap().granted);
        let error = ask((&asker, NodeId(1)), 2, Request::Found).unwrap_err();
        assert_eq!(error, "etcd: another host writes the lease all the time");
    }
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let settings = Settings::new(vec![format!("http://{closed}").parse().unwrap()]);
    let lease = LeaseInEtcd::new(settings, Names::start().unwrap(), "vm1", 3 * SOON, NodeId(1)).unwrap();
    let error = ask((&asker(lease), NodeId(1)), 1, Request::Found).unwrap_err();
    assert!(error.contains("Connection refused"), "{error}");
}
