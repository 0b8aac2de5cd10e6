//! May this VM be protected, and are two VMs twins? A check over QEMU's answers; nothing is changed.

mod inquiry;
mod twins;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use inquiry::Inquiry;
pub use twins::differences;

use crate::{Role, Version};

/// The oldest QEMU whose COLO works: 10.0 and 10.1 have it, and it is broken there.
pub const VERSION_MIN: Version = Version { major: 11, minor: 0, micro: 0 };

/// Plain properties by name: no links, children or lists.
pub type Properties = BTreeMap<String, Value>;

/// Facts about the VM of one QEMU. Plain data, so that it can go to the host of the twin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// QEMU's version.
    pub version: Version,
    /// `-name`.
    pub name: Option<String>,
    /// `-uuid`; all zeros without one.
    pub uuid: String,
    /// `query-status`: `running`, `paused`, `inmigrate`…
    pub status: String,
    /// `query-migrate`: the status of the last migration, if there was one.
    pub migration: Option<String>,
    /// Why QEMU itself refuses to migrate this VM.
    pub blockers: Vec<String>,
    /// Whether QEMU was built with replication, which COLO needs.
    pub has_colo: bool,
    /// Machine type, memory sizes in bytes and numbers of processors.
    pub machine: Properties,
    /// The first processor's model and features.
    pub processor: Properties,
    /// Memory backends by their id.
    pub memory: BTreeMap<String, Memory>,
    /// Devices of the command line and hot-plugged ones, by bus and address or by their path in QEMU.
    pub devices: BTreeMap<String, Device>,
    /// The root PCI bus: vendor and device by slot and function, `02.0` → `1af4:1000`.
    pub functions: BTreeMap<String, String>,
    /// Disks with a medium.
    pub disks: Vec<Disk>,
    /// Paths of the UNIX sockets of QEMU's character devices: the ports of Nicety that it opens are among them.
    pub sockets: Vec<String>,
    /// Network back ends.
    pub networks: Vec<Network>,
}

/// A memory backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// `memory-backend-memfd`.
    pub kind: String,
    /// `share=on`.
    pub is_shared: bool,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// `virtio-net-pci`.
    pub kind: String,
    /// Its properties.
    pub properties: Properties,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Its name in QEMU, or the device's path.
    pub name: String,
    /// Whether its guest may write it.
    pub is_writable: bool,
    /// Whether a `replication` node is under it (docs/block-replication.txt).
    pub is_replicated: bool,
}

/// A network back end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Its name.
    pub name: String,
    /// `vhost-user`, `tap`, `user`…
    pub kind: String,
}

/// Statuses of `query-migrate` while a migration goes on.
const MIGRATING: &[&str] = &[
    "setup",
    "active",
    "pre-switchover",
    "device",
    "wait-unplug",
    "postcopy-device",
    "postcopy-active",
    "postcopy-paused",
    "postcopy-recover",
    "postcopy-recover-setup",
    "colo",
    "cancelling",
    "failing",
];

impl Facts {
    /// Why this VM cannot be one end of a protection: sentences that name what to do. Empty: it can.
    pub fn refusals(&self, role: Role) -> Vec<String> {
        let mut why = Vec::new();
        why.extend(too_old(self.version));
        if !self.has_colo {
            why.push(
                "this QEMU was built without replication, which COLO needs: use one with it, as Debian's is".to_owned(),
            );
        }
        why.extend(self.of_state(role));
        why.extend(self.of_devices());
        why.extend(self.of_memory());
        for disk in self.disks.iter().filter(|disk| disk.is_writable && !disk.is_replicated) {
            why.push(format!(
                "the disk {} can be written, and nothing copies what is written: make it read-only, take it away, or set up block \
                 replication (QEMU's docs/block-replication.txt)",
                disk.name
            ));
        }
        for network in self.networks.iter().filter(|network| network.kind != "vhost-user") {
            why.push(format!(
                "the network back end {} is of kind {}: what the VM sends by it would leave before its copy knows of it. Give the adapter \
                 a port of Nicety's by vhost-user, or take it away",
                network.name, network.kind
            ));
        }
        why.extend(self.blockers.iter().map(|words| format!("QEMU refuses to migrate this VM: {words}")));
        why
    }

    fn of_state(&self, role: Role) -> Option<String> {
        let migration = self.migration.as_deref().filter(|status| MIGRATING.contains(status));
        match (role, self.status.as_str(), migration) {
            (_, _, Some("colo")) => Some("the VM is protected by COLO already: end that first (x-colo-lost-heartbeat)".to_owned()),
            (_, _, Some("cancelling")) => Some(
                "a cancelled migration of this VM never ended, and QEMU begins no other: move the VM by a restart of its QEMU".to_owned(),
            ),
            (Role::Secondary, "inmigrate", Some(_)) => {
                Some("this QEMU waits for a migration of its own: start it with -incoming defer".to_owned())
            }
            (_, _, Some(status)) => Some(format!("the VM is being migrated ({status}): wait for its end, or migrate_cancel")),
            (Role::Secondary, "inmigrate", None) if self.migration.is_none() => None,
            (Role::Secondary, "inmigrate", None) => {
                Some("a migration to this QEMU has failed, and it takes no other: start it again, with -incoming defer".to_owned())
            }
            (Role::Secondary, status, None) => Some(format!(
                "this QEMU does not wait for a VM, its status is {status}: start the secondary with the primary's command line and \
                 -incoming defer"
            )),
            (Role::Primary, "running", None) => None,
            (Role::Primary, status, None) => {
                Some(format!("the VM does not run, its status is {status}: start it (`cont`), and protect it then"))
            }
        }
    }

    fn of_devices(&self) -> Vec<String> {
        let sentence = |(place, device): (&String, &Device)| {
            let kind = device.kind.as_str();
            if kind.starts_with("vfio-user") {
                Some(format!(
                    "{kind} at {place}: QEMU migrates no vfio-user adapter, it is dead at the destination, without a word. Give the VM a \
                     virtio-net port by vhost-user"
                ))
            } else if kind.starts_with("vfio-") {
                Some(format!("{kind} at {place}: the state of a passed-through device stays at its host. Take it away"))
            } else {
                None
            }
        };
        self.devices.iter().filter_map(sentence).collect()
    }

    fn of_memory(&self) -> Vec<String> {
        let how =
            "start QEMU with -object memory-backend-memfd,id=m,size=SIZE,share=on and -machine …,memory-backend=m";
        if self.memory.is_empty() {
            return vec![format!(
                "the VM has no memory backend, so its memory is QEMU's own and vhost-user cannot work: {how}"
            )];
        }
        let private = self.memory.iter().filter(|(_, memory)| !memory.is_shared);
        private.map(|(id, memory)| format!("the memory {id} ({}) is not shared: {how}", memory.kind)).collect()
    }
}

/// Why this version cannot be used.
fn too_old(version: Version) -> Option<String> {
    (version < VERSION_MIN).then(|| {
        format!("QEMU {version} is too old: COLO works from {VERSION_MIN} on (10.0 and 10.1 have x-colo, and it is broken there)")
    })
}
