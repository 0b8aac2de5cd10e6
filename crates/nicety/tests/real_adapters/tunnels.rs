//! TCP inside VXLAN and Geneve: vmxnet3's driver leaves segmentation and inner checksums to the adapter, for every kind of
//! receiver.

use nicety_guests::{Folder, Guest, Kernel, Layer};

use crate::stage::{Stage, address, ping, quiet, send, sh, well};

/// The sender in tunnels, and its peers.
const ADAPTERS: [&str; 4] = ["vmxnet3", "vmxnet3", "virtio-net", "e1000"];
/// Kinds of tunnels, without and with checksums of the outer datagrams.
const KINDS: [(&str, &str); 3] =
    [("vxlan", "dstport 4789 noudpcsum"), ("vxlan", "dstport 4789 udpcsum"), ("geneve", "udpcsum")];
/// Prints whether the adapter has the offloads that the driver must have (`ethtool -k`).
const OFFLOADS: &str = "ethtool -k eth0 | grep -cE '^tx-udp_tnl-(csum-)?segmentation: on'";

/// Opens one end of a tunnel, as interface `t0`.
fn open(guest: &mut Guest, (kind, words): (&str, &str), own: u8, peer: u8) {
    let under = if kind == "vxlan" { format!("dev eth0 local {}", address(own)) } else { String::new() };
    let ip = "/usr/sbin/ip";
    let add = format!("{ip} link add t0 type {kind} id 5 {under} remote {} {words}", address(peer));
    sh(guest, &format!("modprobe {kind}; {add} && ip addr add 10.9.6.{own}/24 dev t0 && ip link set t0 up"));
}

/// Frames that the adapter has cut from packets that the driver left to it (upt1_defs.h, TSOPktsTxOK).
fn segments(guest: &mut Guest) -> u64 {
    let text = sh(guest, "ethtool -S eth0 | sed -n 's/^ *TSO pkts tx: //p'");
    text.lines().filter_map(|line| line.trim().parse::<u64>().ok()).sum()
}

#[test]
#[ignore = "only with --full: four guests; adapters/vmxnet3 cuts such packets in the usual run"]
fn vmxnet3_s_driver_sends_uncut_packets_in_vxlan_and_geneve_and_every_peer_receives_them_right() {
    let stage = Stage::new(&ADAPTERS);
    let folder = well(Folder::new());
    // busybox's `ip` cannot make tunnels.
    let layer = well(Layer::lay("iproute2", &["iproute2"], &mut |line| eprintln!("{line}")));
    let archive = well(folder.write("ip.cpio", well(layer.archive(&["usr/sbin/ip"]))));
    let kernels = [Kernel::V6_12, Kernel::V6_1, Kernel::V6_12, Kernel::V6_12];
    let mut guests: Vec<Guest> = (1..)
        .zip(kernels)
        .map(|(number, kernel)| {
            let mut config = stage.config(kernel, number);
            config.archive = Some(archive.clone());
            well(Guest::start(&stage.root, config))
        })
        .collect();
    guests.iter_mut().for_each(|guest| stage.ready(guest.wait_ready()));
    let [sender, peers @ ..] = &mut guests[..] else { unreachable!("there are four") };
    assert_eq!(sh(sender, OFFLOADS), "2\n");
    assert_eq!(sh(&mut peers[0], OFFLOADS), "2\n");
    for (peer, number) in peers.iter_mut().zip(2..) {
        for kind in KINDS {
            open(sender, kind, 1, number);
            open(peer, kind, number, 1);
            let to = format!("10.9.6.{number}");
            ping(sender, "", &to);
            let before = segments(sender);
            send(sender, peer, &to, 4);
            let cut = segments(sender) - before;
            send(peer, sender, "10.9.6.1", 2);
            println!("{kind:?} to {}: {cut} segments by the adapter", ADAPTERS[usize::from(number) - 1]);
            // 4 MiB in segments of 1398 bytes.
            assert!(cut > 2_500, "{kind:?}: {cut}");
            [&mut *sender, &mut *peer].into_iter().for_each(|guest| drop(sh(guest, "ip link del t0")));
        }
    }
    for (guest, number) in guests.iter_mut().zip(1..) {
        // Columns of /proc/net/snmp: wrong checksums.
        let wrong = "awk '/^(Tcp|Udp):/ { if ($2 ~ /[A-Za-z]/) { for (i = 1; i <= NF; i++) if ($i == \"InCsumErrors\") at = i } else print $at }' /proc/net/snmp";
        assert_eq!(sh(guest, wrong), "0\n0\n");
        quiet(guest);
        let report = stage.report(&format!("vm{number}"));
        assert_eq!((&report["guest_errors"], &report["bad_accesses"]), (&0.into(), &0.into()), "{report}");
    }
}
