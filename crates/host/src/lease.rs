//! The place of each VM's lease: a folder that both hosts share, or etcd (docs/host-file.md, `[ft]`).

use std::path::{Path, PathBuf};

use nicety_etcd::ENDPOINTS_MAX;

use super::etcd::{EtcdConfig, etcd};
use super::form::Form;
use super::paths;
use super::walk::{Key, Section, Walk};

pub(super) const KEYS: [Key; 2] = [
    Key::new("lease", Form::Path, "a path of a folder on storage that both hosts share, or etcd instead"),
    Key::new(
        "etcd",
        Form::EtcdEndpoints(ENDPOINTS_MAX),
        "at most 16 servers of one etcd with commas between them, such as \"https://etcd1:2379,https://etcd2:2379\", or lease instead",
    ),
];

/// The place of the VMs' leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeasePlace {
    /// A folder on storage that both hosts share. Each VM has a [file](lease_file) in it.
    Folder(PathBuf),
    /// An etcd that both hosts reach. Each VM has a [key](lease_key) there.
    Etcd(EtcdConfig),
}

/// The file of a VM's lease in the folder of `lease`.
pub fn lease_file(folder: &Path, vm: &str) -> PathBuf {
    folder.join(format!("{vm}.lease"))
}

/// The key of a VM's lease in etcd.
pub fn lease_key(vm: &str) -> String {
    format!("nicety/vm/{vm}/lease")
}

/// Reads where the leases are.
pub(super) fn place(walk: &mut Walk, section: Section<'_>, dir: &Path) -> Option<LeasePlace> {
    let folder = paths::file(walk, section, "lease", dir);
    let etcd = etcd(walk, section, dir);
    if let (Some(_), Some(line)) = (walk.place(section, "lease"), walk.place(section, "etcd")) {
        walk.wrong(section, "etcd", line, "a lease is in one place: leave lease or etcd out");
    }
    folder.map(LeasePlace::Folder).or(etcd.map(LeasePlace::Etcd))
}

#[cfg(test)]
#[path = "lease_test.rs"]
mod tests;
