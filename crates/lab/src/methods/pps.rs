//! `pps`: frames per second through the switch, at frames of 64 to 1518 bytes. The loss-free rate by binary search (RFC 2544, 26.1), and the
//! latency at 50 and 90 % of it (26.2), and at one rate for all rows.
//!
//! One generator for all rows: our drivers at two ports of Nicety, of DPDK's testpmd or of Open vSwitch,
//! and two taps of the kernel's bridge.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use nicety_guests::{Error, Folder, Layer, Root};

use super::field::Adapters;
use super::rig::{Measurement, Run, rig};
use super::{About, Figure, Length, Load, Method, Opening, Rig, Subject, Table, Taken};
use crate::bench::BenchError;
use crate::embedded::{self, Attach, Generator, Layout, Offered, Place, Program};
use crate::method::Guests;
use crate::packets::{Bridge, OVS_PACKAGES, Ovs, PACKAGES, Testpmd};
use crate::plan::Plan;
use crate::results::Direction;

/// Frame sizes of RFC 2544, 9.1, with check sequence.
const SIZES: [u16; 7] = [64, 128, 256, 512, 1024, 1280, 1518];
const QUICK_SIZES: [u16; 3] = [64, 512, 1518];
/// Room for these forwarders' packages.
const TESTPMD_BYTES: u64 = 60_000_000;
const OVS_BYTES: u64 = 140_000_000;
/// Rows of other forwarders.
const PEERS: [(&str, Peer); 4] = [
    ("testpmd-io", Peer::Testpmd("io")),
    ("ovs-dpdk", Peer::Ovs),
    ("bridge", Peer::Bridge),
    ("testpmd-mac", Peer::Testpmd("mac")),
];
/// The row of Nicety whose worker sleeps when it has nothing to do, as every daemon's does that is not told otherwise: virtio-net.
const ADAPTIVE: &str = "nicety-adaptive";
/// Number of peers in a quick look.
const QUICK_PEERS: usize = 3;
/// Addresses of the generator's stations: locally administered.
const STATIONS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const ADAPTERS: Adapters = Adapters {
    quick: &["e1000e", "vmxnet3", "virtio-net"],
    all: &["e1000", "e1000e", "igb", "vmxnet3", "virtio-net", "virtio-net-pci"],
};
/// Halvings of the range of rates. The last one is a 64th of the first trial's rate.
const HALVINGS: u32 = 6;
/// A rate at which the rows' latencies compare: half of a faster row's own rate is a higher load. Frames a second.
const COMMON_RATE: f64 = 500_000.0;
/// Trials of a run: at full rate, the halvings, three latencies.
const TRIALS: u32 = 1 + 1 + HALVINGS + 3;
/// Time limit for the first frame to come through.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Rate and duration of the offers until then.
const FIRST_RATE: f64 = 1_000.0;
const FIRST_OFFER: Duration = Duration::from_millis(50);
/// A trial in which fewer of the due frames were sent is none of that rate: the ring was full, or the generator too slow.
const SENT_MIN: f64 = 0.99;
/// A rate beyond any: the generator sends as fast as it can.
const FULL_RATE: f64 = 1e9;

const FIGURES: [Figure; 8] = [
    Figure::new("loss_free", "Loss-free rate", "frames/s", Direction::Higher),
    Figure::new("through", "Frames that arrive at full rate", "frames/s", Direction::Higher),
    Figure::new("p50_at_common", "Latency at 500,000 frames/s, median", "µs", Direction::Lower),
    Figure::new("p99_at_common", "Latency at 500,000 frames/s, 99th percentile", "µs", Direction::Lower),
    Figure::new("p50_at_50", "Latency at 50 %, median", "µs", Direction::Lower),
    Figure::new("p99_at_50", "Latency at 50 %, 99th percentile", "µs", Direction::Lower),
    Figure::new("p50_at_90", "Latency at 90 %, median", "µs", Direction::Lower),
    Figure::new("p99_at_90", "Latency at 90 %, 99th percentile", "µs", Direction::Lower),
];

/// The method (see the module's page).
#[derive(Debug)]
pub struct Pps;

/// Frame size of a load: `64-bytes`.
fn size(load: &str) -> Option<u16> {
    load.strip_suffix("-bytes")?.parse().ok()
}

/// A forwarder that is not ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    /// DPDK's testpmd with vhost-user ports, in this mode.
    Testpmd(&'static str),
    /// Open vSwitch with vhost-user ports, its datapath in user space.
    Ovs,
    /// The kernel's bridge with taps.
    Bridge,
}

fn peer(subject: &Subject) -> Option<Peer> {
    PEERS.iter().find(|(name, _)| *name == subject.adapter).map(|(_, peer)| *peer)
}

impl Method for Pps {
    fn about(&self) -> About {
        About {
            name: "pps",
            document: None,
            line: "frames per second through the switch: loss-free rate (RFC 2544), latency at 50 and 90 % of it, beside DPDK's testpmd, Open vSwitch and the kernel's bridge",
            needs: "two processors that nothing else uses; Debian packages, 60 MB once for testpmd and 140 MB for Open vSwitch",
            guests: &[Guests::Embedded],
            overhead_seconds: 1.5,
            memory_mib: None,
            disk_bytes: 0,
        }
    }

    fn field(&self, _guests: Guests, length: Length) -> Vec<Subject> {
        let peers = if length == Length::Quick { QUICK_PEERS } else { PEERS.len() };
        let of = |name: &str| Subject { adapter: name.to_owned(), server: None, driver: None };
        let others = PEERS.iter().take(peers).map(|(name, _)| of(name));
        ADAPTERS.ours(length).chain([of(ADAPTIVE)]).chain(others).collect()
    }

    fn loads(&self, _guests: Guests, length: Length, seconds: Option<u32>) -> Vec<Load> {
        let seconds = seconds.unwrap_or(match length {
            Length::Quick => 3,
            Length::Usual => 10,
            Length::Full => 600,
        });
        let sizes: &[u16] = if length == Length::Quick { &QUICK_SIZES } else { &SIZES };
        let trial = f64::from(seconds) / f64::from(TRIALS);
        let load = |bytes: &u16| Load {
            name: format!("{bytes}-bytes"),
            title: format!("Frames of {bytes} bytes, one way"),
            seconds,
            commands: vec![
                format!(
                    "generator: {bytes} bytes from port 1 to port 2, {TRIALS} trials of {trial:.1} s; loss-free rate by halving"
                ),
                "testpmd rows: dpdk-testpmd --forward-mode=io (or mac) with two net_vhost ports".to_owned(),
                "ovs-dpdk: ovs-vswitchd, a bridge with datapath_type=netdev and two dpdkvhostuser ports".to_owned(),
                "bridge: ip link add type bridge, two taps".to_owned(),
            ],
        };
        sizes.iter().map(load).collect()
    }

    fn figures(&self) -> &'static [Figure] {
        &FIGURES
    }

    fn tables(&self, loads: &[Load]) -> Vec<Table> {
        let mut tables = Vec::new();
        for load in loads {
            let bytes = size(&load.name).unwrap_or_default();
            for (figure, about) in [
                (
                    "loss_free",
                    "The highest rate tried at which each frame arrived, and at least 99 % of the due frames were sent: what a full ring holds back is not offered. A search that found no such rate counts as 0, a lower bound: it is below a 64th of the first trial's.",
                ),
                ("through", "Frames that arrive while the generator sends as fast as it can."),
                (
                    "p50_at_common",
                    "From the generator's driver to the generator's driver, at one rate for all rows whose loss-free rate is as high.",
                ),
                ("p50_at_50", "The same at half of each row's own loss-free rate: a faster row has the higher load."),
                ("p99_at_90", "The same at 90 % of each row's own loss-free rate."),
            ] {
                let title = FIGURES.iter().find(|known| known.name == figure).map_or(figure, |known| known.title);
                tables.push(Table {
                    title: format!("{title}: {bytes} bytes"),
                    load: load.name.clone(),
                    figure,
                    bases: &["virtio-net", "testpmd-io"],
                    document: &[],
                    about,
                });
            }
        }
        tables
    }

    fn disk_bytes(&self, plan: &Plan) -> u64 {
        let has = |wanted: fn(Peer) -> bool| u64::from(plan.subjects.iter().filter_map(peer).any(wanted));
        let testpmd = TESTPMD_BYTES * has(|peer| matches!(peer, Peer::Testpmd(_)));
        let root = Root::DISK_BYTES * has(|peer| matches!(peer, Peer::Ovs | Peer::Bridge));
        testpmd + root + OVS_BYTES * has(|peer| peer == Peer::Ovs)
    }

    fn open(&self, opening: Opening<'_>) -> Result<Box<dyn Rig>, Error> {
        let Opening { plan, program, say, .. } = opening;
        let has = |wanted: fn(Peer) -> bool| plan.subjects.iter().filter_map(peer).any(wanted);
        let has_testpmd = has(|peer| matches!(peer, Peer::Testpmd(_)));
        let testpmd = if has_testpmd { Some(Layer::lay("packets", PACKAGES, say)?) } else { None };
        let has_ovs = has(|peer| peer == Peer::Ovs);
        let ovs = if has_ovs { Some(Layer::lay("openvswitch", OVS_PACKAGES, say)?) } else { None };
        let root = if has(|peer| matches!(peer, Peer::Ovs | Peer::Bridge)) { Some(Root::lay(say)?) } else { None };
        let (program, folder) = (program.clone(), Folder::new()?);
        Ok(rig(Forwarding { program, testpmd, ovs, root, folder }))
    }
}

/// A forwarder with the generator at its ports.
#[derive(Debug)]
enum Forwarder {
    Nicety(Box<embedded::Rig>),
    /// The generator ends first: its peer must not.
    Peer {
        generator: Generator,
        _peer: Box<dyn std::fmt::Debug>,
    },
}

impl Forwarder {
    /// Waits until frames come through: Open vSwitch makes its buffers when a guest has come.
    fn wait(&mut self, stop: &AtomicBool) -> Result<(), BenchError> {
        let end = Instant::now() + READY_LIMIT;
        while self.offer(SIZES[0], FIRST_RATE, FIRST_OFFER, stop)?.received == 0 {
            if Instant::now() > end {
                return Err(BenchError::Failed(format!("no frame came through within {READY_LIMIT:?}")));
            }
        }
        Ok(())
    }

    fn offer(
        &mut self,
        wire_bytes: u16,
        a_second: f64,
        duration: Duration,
        stop: &AtomicBool,
    ) -> Result<Offered, BenchError> {
        match self {
            Forwarder::Nicety(rig) => rig.offer(wire_bytes, a_second, duration, stop),
            Forwarder::Peer { generator, .. } => generator.offer(wire_bytes, a_second, duration, stop),
        }
    }
}

#[derive(Debug)]
struct Forwarding {
    program: Program,
    testpmd: Option<Layer>,
    ovs: Option<Layer>,
    root: Option<Root>,
    folder: Folder,
}

impl Forwarding {
    /// testpmd, on the last processor: its main thread, which sleeps, is on the first.
    fn testpmd(&self, mode: &str, stop: &AtomicBool) -> Result<Forwarder, BenchError> {
        let layer = self.testpmd.as_ref().ok_or_else(|| missing("testpmd"))?;
        let [first, last] = processors()?;
        let sockets = ["a.sock", "b.sock"].map(|name| self.folder.path().join(name));
        for socket in &sockets {
            // An earlier testpmd was killed, and left its sockets.
            let _ = std::fs::remove_file(socket);
        }
        let [a, b] = [sockets[0].as_path(), sockets[1].as_path()];
        let failed = |error: crate::packets::Error| BenchError::Failed(error.to_string());
        let testpmd = Testpmd::forward(layer, mode, [a, b], [last, first]).map_err(failed)?;
        let generator = Generator::start(&self.program, &[], sockets.map(by_vhost), stop)?;
        Ok(Forwarder::Peer { generator, _peer: Box::new(testpmd) })
    }

    /// Open vSwitch, whose polling thread is on the last processor.
    fn ovs(&self, stop: &AtomicBool) -> Result<Forwarder, BenchError> {
        let (layer, root) = self.ovs.as_ref().zip(self.root.as_ref()).ok_or_else(|| missing("Open vSwitch"))?;
        let [first, last] = processors()?;
        let ovs = Ovs::open(layer, root, last, first, stop)?;
        let generator = Generator::start(&self.program, &[], ovs.sockets().map(by_vhost), stop)?;
        Ok(Forwarder::Peer { generator, _peer: Box::new(ovs) })
    }

    /// The kernel's bridge. It works in the generator's system calls.
    fn bridge(&self, stop: &AtomicBool) -> Result<Forwarder, BenchError> {
        let bridge = Bridge::open(self.root.as_ref().ok_or_else(|| missing("a private network"))?)?;
        let [from, to] = bridge.taps().map(str::to_owned);
        let [near, far] = STATIONS;
        let attach = [Attach::Tap { name: from, mac: near }, Attach::Tap { name: to, mac: far }];
        let generator = Generator::start(&self.program, &bridge.entrance(), attach, stop)?;
        Ok(Forwarder::Peer { generator, _peer: Box::new(bridge) })
    }
}

impl Measurement for Forwarding {
    /// Frame size in bytes.
    type Layout = u16;
    type Guests = Forwarder;

    fn layout(load: &str) -> Option<u16> {
        size(load)
    }

    fn boot(&mut self, run: &Run<'_, u16>) -> Result<Forwarder, BenchError> {
        match peer(run.subject) {
            None => {
                let always_polls = run.subject.adapter != ADAPTIVE;
                let adapter = if always_polls { &run.subject.adapter } else { "virtio-net" };
                let layout = Layout { crowd: vec![Place::new(adapter); 2], always_polls, ..Layout::default() };
                Ok(Forwarder::Nicety(Box::new(embedded::Rig::start(&self.program, &layout, run.stop)?)))
            }
            Some(Peer::Testpmd(mode)) => self.testpmd(mode, run.stop),
            Some(Peer::Ovs) => self.ovs(run.stop),
            Some(Peer::Bridge) => self.bridge(run.stop),
        }
    }

    fn warm(&mut self, forwarder: &mut Forwarder, run: &Run<'_, u16>) -> Result<(), BenchError> {
        forwarder.wait(run.stop)
    }

    fn measure(&mut self, forwarder: &mut Forwarder, run: &Run<'_, u16>) -> Result<Taken, BenchError> {
        let (bytes, trial, stop) = (run.layout, run.duration() / TRIALS, run.stop);
        let mut figures = BTreeMap::new();
        let mut taken = Taken::default();
        let full = forwarder.offer(bytes, FULL_RATE, trial, stop)?;
        figures.insert("through".to_owned(), full.received as f64 / full.seconds);
        let most = full.sent as f64 / full.seconds;
        let loss_free = search(most, |rate| Ok(is_loss_free(&forwarder.offer(bytes, rate, trial, stop)?)))?;
        let (rate, mark) = counted(loss_free, most);
        figures.insert("loss_free".to_owned(), rate);
        match mark {
            Some(mark) => taken.marks.push(mark),
            None => {
                for (rate, name) in [(COMMON_RATE, "at_common"), (rate * 0.5, "at_50"), (rate * 0.9, "at_90")] {
                    if rate > loss_free.unwrap_or_default() {
                        continue;
                    }
                    let offered = forwarder.offer(bytes, rate, trial, stop)?;
                    for known in &offered.latency {
                        if [50.0, 99.0].contains(&known.percent) {
                            figures.insert(format!("p{}_{name}", known.percent), known.us);
                        }
                    }
                    taken.latency = Some(offered.latency).filter(|known| !known.is_empty());
                }
            }
        }
        Ok(Taken { figures, ..taken })
    }

    fn notes(&self) -> Vec<String> {
        vec![
            "The generator is one process with this project's own drivers at both ports. It polls without sleeping, so it takes a processor, and \
             its own work limits what it offers."
                .to_owned(),
            "Nicety: a switch of two ports with the row's adapter; virtio-net over vhost-user, the others over vfio-user. One worker polls all the \
             time, as the peers do (`busy_poll = \"always\"`). nicety-adaptive: virtio-net with the options as they come, so the workers sleep. \
             testpmd: two net_vhost ports, io (frames unchanged) or mac (addresses rewritten), one polling core; it neither learns nor looks up."
                .to_owned(),
            "ovs-dpdk: Open vSwitch, a bridge that learns, with two vhost-user ports and one polling thread (Debian's openvswitch-switch-dpdk). VPP is \
             not packaged in Debian. bridge: the kernel's, with a tap at each port; it works in the generator's system calls, one for each frame and \
             way, as behind a VMM without vhost."
                .to_owned(),
        ]
    }
}

fn by_vhost(socket: PathBuf) -> Attach {
    Attach::VhostUser { socket, memory: None }
}

fn missing(what: &str) -> BenchError {
    BenchError::Impossible(format!("{what} is not laid"))
}

/// The first and the last processor on which this process may run: a forwarder that polls has one of its own.
fn processors() -> Result<[u16; 2], BenchError> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let both = || {
        let allowed = sched_getaffinity(None).ok()?;
        let mut numbers = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        let [first, last] = [numbers.next()?, numbers.next_back()?];
        Some([u16::try_from(first).ok()?, u16::try_from(last).ok()?])
    };
    both().ok_or_else(|| BenchError::Impossible("forwarder and generator need two processors".to_owned()))
}

/// The count of a search whose first trial had the rate `most`. One that found nothing counts as 0, with a remark: left out, it would leave
/// the median to the searches that found something.
fn counted(found: Option<f64>, most: f64) -> (f64, Option<String>) {
    let least = most / f64::from(1_u32 << HALVINGS);
    let none = || format!("no rate without loss found, down to {least:.0} frames/s: counts as 0");
    (found.unwrap_or(0.0), found.is_none().then(none))
}

fn is_loss_free(offered: &Offered) -> bool {
    offered.sent > 0 && offered.received == offered.sent && offered.sent as f64 >= SENT_MIN * offered.due as f64
}

/// The highest rate that passes, by halving the range below `most`. None if no rate passed.
fn search(most: f64, mut passes: impl FnMut(f64) -> Result<bool, BenchError>) -> Result<Option<f64>, BenchError> {
    if passes(most)? {
        return Ok(Some(most));
    }
    let (mut low, mut high) = (0.0, most);
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        if passes(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(Some(low).filter(|low| *low > 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_ends_at_the_highest_rate_that_passes_to_a_64th() {
        let found = |limit: f64| search(6_400.0, |rate| Ok(rate <= limit)).unwrap();
        assert_eq!(found(10_000.0), Some(6_400.0), "at full rate");
        let rate = found(4_321.0).unwrap();
        assert!((4_221.0..=4_321.0).contains(&rate), "{rate}");
        assert_eq!(found(99.0), None, "below a 64th");
    }

    #[test]
    fn a_search_that_found_no_rate_counts_as_zero_and_says_so() {
        assert_eq!(counted(Some(4_200.0), 6_400.0), (4_200.0, None));
        let mark = "no rate without loss found, down to 100 frames/s: counts as 0";
        assert_eq!(counted(None, 6_400.0), (0.0, Some(mark.to_owned())));
    }

    #[test]
    fn a_frame_that_is_lost_or_not_sent_in_time_is_no_loss_free_rate() {
        let offered = Offered { due: 1_000, sent: 995, received: 995, ..Offered::default() };
        assert!(is_loss_free(&offered));
        assert!(!is_loss_free(&Offered { received: 994, ..offered.clone() }));
        assert!(!is_loss_free(&Offered { due: 1_100, ..offered.clone() }));
        assert!(!is_loss_free(&Offered { sent: 0, received: 0, ..offered }), "nothing was tried");
    }
}
