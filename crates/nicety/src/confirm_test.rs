use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};

use tempfile::TempDir;

use super::*;

/// A daemon on which a change of this process waits. It undoes what it is asked to.
pub(crate) struct Fake {
    place: TempDir,
    /// The requests' first words: method and path.
    asked: Receiver<String>,
}

impl Fake {
    pub(crate) fn new() -> Self {
        Self::with(Some(waiting(&format!("user 7 (process {})", std::process::id()))))
    }

    fn with(waiting: Option<WaitingChange>) -> Self {
        let place = TempDir::new().unwrap();
        let listener = UnixListener::bind(place.path().join("sock")).unwrap();
        let (send, asked) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    request.push(byte[0]);
                }
                let request = String::from_utf8(request).unwrap();
                let words = request.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
                let settled = serde_json::json!({ "by": "user 7", "changes": ["- port vm1"], "not_kept": null });
                let daemon = serde_json::json!({
                    "program": "nicety", "pid": 7, "host": "/host.toml", "starting": false, "after_restart": [], "waiting": waiting,
                });
                let body = if words == "GET /v1/daemon" { daemon } else { settled }.to_string();
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length:";
                // Before the answer: who has it may ask at once what was asked.
                if send.send(words).is_err() {
                    return;
                }
                write!(stream, "{head} {}\r\n\r\n{body}", body.len()).unwrap();
            }
        });
        Self { place, asked }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.place.path().join("sock")
    }

    /// The requests until now.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.try_iter().collect()
    }
}

pub(crate) fn waiting(by: &str) -> WaitingChange {
    WaitingChange { by: by.to_owned(), changes: vec!["- port vm1".to_owned()], seconds_left: 1, not_undone: None }
}

/// A change with an address that does not answer.
pub(crate) fn guarded(confirm: Option<u32>) -> Guarded {
    Guarded { confirm, reach: Some(Reach::deaf("192.0.2.1")) }
}

#[test]
fn a_daemon_that_does_not_take_changes_back_is_said_to_have_made_one_that_stays() {
    let made = |is_change| Answer::Made { waiting: None, is_change };
    let end = |confirm, answer| Guarded { confirm, reach: None }.end(Path::new("/none"), answer);
    for answer in [made(true), Answer::Halfway(None)] {
        let refused = end(Some(60), answer).unwrap_err();
        assert!(refused.message.ends_with("the change is in force, and stays"), "{refused}");
    }
    assert!(end(Some(60), made(false)).is_ok() && end(None, made(true)).is_ok());
    assert!(end(Some(60), Answer::Refused).is_ok() && end(None, Answer::Lost).is_ok());
}

#[test]
fn a_change_that_was_not_wholly_made_or_whose_answer_was_lost_is_undone_at_once() {
    let fake = Fake::new();
    for (answer, message, asked) in [
        (
            Answer::Halfway(Some(waiting("user 7"))),
            "only a part of the change was made: the change was undone",
            &["POST /v1/undo"][..],
        ),
        (
            Answer::Lost,
            "it is not known whether the whole change was made: the change was undone",
            &["GET /v1/daemon", "POST /v1/undo"],
        ),
    ] {
        let failure = guarded(None).end(&fake.socket(), answer).unwrap_err();
        assert_eq!(failure.message, message);
        assert_eq!(fake.asked(), asked);
    }
}

#[test]
fn the_address_is_asked_also_after_a_part_of_a_change_that_a_person_is_to_confirm() {
    let fake = Fake::new();
    for answer in [Answer::Halfway(Some(waiting("user 7"))), Answer::Lost] {
        let failure = guarded(Some(60)).end(&fake.socket(), answer).unwrap_err();
        assert_eq!(failure.message, "192.0.2.1 does not answer: the change was undone");
        assert_eq!(fake.asked().last().unwrap(), "POST /v1/undo");
    }
}

#[test]
fn another_process_s_change_that_waits_is_not_undone_for_a_lost_answer() {
    let fake = Fake::with(Some(waiting("user 7 (process 1)")));
    assert!(guarded(None).end(&fake.socket(), Answer::Lost).is_ok());
    assert_eq!(fake.asked(), ["GET /v1/daemon"]);
}

#[test]
fn a_time_too_short_for_an_address_to_be_asked_is_refused_before_anything_is_done() {
    let guard = Guard { confirm: Some(9), check_reach: Some("192.0.2.1".parse().unwrap()) };
    let refused = Guarded::begin(&guard).unwrap_err();
    assert_eq!(refused.exit, Exit::Usage);
    assert_eq!(
        refused.message,
        "9 s to confirm the change are too few beside --check-reach: 192.0.2.1 is asked for at least 5 s; write --confirm 10s or more"
    );
}
