//! virtio-net's packed rings, and rings in order, under Linux's own driver.

use nicety_guests::{Guest, Kernel};

use crate::{
    stage::{LATER, Stage, address, ping, quiet, send, sh, usual, well},
    user_mode::machine,
};

/// Feature bits (virtio 1.2, section 6).
const RING_PACKED: usize = 34;
const IN_ORDER: usize = 35;

/// Features that the guest's driver accepted, by number.
pub fn features(guest: &mut Guest) -> Vec<usize> {
    let text = sh(guest, "cat /sys/class/net/eth0/device/features");
    (0..).zip(text.trim().chars()).filter(|(_, taken)| *taken == '1').map(|(bit, _)| bit).collect()
}

fn carries(stage: &Stage, left: &mut Guest, right: &mut Guest) {
    ping(left, "", &address(2));
    send(left, right, &address(2), usual(20));
    send(right, left, &address(1), usual(20));
    // Small frames, several times as many as a ring holds.
    sh(left, &format!("/usr/bin/ping -n -q -f -c 3000 -s 1000 {} >/dev/null", address(2)));
    for (guest, name) in [(left, "vm1"), (right, "vm2")] {
        assert_eq!(stage.report(name)["condition"], "up");
        quiet(guest);
    }
}

#[test]
fn linux_in_a_user_mode_kernel_takes_rings_in_order_and_its_control_queue_too() {
    let stage = Stage::new(&["virtio-net", "virtio-net"]);
    let start = |number| well(Guest::start(&stage.root, stage.at_port(machine(1), number)));
    let (mut left, mut right) = (start(1), start(2));
    for guest in [&mut left, &mut right] {
        stage.ready(guest.wait_ready());
        let taken = features(guest);
        assert!(taken.contains(&IN_ORDER), "{taken:?}");
    }
    carries(&stage, &mut left, &mut right);
    // Commands for receive modes.
    sh(&mut left, "ip link set eth0 promisc on; ip link set eth0 promisc off; ifconfig eth0 allmulti");
    ping(&mut left, "", &address(2));
}

/// QEMU passes the position of each ring in both halves of its base, and handles the control queue itself.
#[test]
fn linux_in_qemu_takes_packed_rings_and_carries_to_split_ones() {
    let stage = Stage::new(&["virtio-net", "virtio-net"]);
    let mut packed = stage.config(Kernel::V6_12, 1);
    for word in &mut packed.devices {
        *word = word.replace("virtio-net-pci,", "virtio-net-pci,packed=on,in_order=on,");
    }
    let start = |config| well(Guest::start(&stage.root, config));
    let (mut left, mut right) = (start(packed), start(stage.config(Kernel::V6_12, 2)));
    [&mut left, &mut right].into_iter().for_each(|guest| stage.ready(guest.wait_ready()));
    let taken = features(&mut left);
    assert!(taken.contains(&RING_PACKED), "{taken:?}");
    assert!(!features(&mut right).contains(&RING_PACKED));
    carries(&stage, &mut left, &mut right);
    // The driver sets its rings up again.
    let driver = "/sys/bus/virtio/drivers/virtio_net";
    let again = format!(
        "v=$(basename $(readlink -f /sys/class/net/eth0/device)); echo $v >{driver}/unbind; echo $v >{driver}/bind"
    );
    let up = format!("ip address add {}/24 dev eth0; ip link set eth0 up", address(1));
    well(left.succeed(&format!("{again}; {up}"), LATER));
    ping(&mut left, "", &address(2));
    quiet(&mut left);
}
