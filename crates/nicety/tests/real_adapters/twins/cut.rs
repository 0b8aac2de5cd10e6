//! The link between two hosts and their lease, cut together. Each host reaches the third party, an etcd, by an address of its own, so that
//! one host may lose it alone. A relay is there: etcd also calls itself, by any address at which it listens.

use std::fs::File;

use nicety_guests::Process;
use pcap_file::pcapng::{Block, PcapNgReader};

use super::links::{asked, etcd, linked};
use super::*;

/// The addresses by which the hosts reach etcd.
const ETCD: [&str; 2] = ["127.0.0.11", "127.0.0.12"];
/// The relay's port.
const RELAY: &str = "12379";
/// For a twin to be sure that an owner who is cut off stays silent: longer than the lease.
const SILENT: Duration = Duration::from_millis(1500);
/// Bytes of a frame that a capture keeps: its addresses.
const SNAP: usize = 64;
const OWNER: usize = 0;
const TWIN: usize = 1;

/// The parts that are cut at once. Owner and twin are those of the moment.
struct Case {
    what: &'static str,
    /// Whose messages to the other host are lost.
    link: &'static [usize],
    /// The hosts that do not reach the lease.
    lease: &'static [usize],
    /// The host that reaches the lease again first. It goes on with the VM.
    first: usize,
}

const CASES: &[Case] = &[
    Case { what: "link both ways, owner's lease", link: &[OWNER, TWIN], lease: &[OWNER], first: TWIN },
    Case { what: "the owner's way, owner's lease", link: &[OWNER], lease: &[OWNER], first: TWIN },
    Case { what: "the twin's way, owner's lease", link: &[TWIN], lease: &[OWNER], first: TWIN },
    Case { what: "link and lease of both, owner first", link: &[OWNER, TWIN], lease: &[OWNER, TWIN], first: OWNER },
    Case { what: "link and lease of both, twin first", link: &[OWNER, TWIN], lease: &[OWNER, TWIN], first: TWIN },
];

impl Hosts {
    /// Has etcd reached by all addresses of the loopback interface.
    fn relay(&mut self) {
        let busybox = self.root.busybox();
        let mut command = std::process::Command::new(&busybox);
        command.args(["nc", "-ll", "-p", RELAY, "-e"]).arg(&busybox).args(["nc", "127.0.0.1", "2379"]);
        well(self.namespace.start(&command, &self.place.path().join("relay.log")));
    }

    /// Takes a host's route to the lease away, or gives it back. What is sent meanwhile is lost.
    fn cut_lease(&mut self, host: usize, is_cut: bool) {
        let verb = if is_cut { "add" } else { "del" };
        // Before the route to all addresses of the loopback interface, which is in the same table.
        well(self.namespace.run(&format!("ip route {verb} blackhole {}/32 table local", ETCD[host]), SOON));
    }

    /// Begins to write down the frames that the VM sends into the switch of a host.
    fn capture(&mut self, host: usize) -> Process {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_nicety"));
        command.args(["capture", "vm1", "--stage", "ingress", "--snap", &SNAP.to_string(), "--control"]);
        command.arg(self.served[host].socket("control.sock")).arg("-w").arg(self.captured(host));
        let log = self.place.path().join(format!("{}.capture", NAMES[host]));
        let process = well(self.namespace.start(&command, &log));
        let end = Instant::now() + SOON;
        while !std::fs::read_to_string(&log).is_ok_and(|said| said.contains("capturing vm1")) {
            assert!(Instant::now() < end && process.runs(), "{:?}", std::fs::read_to_string(&log));
            std::thread::sleep(Duration::from_millis(10));
        }
        process
    }

    fn captured(&self, host: usize) -> PathBuf {
        self.place.path().join(format!("{}.pcapng", NAMES[host]))
    }

    /// The times at which frames of the VM's address went into the switch of a host.
    fn spoke(&self, host: usize) -> Vec<Duration> {
        let mut reader = well(PcapNgReader::new(well(File::open(self.captured(host)))));
        let mut times = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = well(block) {
                times.push(packet.timestamp);
            }
        }
        times
    }

    /// The hosts in the order in which they spoke for the VM, and how many frames each sent at a stretch.
    fn speakers(&self) -> Vec<(usize, usize)> {
        let mut all: Vec<(Duration, usize)> =
            [0, 1].into_iter().flat_map(|host| self.spoke(host).into_iter().map(move |time| (time, host))).collect();
        all.sort_unstable();
        let stretches = all.chunk_by(|one, next| one.1 == next.1);
        stretches.map(|stretch| (stretch[0].1, stretch.len())).collect()
    }
}

/// Cuts link and lease, waits until one host goes on with the VM, and joins everything. Returns that host.
fn cut(hosts: &mut Hosts, between: &between::Between, case: &Case, owner: usize) -> usize {
    let of = |role: usize| [owner, 1 - owner][role];
    let [winner, loser] = [of(case.first), of(1 - case.first)];
    hosts.protected(owner);
    case.lease.iter().for_each(|&role| hosts.cut_lease(of(role), true));
    case.link.iter().for_each(|&role| between.cut(of(role), true));
    hosts.wait(owner, "isolated", |report| report["state"] == "isolated");
    let said = well(hosts.ft(owner, "status guest"));
    println!("{said}");
    assert!(said.contains("(isolated)") && said.contains("the lease does not answer: "), "{said}");
    if case.lease.contains(&TWIN) {
        std::thread::sleep(SILENT);
        let states = [owner, 1 - owner].map(|host| hosts.report(host)["state"].clone());
        assert_eq!(states, ["isolated", "asks"], "neither goes on\n{}", hosts.said());
        hosts.cut_lease(winner, false);
    }
    hosts.wait(winner, "the owner", |report| report["role"] == "owner" && report["state"] == "alone");
    // The other host does not know it yet. Its gate is shut, and stays shut.
    let state = hosts.report(loser)["state"].clone();
    assert!(state == "isolated" || state == "asks", "{state}\n{}", hosts.said());
    case.link.iter().for_each(|&role| between.cut(of(role), false));
    hosts.cut_lease(loser, false);
    hosts.wait(loser, "without the VM", |report| report["role"] == "absent");
    winner
}

/// Only the lease says who owns the VM, so a host that reaches neither the other one nor the lease is silent.
#[test]
fn link_and_lease_that_are_cut_together_leave_one_owner_at_any_instant_and_no_wrong_byte() {
    let leases = ETCD.map(|address| format!("etcd = \"http://{address}:{RELAY}\""));
    let wanted = Wanted { lease: Some(leases.each_ref().map(String::as_str)), ..Wanted::default() };
    let (mut hosts, between) = linked(&wanted);
    etcd(&mut hosts.namespace, hosts.place.path(), "http://127.0.0.1:2379");
    hosts.relay();
    let mut outside = hosts.begin();
    let captures = [0, 1].map(|host| hosts.capture(host));
    stream(hosts.vm(0), &mut outside, &address(2));
    let cases = if is_full() { CASES } else { &CASES[..1] };
    let mut owners = vec![0];
    for case in cases {
        let owner = owners[owners.len() - 1];
        let (back, winner, silence) = asked(outside, &mut hosts, |hosts| cut(hosts, &between, case, owner));
        outside = back;
        println!(
            "{}: silent for {silence:?}, takeover in {}",
            case.what,
            hosts.report(winner)["takeover_microseconds"]
        );
        hosts.is_soon(silence);
        // Its QEMU was ended, and another one waits.
        hosts.twin_again(1 - winner);
        hosts.protected(winner);
        owners.push(winner);
    }
    let last = owners[owners.len() - 1];
    finish(hosts.vm(last), &mut outside);
    captures.into_iter().for_each(|capture| well(hosts.namespace.signal(capture, "TERM", SOON)));
    owners.dedup();
    let speakers = hosts.speakers();
    println!("frames at a stretch: {speakers:?}");
    assert_eq!(speakers.iter().map(|(host, _)| *host).collect::<Vec<_>>(), owners, "one after the other");
}
