//! virtio-net as standby for another adapter with the same address: Linux pairs them (drivers/net/net_failover.c).

use std::time::Instant;

use nicety_guests::{Guest, GuestConfig, Kernel, Machine};

use crate::{
    stage::{HOST, SOON, Stage, address, ping, port, quiet, sh, well},
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

/// Checks that the primary carries while it exists, and the standby when it is gone.
fn check_standby(stage: &Stage, guest: &mut Guest) {
    // The pair's interface shows the same device, hence the sort.
    let standby =
        format!("cd /sys/class/net; for d in *; do cut -c{STANDBY} $d/device/features 2>/dev/null; done | sort -u");
    assert_eq!(sh(guest, &standby), "1\n");
    sh(guest, &format!("for n in $(seq 500); do [ -n \"$({MASTER})\" ] && break; usleep 20000; done"));
    let master = sh(guest, MASTER).trim().to_owned();
    assert!(!master.is_empty(), "{}", sh(guest, "dmesg | grep -i failover; ip link"));
    sh(guest, &format!("ip addr add {}/24 dev {master}; ip link set {master} up", address(1)));
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
