//! Virtual functions under Linux's drivers: what their host lets them do, and what it changes under them.

use nicety_guests::{Folder, Guest, Layer, Port, Tool};
use nicety_trials::scope::is_asked;

use crate::{
    stage::{
        FLOOD, HOST, LATER, Stage, TAP, address, answered_each_once, change, ping, port, quiet, sh, side_by_side, well,
    },
    user_mode::machine,
};

const FUNCTIONS: [&str; 2] = ["igbvf", "ixgbevf"];

/// Gives the interface another address, and says whether that was possible.
fn another_address(guest: &mut Guest, last: u8) -> bool {
    let set = format!("ip link set eth0 address 52:54:00:4e:03:{last:02x} 2>/dev/null && echo done || echo refused");
    sh(guest, &set) == "done\n"
}

#[test]
fn linux_hears_from_its_physical_function_that_it_may_not_have_another_address() {
    for adapter in FUNCTIONS.into_iter().filter(|adapter| is_asked(adapter)) {
        let reject = Port { more: "mac_changes = \"reject\"\n".into(), ..port(adapter, 2) };
        let stage = Stage::with(vec![port(adapter, 1), reject]);
        let [mut free, mut bound] =
            [1, 2].map(|number| stage.ready(Guest::boot(&stage.root, stage.at_port(machine(1), number))));
        for guest in [&mut free, &mut bound] {
            ping(guest, "", HOST);
        }
        assert!(another_address(&mut free, 0x71), "{adapter}: its port says nothing");
        assert!(!another_address(&mut bound, 0x72), "{adapter}: its port rejects that");
        for guest in [&mut free, &mut bound] {
            ping(guest, "", HOST);
        }
    }
}

#[test]
fn linux_carries_on_while_what_its_function_may_do_changes() {
    for adapter in FUNCTIONS.into_iter().filter(|adapter| is_asked(adapter)) {
        let mut stage = Stage::new(&[adapter]);
        let mut guest = stage.ready(Guest::boot(&stage.root, stage.at_port(machine(1), 1)));
        ping(&mut guest, "", HOST);
        change(&mut stage, "port set vm1 mac_changes=reject");
        ping(&mut guest, "", HOST);
        assert!(!another_address(&mut guest, 0x73), "{adapter}: from now on");
        ping(&mut guest, "", HOST);
    }
}

/// A card of this chip, its uplink the tap.
fn card(chip: &str) -> String {
    format!("[[card]]\nname = \"nic\"\nchip = \"{chip}\"\nuplink = \"{TAP}\"\n")
}

/// A port at this function of it.
fn seat(adapter: &str, function: u8) -> Port {
    let more = format!("card = \"nic\"\nfunction = {function}\nlog_refusals = true\n");
    Port { more, ..port(adapter, function + 1) }
}

const CARDS: [(&str, &str); 2] = [("82576", "igbvf"), ("82599", "ixgbevf")];

fn carrier(guest: &mut Guest, is_up: bool) {
    let not = if is_up { "" } else { "! " };
    well(guest.succeed(&format!("until {not}has_carrier eth0; do rest; done"), LATER));
}

/// Its driver resets the function, and asks its physical function anew.
///
/// After a change igbvf may be about to reset by itself (igbvf_reset_task, some ticks after the message). If the interface goes down
/// in that moment, both disable the same queues, and Linux 7.3 waits for ever: igbvf_close warns (`__IGBVF_RESETTING`), and takes no lock
/// against it, as ixgbevf does.
fn down_and_up(guest: &mut Guest) {
    sh(guest, "sleep 1; ip link set eth0 down; ip link set eth0 up");
    carrier(guest, true);
}

fn cannot_reach(guest: &mut Guest, address: &str) {
    sh(guest, &format!("! /usr/bin/ping -c 1 -W 1 {address} >/dev/null"));
}

/// Linux asks three times for an address, a second apart, and then fails whatever waits for it (`mcast_solicit`). Such a question may still be
/// open from [`cannot_reach`].
fn reaches_again(guest: &mut Guest, address: &str) {
    well(guest.succeed(&format!("until /usr/bin/ping -c 1 -W 1 {address} >/dev/null; do rest; done"), LATER));
}

#[test]
fn linux_sees_what_its_host_sets_of_a_card_s_function_as_by_ip_link() {
    side_by_side(&CARDS, |(chip, adapter)| {
        if is_asked(adapter) {
            host_sets(chip, adapter);
        }
    });
}

/// A function in VLAN 7 with priority 3 answers a station of that VLAN beyond the tap: what comes in with the tag reaches its driver, and the
/// answer leaves with the tag. A packet socket asks, because the host's kernel may have no VLANs (CONFIG_VLAN_8021Q). If it has, a VLAN's
/// interface is also pinged.
fn beyond_the_tap(stage: &mut Stage, guest: &mut Guest) {
    sh(guest, "ip addr add 10.9.7.1/24 dev eth0");
    let tools = well(Tool::tcpdump(&mut |line| eprintln!("{line}"))).folder();
    let (tools, folder) = (tools.display(), well(Folder::new()));
    let said = folder.path().join("said").display().to_string();
    // ARP (RFC 826), a request by 10.9.7.254, in VLAN 7.
    let station = r"\x02\x00\x00\x00\x07\xfe";
    let asks = [
        r"\xff\xff\xff\xff\xff\xff",
        station,
        r"\x81\x00\x00\x07\x08\x06\x00\x01\x08\x00\x06\x04\x00\x01",
        station,
        r"\x0a\x09\x07\xfe\x00\x00\x00\x00\x00\x00\x0a\x09\x07\x01",
    ];
    let exchange = format!(
        "{tools}/tcpdump -Z root -n -e -l -i {TAP} -c 1 'vlan 7 and arp[6:2] = 2' >{said} 2>&1 & \
         until \"$busybox\" grep -q 'listening on' {said}; do \"$busybox\" usleep 20000; done; \
         \"$busybox\" printf '{}' | {tools}/socat -u - INTERFACE:{TAP}; wait $!; \"$busybox\" cat {said}",
        asks.concat()
    );
    let heard = well(stage.namespace.run(&exchange, LATER));
    let answer = "vlan 7, p 3, ethertype ARP (0x0806), Reply 10.9.7.1 is-at ";
    assert!(heard.contains(answer), "{heard}");
    let made = format!(
        "ip link add link {TAP} name {TAP}.7 type vlan id 7 && ip addr add 10.9.7.254/24 dev {TAP}.7 && ip link set {TAP}.7 up"
    );
    match stage.namespace.run(&made, LATER) {
        Ok(_) => ping(guest, "", "10.9.7.254"),
        Err(error) => println!("no ping of an interface of the VLAN: {error}"),
    }
}

fn cannot_pass_for_another(stage: &Stage, guest: &mut Guest) {
    // A bridge in the guest sends from an address that is not the function's.
    let spoofs = "ip link add br0 type bridge; ip link set br0 address 52:54:00:4e:03:66; ip link set eth0 master br0; \
                  ip addr add 10.9.9.1/24 dev br0; ip link set br0 up; ! /usr/bin/ping -c 1 -W 1 10.9.9.2 >/dev/null";
    sh(guest, spoofs);
    let spoofed = || stage.report("vm1")["transmit_drops"]["forged-transmit"].as_u64().unwrap_or(0);
    stage.wait_until("spoofed frames are dropped", || spoofed() > 0);
    stage.wait_log("forged-transmit");
    sh(guest, "ip link set eth0 nomaster; ip link del br0");
    ping(guest, "", HOST);

    // A bridge that has the function's own address sends in a VLAN that its driver has not asked for.
    let before = spoofed();
    let tags = "ip link add br0 type bridge; ip link set br0 address $(cat /sys/class/net/eth0/address); ip link set eth0 master br0; \
                ip link set br0 up; ip link add link br0 name br0.5 type vlan id 5; ip addr add 10.9.9.1/24 dev br0.5; \
                ip link set br0.5 up; ! /usr/bin/ping -c 1 -W 1 10.9.9.2 >/dev/null";
    sh(guest, tags);
    stage.wait_until("frames of a VLAN that was not granted are dropped", || spoofed() > before);
    sh(guest, "ip link del br0.5; ip link set eth0 nomaster; ip link del br0");
    ping(guest, "", HOST);
}

fn has_the_hosts_vlan(adapter: &str, stage: &mut Stage, [guest, other]: [&mut Guest; 2]) {
    // A VLAN of its own is refused from then on, and untagged frames are in the host's.
    let own_vlan = "ip link add link eth0 name eth0.5 type vlan id 5 2>/dev/null";
    sh(guest, &format!("{own_vlan}; ip link del eth0.5"));
    change(stage, "vf set nic/0 vlan 7 qos 3");
    if adapter == "ixgbevf" {
        sh(guest, &format!("! {own_vlan}"));
    } else {
        // igbvf compares the answer with one without its own bits, and takes it for a grant: e1000_set_vfta_vf in its vf.c.
        sh(guest, &format!("{own_vlan}; ip link del eth0.5"));
    }
    cannot_reach(guest, &address(2));
    cannot_reach(guest, HOST);
    beyond_the_tap(stage, guest);
    ping(other, "", HOST);
    change(stage, "vf set nic/1 vlan 7");
    reaches_again(guest, &address(2));
    ping(guest, "", &address(2));
    ping(other, "", &address(1));
    ["nic/0", "nic/1"].iter().for_each(|function| change(stage, &format!("vf set {function} vlan 0")));
    reaches_again(guest, HOST);
    ping(guest, "", HOST);
}

fn has_the_cards_link_or_the_hosts(stage: &mut Stage, [guest, other]: [&mut Guest; 2]) {
    // The tap's carrier is the card's link, unless the host forces it.
    change(stage, "vf set nic/1 state enable");
    well(stage.namespace.run(&format!("ip link set {TAP} down"), LATER));
    carrier(guest, false);
    carrier(other, true);
    // Two whose links are forced up reach each other without it.
    change(stage, "vf set nic/0 state enable");
    carrier(guest, true);
    ping(other, "", &address(1));
    change(stage, "vf set nic/0 state auto");
    carrier(guest, false);
    well(stage.namespace.run(&format!("ip link set {TAP} up"), LATER));
    carrier(guest, true);
    ping(guest, "", HOST);
    change(stage, "vf set nic/0 state disable");
    carrier(guest, false);
    ping(other, "", HOST);
    change(stage, "vf set nic/0 state auto");
    carrier(guest, true);
    ping(guest, "", HOST);
}

fn host_sets(chip: &str, adapter: &str) {
    let mut stage = Stage::beside([0, 1].map(|function| seat(adapter, function)).to_vec(), &card(chip));
    let mut guests = [1, 2].map(|number| well(Guest::start(&stage.root, stage.at_port(machine(1), number))));
    guests.iter_mut().for_each(|guest| stage.ready(guest.wait_ready()));
    let [mut guest, mut other] = guests;
    ping(&mut guest, "", HOST);
    ping(&mut guest, "", &address(2));
    assert!(!another_address(&mut guest, 0x74), "{adapter}: it is not trusted");

    cannot_pass_for_another(&stage, &mut guest);

    // ixgbevf also writes patterns to its rings' registers: reg_test_vf in its ethtool.c.
    let test = sh(&mut guest, "ethtool -t eth0 offline");
    println!("{adapter}: {test}");
    assert!(test.contains("The test result is PASS"), "{adapter}: {test}");
    carrier(&mut guest, true);
    ping(&mut guest, "", HOST);

    // ixgbe_get_vf_reta, ixgbe_get_vf_rss_key: the driver's question is refused unless the host lets it ask.
    if adapter == "ixgbevf" {
        sh(&mut guest, "! ethtool -x eth0 >/dev/null 2>&1");
        change(&mut stage, "vf set nic/0 query-rss on");
        let shown = sh(&mut guest, "ethtool -x eth0");
        assert!(shown.contains("RX flow hash indirection table") && shown.contains("RSS hash key"), "{shown}");
    }

    // ixgbe_ndo_set_vf_mac, igb_ndo_set_vf_mac: the driver learns it when it resets.
    change(&mut stage, "vf set nic/0 mac 52:54:00:4e:03:55");
    let own = "cat /sys/class/net/eth0/address";
    assert_eq!(sh(&mut guest, own), "52:54:00:4e:03:01\n");
    down_and_up(&mut guest);
    assert_eq!(sh(&mut guest, own), "52:54:00:4e:03:55\n");
    ping(&mut guest, "", HOST);
    // Linux's ixgbe has its driver reset (ixgbe_ndo_set_vf_trust), which takes up to ten seconds: here nothing stops.
    let carriers = |guest: &mut Guest| sh(guest, "cat /sys/class/net/eth0/carrier_changes");
    let before = carriers(&mut guest);
    change(&mut stage, "vf set nic/0 trust on");
    ping(&mut guest, "", HOST);
    assert_eq!(carriers(&mut guest), before, "{adapter}: its link stays up");
    down_and_up(&mut guest);
    assert!(another_address(&mut guest, 0x75), "{adapter}: it is trusted");
    ping(&mut guest, "", HOST);

    has_the_hosts_vlan(adapter, &mut stage, [&mut guest, &mut other]);

    has_the_cards_link_or_the_hosts(&mut stage, [&mut guest, &mut other]);

    // The card is reset: both drivers reset, and carry on (within ten seconds of their last reset).
    change(&mut stage, "card reset nic");
    for guest in [&mut guest, &mut other] {
        well(guest.succeed(&format!("until /usr/bin/ping -c 1 -W 1 {HOST} >/dev/null; do rest; done"), LATER));
        quiet(guest);
    }

    // Taken away under traffic: the guest goes on without it, and the other function does not notice.
    sh(&mut guest, &format!("({FLOOD} {HOST} >/dev/null 2>&1 &)"));
    let report = stage.report("vm1");
    assert_eq!((&report["function"]["card"], &report["function"]["function"]), (&"nic".into(), &0.into()));
    change(&mut stage, "port remove vm1 --yes");
    sh(&mut guest, "until dmesg | grep -q 'the device is gone'; do rest; done; killall ping || true");
    println!(
        "{adapter}, removed: carrier {}",
        sh(&mut guest, "sleep 3; cat /sys/class/net/eth0/carrier 2>&1 || true").trim()
    );
    let traces = sh(&mut guest, "dmesg | grep -cE 'Call Trace|WARNING|BUG' || true");
    assert_eq!(traces, "0\n", "{adapter}");
    ping(&mut other, "", HOST);
    quiet(&mut other);
}

/// A link of so many Mbit/s, of which a function is promised so many.
const LINK_MBIT: u32 = 8;
const MIN_MBIT: u32 = 6;
/// Bytes that leave by it while they are counted.
const COUNTED: u64 = 1_500_000;

/// Windows in which they are counted. A guest that its host does not run for a while has less in hand than its part: of several windows
/// one shows the promise. The bound for each is the simulation's.
const WINDOWS: usize = 5;

/// Both guests keep more requests under way than the link takes in a third of a second. Equal parts would be a half for each.
#[test]
fn a_function_has_its_minimum_rate_of_a_full_link_and_who_has_it_changes_live() {
    if !is_asked("ixgbevf") {
        return;
    }
    let tables = format!("rate = \"{LINK_MBIT}Mbit/s\"\n{}", card("82599"));
    let mut stage = Stage::beside([0, 1].map(|function| seat("ixgbevf", function)).to_vec(), &tables);
    let mut guests = [1, 2].map(|number| well(Guest::start(&stage.root, stage.at_port(machine(1), number))));
    for guest in &mut guests {
        stage.ready(guest.wait_ready());
        ping(guest, "", HOST);
        sh(guest, &format!("({FLOOD} -n -q -l 250 -s 1400 {HOST} >/dev/null 2>&1 &)"));
    }
    let bytes = |stage: &Stage, name: &str| -> u64 {
        let report = stage.report(name);
        report["transmit"].as_array().into_iter().flatten().filter_map(|queue| queue["bytes"].as_u64()).sum()
    };
    let all = |stage: &Stage| bytes(stage, "vm1") + bytes(stage, "vm2");
    for (promised, other, number) in [("vm1", 1, 0), ("vm2", 0, 1)] {
        change(&mut stage, &format!("vf set nic/{other} min-rate 0"));
        change(&mut stage, &format!("vf set nic/{number} min-rate {MIN_MBIT}"));
        // Frames that waited before have left.
        stage.wait_more("bytes", COUNTED / 2, || all(&stage));
        let part = || {
            let (before, of_all) = (bytes(&stage, promised), all(&stage));
            stage.wait_more("bytes", COUNTED, || all(&stage));
            (bytes(&stage, promised) - before) as f64 / (all(&stage) - of_all) as f64
        };
        let promise = f64::from(MIN_MBIT) / f64::from(LINK_MBIT);
        let has_its_part = (0..WINDOWS).any(|_| {
            let part = part();
            println!("{promised} has {part:.3} of the link, and was promised {promise}");
            part >= 0.9 * promise
        });
        assert!(has_its_part, "{promised} has less than its promise in each of {WINDOWS} windows");
    }
    // 75 % of the link are promised.
    let host = stage.report("vm1")["socket"].as_str().map(|path| path.replace("vm1.sock", "host.toml"));
    let program = env!("CARGO_BIN_EXE_nicety");
    let more = format!("{program} vf set nic/0 min-rate 1 --host {} 2>&1 || true", host.unwrap_or_default());
    let text = well(stage.namespace.run(&more, LATER));
    assert!(
        text.contains("1Mbit/s + 6Mbit/s = 7Mbit/s are reserved on n0, and 75 % of its slowest link may be"),
        "{text}"
    );
    guests.iter_mut().for_each(quiet);
}

/// IEEE 802.1Qbg: the neighbouring bridge must be told to return frames to where they came from.
#[test]
fn functions_behind_a_vepa_reach_each_other_when_the_bridge_beyond_the_tap_returns_their_frames() {
    if !is_asked("ixgbevf") {
        return;
    }
    let vepa = card("82599") + "bridge = \"vepa\"\n";
    let mut stage = Stage::beside([0, 1].map(|function| seat("ixgbevf", function)).to_vec(), &vepa);
    let bridge = format!(
        "ip link add br0 type bridge; ip addr del {HOST}/24 dev {TAP}; ip link set {TAP} master br0; \
         ip addr add {HOST}/24 dev br0; ip link set br0 up"
    );
    well(stage.namespace.run(&bridge, LATER));
    let mut guests = [1, 2].map(|number| well(Guest::start(&stage.root, stage.at_port(machine(1), number))));
    guests.iter_mut().for_each(|guest| stage.ready(guest.wait_ready()));
    let [mut guest, mut other] = guests;
    for guest in [&mut guest, &mut other] {
        ping(guest, "", HOST);
    }
    cannot_reach(&mut guest, &address(2));
    // busybox's `ip` takes these words and does nothing.
    let layer = well(Layer::lay("iproute2", &["iproute2"], &mut |line| eprintln!("{line}")));
    let bridge = layer.program("usr/sbin/bridge");
    let words: Vec<_> = std::iter::once(bridge.get_program()).chain(bridge.get_args()).collect();
    let words = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    well(stage.namespace.run(&format!("{words} link set dev {TAP} hairpin on"), LATER));
    ping(&mut guest, "", &address(2));
    ping(&mut other, "", &address(1));
    answered_each_once(&mut guest, "", 200, &address(2));
    for guest in [&mut guest, &mut other] {
        ping(guest, "", HOST);
        quiet(guest);
    }
}
