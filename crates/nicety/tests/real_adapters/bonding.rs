//! 802.3ad with Linux's bonding driver at the other end. A guest has four adapters, each at a daemon of its own that is no more than a wire
//! to one of the four links of the team under test; another guest sends and answers beyond that team.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nicety_adapters::find;
use nicety_daemon::daemon::{Daemon, JoiningUplink, PortSpec};
use nicety_daemon::live::state::Begin;
use nicety_daemon::live::{Consent, Live};
use nicety_daemon::report::PortReport;
use nicety_daemon::serve;
use nicety_frame::Mac;
use nicety_guests::{Guest, Machine, Root};
use nicety_host::{Host, PortConfig};
use nicety_switch::Limits;
use nicety_uplink::Pair;

use crate::stage::{sh, well};
use crate::user_mode::machine;

const LINKS: u8 = 4;
/// LACP waits 2 s; a new bond selects nothing for 8 s.
const PATIENCE: Duration = Duration::from_secs(60);

/// A port that its guest reaches at this socket.
fn port(socket: &Path, mac: [u8; 6]) -> PortSpec {
    PortSpec::plain(PortConfig::new("vm1", find("e1000e").unwrap(), Mac(mac), socket.to_owned()))
}

/// The four wires: each a guest's port at one end, and a pair at the other.
fn wires(dir: &Path) -> Vec<Daemon> {
    let wire = |number: u8| {
        let daemon = well(Daemon::start(Limits { relays: true, ..Limits::default() }, 1));
        let pair = well(Pair::connect(dir.join(format!("link{number}"))));
        well(daemon.open_uplink(JoiningUplink::new("wire", Box::new(pair))));
        well(daemon.open(port(&dir.join(format!("bond{number}.sock")), [0x52, 0x54, 0, 0x4e, 4, number])));
        daemon
    };
    (0..LINKS).map(wire).collect()
}

/// The host file of a team of so many pairs.
fn text(links: u8, more: &str) -> String {
    let names: Vec<String> = (0..links).map(|number| format!("link{number}")).collect();
    let link = |name: &String| format!("[[uplink]]\nkind = \"pair\"\nname = \"{name}\"\nsocket = \"{name}\"\n");
    let team = format!("[[team]]\nname = \"up\"\nmembers = \"{}\"\nmode = \"802.3ad\"\n", names.join(","));
    format!("{}{team}lacp_rate = \"fast\"\n{more}", names.iter().map(link).collect::<String>())
}

/// The daemon under test: a guest's port, and a team of four pairs.
fn team(dir: &Path, more: &str) -> Live {
    let host = well(Host::parse(&text(LINKS, more), &dir.join("host.toml")));
    let Begin { host, file, state, found: _ } = Begin::new(host);
    let daemon = well(serve::start(well(serve::prepare(&host, None))));
    well(daemon.open(port(&dir.join("vm1.sock"), [0x52, 0x54, 0, 0x4e, 4, 0xff])));
    Live::new(Arc::new(daemon), host, file, state)
}

/// Applies another host file, and returns the lines of the plan.
fn apply(live: &Live, text: &str) -> String {
    let host = well(Host::parse(text, live.path()));
    well(live.apply(&host, &Consent::Nothing)).plan.to_string()
}

fn report(daemon: &Daemon) -> PortReport {
    PortReport::of(daemon.views().iter().find(|view| view.name == "up").unwrap())
}

/// Waits until the team sends and takes by so many links.
fn wait(daemon: &Daemon, links: usize) -> PortReport {
    let end = Instant::now() + PATIENCE;
    loop {
        let report = report(daemon);
        let used = report.members.iter().flatten().filter(|member| member.collects && member.distributes).count();
        if used == links {
            return report;
        }
        assert!(Instant::now() < end, "{}", report.sentence);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A number in the bond's file behind this label.
fn number(text: &str, label: &str) -> Vec<u32> {
    let values = text.lines().filter_map(|line| line.trim().strip_prefix(label));
    values.filter_map(|value| value.trim().parse().ok()).collect()
}

/// Flows that ping at the same time: each has an identifier of its own, and so a link by `layer3+4`.
const FLOWS: u32 = 8;
/// Pings of each flow of which none may be lost.
const EACH: usize = 10;

/// Pings in several flows, so often in each, and returns how many pings were answered.
fn pings(guest: &mut Guest, count: u32) -> u32 {
    let ping = format!("/usr/bin/ping -q -i 0.05 -c {count} -W 1 10.9.4.1");
    let text = sh(guest, &format!("for i in $(seq {FLOWS}); do {ping} >/tmp/ping$i & done; wait; cat /tmp/ping*"));
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("received")).collect();
    assert_eq!(lines.len(), FLOWS as usize, "{text}");
    let received = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| word.starts_with("received"))?;
        words.get(at.checked_sub(1)?)?.parse::<u32>().ok()
    };
    lines.iter().filter_map(received).sum()
}

/// Pings in several flows, one after the other in each: with several under way `ping` waits for the last answer no longer than twice the
/// longest round trip so far. All are answered.
fn all_pass(guest: &mut Guest, when: &str) {
    let ping = "/usr/bin/ping -n -q -c 1 -W 30 10.9.4.1";
    let flow = format!("for n in $(seq {EACH}); do {ping}; done");
    let text = sh(guest, &format!("for i in $(seq {FLOWS}); do ({flow}) >/tmp/ping$i & done; wait; cat /tmp/ping*"));
    assert_eq!(text.matches(" 0% packet loss").count(), EACH * FLOWS as usize, "{when}: {text}");
}

/// `lacp` sets up the bond, whose file then has `line`; `more` are keys of the team. `then` follows once all links are used.
fn agrees(lacp: &str, line: &str, more: &str, then: fn(&mut Guest, &Live, &[Daemon])) {
    let dir = tempfile::tempdir().unwrap();
    let live = team(dir.path(), more);
    let (daemon, wires) = (live.daemon(), wires(dir.path()));
    let root = well(Root::lay(&mut |line| eprintln!("{line}")));
    let socket = |name: &str| dir.path().join(name).display().to_string();
    let other = machine(1).vfio_user(&socket("vm1.sock")).address("eth0", "10.9.4.1/24");
    let bonded =
        (0..LINKS).fold(machine(1), |machine, number| machine.vfio_user(&socket(&format!("bond{number}.sock"))));
    let (mut other, mut guest) = (well(Guest::start(&root, other)), well(Guest::start(&root, bonded)));
    well(other.wait_ready());
    well(guest.wait_ready());
    let bond = "cd /sys/class/net; [ -e bond0 ] || echo +bond0 >bonding_masters; ip link set bond0 down; cd bond0/bonding; \
                echo 802.3ad >mode; echo fast >lacp_rate; echo 100 >miimon; echo layer3+4 >xmit_hash_policy";
    sh(&mut guest, &format!("{bond}; {lacp}"));
    sh(
        &mut guest,
        "for i in 0 1 2 3; do ip link set eth$i down; echo +eth$i >/sys/class/net/bond0/bonding/slaves; done",
    );
    sh(&mut guest, "ip address add 10.9.4.2/24 dev bond0; ip link set bond0 up");
    let all = wait(daemon, usize::from(LINKS));
    println!("{}", all.sentence);
    let text = sh(&mut guest, "cat /proc/net/bonding/bond0");
    println!("{text}");
    assert!(text.contains(line), "{text}");
    assert_eq!(number(&text, "Number of ports:"), [u32::from(LINKS)], "one aggregator");
    let ids = number(&text, "Aggregator ID:");
    assert!(ids.len() == 5 && ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    all_pass(&mut guest, "at first");
    then(&mut guest, &live, &wires);
    wires.iter().for_each(Daemon::stop);
    daemon.stop();
}

/// Links go one at a time: here the carrier is lost, there LACP misses the partner.
fn links_go(guest: &mut Guest, live: &Live, wires: &[Daemon]) {
    for left in (1..LINKS).rev() {
        wires[usize::from(left)].close_uplink("wire");
        let cut = Instant::now();
        wait(live.daemon(), left.into());
        println!("left link{left} after {:?}", cut.elapsed());
        let answered = pings(guest, 100);
        println!("{left} links: {answered} of {} pings answered in the first 5 s", 100 * FLOWS);
        all_pass(guest, &format!("with {left} links, after its short timeout"));
    }
    // Linux takes a link out when its partner's time is over.
    let end = Instant::now() + PATIENCE;
    loop {
        let text = sh(guest, "cat /proc/net/bonding/bond0");
        if number(&text, "Number of ports:") == [1] {
            return;
        }
        assert!(Instant::now() < end, "{text}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The team is changed while the bond uses it.
fn team_changes(guest: &mut Guest, live: &Live, _: &[Daemon]) {
    for hash in ["layer2+3", "encap3+4"] {
        let plan = apply(live, &text(LINKS, &format!("hash = \"{hash}\"\n")));
        assert!(plan.starts_with("~ team up: hash "), "{plan}");
        all_pass(guest, hash);
    }
    let fewer = text(LINKS - 1, "hash = \"encap3+4\"\n");
    let plan = apply(live, &fewer);
    assert!(plan.contains("- uplink link3\n"), "{plan}");
    wait(live.daemon(), usize::from(LINKS - 1));
    println!("without link3: {} of {} pings answered in the first 5 s", pings(guest, 100), 100 * FLOWS);
    all_pass(guest, "without link3");
    let plan = apply(live, &text(LINKS, "hash = \"encap3+4\"\n"));
    assert!(plan.contains("+ uplink link3\n"), "{plan}");
    wait(live.daemon(), usize::from(LINKS));
    all_pass(guest, "with link3 again");
    let file = sh(guest, "cat /proc/net/bonding/bond0");
    assert_eq!(number(&file, "Number of ports:"), [u32::from(LINKS)], "{file}");
}

#[test]
fn linux_bonds_four_links_with_a_team_and_goes_on_while_they_go() {
    agrees("", "LACP active: on", "", links_go);
}

#[test]
#[ignore = "only with --full: an active team in the usual run"]
fn linux_bonds_with_a_passive_team() {
    agrees("", "LACP active: on", "lacp = \"passive\"\n", links_go);
}

#[test]
#[ignore = "only with --full: an active bond in the usual run"]
fn a_passive_bond_of_linux_answers_a_team() {
    agrees("echo off >lacp_active", "LACP active: off", "", links_go);
}

#[test]
fn a_bond_of_linux_goes_on_while_the_teams_hash_and_members_change() {
    agrees("", "LACP active: on", "", team_changes);
}
