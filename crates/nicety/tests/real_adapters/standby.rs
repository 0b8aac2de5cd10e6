//! virtio-net as standby for another adapter with the same address: Linux pairs them (drivers/net/net_failover.c).

use std::time::Instant;

use nicety_guests::{Guest, GuestConfig, Kernel, Machine, Port};
use nicety_trials::scope::{is_asked, is_full};

use crate::{
    stage::{HOST, LATER, SOON, Stage, WIRE, address, mac, ping, pinged, port, quiet, sh, side_by_side, well},
    user_mode::machine,
};

/// VIRTIO_NET_F_STANDBY, as a position in a text that counts from 1.
const STANDBY: u32 = 62 + 1;
/// Prints the pair's interface.
const MASTER: &str = "cd /sys/class/net; for d in *; do ethtool -i $d 2>/dev/null | grep -q '^driver: net_failover' && echo $d; done; true";

/// A daemon with a primary and a standby with one address, and a machine with both.
fn pair<M: Machine>(standby: &str, machine: impl Fn(&Stage) -> M) -> (Stage, M) {
    let mut ports = vec![port("e1000", 1), port(standby, 2)];
    ports[1].mac = ports[0].mac.clone();
    ports[1].more = "standby = true\n".into();
    let stage = Stage::with(ports);
    let machine = ["vm1", "vm2"].into_iter().fold(machine(&stage), |machine, name| stage.served.attach(machine, name));
    (stage, machine)
}

/// Brings the pair's interface up, with the guest's address. Returns its name.
pub fn bring_up(guest: &mut Guest) -> String {
    sh(guest, &format!("for n in $(seq 500); do [ -n \"$({MASTER})\" ] && break; usleep 20000; done"));
    let master = sh(guest, MASTER).trim().to_owned();
    assert!(!master.is_empty(), "{}", sh(guest, "dmesg | grep -i failover; ip link"));
    sh(guest, &format!("ip addr add {}/24 dev {master}; ip link set {master} up", address(1)));
    master
}

/// A port at a card's function, and its standby with the same address, `vm1` and `vm2`.
pub fn function_and_standby(adapter: &str) -> Vec<Port> {
    let function = Port { more: "card = \"nic\"\nfunction = 0\n".into(), ..port(adapter, 1) };
    vec![function, Port { mac: mac(1), more: "standby = true\n".into(), ..port("virtio-net", 2) }]
}

/// Checks that the primary carries while it exists, and the standby when it is gone.
fn check_standby(stage: &Stage, guest: &mut Guest) {
    // The pair's interface shows the same device, hence the sort.
    let standby =
        format!("cd /sys/class/net; for d in *; do cut -c{STANDBY} $d/device/features 2>/dev/null; done | sort -u");
    assert_eq!(sh(guest, &standby), "1\n");
    bring_up(guest);
    let sent = |name| stage.sent(name);
    let flood = format!("/usr/bin/ping -n -q -f -c 300 -w 20 {HOST} >/dev/null");
    let driver = "/sys/bus/pci/drivers/e1000";
    for (act, carries) in [
        ("true".to_owned(), "vm1"),
        (format!("cd {driver}; ls | grep : >/tmp/function; cat /tmp/function >unbind"), "vm2"),
        (format!("cat /tmp/function >{driver}/bind"), "vm1"),
    ] {
        sh(guest, &act);
        // The switch learns the new port from the first frames; a link comes up after a while.
        let (before, end) = (sent(carries), Instant::now() + SOON);
        while sent(carries) < before + 4 {
            assert!(Instant::now() < end, "{carries} does not carry after {act:?}");
            well(guest.run(&format!("/usr/bin/ping -n -q -c 1 -W 1 {HOST} >/dev/null"), SOON));
        }
        ping(guest, "", HOST);
        let before = sent(carries);
        sh(guest, &flood);
        assert!(sent(carries) >= before + 300, "{carries} carries after {act:?}");
    }
    quiet(guest);
}

#[test]
fn a_user_mode_guest_s_virtio_net_stands_by_for_an_e1000_of_the_same_address() {
    for adapter in ["virtio-net", "virtio-net-pci"] {
        let (stage, machine) = pair(adapter, |_| machine(1));
        let mut guest = stage.ready(Guest::boot(&stage.root, machine));
        check_standby(&stage, &mut guest);
    }
}

/// QEMU itself announces the standby to the guest, whatever its back end offers.
#[test]
fn a_guest_in_qemu_has_a_pair_of_virtio_net_and_e1000() {
    let (stage, mut config) = pair("virtio-net", |_| GuestConfig::new(Kernel::V6_12));
    for word in &mut config.devices {
        *word = word.replace("virtio-net-pci,", "virtio-net-pci,failover=on,");
    }
    let mut guest = stage.ready(Guest::boot(&stage.root, config));
    check_standby(&stage, &mut guest);
}

/// Requests per second while carriers change.
const REQUESTS: u32 = 100;
/// Changes, away from the function and back to it; with `--full` the second.
const CHANGES: [usize; 2] = [10, 100];
const CARDS: [(&str, &str); 2] = [("82576", "igbvf"), ("82599", "ixgbevf")];

/// The longest row of requests without an answer, by the answers' sequence numbers.
fn longest_gap(answers: &str) -> usize {
    let numbers = answers.lines().filter_map(|line| line.split("icmp_seq=").nth(1)?.split(' ').next()?.parse().ok());
    let numbers: Vec<usize> = numbers.collect();
    numbers.windows(2).map(|pair| pair[1].saturating_sub(pair[0] + 1)).max().unwrap_or_default()
}

/// Sends requests to the host while `change` takes the traffic from `vm1` to `vm2` (false) and back (true). Each change waits until
/// requests leave by the other port and are answered. No request may be answered twice.
fn change_carriers(
    what: &str,
    stage: &mut Stage,
    guest: &mut Guest,
    mut change: impl FnMut(&mut Stage, &mut Guest, bool),
) {
    ping(guest, "", HOST);
    let carries = |stage: &Stage, name: &str| stage.wait_more(name, 20, || stage.sent(name));
    let interval = 1.0 / f64::from(REQUESTS);
    sh(guest, &format!("(/usr/bin/ping -n -i {interval} {HOST} >/tmp/answers 2>&1 &)"));
    carries(stage, "vm1");
    let changes = CHANGES[usize::from(is_full())];
    for number in 0..changes {
        let (is_back, name) = [(false, "vm2"), (true, "vm1")][number % 2];
        change(stage, guest, is_back);
        carries(stage, name);
        ping(guest, "", HOST);
    }
    let text = sh(guest, "killall -INT ping; until grep -q transmitted /tmp/answers; do rest; done; cat /tmp/answers");
    let [sent, answered, doubled] = pinged(&text);
    println!(
        "{what}: {changes} changes, {sent} requests, {} lost, {doubled} doubled, at most {} ms in a row",
        sent - answered,
        longest_gap(&text) as u32 * 1000 / REQUESTS
    );
    assert_eq!(doubled, 0, "{what}: {text}");
    quiet(guest);
}

/// While a primary is there, Linux takes no frame from the standby, whatever the primary's carrier is (`net_failover_handle_frame`): so the
/// guest itself lets its function go.
#[test]
fn a_virtio_net_stands_in_for_a_function_that_its_guest_lets_go_and_takes_back() {
    side_by_side(&CARDS, |(chip, adapter)| {
        if !is_asked(adapter) {
            return;
        }
        let card = format!("[[card]]\nname = \"nic\"\nchip = \"{chip}\"\n");
        let mut stage = Stage::beside(function_and_standby(adapter), &card);
        let machine = ["vm1", "vm2"].into_iter().fold(machine(1), |machine, name| stage.served.attach(machine, name));
        let mut guest = stage.ready(Guest::boot(&stage.root, machine));
        bring_up(&mut guest);
        let driver = format!("/sys/bus/pci/drivers/{adapter}");
        sh(&mut guest, &format!("cd {driver}; ls | grep : >/tmp/function"));
        change_carriers(&format!("net_failover, {adapter}"), &mut stage, &mut guest, |_, guest, is_back| {
            sh(guest, &format!("cat /tmp/function >{driver}/{}", if is_back { "bind" } else { "unbind" }));
        });
    });
}

/// The function's link is the carrier of its card's uplink, a tap of its own. Linux's bonding takes frames from the link that it uses.
#[test]
fn a_virtio_net_in_a_bond_carries_while_the_function_s_link_is_down() {
    side_by_side(&CARDS, |(chip, adapter)| {
        if !is_asked(adapter) {
            return;
        }
        let card = format!("[[card]]\nname = \"nic\"\nchip = \"{chip}\"\nuplink = \"{WIRE}\"\n");
        let function = Port { more: "card = \"nic\"\nfunction = 0\n".into(), ..port(adapter, 1) };
        let mut stage = Stage::with_wire(vec![function, port("virtio-net", 2)], &card);
        let machine = ["vm1", "vm2"].into_iter().fold(machine(1), |machine, name| stage.served.attach(machine, name));
        let mut guest = stage.ready(Guest::boot(&stage.root, machine));
        // The bond has its first link's address: the function, which is not trusted, keeps its own.
        let links = format!(
            "function=$(basename /sys/bus/pci/drivers/{adapter}/*:*/net/*); other=$(ls /sys/class/net | grep eth | grep -v $function)"
        );
        let bond = "cd /sys/class/net; [ -e bond0 ] || echo +bond0 >bonding_masters; ip link set bond0 down; cd bond0/bonding; \
                    echo active-backup >mode; echo 10 >miimon; ip link set $function down; ip link set $other down; \
                    echo +$function >slaves; echo +$other >slaves; echo $function >primary; ip link set bond0 up; \
                    until [ \"$(cat active_slave)\" = $function ]; do rest; done";
        // The function's link comes up after the other's: a request in flight at that change would be lost.
        sh(&mut guest, &format!("{links}; {bond}; ip addr add {}/24 dev bond0", address(1)));
        change_carriers(&format!("bond, {adapter}"), &mut stage, &mut guest, |stage, _, is_back| {
            well(stage.namespace.run(&format!("ip link set {WIRE} {}", if is_back { "up" } else { "down" }), LATER));
        });
    });
}
