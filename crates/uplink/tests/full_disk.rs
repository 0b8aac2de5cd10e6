//! A disk that is full in the middle of a capture. The file size limit stands for it. That limit holds for the whole process: so
//! these tests are a program of their own, and run one at a time.

mod packets;
mod pcapng;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nicety_adapter::{Counters, Offload, QueueCounters, Reason, Time};
use nicety_uplink::Capture;
use packets::{Sender, partial, payload, tcp, tso};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Number of packets in a file, and the number that it reports as lost before them.
fn read(path: &Path) -> (u64, u64) {
    let seen = pcapng::read(path);
    (seen.len() as u64, seen.iter().filter_map(|seen| seen.lost).sum())
}

/// Each of these tests holds this from its beginning to its end: no test may write under another one's limit.
struct Turn {
    _lock: MutexGuard<'static, ()>,
}

impl Turn {
    fn take() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        Self { _lock: TURN.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Limits the size of files until the returned value is dropped.
    fn full_at(&self, bytes: u64) -> Full<'_> {
        signal_hook::flag::register(signal_hook::consts::SIGXFSZ, std::sync::Arc::default()).unwrap();
        let before = getrlimit(Resource::Fsize);
        setrlimit(Resource::Fsize, Rlimit { current: Some(bytes), ..before }).unwrap();
        Full { before, _turn: self }
    }
}

struct Full<'a> {
    before: Rlimit,
    _turn: &'a Turn,
}

impl Drop for Full<'_> {
    fn drop(&mut self) {
        setrlimit(Resource::Fsize, self.before).unwrap();
    }
}

#[test]
fn frames_that_a_full_disk_does_not_take_are_drops_and_the_file_tells_of_them_and_stays_whole() {
    let turn = Turn::take();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("full");
    let mut capture = Capture::create(&path, &pcapng::options(None)).unwrap();
    let plain = Sender::new(&vec![(tcp(&payload(1000)), Offload::default()); 20]);
    let cut = Sender::new(&[(partial(&payload(30_000)), tso())]);
    let mut counters = Counters::default();
    let disk = turn.full_at(50_000);
    for _ in 0..10 {
        plain.deliver(&mut capture, &mut counters, Time::ZERO);
    }
    cut.deliver(&mut capture, &mut counters, Time::ZERO);
    let full = counters.clone();
    drop(disk);
    assert_eq!(full.receive_drops[Reason::UplinkRefused as usize] + full.taken().packets, 201);
    assert_eq!(read(&path), (full.taken().frames, 0), "as many are there as were counted");
    assert!(full.taken().packets > 0 && full.taken().packets < 50, "{full:?}");
    plain.deliver(&mut capture, &mut counters, Time::ZERO);
    let (packets, lost) = read(&path);
    assert_eq!(packets, counters.taken().frames);
    assert_eq!(lost, capture.lost());
    assert_eq!(packets + lost, 220 + 21, "the cut packet is twenty-one frames on the wire");
}

#[test]
fn a_packet_that_was_cut_counts_if_all_its_frames_are_there_and_is_a_drop_if_one_is_not() {
    let turn = Turn::take();
    const CUT: usize = 21;
    // Each packet has its own destination; those from 20 on are cut.
    let packet = |number: u8| {
        let (mut frame, offload) =
            if number < 20 { (tcp(&payload(1000)), Offload::default()) } else { (partial(&payload(30_000)), tso()) };
        frame[5] = number;
        (frame, offload)
    };
    let packets: Vec<_> = (0..30).map(packet).collect();
    let sender = Sender::new(&packets);
    let folder = tempfile::tempdir().unwrap();
    let mut torn = 0;
    for limit in (20_000..400_000).step_by(20_000) {
        let path = folder.path().join(limit.to_string());
        let mut capture = Capture::create(&path, &pcapng::options(None)).unwrap();
        let mut counters = Counters::default();
        let disk = turn.full_at(limit);
        assert_eq!(sender.deliver(&mut capture, &mut counters, Time::ZERO).refused(), 0);
        drop(disk);
        let seen = pcapng::read(&path);
        let mut there = QueueCounters::default();
        for (number, (frame, _)) in packets.iter().enumerate() {
            let frames = seen.iter().filter(|seen| usize::from(seen.frame[5]) == number).count();
            let whole = if number < 20 { 1 } else { CUT };
            if frames == whole {
                there.packets += 1;
                there.frames += whole as u64;
                there.bytes += frame.len() as u64;
            }
            torn += usize::from((1..whole).contains(&frames));
        }
        assert_eq!(counters.taken(), there, "{limit}");
        assert_eq!(counters.receive_drops[Reason::UplinkRefused as usize], 30 - there.packets, "{limit}");
        assert_eq!(seen.len() as u64 + capture.lost(), 20 + 10 * CUT as u64, "{limit}");
    }
    assert!(torn > 0, "no packet was ever there in part");
}
