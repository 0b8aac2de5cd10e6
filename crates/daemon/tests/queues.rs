//! A tap with a queue for each worker: what a port sends leaves by its worker's queue, and the answers come back there, so that the other
//! worker sleeps. The tests run themselves again in their own user and network namespace, which needs no root rights. Without a tap
//! driver or such a namespace they print a note and judge nothing.

mod namespace;
mod upgrade;

use std::net::UdpSocket;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use namespace::{inside, ip, ip_with};
use nicety_adapter::{Batch, Budget, Counters, Frames, Pick, PortId, Time, Uplink as _};
use nicety_daemon::daemon::Daemon;
use nicety_daemon::live::state::Begin;
use nicety_daemon::live::{Consent, Live};
use nicety_daemon::serve;
use nicety_frame::{Layout, checksum};
use nicety_host::Host;
use nicety_memory::Map;
use nicety_uplink::Pair;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use upgrade::replaced;

const TIMEOUT: Duration = Duration::from_secs(10);
/// Echoes that are counted.
const ECHOES: u64 = 300;

fn host(place: &Path, keys: &str) -> Host {
    let text = format!(
        "[daemon]\nworkers = 2\n[[uplink]]\nkind = \"tap\"\nname = \"up0\"\n{keys}\n\
         [[uplink]]\nkind = \"pair\"\nname = \"a\"\nsocket = \"a.sock\"\n\
         [[uplink]]\nkind = \"pair\"\nname = \"b\"\nsocket = \"b.sock\"\n"
    );
    Host::parse(&text, &place.join("host.toml")).unwrap()
}

/// A station behind a pair. Its address is 10.9.8.N, that of its hardware 02:00:00:00:00:N.
struct Station {
    far: Pair,
    number: u8,
    map: Arc<Map>,
    batch: Batch,
    counters: Counters,
    gateway: [u8; 6],
}

impl Station {
    fn new(place: &Path, name: &str, number: u8, gateway: [u8; 6]) -> Self {
        let far = Pair::connect(place.join(format!("{name}.sock"))).unwrap();
        let map = Arc::new(Map::private(2048).unwrap());
        Self { far, number, map, batch: Batch::new(), counters: Counters::default(), gateway }
    }

    /// Sends a datagram from port 1000 to the host's port 2000.
    fn send(&mut self, word: u32) {
        self.send_long(word, 18);
    }

    /// The same, with so many bytes of data.
    fn send_long(&mut self, word: u32, data: u16) {
        let mut frame = [&self.gateway[..], &[2, 0, 0, 0, 0, self.number, 8, 0]].concat();
        let [high, low] = (data + 28).to_be_bytes();
        frame.extend([0x45, 0, high, low, 0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 8, self.number, 10, 9, 8, 1]);
        frame.extend([1000u16, 2000, data + 8, 0].map(u16::to_be_bytes).concat());
        frame.extend(word.to_be_bytes());
        frame.resize(usize::from(data) + 42, 0);
        let header: u32 = frame[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        let sum = !((header & 0xffff) + (header >> 16)) as u16;
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        let layout = Layout::parse(&frame);
        checksum::fill(&mut frame, &layout).unwrap();
        self.map.write(0, &frame).unwrap();
        let mut batch = Batch::new();
        batch.start(&self.map, PortId(9), 0);
        let mut draft = batch.draft(0).unwrap();
        draft.push(0, frame.len() as u32).unwrap();
        draft.finish_plain(0);
        let sent = self.far.deliver(&Frames::new(&batch, &[Pick::whole(0)]), &mut self.counters, Time::ZERO);
        assert_eq!(sent.refused(), 0);
    }

    /// Waits for the datagram's return. False after this time.
    fn hears(&mut self, word: u32, most: Duration) -> bool {
        let end = Instant::now() + most;
        while Instant::now() < end {
            let mut fds = [PollFd::from_borrowed_fd(self.far.descriptor().unwrap(), PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 })).unwrap();
            self.far.fetch(PortId(9), Budget::TURN, &mut self.batch, &mut self.counters, Time::ZERO);
            let mut heard = false;
            for packet in self.batch.packets() {
                let mut frame = vec![0; packet.len() as usize];
                self.batch.copy(packet, &mut frame);
                heard |= frame.get(42..46) == Some(&word.to_be_bytes()[..]) && frame[5] == self.number;
            }
            self.far.complete(&self.batch);
            if heard {
                return true;
            }
        }
        false
    }

    fn echo(&mut self, word: u32) {
        self.send(word);
        assert!(self.hears(word, TIMEOUT), "datagram {word} of station {} was lost", self.number);
    }

    /// The pair connects, and the tap's queues come up, in their own time.
    fn begin(&mut self) {
        let mut heard = |word| {
            self.send(word);
            self.hears(word, Duration::from_millis(100))
        };
        assert!((0..100).any(&mut heard), "the way to the host");
    }
}

/// Frames that came in by each queue of the tap.
fn came(daemon: &Daemon) -> [u64; 2] {
    let views = daemon.views();
    ["up0/0", "up0/1"].map(|name| {
        let view = views.iter().find(|view| view.name == name).unwrap();
        view.state.counters.transmitted().packets
    })
}

/// A tap with these options, as an administrator makes it. Returns its address.
fn tap(options: &str) -> [u8; 6] {
    ip(&format!("tuntap add dev up0 mode tap {options}"));
    let _no_ipv6_here = std::fs::write("/proc/sys/net/ipv6/conf/up0/disable_ipv6", "1");
    ip("address add 10.9.8.1/24 dev up0");
    ip("link set up0 up");
    ip("neighbour add 10.9.8.2 lladdr 02:00:00:00:00:02 dev up0");
    ip("neighbour add 10.9.8.3 lladdr 02:00:00:00:00:03 dev up0");
    let text = ip_with(&["-j"], "link show up0");
    let address = text.split_once("\"address\":\"").unwrap().1.split('"').next().unwrap();
    let bytes: Vec<u8> = address.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

/// Sends every datagram back, until `over`.
fn answer(socket: &UdpSocket, over: &AtomicBool) {
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut bytes = [0; 64];
    while !over.load(Ordering::Relaxed) {
        if let Ok((len, from)) = socket.recv_from(&mut bytes) {
            let _sent_again_later = socket.send_to(&bytes[..len], from);
        }
    }
}

#[test]
fn each_port_s_answers_come_by_its_own_worker_s_queue_and_the_other_worker_sleeps() {
    if !inside("each_port_s_answers_come_by_its_own_worker_s_queue_and_the_other_worker_sleeps") {
        return;
    }
    let gateway = tap("multi_queue");
    let place = tempfile::TempDir::new().unwrap();
    let begun = Begin::new(host(place.path(), "queues = 2"));
    nicety_sandbox::begin_for_tests();
    let daemon = Arc::new(serve::start(serve::prepare(&begun.host, None).unwrap()).unwrap());
    let live = Live::new(Arc::clone(&daemon), begun.host, begun.file, begun.state);
    let over = AtomicBool::new(false);
    let socket = UdpSocket::bind("10.9.8.1:2000").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| answer(&socket, &over));
        let _ends_it = AtTheEnd(&over);
        let mut stations = [("a", 2), ("b", 3)].map(|(name, number)| Station::new(place.path(), name, number, gateway));
        stations.iter_mut().for_each(Station::begin);
        let mut own = Vec::new();
        for station in &mut stations {
            (0..20).for_each(|word| station.echo(word));
            let (before, slept) = (came(&daemon), daemon.wakes());
            (0..ECHOES as u32).for_each(|word| station.echo(word));
            let after = came(&daemon);
            let came = [after[0] - before[0], after[1] - before[1]];
            let woken: Vec<u64> = daemon.wakes().iter().zip(slept).map(|(now, before)| now - before).collect();
            println!("station {}: by queue {came:?}, wakes of each worker {woken:?}", station.number);
            let queue = usize::from(came[1] > came[0]);
            assert!(came[queue] >= ECHOES && came[1 - queue] <= 5, "{came:?}");
            assert!(woken[1 - queue] <= 20, "the other worker sleeps: {woken:?}");
            own.push(queue);
        }
        own.sort();
        assert_eq!(own, [0, 1], "a queue for each");
        // A new flow from outside comes on any queue, and reaches the port that has the address.
        let outside = UdpSocket::bind("10.9.8.1:0").unwrap();
        for word in 1000..1032u32 {
            let flow = UdpSocket::bind("10.9.8.1:0").unwrap();
            flow.send_to(&word.to_be_bytes(), "10.9.8.3:1000").unwrap();
            assert!(stations[1].hears(word, TIMEOUT), "flow {word}");
        }
        drop(outside);
        // The queues change while the daemon serves: the tap is opened again.
        let done = live.apply(&host(place.path(), "queues = 1"), &Consent::All);
        let refused = done.unwrap_err().to_string();
        assert!(refused.contains("up0 has several queues"), "{refused}");
        let done = live.apply(&host(place.path(), "queues = 4"), &Consent::All).unwrap();
        assert!(done.plan.to_string().starts_with("~ uplink up0: queues 2 → 4"), "{}", done.plan);
        stations.iter_mut().for_each(|station| {
            station.begin();
            (0..20).for_each(|word| station.echo(word));
        });
    });
    daemon.stop();
}

/// Sets a flag when it is dropped, also by a test that fails.
struct AtTheEnd<'a>(&'a AtomicBool);

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_tap_s_queues_and_the_flows_on_them_go_on_in_the_next_daemon() {
    if !inside("a_tap_s_queues_and_the_flows_on_them_go_on_in_the_next_daemon") {
        return;
    }
    let gateway = tap("multi_queue");
    let place = tempfile::TempDir::new().unwrap();
    let host = host(place.path(), "queues = 2");
    nicety_sandbox::begin_for_tests();
    let mut daemon = Arc::new(serve::start(serve::prepare(&host, None).unwrap()).unwrap());
    let over = AtomicBool::new(false);
    let socket = UdpSocket::bind("10.9.8.1:2000").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| answer(&socket, &over));
        let _ends_it = AtTheEnd(&over);
        let mut stations = [("a", 2), ("b", 3)].map(|(name, number)| Station::new(place.path(), name, number, gateway));
        stations.iter_mut().for_each(Station::begin);
        let names = daemon.names();
        for round in 0..5u32 {
            for station in &mut stations {
                (0..20).for_each(|word| station.echo(round * 1000 + word));
            }
            // A datagram of each waits in its pair while nothing moves.
            let before = came(&daemon);
            let (next, upgraded) = replaced(Arc::clone(&daemon), &host);
            daemon = next;
            println!("{} ports, {} µs", upgraded.ports.len(), upgraded.stopped_ns / 1000);
            assert_eq!(daemon.names(), names, "all have their numbers");
            for (station, word) in stations.iter_mut().zip([round * 1000 + 500, round * 1000 + 501]) {
                station.echo(word);
            }
            let after = came(&daemon);
            assert_eq!(
                [after[0] - before[0], after[1] - before[1]],
                [1, 1],
                "counters go on, and flows stay on their queues"
            );
        }
        let views = daemon.views();
        let team = views.iter().find(|view| view.name == "up0").unwrap();
        let used = team.members.iter().flatten().filter(|(_, member)| member.collects && member.distributes);
        assert_eq!(used.count(), 2);
    });
    daemon.stop();
}

/// Queues of the tap that send.
fn distributing(daemon: &Daemon) -> usize {
    let views = daemon.views();
    let team = views.iter().find(|view| view.name == "up0").unwrap();
    team.members.iter().flatten().filter(|(_, member)| member.distributes).count()
}

/// Receives so many frames of those with numbers from 10,000 on. Whether each is the first station's.
fn of_the_first(socket: &UdpSocket, frames: usize) -> Vec<bool> {
    let mut order = Vec::new();
    while order.len() < frames {
        let mut bytes = [0; 1500];
        let (_, from) = socket.recv_from(&mut bytes).unwrap();
        if u32::from_be_bytes(bytes[..4].try_into().unwrap()) >= 10_000 {
            order.push(from.ip() == std::net::Ipv4Addr::new(10, 9, 8, 2));
        }
    }
    order
}

/// Frames of each station: so many that the bucket is empty before the end, and all wait.
const FRAMES: u32 = 200;

/// The order in which the frames of both stations leave once the rate is `divided`: whether each is the first station's.
fn order(stations: &mut [Station; 2], socket: &UdpSocket, daemon: &Daemon, live: &Live, divided: &Host) -> Vec<bool> {
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    // On a busy machine the receiver comes late: the socket has as much room as a user may give it.
    rustix::net::sockopt::set_socket_recv_buffer_size(socket, 1 << 20).unwrap();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| of_the_first(socket, 2 * FRAMES as usize));
        let sent = |daemon: &Daemon| {
            let views = daemon.views();
            let of = |name: &str| views.iter().find(|view| view.name == name).unwrap().state.counters.transmitted();
            ["a", "b"].map(|name| of(name).packets)
        };
        let all = sent(daemon).map(|before| before + u64::from(FRAMES));
        for (station, first) in stations.iter_mut().rev().zip([10_000, 20_000]) {
            (0..FRAMES).for_each(|word| station.send_long(first + word, 958));
        }
        // Frames of both wait before the rate is the one that is judged: else the share of a station that sends late is not used.
        let end = Instant::now() + TIMEOUT;
        while sent(daemon) != all {
            assert!(Instant::now() < end, "{:?} of {all:?} frames came", sent(daemon));
            std::thread::sleep(Duration::from_millis(1));
        }
        live.apply(divided, &Consent::Nothing).unwrap();
        receiver.join().unwrap()
    })
}

/// The order in which frames leave, of two ports whose queues have different workers, tells who has had what of the rate.
#[test]
fn shares_hold_for_all_queues_of_a_tap_and_answers_still_come_by_each_port_s_own() {
    if !inside("shares_hold_for_all_queues_of_a_tap_and_answers_still_come_by_each_port_s_own") {
        return;
    }
    let gateway = tap("multi_queue");
    let place = tempfile::TempDir::new().unwrap();
    let begun = Begin::new(host(place.path(), "queues = 2"));
    let class = |name: &str, port: &str, shares: u32| {
        format!(
            "[[io_class]]\nuplink = \"up0\"\nname = \"{name}\"\nnetwork = \"10.9.8.{port}/32\"\nshares = {shares}\n"
        )
    };
    let classes = format!("{}{}", class("much", "2", 100), class("little", "3", 10));
    let at = |rate: &str| {
        let keys = format!("queues = 2\nrate = \"{rate}\"\ninward_rate = \"{rate}\"\nreceive_buffer = \"1MiB\"");
        let text = host(place.path(), &keys).document.text() + &classes;
        Host::parse(&text, &place.path().join("host.toml")).unwrap()
    };
    let (slow, divided) = (at("64kbit/s"), at("2Mbit/s"));
    nicety_sandbox::begin_for_tests();
    let daemon = Arc::new(serve::start(serve::prepare(&begun.host, None).unwrap()).unwrap());
    let live = Live::new(Arc::clone(&daemon), begun.host, begun.file, begun.state);
    let socket = UdpSocket::bind("10.9.8.1:2000").unwrap();
    let over = AtomicBool::new(false);
    let mut stations = [("a", 2), ("b", 3)].map(|(name, number)| Station::new(place.path(), name, number, gateway));
    let answered = |act: &mut dyn FnMut()| {
        over.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| answer(&socket, &over));
            let _ends_it = AtTheEnd(&over);
            act();
        });
    };
    answered(&mut || stations.iter_mut().for_each(Station::begin));
    let done = live.apply(&slow, &Consent::Nothing).unwrap();
    assert!(done.plan.to_string().contains("~ uplink up0: inward_rate (not set) → 64kbit/s"), "{}", done.plan);
    // Frames that waited at a queue leave there: the change is complete a moment later.
    let end = Instant::now() + TIMEOUT;
    while distributing(&daemon) != 1 {
        assert!(Instant::now() < end, "several queues still send");
        std::thread::sleep(Duration::from_millis(1));
    }

    let order = order(&mut stations, &socket, &daemon, &live, &divided);
    let much: Vec<usize> = (0..order.len()).filter(|at| order[*at]).collect();
    let between = much[190] - much[90] - 100;
    println!("{between} frames of the class with a tenth of the shares beside 100 of the other");
    assert!((8..=12).contains(&between), "{order:?}");

    let views = daemon.views();
    let team = views.iter().find(|view| view.name == "up0").unwrap();
    let words: Vec<&str> = team.members.iter().flatten().map(|(_, member)| member.words.as_str()).collect();
    assert!(words.contains(&"active") && words.contains(&"takes frames only"), "{words:?}");
    let of_class = |name: &str| team.state.classes.iter().find(|class| class.name == name).unwrap().packets;
    assert_eq!([of_class("much"), of_class("little")], [u64::from(FRAMES); 2]);

    let judge = |daemon: &Daemon, stations: &mut [Station; 2], first: u32| {
        let mut own = Vec::new();
        answered(&mut || {
            for station in stations.iter_mut() {
                (0..20).for_each(|word| station.echo(first + word));
                let before = came(daemon);
                (0..50).for_each(|word| station.echo(first + 100 + word));
                let after = came(daemon);
                own.push([after[0] - before[0], after[1] - before[1]]);
            }
        });
        let queue = |came: &[u64; 2]| usize::from(came[1] > came[0]);
        assert!(own.iter().all(|came| came[queue(came)] >= 50 && came[1 - queue(came)] <= 5), "{own:?}");
        assert_ne!(queue(&own[0]), queue(&own[1]), "a queue for each: {own:?}");
    };
    judge(&daemon, &mut stations, 30_000);
    drop(live);
    let (daemon, _) = replaced(daemon, &divided);
    judge(&daemon, &mut stations, 40_000);
    assert_eq!(distributing(&daemon), 1);
    daemon.stop();
}

#[test]
fn a_tap_whose_queues_another_process_holds_is_refused_before_anything_starts() {
    if !inside("a_tap_whose_queues_another_process_holds_is_refused_before_anything_starts") {
        return;
    }
    tap("multi_queue");
    let held = nicety_uplink::Tap::open_queues("up0", 1).unwrap();
    let place = tempfile::TempDir::new().unwrap();
    let host = host(place.path(), "queues = 2");
    let refused = serve::prepare(&host, None).unwrap_err().to_string();
    assert!(refused.contains("tap up0 is in use by another process"), "{refused}");
    drop(held);
    serve::prepare(&host, None).unwrap();
}
