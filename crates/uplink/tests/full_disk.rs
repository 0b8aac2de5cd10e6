//! A disk that is full in the middle of a capture. A limit of files' sizes stands for it: it is the whole program's, so that this
//! test has one of its own.

mod packets;
mod pcapng;

use std::path::Path;

use nicety_adapter::{Counters, Offload, Reason, Time};
use nicety_uplink::Capture;
use packets::{Sender, partial, payload, tcp, tso};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Packets in a file, and how many it says were lost before them.
fn read(path: &Path) -> (u64, u64) {
    let seen = pcapng::read(path);
    (seen.len() as u64, seen.iter().filter_map(|seen| seen.lost).sum())
}

#[test]
fn frames_that_a_full_disk_does_not_take_are_drops_and_the_file_tells_of_them_and_stays_whole() {
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, std::sync::Arc::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("full");
    let mut capture = Capture::create(&path, &pcapng::options(None)).unwrap();
    let plain = Sender::new(&vec![(tcp(&payload(1000)), Offload::default()); 20]);
    let cut = Sender::new(&[(partial(&payload(30_000)), tso())]);
    let mut counters = Counters::default();
    let before = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: Some(50_000), ..before }).unwrap();
    for _ in 0..10 {
        plain.deliver(&mut capture, &mut counters, Time::ZERO);
    }
    cut.deliver(&mut capture, &mut counters, Time::ZERO);
    let full = counters.clone();
    setrlimit(Resource::Fsize, before).unwrap();
    assert_eq!(full.receive_drops[Reason::UplinkRefused as usize] + full.taken().packets, 201);
    assert_eq!(read(&path), (full.taken().frames, 0), "as many are there as were counted");
    assert!(full.taken().packets > 0 && full.taken().packets < 50, "{full:?}");
    plain.deliver(&mut capture, &mut counters, Time::ZERO);
    let (packets, lost) = read(&path);
    assert_eq!(packets, counters.taken().frames);
    assert_eq!(lost, capture.lost());
    assert_eq!(packets + lost, 220 + 21, "the cut packet is twenty-one frames on the wire");
}
