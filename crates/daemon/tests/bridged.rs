//! Teams whose links end at ports of one bridge of Linux, which knows nothing of them. Two stations behind pairs and one beyond the bridge
//! send numbered frames to each other and to all, while carriers are lost and come back. No frame comes twice, none comes back, all flows go
//! on, and the bridge knows where each station is from the announcements alone. The tests run themselves again in a user and network
//! namespace of their own, which needs no root rights; without a tap driver or such a namespace they print a note and judge nothing.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;
mod namespace;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use namespace::{inside, ip};
use nicety_adapter::{Batch, Budget, Counters, Frames, Pick, PortId, Time, Uplink};
use nicety_daemon::daemon::Daemon;
use nicety_daemon::live::state::Begin;
use nicety_daemon::live::{Consent, Live};
use nicety_daemon::report::PortReport;
use nicety_daemon::serve;
use nicety_host::Host;
use nicety_memory::Map;
use nicety_uplink::{Pair, Tap};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const PATIENCE: Duration = Duration::from_secs(30);
/// A round that is not whole by then has lost a frame.
const ROUND: Duration = Duration::from_millis(50);
/// Whole rounds in a row that prove that all flows pass.
const WHOLE: usize = 20;
/// The station beyond the bridge; 2 and 3 are ours.
const BEYOND: u8 = 9;
const ALL: u8 = 0xff;
/// From, to: each frame of a round.
const FLOWS: [(u8, u8); 7] = [(2, BEYOND), (3, BEYOND), (BEYOND, 2), (BEYOND, 3), (2, ALL), (3, ALL), (BEYOND, ALL)];
const LINKS: [&str; 2] = ["tap0", "tap1"];

/// Two pairs, and a team of two taps with these keys.
fn text(workers: usize, keys: &str) -> String {
    let tap = |name: &str| format!("[[uplink]]\nkind = \"tap\"\nname = \"{name}\"\nrate = \"1Gbit/s\"\n");
    let pair = |name: &str| format!("[[uplink]]\nkind = \"pair\"\nname = \"{name}\"\nsocket = \"{name}.sock\"\n");
    let team = format!("[[team]]\nname = \"lan\"\nmembers = \"tap0,tap1\"\n{keys}\n");
    let uplinks = LINKS.map(tap).concat() + &["a", "b"].map(pair).concat();
    format!("[daemon]\nworkers = {workers}\n{uplinks}{team}")
}

fn mac(station: u8) -> [u8; 6] {
    if station == ALL { [0xff; 6] } else { [2, 0, 0, 0, 0, station] }
}

struct Station {
    uplink: Box<dyn Uplink>,
    number: u8,
    map: Arc<Map>,
    batch: Batch,
    counters: Counters,
    /// The last number heard, by sender and target.
    heard: BTreeMap<(u8, u8), u32>,
}

impl Station {
    fn new(uplink: impl Uplink + 'static, number: u8) -> Self {
        let map = Arc::new(Map::private(2048).unwrap());
        let (batch, counters) = (Batch::new(), Counters::default());
        Self { uplink: Box::new(uplink), number, map, batch, counters, heard: BTreeMap::new() }
    }

    /// Sends a frame of a local experimental type (IEEE 802.1Q's 0x88b5) with this number.
    fn send(&mut self, to: u8, number: u32) {
        let mut frame = [&mac(to)[..], &mac(self.number), &[0x88, 0xb5], &number.to_be_bytes()].concat();
        frame.resize(60, 0);
        self.map.write(0, &frame).unwrap();
        let mut batch = Batch::new();
        batch.start(&self.map, PortId(9), 0);
        let mut draft = batch.draft(0).unwrap();
        draft.push(0, frame.len() as u32).unwrap();
        draft.finish_plain(0);
        let _no_peer_yet = self.uplink.deliver(&Frames::new(&batch, &[Pick::whole(0)]), &mut self.counters, Time::ZERO);
    }

    fn hear(&mut self) {
        loop {
            let progress = self.uplink.fetch(PortId(9), Budget::TURN, &mut self.batch, &mut self.counters, Time::ZERO);
            for packet in self.batch.packets() {
                let mut frame = vec![0; packet.len() as usize];
                self.batch.copy(packet, &mut frame);
                let (to, from) = (frame[5], frame[11]);
                // The bridge floods frames for stations that it does not know.
                if frame[12..14] != [0x88, 0xb5] || (to != self.number && to != ALL) {
                    continue;
                }
                assert_ne!(from, self.number, "its own frame came back to station {from}: a loop");
                let number = u32::from_be_bytes(frame[14..18].try_into().unwrap());
                let last = self.heard.insert((from, to), number).unwrap_or(0);
                assert!(number > last, "station {}: {number} from {from} to {to} after {last}", self.number);
            }
            self.uplink.complete(&self.batch);
            if !progress.more {
                return;
            }
        }
    }
}

struct World {
    live: Live,
    stations: [Station; 3],
    round: u32,
    /// Frames that did not come.
    lost: u64,
}

impl World {
    fn daemon(&self) -> &Daemon {
        self.live.daemon()
    }

    /// A frame of each of these flows is sent. Returns whether all came.
    fn round(&mut self, flows: &[(u8, u8)]) -> bool {
        self.round += 1;
        for &(from, to) in flows {
            self.stations.iter_mut().filter(|station| station.number == from).for_each(|one| one.send(to, self.round));
        }
        let end = Instant::now() + ROUND;
        loop {
            self.stations.iter_mut().for_each(Station::hear);
            let missing = self.missing(flows);
            if missing == 0 || Instant::now() >= end {
                self.lost += missing;
                return missing == 0;
            }
            self.sleep();
        }
    }

    /// Frames of the present round that have not come.
    fn missing(&self, flows: &[(u8, u8)]) -> u64 {
        let mut missing = 0;
        for &(from, to) in flows {
            let receivers = self.stations.iter().filter(|one| one.number != from && (to == ALL || to == one.number));
            missing += receivers.filter(|one| one.heard.get(&(from, to)) != Some(&self.round)).count() as u64;
        }
        missing
    }

    /// Until a frame comes, or a millisecond.
    fn sleep(&self) {
        let descriptors = self.stations.iter().map(|station| station.uplink.descriptor().unwrap());
        let mut fds: Vec<PollFd<'_>> = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 })).unwrap();
    }

    /// Rounds until all these flows pass.
    fn pass(&mut self, flows: &[(u8, u8)], when: &str) {
        let (begin, mut whole) = (Instant::now(), 0);
        while whole < WHOLE {
            whole = if self.round(flows) { whole + 1 } else { 0 };
            assert!(begin.elapsed() < PATIENCE, "{when}: {:#?}", self.report());
        }
    }

    fn report(&self) -> PortReport {
        let views = self.daemon().views();
        PortReport::of(views.iter().find(|view| view.name == "lan").unwrap())
    }

    /// Waits until the team uses these links. Frames are heard meanwhile.
    fn uses(&mut self, wanted: &[&str]) {
        let end = Instant::now() + PATIENCE;
        loop {
            let report = self.report();
            let members = report.members.iter().flatten().filter(|member| member.distributes && member.collects);
            if members.map(|member| member.uplink.as_str()).eq(wanted.iter().copied()) {
                return;
            }
            assert!(Instant::now() < end, "{wanted:?}: {report:#?}");
            self.stations.iter_mut().for_each(Station::hear);
            self.sleep();
        }
    }

    /// Waits until the bridge has our stations behind these links, and frames for them arrive: neither has sent any.
    fn bridge_was_told(&mut self, wanted: &[&str], when: &str) {
        let end = Instant::now() + PATIENCE;
        while used() != wanted {
            assert!(Instant::now() < end, "{when}: {wanted:?}: {:?}", places());
            self.stations.iter_mut().for_each(Station::hear);
            self.sleep();
        }
        self.pass(&[(BEYOND, 2), (BEYOND, 3)], when);
    }

    /// Sets a link up or down while all flows send.
    fn set_under_traffic(&mut self, link: &str, state: &str) {
        let mut ip = Command::new("ip").args(["link", "set", link, state]).spawn().unwrap();
        while ip.try_wait().unwrap().is_none() {
            self.round(&FLOWS);
        }
        assert!(ip.wait().unwrap().success());
    }
}

/// The links behind which the bridge has our stations.
fn places() -> [Vec<String>; 2] {
    let output = Command::new("bridge").args(["fdb", "show", "br", "br0"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    [2, 3].map(|station| {
        let address = mac(station).map(|byte| format!("{byte:02x}")).join(":");
        let lines = text.lines().filter_map(|line| line.strip_prefix(&format!("{address} dev ")));
        lines.map(|rest| rest.split(' ').next().unwrap().to_owned()).collect()
    })
}

/// The same links, each once, if each station is behind one.
fn used() -> Vec<String> {
    let mut links: Vec<String> = places().map(|links| links.join(" and ")).into();
    links.sort();
    links.dedup();
    links
}

/// The modes, and whether each station has a link of its own.
const MODES: [(&str, bool); 4] = [
    ("mode = \"active-standby\"\nprimary = \"tap0\"", false),
    ("mode = \"originating-port\"", true),
    ("mode = \"source-address\"", true),
    ("mode = \"load\"", true),
];

fn no_frame_comes_twice_and_a_bridge_of_linux_learns_where_stations_are_in_all_modes_that_it_knows_nothing_of(
    workers: usize,
) {
    let name =
        "no_frame_comes_twice_and_a_bridge_of_linux_learns_where_stations_are_in_all_modes_that_it_knows_nothing_of";
    let module = if workers == 1 { "with_one_worker" } else { "with_two_workers" };
    if !inside(&format!("{module}::{name}")) {
        return;
    }
    // Nobody but the stations sends.
    for interfaces in ["all", "default"] {
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{interfaces}/disable_ipv6"), "1").unwrap();
    }
    ip("link add br0 type bridge\nlink set br0 up");
    for link in LINKS {
        ip(&format!("tuntap add dev {link} mode tap\nlink set {link} master br0\nlink set {link} up"));
    }
    let beyond = Tap::open("beyond").unwrap();
    ip("link set beyond master br0\nlink set beyond up");
    let place = tempfile::TempDir::new().unwrap();
    let mut world = begin(place.path(), workers, beyond);
    for (keys, is_spread) in MODES {
        let host = Host::parse(&text(workers, keys), world.live.path()).unwrap();
        world.live.apply(&host, &Consent::Nothing).unwrap();
        let all: &[&str] = if is_spread { &LINKS } else { &LINKS[..1] };
        world.uses(all);
        world.pass(&FLOWS, keys);
        assert_eq!(used(), all, "{keys}");
        let [first, _] = places();
        let cut = &first[0];
        let left = if cut == LINKS[0] { LINKS[1] } else { LINKS[0] };
        // Under traffic.
        let before = (Instant::now(), world.lost);
        world.set_under_traffic(cut, "down");
        world.pass(&FLOWS, keys);
        let (time, lost) = (before.0.elapsed(), world.lost - before.1);
        world.set_under_traffic(cut, "up");
        world.uses(all);
        world.pass(&FLOWS, keys);
        println!("{keys}: {lost} frames were lost, all flows passed {time:?} after {cut} went down");
        // While nobody sends, the bridge learns from announcements alone.
        ip(&format!("link set {cut} down"));
        world.uses(&[left]);
        world.bridge_was_told(&[left], keys);
        ip(&format!("link set {cut} up"));
        world.uses(all);
        world.bridge_was_told(all, keys);
        world.pass(&FLOWS, keys);
    }
    println!("{} rounds, {} frames lost", world.round, world.lost);
    world.daemon().stop();
}

fn begin(place: &Path, workers: usize, beyond: Tap) -> World {
    let host = Host::parse(&text(workers, MODES[0].0), &place.join("host.toml")).unwrap();
    let Begin { host, file, state, found: _ } = Begin::new(host);
    nicety_sandbox::begin_for_tests();
    let daemon = serve::start(serve::prepare(&host, None).unwrap()).unwrap();
    let live = Live::new(Arc::new(daemon), host, file, state);
    let pair = |name: &str| Pair::connect(place.join(format!("{name}.sock"))).unwrap();
    let stations = [Station::new(pair("a"), 2), Station::new(pair("b"), 3), Station::new(beyond, BEYOND)];
    World { live, stations, round: 0, lost: 0 }
}

with_one_worker_and_with_two! {
    no_frame_comes_twice_and_a_bridge_of_linux_learns_where_stations_are_in_all_modes_that_it_knows_nothing_of,
}
