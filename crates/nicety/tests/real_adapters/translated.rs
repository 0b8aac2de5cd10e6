//! Linux behind QEMU's Intel IOMMU: a driver's consecutive device addresses are mapped page by page, to scattered memory.

use nicety_adapters::{Entry, find};
use nicety_guests::{Accel, GuestConfig, Kernel};
use nicety_trials::scope::{in_linux as entries, is_asked};

use crate::{
    every::{CARRIER, Every},
    stage::quiet,
};

/// Adapter tested in addition to [`entries`]: virtio-net as a PCI function. QEMU's vhost-user front end supports no IOMMU
/// (docs/limits.md).
const BESIDE: &str = "virtio-net-pci";

/// QEMU's IOMMU: it must precede the adapters on the command line. Without caching mode it would not report mappings.
const IOMMU: [&str; 2] = ["-device", "intel-iommu,caching-mode=on,intremap=off"];
/// Kernel options: domains are translated, and unmapping takes effect at once.
const KERNEL_OPTIONS: [&str; 3] = ["intel_iommu=on", "iommu.passthrough=0", "iommu.strict=1"];

fn adapters() -> Vec<&'static Entry> {
    let mut all = entries();
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
        // Rings of 16 KiB, and buffers longer than a page. A driver without them reports that.
        let mtu = adapter.0.about.mtu_max.min(9000);
        let longer = format!(
            "ethtool -G $name rx 1024 tx 1024 2>&1; ip link set $name mtu {mtu}; {CARRIER}; ethtool -g $name | grep -c 1024"
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
