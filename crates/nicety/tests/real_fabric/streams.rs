//! Frames at short intervals between hosts, of which none may be lost: while a daemon is replaced, and when a guest moves.

use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::rings_guest::Guest;
use super::*;

/// Between two frames of a guest that moves.
const INTERVAL: Duration = Duration::from_millis(10);

fn bytes(number: u8) -> [u8; 6] {
    [0x52, 0x54, 0, 0x12, 0x34, number]
}

pub(super) fn port(number: u8) -> (&'static str, &'static str, u8) {
    ("virtio-net", "web", number)
}

/// Two guests that send to each other: every other frame is a broadcast.
pub(super) struct Both {
    pub(super) guests: [Guest; 2],
    numbers: [u8; 2],
    pub(super) sent: usize,
    came: [Vec<u8>; 2],
}

impl Both {
    pub(super) fn new(guests: [Guest; 2], numbers: [u8; 2]) -> Self {
        Self { guests, numbers, sent: 0, came: Default::default() }
    }

    pub(super) fn send(&mut self) {
        for from in [0, 1] {
            let (own, other) = (bytes(self.numbers[from]), bytes(self.numbers[1 - from]));
            let target = if self.sent.is_multiple_of(2) { other } else { [0xff; 6] };
            self.guests[from].send_to(target, own, self.sent as u8);
        }
        self.sent += 1;
        self.take();
    }

    fn take(&mut self) {
        for (guest, came) in self.guests.iter_mut().zip(&mut self.came) {
            came.extend(guest.take());
        }
    }

    /// All frames have come since this one, each once, and those of each flow in order.
    pub(super) fn all_came(&mut self, first: usize, hosts: [&Host; 2]) {
        let flows = |frames: &[u8]| -> [Vec<u8>; 2] {
            [0, 1].map(|flow| frames.iter().copied().filter(|number| number % 2 == flow).collect())
        };
        let expected: Vec<u8> = (first..self.sent).map(|number| number as u8).collect();
        let end = Instant::now() + Duration::from_secs(5);
        while self.came.iter().any(|came| came.len() < expected.len()) && Instant::now() < end {
            self.take();
            std::thread::sleep(Duration::from_millis(1));
        }
        for came in &self.came {
            let drops = hosts.map(|host| serde_json::to_string(&host.port("tunnel")).unwrap());
            assert_eq!(flows(came), flows(&expected), "{}\n{}", drops.join("\n"), hosts[0].log());
        }
        self.came = Default::default();
    }
}

/// The next process sends to other hosts from its first frame, and takes their frames.
#[test]
fn a_daemon_is_replaced_while_frames_cross_and_none_is_lost_with_etcd_and_without() {
    let (place, mut cluster) = (TempDir::new().unwrap(), Cluster::start::<1>());
    cluster.put("config", GROUPS);
    let ends = addresses::<2>();
    let one = Host::keep(place.path(), "one", &ends[0], &cluster, &[port(1)]);
    let other = Host::start(place.path(), "other", &ends[1], &cluster, &[port(2)]);
    let guests = [Guest::new(one.socket(1)), Guest::new(other.socket(2))];
    let know = || one.place(2).as_deref() == Some("other") && other.place(1).as_deref() == Some("one");
    until("they know each other", know);
    let made = |cluster: &Cluster| cluster.keys().into_iter().find(|(key, _)| key.ends_with("/host/one"));
    let before = made(&cluster);
    assert!(before.is_some(), "{:?}", cluster.keys());
    let mut both = Both::new(guests, [1, 2]);
    both.send();
    both.all_came(0, [&one, &other]);
    for is_away in [false, true] {
        if is_away {
            cluster.kill(0);
            until("etcd is away", || !one.is_connected());
        }
        let first = both.sent;
        let mut upgrade = one.command(&["upgrade"]);
        let (mut left, mut ended) = (40, None);
        while left > 0 {
            both.send();
            std::thread::sleep(Duration::from_millis(5));
            ended = ended.or_else(|| upgrade.try_wait().unwrap());
            left -= i32::from(ended.is_some());
        }
        let said = upgrade.wait_with_output().unwrap();
        assert!(said.status.success(), "{said:?}\n{}", one.log());
        println!("{} frames, {}", both.came[0].len(), String::from_utf8_lossy(&said.stdout).trim_end());
        both.all_came(first, [&one, &other]);
        assert!(know(), "{}{}", one.report(), other.report());
        if !is_away {
            until("it is connected again", || one.is_connected());
            assert_eq!(made(&cluster), before, "it is the same host, whose key was not gone for a moment");
        }
    }
    // The last known state is that of the first daemon's end.
    assert!(one.report().config.is_some() && one.report().refused.is_empty(), "{}", one.report());
    cluster.run(0);
    until("all is well again", || one.is_connected() && other.is_connected());
    assert!(know());
}

/// A stream of frames to one guest.
struct Stream {
    sender: Guest,
    /// When each frame was sent.
    sent: Vec<Instant>,
}

impl Stream {
    /// Sends a frame at each interval for some time, and in it does this.
    fn during(&mut self, time: Duration, mut act: impl FnMut()) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            let number = u8::try_from(self.sent.len()).unwrap();
            self.sender.send_to(bytes(1), bytes(3), number);
            self.sent.push(Instant::now());
            act();
            std::thread::sleep(INTERVAL);
        }
    }
}

#[test]
fn a_guest_that_moves_loses_no_frame_of_a_stream_but_those_of_its_own_pause() {
    let (place, cluster) = (TempDir::new().unwrap(), Cluster::start::<1>());
    cluster.put("config", GROUPS);
    let ends = addresses::<3>();
    let hosts: Vec<Host> = ["one", "other"]
        .iter()
        .zip(&ends)
        .map(|(name, address)| Host::start(place.path(), name, address, &cluster, &[port(1)]))
        .collect();
    let third = Host::start(place.path(), "third", &ends[2], &cluster, &[port(3)]);
    let mut guest = Guest::new(hosts[0].socket(1));
    let mut stream = Stream { sender: Guest::new(third.socket(3)), sent: Vec::new() };
    let is_at = |host: &Host| third.place(1).as_deref() == Some(host.name.as_str());
    until("it is known", || is_at(&hosts[0]));
    let (mut times, mut heard) = (Vec::new(), Heard::new(&third, &cluster));
    for round in 0..5 {
        let (from, to) = (&hosts[round % 2], &hosts[(round + 1) % 2]);
        heard.measure();
        stream.sent.clear();
        stream.during(Duration::from_millis(100), || {});
        // In a live migration the VMM waits there while its memory is copied.
        let mut next = Guest::waiting(to.socket(1));
        stream.during(Duration::from_millis(300), || {});
        assert!(is_at(from), "it still runs there");
        let stopped = Instant::now();
        guest.stop();
        let state = guest.save();
        // Its pause, while the rest is copied. On a machine that stands still it takes longer, as a copy would.
        let mut known = None;
        let mut look = || known = known.or_else(|| is_at(to).then(|| stopped.elapsed()));
        stream.during(Duration::from_millis(100), &mut look);
        until("its new place is known", || {
            look();
            is_at(to)
        });
        times.push(known.unwrap_or_else(|| stopped.elapsed()));
        next.load(&state);
        next.start([0, 0]);
        let started = Instant::now();
        stream.during(Duration::from_millis(300), || {});
        let last = u8::try_from(stream.sent.len() - 1).unwrap();
        let (mut came, mut arrived) = (guest.take(), Vec::new());
        until("the last frame", || {
            arrived.extend(next.take());
            arrived.contains(&last)
        });
        came.extend(arrived);
        assert!(came.is_sorted() && came.windows(2).all(|two| two[0] != two[1]), "each once and in order: {came:?}");
        let lost = (0..=last).filter(|number| !came.contains(number));
        let lost: Vec<(u8, Instant)> = lost.map(|number| (number, stream.sent[usize::from(number)])).collect();
        println!("{} of {} frames lost, in a pause of {:?}", lost.len(), stream.sent.len(), started - stopped);
        // One that was on its way when the guest stopped belongs to the pause.
        let of_pause = (stopped - INTERVAL)..started;
        let others: Vec<_> = lost.iter().filter(|(_, sent)| !of_pause.contains(sent)).collect();
        assert!(others.is_empty(), "{others:?} of {of_pause:?}\n{}\n{}", third.report(), to.log());
        guest = next;
        until("its old place is given up", || !is_at(from));
        heard.measure();
    }
    heard.judge(times);
}
