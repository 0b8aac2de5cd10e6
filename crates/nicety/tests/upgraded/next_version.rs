//! A daemon of a next version is replaced by this one: what it hands over has a field that this one does not know.

use super::in_time;
use super::steps::Swept;

/// Kinds of the messages with a state: `crates/daemon/src/serve/handover.rs`.
const STATES: [(u8, &str); 3] = [(2, "the offer"), (4, "a worker's ports"), (6, "what is no port's")];

/// The version of a state follows its name (a length, then letters) in one byte.
fn version(bytes: &mut [u8]) -> &mut u8 {
    let name = usize::from(bytes[0]);
    &mut bytes[1 + name]
}

/// The next version: a field more, as its higher number says.
fn with_a_field_more(bytes: &mut Vec<u8>) {
    *version(bytes) += 1;
    bytes.push(1);
}

/// A field more, and nothing says so.
fn with_a_field_unsaid(bytes: &mut Vec<u8>) {
    bytes.push(1);
}

/// Before any version: a byte less.
fn of_no_version(bytes: &mut Vec<u8>) {
    *version(bytes) = 0;
    bytes.pop();
}

#[test]
fn a_state_of_a_next_version_with_an_unknown_field_is_refused_and_its_daemon_goes_on() {
    let mut swept = Swept::start();
    let program = swept.dir.path().join("nicety");
    let old = swept.serves("before");
    let changes = [
        (with_a_field_more as crate::steps_of::Change, "this version reads"),
        (with_a_field_unsaid, "damaged or cut short"),
        (of_no_version, "this version reads"),
    ];
    for (kind, what) in STATES {
        for (change, why) in changes {
            *swept.relay.changed.lock().unwrap() = Some((kind, change));
            let answer = in_time(|| swept.asked(&["upgrade", program.to_str().unwrap()]));
            let said = String::from_utf8_lossy(&answer.stderr);
            println!("{what}: {}", said.trim());
            assert!(!answer.status.success() && said.contains(why), "{what}: {said}\n{}", swept.log());
            assert!(said.contains("this daemon goes on"), "{what}: {said}");
            assert_eq!(swept.serves(what), old, "{what}");
            swept.check(what);
        }
    }
    *swept.relay.changed.lock().unwrap() = None;
    let answer = in_time(|| swept.asked(&["upgrade", program.to_str().unwrap()]));
    assert!(answer.status.success(), "{answer:?}\n{}", swept.log());
    assert_ne!(swept.serves("after"), old);
    swept.check("after");
    let log = swept.log();
    assert!(!log.contains("loses its adapter") && !log.contains("disconnected"), "{log}");
    swept.end();
}
