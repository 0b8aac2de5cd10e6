//! A driver's life: it probes, carries frames, changes settings, is removed and comes back.

use nicety_adapters::find;
use nicety_guests::{Guest, Kernel};
use nicety_trials::scope::{few, in_linux as entries, is_asked, is_full, is_usual};

use crate::{
    stage::{
        FLOOD, LATER, SOON, Stage, address, amount, ping, quiet, send, send_blocks, sh, side_by_side, usual, well,
    },
    user_mode::machine,
};

/// Number of times that an interface goes down, and that a driver is removed, in a normal and in a full run.
const ROUNDS: [u32; 2] = [1, 100];

/// Linux's name for the driver of each adapter.
fn driver(adapter: &str) -> &'static str {
    find(adapter).map_or("?", |entry| entry.about.linux.driver)
}

fn both(adapter: &str, kernel: Kernel) -> (Stage, Guest, Guest) {
    let stage = Stage::new(&[adapter, adapter]);
    let [left, right] = stage.boot(kernel, [1, 2]);
    (stage, left, right)
}

/// Sends frames of every kind, in both directions, between the two adapters of `stage`.
pub fn carry(adapters: [&str; 2], (stage, mut left, mut right): (Stage, Guest, Guest)) {
    for (number, adapter, guest) in [(1, adapters[0], &mut left), (2, adapters[1], &mut right)] {
        let info = sh(guest, "ethtool -i eth0");
        assert!(info.starts_with(&format!("driver: {}\n", driver(adapter))), "{info}");
        assert_eq!(sh(guest, "cat /sys/class/net/eth0/address"), format!("52:54:00:4e:03:0{number}\n"));
    }
    // As much as the slower one carries.
    let amount = |usual| adapters.map(|adapter| amount(adapter, usual)).into_iter().min().unwrap_or(usual);

    ping(&mut left, "", &address(2));
    ping(&mut left, "-s 1472 -M do", &address(2));
    send(&mut left, &mut right, &address(2), amount(16));
    send(&mut right, &mut left, &address(1), amount(16));

    without_offloads(&mut left, &mut right);
    vlan(&mut left, &mut right, amount(4));
    version_6(&mut left, &mut right, amount(4));
    let mtus = adapters.map(|adapter| find(adapter).map_or(0, |entry| entry.about.mtu_max));
    let mtu = mtus.into_iter().fold(9000, |least, mtu| mtu.min(least));
    if mtu > 1500 {
        jumbo(&mut left, &mut right, mtu);
    }

    for guest in [&mut left, &mut right] {
        let least = usual(1000);
        let sane = format!(
            "cd /sys/class/net/eth0/statistics; for name in rx_packets tx_packets rx_bytes tx_bytes; do \
                    [ $(cat $name) -gt {least} ] || echo $name is $(cat $name); done; for name in rx_errors tx_errors \
                    rx_crc_errors rx_length_errors rx_frame_errors tx_aborted_errors collisions; do \
                    [ $(cat $name) = 0 ] || echo $name is $(cat $name); done; ethtool -S eth0 >/tmp/statistics 2>&1 || grep -q 'no stats' /tmp/statistics || echo none"
        );
        assert_eq!(sh(guest, &sane), "");
        quiet(guest);
    }
    for name in ["vm1", "vm2"] {
        let report = stage.report(name);
        assert_eq!(report["condition"], "up", "{report}");
        assert_eq!((&report["guest_errors"], &report["bad_accesses"]), (&0.into(), &0.into()), "{report}");
    }
}

/// Packets that the guest segments and checksums itself arrive as well.
fn without_offloads(left: &mut Guest, right: &mut Guest) {
    sh(left, "ethtool -K eth0 tso off gso off tx off sg off rx off 2>&1 || true");
    send(left, right, &address(2), 2);
    send(right, left, &address(1), 2);
    sh(left, "ethtool -K eth0 tx on sg on rx on 2>&1 || true; ethtool -K eth0 gso on tso on 2>&1 || true");
    send(left, right, &address(2), 1);
}

fn vlan(left: &mut Guest, right: &mut Guest, megabytes: u32) {
    for (guest, number) in [(&mut *left, 1), (&mut *right, 2)] {
        let add = "modprobe 8021q; ip link add link eth0 name eth0.5 type vlan id 5";
        sh(guest, &format!("{add} && ip addr add 10.9.5.{number}/24 dev eth0.5 && ip link set eth0.5 up"));
    }
    ping(left, "-s 1472 -M do", "10.9.5.2");
    send(left, right, "10.9.5.2", megabytes);
    send(right, left, "10.9.5.1", megabytes);
    sh(left, "ip link del eth0.5");
    sh(right, "ip link del eth0.5");
}

fn version_6(left: &mut Guest, right: &mut Guest, megabytes: u32) {
    for (guest, number) in [(&mut *left, 1), (&mut *right, 2)] {
        let accept = "echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad";
        sh(guest, &format!("{accept}; ip -6 addr add fd00::{number}/64 dev eth0"));
    }
    ping(left, "-6", "fd00::2");
    send(left, right, "fd00::2", megabytes);
}

fn jumbo(left: &mut Guest, right: &mut Guest, mtu: u32) {
    for guest in [&mut *left, &mut *right] {
        let carrier = "until has_carrier eth0; do rest; done";
        sh(guest, &format!("ip link set eth0 mtu {mtu}; {carrier}"));
    }
    ping(left, &format!("-s {} -M do", mtu - 28), &address(2));
    send(left, right, &address(2), usual(8));
    send(right, left, &address(1), usual(8));
}

fn restart_driver(adapter: &str, kernel: Kernel) {
    println!("{adapter} with kernel {kernel}");
    let driver = driver(adapter);
    restart_interface_and_driver(both(adapter, kernel), (&format!("rmmod {driver}"), &format!("modprobe {driver}")));
}

/// An interface goes down under traffic and comes up; a driver is removed and comes back with the commands `go` and `come`.
pub fn restart_interface_and_driver((stage, mut left, mut right): (Stage, Guest, Guest), (go, come): (&str, &str)) {
    let carrier = "until has_carrier eth0; do rest; done";
    let up = format!("ip addr add {}/24 dev eth0 && ip link set eth0 up && {carrier}", address(1));
    let come = format!("{come} && until [ -e /sys/class/net/eth0 ]; do rest; done; {up}");
    let up = format!("ip link set eth0 up; {carrier}");
    floods(&mut left, &mut right);
    let down = "ip link set eth0 down";
    for (go, come) in [(down, &up), (go, &come)] {
        for _ in 0..ROUNDS[usize::from(is_full())] {
            stage.wait_more("frames for the driver", 50, || stage.received("vm1"));
            sh(&mut left, go);
            if go != down {
                // Frames still arrive, into rings without a driver. Linux's virtio_net keeps its rings when its interface goes
                // down: frames wait there and in the port's buffer.
                stage.wait_more("frames for nobody", 20, || stage.dropped("vm1"));
            }
            sh(&mut left, come);
            stage.wait_more("frames from the driver", 5, || stage.received("vm2"));
        }
        println!("{} times `{go}` and `{come}` under traffic", ROUNDS[usize::from(is_full())]);
    }
    // A flood may lose a ping.
    sh(&mut right, "killall netperf ping || true");
    sh(&mut left, "touch /tmp/enough; killall ping || true");
    ping(&mut left, "", &address(2));
    send(&mut left, &mut right, &address(2), 1);
    send(&mut right, &mut left, &address(1), 1);
    quiet(&mut left);
    quiet(&mut right);
    let report = stage.report("vm1");
    assert_eq!(report["condition"], "up", "{report}");
    assert_eq!((&report["guest_errors"], &report["bad_accesses"]), (&0.into(), &0.into()), "{report}");
}

/// Sends datagrams and requests to the left guest, which sends its own requests whenever it has an interface. The left guest's
/// address is static: no ARP requests while it is away.
fn floods(left: &mut Guest, right: &mut Guest) {
    // On a loaded machine a flood's interrupts leave the only processor's threads no time for longer than RCU waits before it complains.
    for guest in [&mut *left, &mut *right] {
        sh(guest, "cd /sys/module/rcupdate/parameters && echo 1 >rcu_cpu_stall_suppress || true");
    }
    sh(left, "netserver -4 >/dev/null </dev/null 2>&1");
    let known = "ip neigh replace 10.9.3.1 lladdr 52:54:00:4e:03:01 dev eth0 nud permanent";
    sh(right, &format!("{known} || arp -s 10.9.3.1 52:54:00:4e:03:01"));
    let datagrams = format!("netperf -4 -H {} -t UDP_STREAM -l 7200 -- -m 1400 -R 1", address(1));
    sh(right, &format!("({datagrams} >/dev/null 2>&1 &); ({FLOOD} {} >/dev/null 2>&1 &)", address(1)));
    let own = format!("until [ -e /tmp/enough ]; do {FLOOD} -w 1 {} || usleep 20000; done", address(2));
    sh(left, &format!("(sh -c '{own}' >/dev/null 2>&1 &)"));
}

/// Between 6.1 and 6.12 these drivers changed in what they ask of a chip; the others' changes are those of Linux's own interfaces.
const CHANGED: [&str; 4] = ["e1000e", "igb", "vmxnet3", "virtio-net"];

/// Over every adapter, to another of its kind. In the usual scope over those that `is_chosen`, each to the next one.
fn carries_over(kernel: Kernel, is_chosen: impl Fn(&str) -> bool) {
    let names = entries().into_iter().map(|entry| entry.about.name);
    let all = !is_usual();
    let chosen: Vec<&str> = names.filter(|name| all || is_chosen(name)).collect();
    let own: Vec<[&str; 2]> = chosen.iter().map(|&name| [name; 2]).collect();
    let last = [chosen[chosen.len() - 1], chosen[0]];
    let next = chosen.chunks(2).map(|two| two.try_into().unwrap_or(last)).collect();
    for pair in if all { own } else { next } {
        println!("{} with kernel {kernel}", pair.join(" to "));
        let stage = Stage::new(&pair);
        let [left, right] = stage.boot(kernel, [1, 2]);
        carry(pair, (stage, left, right));
    }
}

/// The usual scope is the drivers that [`CHANGED`].
#[test]
fn kernel_6_1_carries_over_every_adapter() {
    carries_over(Kernel::V6_1, |name| CHANGED.contains(&name));
}

/// The usual scope is the drivers that have not [`CHANGED`]. Over 6.12 those that have carry frames where every driver goes down and comes
/// back.
#[test]
fn kernel_6_12_carries_over_every_adapter() {
    carries_over(Kernel::V6_12, |name| !CHANGED.contains(&name));
}

/// In QEMU each access is a message that the guest waits for: a frame takes some 20 ms.
#[test]
fn both_kernels_ping_and_send_a_little_both_ways_over_an_ne2k_pci() {
    if !is_asked("ne2k_pci") {
        return;
    }
    for kernel in Kernel::ALL {
        println!("ne2k_pci with kernel {kernel}");
        let stage = Stage::new(&["ne2k_pci", "virtio-net"]);
        let mut peer = stage.ready(Guest::boot(&stage.root, stage.at_port(machine(1), 2)));
        let [mut guest] = stage.boot(kernel, [1]);
        assert!(sh(&mut guest, "ethtool -i eth0").starts_with("driver: ne2k-pci\n"));
        for size in [0, 18, 19, 255, 256, 1000, 1472] {
            ping(&mut guest, &format!("-s {size} -M do"), &address(2));
        }
        let begin = std::time::Instant::now();
        send_blocks(&mut guest, &mut peer, &address(2), 2);
        send_blocks(&mut peer, &mut guest, &address(1), 2);
        println!("128 KiB out and in within {:.1?}", begin.elapsed());
        quiet(&mut guest);
        let report = stage.report("vm1");
        assert_eq!((&report["guest_errors"], &report["bad_accesses"]), (&0.into(), &0.into()), "{report}");
    }
}

/// In the usual scope few of them: `user_mode.rs` has all.
#[test]
fn every_driver_goes_down_and_is_removed_under_traffic_and_comes_back() {
    for entry in few() {
        restart_driver(entry.about.name, Kernel::V6_12);
    }
    if is_full() {
        restart_driver("e1000", Kernel::V6_1);
    }
}

/// Registers, EEPROM, interrupt, loopback, link: QEMU's own e1000 fails these tests.
#[test]
fn the_e1000_passes_every_self_test_of_its_driver() {
    side_by_side(&Kernel::ALL, |&kernel| {
        println!("kernel {kernel}");
        let stage = Stage::new(&["e1000"]);
        let [mut guest] = stage.boot(kernel, [1]);
        let text = well(guest.succeed("ethtool -t eth0 offline", LATER));
        assert!(text.contains("The test result is PASS"), "{text}");
        let verdicts: Vec<&str> =
            text.lines().filter_map(|line| line.split_once('\t').map(|(_, code)| code.trim())).collect();
        assert_eq!(verdicts, ["0"; 5], "{text}");
        for dump in ["ethtool -d eth0", "ethtool -e eth0 length 64", "ethtool -g eth0", "ethtool -a eth0"] {
            well(guest.succeed(dump, SOON));
        }
        quiet(&mut guest);
    });
}
