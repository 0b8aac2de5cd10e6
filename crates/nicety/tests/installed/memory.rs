//! Memory files of VMs under mounts like those that the unit's sandboxing makes (systemd.exec(5)).

use std::fs::File;
use std::os::fd::AsFd;

use nicety_vfio_user::{Client, DmaProtection, DmaRange};

use crate::Packages;
use crate::cell::{Cell, SOON, as_the_unit, skipped_without_root};
use crate::libvirt::laid;

/// A multiple of a huge page. Nothing is written to it, so the host needs no free huge page.
const LEN: u64 = 8 << 20;
/// ProtectSystem=strict with RuntimeDirectory= and StateDirectory=, PrivateTmp=, ProtectHome=.
const MOUNTS: &str = "mount --make-rprivate / && mount --bind /run/nicety /run/nicety && mount --bind /var/lib/nicety /var/lib/nicety && \
    mount -o remount,bind,ro / && mount -t tmpfs tmp /tmp && mount -t tmpfs -o ro home /root";

/// A file of this many bytes, as a VMM has it.
fn file(cell: &Cell, path: &str) -> File {
    let file = File::options().read(true).write(true).create_new(true).open(format!("{}{path}", cell.root())).unwrap();
    file.set_len(LEN).unwrap();
    file
}

#[test]
fn files_of_tmpfs_and_of_hugetlbfs_are_taken_under_the_unit_s_mounts_and_a_file_on_a_disk_is_refused() {
    if skipped_without_root("memory") {
        return;
    }
    let cell = Cell::enter(&laid());
    std::fs::copy(Packages::made().path(1), format!("{}/tmp/nicety.deb", cell.root())).unwrap();
    cell.run("dpkg-deb -x /tmp/nicety.deb / && systemd-sysusers");
    cell.run("mkdir /dev/hugepages && mount -t hugetlbfs -o pagesize=2M huge /dev/hugepages");
    cell.run("sed -i 's/virtio-net/e1000/' /etc/nicety/host.toml");
    let serve = as_the_unit("nicety serve /etc/nicety/host.toml")
        .replace("(setpriv", &format!("(unshare --mount sh -c '{MOUNTS} && exec \"$@\"' sh setpriv"));
    cell.run(&serve);
    cell.wait("nicety ports | grep -q '^vm1'", SOON);
    let mut vmm = Client::connect(format!("{}/run/nicety/vm1.sock", cell.root())).unwrap();
    let both = DmaProtection { read: true, write: true };
    for (place, path) in (0..).zip(["/dev/shm/memory", "/dev/hugepages/memory", "/tmp/memory"]) {
        let range = DmaRange { address: place * LEN, size: LEN };
        let taken = vmm.dma_map(range, both, Some((file(&cell, path).as_fd(), 0)));
        assert!(taken.is_ok(), "{path}: {taken:?} {}", cell.run("cat /var/log/nicety.log"));
    }
    let range = DmaRange { address: 16 * LEN, size: LEN };
    let refused = vmm.dma_map(range, both, Some((file(&cell, "/var/memory").as_fd(), 0)));
    assert!(refused.is_err(), "{refused:?}");
    let log = cell.run("cat /var/log/nicety.log");
    println!("{log}");
    assert!(log.contains("a file system that is not mounted here"), "{log}");
}
