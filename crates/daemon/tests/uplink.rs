//! An uplink that changes while traffic passes it: the tap stays open, its carrier stays, and no datagram is lost. The test runs
//! itself again in its own user and network namespace, which needs no root rights. Without a tap driver or such a namespace it
//! prints a note and judges nothing. It runs with one worker and with two.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;
mod namespace;

use std::net::UdpSocket;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use namespace::{inside, ip, ip_with};
use nicety_adapter::{Batch, Budget, Counters, Frames, Pick, PortId, Time, Uplink as _};
use nicety_daemon::live::state::Begin;
use nicety_daemon::live::{Consent, Live};
use nicety_daemon::serve;
use nicety_frame::{Layout, checksum};
use nicety_host::Host;
use nicety_memory::Map;
use nicety_uplink::Pair;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Each set of keys lets the tap's frames without a tag pass to VLAN 10.
const CHANGES: [&str; 8] = [
    "vlan = 10",
    "vlan = 10\nrate = \"1Gbit/s\"",
    "vlan = 10\nrate = \"200Mbit/s\"\nlldp = \"both\"",
    "trunk = \"10\"\nnative = 10\nrate = \"200Mbit/s\"",
    "trunk = \"10,20-30\"\nnative = 10",
    "trunk = \"all\"\nnative = 10\nsnooping = true",
    "trunk = \"all\"\nnative = 10\nprivate = \"isolated\"\nlldp = \"send\"",
    "trunk = \"all\"\nnative = 10\nrate = \"2Gbit/s\"\nlldp = \"send\"",
];
const ROUNDS: usize = 5;
/// Datagrams meanwhile, at least.
const DATAGRAMS: u32 = 100;

fn host(place: &Path, workers: usize, keys: &str) -> Host {
    let text = format!(
        "[daemon]\nworkers = {workers}\n[[uplink]]\nkind = \"tap\"\nname = \"up0\"\n{keys}\n\
         [[uplink]]\nkind = \"pair\"\nsocket = \"pair.sock\"\nvlan = 10\n"
    );
    Host::parse(&text, &place.join("host.toml")).unwrap()
}

/// Sets a flag when it is dropped, also by a test that fails.
struct AtTheEnd<'a>(&'a AtomicBool);

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends every datagram back to its sender, until `over`.
fn echo(mut far: Pair, over: &AtomicBool) {
    let (mut batch, mut counters) = (Batch::new(), Counters::default());
    let map = Arc::new(Map::private(2048).unwrap());
    let mut answer = Batch::new();
    while !over.load(Ordering::Relaxed) {
        let mut fds = [PollFd::from_borrowed_fd(far.descriptor().unwrap(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 })).unwrap();
        far.fetch(PortId(9), Budget::TURN, &mut batch, &mut counters, Time::ZERO);
        let mut frames = Vec::new();
        for packet in batch.packets() {
            let mut frame = vec![0; packet.len() as usize];
            batch.copy(packet, &mut frame);
            // IPv4 (0x0800) without options, UDP (17).
            if frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&17) {
                frames.push(frame);
            }
        }
        far.complete(&batch);
        for mut frame in frames {
            let (target, source) = frame.split_at_mut(6);
            target.swap_with_slice(&mut source[..6]);
            let (source, target) = frame[26..34].split_at_mut(4);
            source.swap_with_slice(target);
            let (source, target) = frame[34..38].split_at_mut(2);
            source.swap_with_slice(target);
            let layout = Layout::parse(&frame);
            checksum::fill(&mut frame, &layout).unwrap();
            map.write(0, &frame).unwrap();
            answer.start(&map, PortId(9), 0);
            let mut draft = answer.draft(0).unwrap();
            draft.push(0, frame.len() as u32).unwrap();
            draft.finish_plain(0);
            let sent = far.deliver(&Frames::new(&answer, &[Pick::whole(0)]), &mut counters, Time::ZERO);
            assert_eq!(sent.refused(), 0);
        }
    }
}

/// The interface's number, its flags, and how often its carrier has changed.
fn link() -> (String, bool, String) {
    let text = ip_with(&["-j", "-s", "-s"], "link show up0");
    let value = |key: &str| {
        let (_, rest) = text.split_once(&format!("\"{key}\":")).unwrap_or_else(|| panic!("no {key} in {text}"));
        rest.chars().take_while(char::is_ascii_digit).collect::<String>()
    };
    (value("ifindex"), text.contains("LOWER_UP"), value("carrier_changes"))
}

/// This process's descriptors of taps.
fn taps() -> Vec<String> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_tap = |path: &std::path::PathBuf| std::fs::read_link(path).is_ok_and(|to| to == Path::new("/dev/net/tun"));
    let mut names: Vec<String> = entries.filter(is_tap).map(|path| path.display().to_string()).collect();
    names.sort();
    names
}

/// Sends a datagram and waits for its return.
fn ping(socket: &UdpSocket, number: u32) {
    socket.send(&number.to_ne_bytes()).unwrap();
    let mut answer = [0; 4];
    let len = socket.recv(&mut answer).unwrap_or_else(|error| panic!("datagram {number} was lost: {error}"));
    assert_eq!((len, u32::from_ne_bytes(answer)), (4, number));
}

fn a_tap_whose_rate_and_vlans_change_stays_open_and_loses_nothing(workers: usize) {
    let name = "a_tap_whose_rate_and_vlans_change_stays_open_and_loses_nothing";
    let module = if workers == 1 { "with_one_worker" } else { "with_two_workers" };
    if !inside(&format!("{module}::{name}")) {
        return;
    }
    // It is there before the daemon and outlives it, as an administrator's. A close would take its carrier away.
    ip("tuntap add dev up0 mode tap");
    let _no_ipv6_here = std::fs::write("/proc/sys/net/ipv6/conf/up0/disable_ipv6", "1");
    ip("address add 10.9.8.1/24 dev up0");
    ip("link set up0 up");
    ip("neighbour add 10.9.8.2 lladdr 02:00:00:00:00:77 dev up0");
    let place = tempfile::TempDir::new().unwrap();
    let begun = Begin::new(host(place.path(), workers, CHANGES[CHANGES.len() - 1]));
    nicety_sandbox::begin_for_tests();
    let daemon = Arc::new(serve::start(serve::prepare(&begun.host, None).unwrap()).unwrap());
    let live = Live::new(Arc::clone(&daemon), begun.host, begun.file, begun.state);
    let far = Pair::connect(place.path().join("pair.sock")).unwrap();
    let (over, number) = (AtomicBool::new(false), AtomicU32::new(0));
    // On a busy machine datagrams are slower than changes.
    let are_few = || number.load(Ordering::Relaxed) < DATAGRAMS && !over.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| echo(far, &over));
        let _ends_it = AtTheEnd(&over);
        let socket = UdpSocket::bind("10.9.8.1:2000").unwrap();
        socket.connect("10.9.8.2:1000").unwrap();
        // The pair connects in its own time.
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let is_there = |_: &u32| socket.send(&[0; 4]).is_ok() && socket.recv(&mut [0; 4]).is_ok();
        (0..200).find(is_there).expect("the way to the far end");
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // Answers to the first questions come before the answer to this one.
        let (last, mut answer) = ([0xff; 4], [0; 4]);
        socket.send(&last).unwrap();
        while answer != last {
            socket.recv(&mut answer).unwrap();
        }
        let (before, open) = (link(), taps());
        assert!(before.1 && !open.is_empty(), "{before:?} {open:?}");
        let changer = scope.spawn(|| {
            let rounds = (0..).take_while(|round| *round < ROUNDS || are_few());
            for keys in rounds.flat_map(|_| CHANGES) {
                let done = live.apply(&host(place.path(), workers, keys), &Consent::Nothing).unwrap();
                assert!(done.plan.to_string().starts_with("~ uplink up0: "), "{keys}: {}", done.plan);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        while !changer.is_finished() {
            ping(&socket, number.fetch_add(1, Ordering::Relaxed) + 1);
        }
        changer.join().unwrap();
        assert_eq!((link(), taps()), (before, open));
    });
    daemon.stop();
}

with_one_worker_and_with_two! {
    a_tap_whose_rate_and_vlans_change_stays_open_and_loses_nothing,
}
