//! Linux behind QEMU's Intel IOMMU: a driver's consecutive device addresses are mapped page by page, to scattered memory.

use std::time::Instant;

use nicety_adapters::{Entry, find};
use nicety_guests::{Accel, Folder, Guest, GuestConfig, Kernel, Link, Setup};
use nicety_trials::scope::{few, is_asked};

use crate::{
    every::{CARRIER, Every},
    stage::{HOST, Stage, TAP, answered_each_once, ping, pinged, port, quiet, sh, well},
    upgraded::upgrade,
};

/// Adapter tested in addition to [`few`]: virtio-net as a PCI function.
const BESIDE: &str = "virtio-net-pci";

/// QEMU's IOMMU: it must precede the adapters on the command line. Without caching mode it would not report mappings.
const IOMMU: [&str; 2] = ["-device", "intel-iommu,caching-mode=on,intremap=off"];
/// Kernel options: domains are translated, and unmapping takes effect at once.
const KERNEL_OPTIONS: [&str; 3] = ["intel_iommu=on", "iommu.passthrough=0", "iommu.strict=1"];

fn adapters() -> Vec<&'static Entry> {
    let mut all = few();
    all.retain(|entry| entry.about.dma && entry.about.transports.contains(&"vfio-user"));
    if is_asked(BESIDE) && !all.iter().any(|entry| entry.about.name == BESIDE) {
        all.extend(find(BESIDE));
    }
    all
}

#[test]
fn every_adapter_carries_behind_an_iommu_with_rings_of_many_pages_and_after_its_driver_came_back() {
    let mut every = Every::new(&adapters(), |_| GuestConfig {
        accel: Accel::Tcg,
        devices: IOMMU.map(str::to_owned).into(),
        append: KERNEL_OPTIONS.map(str::to_owned).into(),
        ..GuestConfig::new(Kernel::V6_12)
    });
    every.set_up();
    for adapter in every.adapters.clone() {
        // A virtio device is a function's child.
        let group = "d=$(readlink -f /sys/class/net/$name/device); case $d in */virtio[0-9]*) d=${d%/*};; esac; cat $d/iommu_group/type";
        let kind = every.at(adapter, group);
        assert!(kind.starts_with("DMA"), "{}: {kind}", adapter.0.about.name);
    }
    every.carries();
    for adapter in every.adapters.clone() {
        let name = adapter.0.about.name;
        // Rings of 16 KiB, and buffers longer than a page. A driver without them reports that. In between its watchdog must have seen
        // the link: e1000e's sets the carrier at its end, and over a chip that was reset meanwhile its transmitter stays off.
        let mtu = adapter.0.about.mtu_max.min(9000);
        let longer = format!(
            "ethtool -G $name rx 1024 tx 1024 2>&1; {CARRIER}; ip link set $name mtu {mtu}; {CARRIER}; ethtool -g $name | grep -c 1024"
        );
        println!("{name}: {}", every.at(adapter, &format!("{longer}; true")));
    }
    every.carries();
    for adapter in every.adapters.clone() {
        every.at(adapter, &format!("ip link set $name down; ip link set $name up; {CARRIER}"));
    }
    every.carries();
    quiet(&mut every.guest);
    every.are_up(|_| 0);
}

/// Echoes whose mappings are counted.
const ECHOES: u64 = 300;

/// A guest behind the IOMMU at the only port, with the host behind a tap. `words`: further options of its device; `options`: of the daemon.
fn translated(adapter: &str, words: &str, options: &[&str]) -> (Stage, Guest) {
    let config = GuestConfig {
        accel: Accel::Tcg,
        devices: IOMMU.map(str::to_owned).into(),
        append: KERNEL_OPTIONS.map(str::to_owned).into(),
        ..GuestConfig::new(Kernel::V6_12)
    };
    behind(config, adapter, words, options)
}

/// The same, with this machine.
fn behind(config: GuestConfig, adapter: &str, words: &str, options: &[&str]) -> (Stage, Guest) {
    let options = options.iter().map(|option| (*option).to_owned()).collect();
    let setup = Setup { link: Some(Link::Tap(TAP.to_owned())), options, ..Setup::default() };
    let stage = Stage::set_up(vec![port(adapter, 1)], setup);
    let mut config = stage.at_port(config, 1);
    for word in &mut config.devices {
        *word = word.replace("virtio-net-pci,", &format!("virtio-net-pci,{words}"));
    }
    let mut guest = well(Guest::start(&stage.root, config));
    stage.ready(guest.wait_ready());
    // A virtio device is a function's child.
    let group = "d=$(readlink -f /sys/class/net/eth0/device); case $d in */virtio[0-9]*) d=${d%/*};; esac; cat $d/iommu_group/type";
    assert_eq!(sh(&mut guest, group).trim(), "DMA", "a strict domain");
    ping(&mut guest, "", HOST);
    (stage, guest)
}

/// Sends echoes, and returns the memory changes and the frames meanwhile.
fn echoes(stage: &Stage, guest: &mut Guest) -> [u64; 2] {
    let counts = || {
        let changes = stage.report("vm1")["memory_changes"].as_u64().unwrap_or_default();
        [changes, stage.sent("vm1") + stage.received("vm1")]
    };
    let before = counts();
    answered_each_once(guest, "", ECHOES, HOST);
    let report = stage.report("vm1");
    let refused = (&report["refused_dma_reads"], &report["refused_dma_writes"], &report["guest_errors"]);
    assert_eq!(refused, (&0.into(), &0.into(), &0.into()), "{report}");
    let after = counts();
    [after[0] - before[0], after[1] - before[1]]
}

/// e1000e maps and unmaps one buffer for each frame sent, and one for each frame received. Each change is one message to the daemon.
#[test]
fn a_strict_iommu_s_driver_sends_two_messages_a_frame_and_is_refused_nothing() {
    let (stage, mut guest) = translated("e1000e", "", &[]);
    let [changes, frames] = echoes(&stage, &mut guest);
    println!("{changes} maps and unmaps for {frames} frames");
    assert!(changes <= 2 * frames + frames / 4 + 100, "{changes} for {frames} frames");
    quiet(&mut guest);
}

/// Linux's virtio-iommu needs a message to its device for each change, beside the VMM's to the daemon. Debian's 6.1 is built without it.
#[test]
fn an_adapter_carries_behind_a_virtio_iommu_with_two_messages_a_frame_and_is_refused_nothing() {
    let config = GuestConfig {
        accel: Accel::Tcg,
        drivers: ["virtio_pci", "virtio_iommu", "e1000e"].map(str::to_owned).into(),
        devices: ["-device", "virtio-iommu-pci"].map(str::to_owned).into(),
        append: ["iommu.passthrough=0", "iommu.strict=1"].map(str::to_owned).into(),
        ..GuestConfig::new(Kernel::V6_12)
    };
    let (stage, mut guest) = behind(config, "e1000e", "", &[]);
    let driver = "cd /sys/bus/virtio/drivers/virtio_iommu && ls -d virtio* | wc -l";
    assert_eq!(sh(&mut guest, driver).trim(), "1", "the IOMMU is virtio's");
    let [changes, frames] = echoes(&stage, &mut guest);
    println!("{changes} maps and unmaps for {frames} frames");
    assert!((frames..=2 * frames + frames / 4 + 100).contains(&changes), "{changes} for {frames} frames");
    // Rings of 16 KiB, and the driver again.
    sh(&mut guest, "ethtool -G eth0 rx 1024 tx 1024; until has_carrier eth0; do rest; done");
    ping(&mut guest, "-s 1400", HOST);
    sh(&mut guest, "ip link set eth0 down; ip link set eth0 up; until has_carrier eth0; do rest; done");
    ping(&mut guest, "-s 1400", HOST);
    quiet(&mut guest);
}

/// Rounds of the figures below, and bytes that each sends.
const ROUNDS: u32 = 5;
const STREAM_BYTES: u64 = 16 << 20;

/// Figures for the book's page "What was measured", with counts that do not depend on the machine: `-- --nocapture`.
#[test]
#[ignore = "only with --full: figures for the book"]
fn what_a_strict_iommu_costs_a_tcp_stream() {
    let without = GuestConfig { accel: Accel::Tcg, ..GuestConfig::new(Kernel::V6_12) };
    let plain = Setup { link: Some(Link::Tap(TAP.to_owned())), ..Setup::default() };
    let stage = Stage::set_up(vec![port("e1000e", 1)], plain);
    let guest = stage.ready(Guest::boot(&stage.root, stage.at_port(without, 1)));
    let mut both = [("strict", translated("e1000e", "", &[])), ("none", (stage, guest))];
    let log = Folder::new().expect("a folder");
    for (name, (stage, _)) in &mut both {
        let mut netserver = stage.root.program("usr/bin/netserver");
        netserver.args(["-4", "-D", "-N"]);
        well(stage.namespace.start(&netserver, &log.path().join(name)));
    }
    for round in 0..ROUNDS {
        for (name, (stage, guest)) in &mut both {
            for test in ["TCP_STREAM", "TCP_MAERTS"] {
                let counts = |stage: &Stage| {
                    let changes = stage.report("vm1")["memory_changes"].as_u64().unwrap_or_default();
                    (changes, stage.sent("vm1") + stage.received("vm1"))
                };
                // By the host's clock: a translated guest's own one runs as it is served.
                let (before, begin) = (counts(stage), Instant::now());
                sh(guest, &format!("netperf -4 -H {HOST} -t {test} -l -{STREAM_BYTES} -P 0 -v 0"));
                let mbit = STREAM_BYTES as f64 * 8e-6 / begin.elapsed().as_secs_f64();
                let after = counts(stage);
                let (changes, frames) = (after.0 - before.0, after.1 - before.1);
                let counted = format!("{changes} maps and unmaps for {frames} frames");
                println!("round {round}, {name}, {test}: {mbit:.1} Mbit/s, {counted}");
            }
        }
    }
    for (_, (stage, guest)) in &mut both {
        assert_eq!(stage.report("vm1")["guest_errors"], 0);
        quiet(guest);
    }
}

/// QEMU refused `iommu_platform=on` (`hw/virtio/virtio-bus.c`) before the daemon served translations.
#[test]
fn a_vhost_user_port_asks_for_translations_behind_a_strict_iommu() {
    let (mut stage, mut guest) = translated("virtio-net", "iommu_platform=on,disable-legacy=on,", &["--keeper"]);
    let [changes, frames] = echoes(&stage, &mut guest);
    println!("{changes} translations given and taken back for {frames} frames");
    assert!(changes > frames, "each buffer is translated anew: {changes} for {frames} frames");
    sh(&mut guest, "ip link set eth0 down; ip link set eth0 up; until has_carrier eth0; do rest; done");
    ping(&mut guest, "-s 8000", HOST);
    // The next daemon knows no translation, and asks again.
    sh(&mut guest, &format!("(/usr/bin/ping -n -q -i 0.02 -s 3000 {HOST} >/tmp/asked 2>&1 &)"));
    for _ in 0..5 {
        stage.wait_more("frames", 20, || stage.received("vm1"));
        println!("{}", upgrade(&mut stage).lines().next().unwrap_or_default());
    }
    stage.wait_more("frames", 20, || stage.received("vm1"));
    let text = sh(&mut guest, "killall -INT ping; until grep -q received /tmp/asked; do rest; done; cat /tmp/asked");
    let [sent, answered, twice] = pinged(&text);
    // The last one may be on its way.
    assert!(sent - answered <= 1 && twice == 0, "{text}");
    let report = stage.report("vm1");
    assert_eq!((&report["refused_dma_reads"], &report["guest_errors"]), (&0.into(), &0.into()), "{report}");
    quiet(&mut guest);
}
