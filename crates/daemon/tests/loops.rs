//! Two taps on one bridge of Linux. A member that leaves its team carries nothing until a person says so; and if a person says so, one
//! broadcast makes no storm. The test runs itself again in a user and network namespace of its own, which needs no root rights; without a
//! tap driver or such a namespace it prints a note and judges nothing.

mod namespace;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use namespace::{inside, ip};
use nicety_adapter::{Batch, Budget, Counters, Frames, Pick, PortId, Time, Uplink};
use nicety_daemon::live::state::Begin;
use nicety_daemon::live::{Consent, Live};
use nicety_daemon::report::{Condition, PortReport};
use nicety_daemon::serve;
use nicety_host::{Host, List};
use nicety_memory::Map;
use nicety_uplink::{Pair, Tap};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A step that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Frames that went round and are forwarded before the loop is proved: 16 of each of the two ways round (`crates/plane/src/plane/looped.rs`).
const DOUBTS: usize = 2 * 16;
const TEXT: &str = "[daemon]\nworkers = 2\n\
                    [[uplink]]\nkind = \"pair\"\nname = \"a\"\nsocket = \"a.sock\"\nvlan = 10\n\
                    [[uplink]]\nkind = \"tap\"\nname = \"l0\"\n[[uplink]]\nkind = \"tap\"\nname = \"l1\"\n\
                    [[team]]\nname = \"lan\"\nmode = \"active-standby\"\nmembers = \"l0,l1\"\nvlan = 10\n";

/// Sends broadcasts and counts those that come, by their numbers.
struct Station {
    uplink: Box<dyn Uplink>,
    map: Arc<Map>,
    counters: Counters,
    heard: [usize; 4],
}

impl Station {
    fn new(uplink: impl Uplink + 'static) -> Self {
        let map = Arc::new(Map::private(2048).unwrap());
        Self { uplink: Box::new(uplink), map, counters: Counters::default(), heard: [0; 4] }
    }

    /// To all, of a local experimental type (IEEE 802.1Q's 0x88b5).
    fn send(&mut self, number: u8) {
        let mut frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 2], &[0x88, 0xb5, number]].concat();
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
        let mut batch = Batch::new();
        loop {
            let progress = self.uplink.fetch(PortId(9), Budget::TURN, &mut batch, &mut self.counters, Time::ZERO);
            for head in batch.packets().iter().map(|packet| batch.head(packet)) {
                if let Some([0x88, 0xb5, number]) = head.get(12..15) {
                    self.heard[usize::from(*number)] += 1;
                }
            }
            self.uplink.complete(&batch);
            if !progress.more {
                return;
            }
        }
    }
}

/// Begins like `nicety serve`.
fn begin(place: &Path) -> Live {
    let path = place.join("host.toml");
    if !path.exists() {
        std::fs::write(&path, TEXT).unwrap();
    }
    let Begin { host, file, state, found: _ } = Begin::new(Host::read(&path).unwrap());
    nicety_sandbox::begin_for_tests();
    let daemon = serve::start(serve::prepare(&host, None).unwrap()).unwrap();
    Live::new(Arc::new(daemon), host, file, state)
}

fn report(live: &Live, name: &str) -> PortReport {
    live.daemon().views().iter().map(PortReport::of).find(|report| report.name == name).unwrap()
}

fn set(live: &Live, list: List, name: &str, key: &str, value: impl Into<toml::Value>) -> String {
    let changed = live.set(list, name, &[(key.to_owned(), Some(value.into()))], &Consent::Nothing).unwrap();
    assert_eq!(changed.not_kept, None);
    changed.plan.to_string()
}

/// Waits until frames have come for a station, and takes them; at most for a moment.
fn hear(stations: [&mut Station; 2]) {
    let descriptors = stations.each_ref().map(|station| station.uplink.descriptor().unwrap());
    let mut ready = descriptors.each_ref().map(|descriptor| PollFd::new(descriptor, PollFlags::IN));
    poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 })).unwrap();
    stations.into_iter().for_each(Station::hear);
}

/// Sends broadcasts with this number until the other station has heard one more.
fn hears(ours: &mut Station, beyond: &mut Station, number: u8) {
    let (end, place) = (Instant::now() + PATIENCE, usize::from(number));
    let before = beyond.heard[place];
    while beyond.heard[place] == before {
        assert!(Instant::now() < end, "broadcast {number} hangs: nothing passes");
        ours.send(number);
        hear([&mut *ours, &mut *beyond]);
    }
}

#[test]
fn a_member_that_leaves_its_team_carries_nothing_until_it_is_told_to_and_a_loop_ends_by_itself() {
    if !inside("a_member_that_leaves_its_team_carries_nothing_until_it_is_told_to_and_a_loop_ends_by_itself") {
        return;
    }
    for interfaces in ["all", "default"] {
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{interfaces}/disable_ipv6"), "1").unwrap();
    }
    ip("link add br0 type bridge\nlink set br0 up");
    for link in ["l0", "l1"] {
        ip(&format!("tuntap add dev {link} mode tap\nlink set {link} master br0\nlink set {link} up"));
    }
    let tap = Tap::open("beyond").unwrap();
    ip("link set beyond master br0\nlink set beyond up");
    let mut beyond = Station::new(tap);
    let place = tempfile::TempDir::new().unwrap();
    let live = begin(place.path());
    let mut ours = Station::new(Pair::connect(place.path().join("a.sock")).unwrap());
    hears(&mut ours, &mut beyond, 1);

    let plan = set(&live, List::Teams, "lan", "members", "l0");
    assert_eq!(plan, "~ team lan: members l0,l1 → l0\n~ uplink l1: blocked (not set) → true, team lan → (not set)\n");
    let words = "it carries nothing until `nicety uplink set l1 blocked=false`, or a team takes it";
    let is_blocked = |live: &Live| {
        let PortReport { condition, sentence, .. } = report(live, "l1");
        assert_eq!((condition, sentence.as_str()), (Condition::Blocked, words));
    };
    is_blocked(&live);
    // No word about it is no word for it: neither in a file nor with another key.
    let path = place.path().join("host.toml");
    std::fs::write(&path, TEXT.replace("l0,l1", "l0")).unwrap();
    let file = Host::read(&path).unwrap();
    assert_eq!(live.apply(&file, &Consent::Nothing).unwrap().plan.to_string(), "");
    set(&live, List::Uplinks, "l1", "rate", "1Gbit/s");
    is_blocked(&live);
    live.daemon().stop();
    drop(live);
    let live = begin(place.path());
    is_blocked(&live);
    let mut ours = Station::new(Pair::connect(place.path().join("a.sock")).unwrap());
    hears(&mut ours, &mut beyond, 1);

    // In the team's network: they lead to one bridge.
    set(&live, List::Uplinks, "l1", "vlan", 10);
    assert_eq!(set(&live, List::Uplinks, "l1", "blocked", false), "~ uplink l1: blocked true → false\n");
    // The bridge's own frames may show the loop before ours do.
    let (end, mut sent) = (Instant::now() + PATIENCE, 0);
    while report(&live, "l1").condition == Condition::Up {
        assert!(Instant::now() < end, "the loop was not found");
        ours.send(2);
        sent += 1;
        hear([&mut ours, &mut beyond]);
    }
    // These come behind all earlier frames. Nothing goes round any more.
    [3, 3].into_iter().for_each(|number| hears(&mut ours, &mut beyond, number));
    let heard = [ours.heard[2], beyond.heard[2]];
    println!("{sent} broadcasts until l1 is blocked; heard: {heard:?}");
    // Until the probe is back each broadcast comes in once by each uplink as if it were new, and then as a doubt. Those beyond also hear each
    // once by each uplink. In a storm there is no such bound.
    assert!(heard[0] <= 2 * sent + DOUBTS && heard[1] <= 4 * sent + DOUBTS, "{heard:?} of {sent}");
    let [newer, older] = ["l1", "lan"].map(|name| report(&live, name));
    assert!(newer.sentence.starts_with("it leads into the network of lan, and frames went round: "), "{newer:?}");
    assert!(older.sentence.ends_with("; l1 leads into the same network, and is blocked"), "{older:?}");
    // The probe that proved it is no drop.
    let taken: u64 = ["l1", "lan", "l0"].iter().map(|name| report(&live, name).taken).sum();
    assert!(taken > 0);
    assert!(
        live.export().contains("blocked = true") && live.export().contains("loop_with = \"lan\""),
        "{}",
        live.export()
    );
    live.keep_loops();
    // Another daemon knows why, too.
    live.daemon().stop();
    drop(live);
    let live = begin(place.path());
    // It hears of the links' carriers a little later.
    let (again, end) = (|| ["l1", "lan"].map(|name| report(&live, name).sentence), Instant::now() + PATIENCE);
    while again() != [newer.sentence.as_str(), older.sentence.as_str()] {
        assert!(Instant::now() < end, "{:?}", again());
        std::thread::yield_now();
    }
    // The team takes it back.
    live.set(List::Uplinks, "l1", &[("vlan".to_owned(), None)], &Consent::Nothing).unwrap();
    let plan = set(&live, List::Teams, "lan", "members", "l0,l1");
    assert_eq!(
        plan,
        "~ team lan: members l0 → l0,l1\n~ uplink l1: blocked true → (not set), loop_with lan → (not set), team (not set) → lan\n"
    );
    assert!(report(&live, "lan").sentence.contains("l1: "), "{}", report(&live, "lan").sentence);
    assert!(live.daemon().views().iter().all(|view| !view.blocked && view.in_loop.is_none()));
    live.daemon().stop();
}
