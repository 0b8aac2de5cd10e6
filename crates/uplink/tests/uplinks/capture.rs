//! Another library reads the captures: they hold the frames that left the switch, as the wire would see them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::*;
use crate::pcapng::{ORIGIN, options, read};
use nicety_adapter::{Counters, Offload, Time, Uplink};
use nicety_uplink::{Capture, Direction};

/// First bytes of a pcapng file: the type of a section header (draft-ietf-opsawg-pcapng, section 4.1).
const MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.pcapng", std::process::id()))
}

#[test]
fn a_link_in_place_of_a_capture_is_not_followed() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    // Through a link, another user's older capture would be overwritten, and a missing file would be made.
    std::fs::write(at("theirs"), MAGIC).unwrap();
    for (link, to) in [("a.pcapng", "theirs"), ("b.pcapng", "absent")] {
        std::os::unix::fs::symlink(at(to), at(link)).unwrap();
        let said = Capture::create(at(link), &options(None)).unwrap_err().to_string();
        assert!(said.ends_with("that is a link, and is not followed; name the file itself"), "{said}");
        assert_eq!(Capture::check(at(link)).unwrap_err().to_string(), said);
    }
    assert_eq!(std::fs::read(at("theirs")).unwrap(), MAGIC);
    assert!(!at("absent").exists());
}

#[test]
fn a_large_packet_is_captured_as_the_frames_of_the_wire() {
    let path = place("large");
    let mut capture = Capture::create(&path, &options(None)).unwrap();
    let mut counters = Counters::default();
    let data = payload(60_000);
    let sender = Sender::new(&[(tcp(b"first"), Offload::default()), (partial(&data), tso())]);
    assert_eq!(sender.deliver(&mut capture, &mut counters, Time(1_000_000_123)).refused(), 0);
    assert_eq!((counters.taken().packets, counters.taken().frames), (2, 43));
    capture.record(&tcp(b"dropped"), Direction::Inbound, Some("no-buffer"), Time(2_000_000_000));
    let seen = read(&path);
    assert_eq!(seen.len(), 44);
    assert_eq!(checked_payload(&seen[0].frame), b"first");
    assert_eq!(seen[1..43].iter().flat_map(|seen| checked_payload(&seen.frame)).collect::<Vec<u8>>(), data);
    for seen in &seen[..43] {
        assert_eq!(seen.time, ORIGIN + Duration::from_nanos(1_000_000_123));
        assert_eq!((seen.flags & 3, &seen.comment, seen.lost), (2, &None, None), "outbound");
    }
    assert_eq!((seen[43].flags & 3, seen[43].comment.as_deref()), (1, Some("no-buffer")));
    assert!(capture.descriptor().is_none());
}

#[test]
fn a_capture_ends_at_its_limit_and_counts_what_it_lost() {
    let path = place("limit");
    let mut capture = Capture::create(&path, &options(Some(20_000))).unwrap();
    let mut counters = Counters::default();
    let sender = Sender::new(&vec![(tcp(&payload(1400)), Offload::default()); 64]);
    sender.deliver(&mut capture, &mut counters, Time::ZERO);
    let size = std::fs::metadata(&path).unwrap().len();
    assert!(size <= 20_000 && size > 18_000, "{size}");
    let seen = read(&path).len() as u64;
    assert_eq!(seen + capture.lost(), 64);
    assert_eq!(counters.taken().packets, seen);
    assert_eq!(counters.receive_drops.iter().sum::<u64>(), capture.lost());
}

#[test]
fn a_capture_takes_the_place_of_an_empty_file_and_of_an_older_capture_and_of_nothing_else() {
    let path = place("there");
    for mine in [&b"[uplink]\nkind = \"capture\"\n"[..], b"x", b"\x0a\x0d\x0d", b"\xd4\xc3\xb2\xa1 an older format"] {
        std::fs::write(&path, mine).unwrap();
        let said = Capture::create(&path, &options(None)).unwrap_err().to_string();
        let begin =
            format!("writing a capture to {}: that is no capture (pcapng), and is left as it is", path.display());
        assert!(said.starts_with(&begin), "{said}");
        assert_eq!(std::fs::read(&path).unwrap(), mine);
    }
    for older in [&b""[..], &[b"\x0a\x0d\x0d\x0a".as_slice(), &[7; 9000]].concat()] {
        std::fs::write(&path, older).unwrap();
        let mut capture = Capture::create(&path, &options(None)).unwrap();
        capture.record(&tcp(b"new"), Direction::Outbound, None, Time::ZERO);
        let seen = read(&path);
        assert_eq!(seen.iter().map(|seen| checked_payload(&seen.frame)).collect::<Vec<_>>(), [b"new"]);
    }
    // A limit that is too small for a capture leaves the file alone too.
    let before = std::fs::read(&path).unwrap();
    assert!(Capture::create(&path, &options(Some(10))).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

fn pipe_at(name: &str) -> PathBuf {
    let path = place(name);
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    path
}

#[test]
fn a_capture_that_somebody_writes_is_nobody_elses() {
    let path = place("busy");
    let mut capture = Capture::create(&path, &options(None)).unwrap();
    capture.record(&tcp(b"kept"), Direction::Outbound, None, Time::ZERO);
    let said = Capture::create(&path, &options(None)).unwrap_err().to_string();
    assert!(said.contains("another process writes one there now; choose another file"), "{said}");
    assert_eq!(read(&path).len(), 1);
    drop(capture);
    assert!(Capture::create(&path, &options(None)).is_ok());
}

#[test]
fn a_full_disk_and_a_slow_reader_are_counted_and_block_nobody() {
    let mut counters = Counters::default();
    let sender = Sender::new(&vec![(tcp(&payload(1400)), Offload::default()); 64]);
    assert!(Capture::create("/dev/full", &options(None)).is_err());

    let path = pipe_at("pipe");
    // The reader opens the pipe later.
    let mut capture = Capture::create(&path, &options(None)).unwrap();
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
    let pipe = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap();
    for _ in 0..10 {
        sender.deliver(&mut capture, &mut counters, Time::ZERO);
    }
    assert!(capture.lost() > 0);
    let copy = place("pipe-copy");
    let mut bytes = Vec::new();
    let drain = |bytes: &mut Vec<u8>| {
        let mut part = vec![0; 1 << 16];
        while let Ok(len @ 1..) = rustix::io::read(&pipe, &mut part) {
            bytes.extend_from_slice(&part[..len]);
        }
    };
    for _ in 0..4 {
        drain(&mut bytes);
        capture.record(&tcp(b"last"), Direction::Outbound, None, Time::ZERO);
    }
    drain(&mut bytes);
    std::fs::write(&copy, &bytes).unwrap();
    let seen = read(&copy);
    assert_eq!(seen.iter().filter_map(|seen| seen.lost).sum::<u64>(), capture.lost(), "the file tells of its gap");
    assert_eq!(seen.len() as u64 + capture.lost(), 640 + 4);
    assert_eq!(counters.taken().packets + capture.lost(), 640);
}
