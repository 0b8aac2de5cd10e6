//! The file system of a lease's file, and whether it keeps a lock (flock(2)) between the hosts (docs/fault-tolerance.md, "The lease in a
//! file").

use std::path::Path;

/// The kinds that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// One machine's own.
    Local(&'static str),
    /// Another host gets the lock when the server has not heard its holder for a while.
    Expiring(&'static str),
    /// Whether a lock is kept between machines depends on the program behind it, or on how it is mounted.
    Unsure(&'static str),
    /// Each machine keeps its locks for itself.
    Unlocked(&'static str),
    /// Locks are the cluster's.
    Cluster,
}

/// Numbers of linux/magic.h, and of the file systems' own sources (fs/ceph/super.h, fs/gfs2/gfs2.h, fs/ocfs2/ocfs2_fs.h, fs/hostfs).
const KINDS: &[(u32, Storage)] = &[
    (0x0102_1994, Storage::Local("tmpfs")),
    (0x8584_58f6, Storage::Local("ramfs")),
    (0x794c_7630, Storage::Local("overlayfs")),
    (0x0000_ef53, Storage::Local("ext4")),
    (0x5846_5342, Storage::Local("XFS")),
    (0x9123_683e, Storage::Local("btrfs")),
    (0x2fc1_2fc1, Storage::Local("ZFS")),
    (0xf2f5_2010, Storage::Local("F2FS")),
    (0x0000_6969, Storage::Expiring("NFS")),
    (0xff53_4d42, Storage::Unsure("SMB")),
    (0xfe53_4d42, Storage::Unsure("SMB")),
    (0x6573_5546, Storage::Unsure("FUSE")),
    (0x0102_1997, Storage::Unsure("9p")),
    (0x00c0_ffee, Storage::Unlocked("hostfs")),
    (0x0116_1970, Storage::Cluster),
    (0x7461_636f, Storage::Cluster),
    (0x00c3_6400, Storage::Cluster),
];

impl Storage {
    /// The kind of file system that a folder lies on. `None`: the folder is not there, or the kind is not known.
    pub fn of(folder: &Path) -> Option<Self> {
        let kind = rustix::fs::statfs(folder).ok()?.f_type;
        // The numbers have 32 bits, in a field that may be wider and signed.
        Self::numbered(kind as u32)
    }

    fn numbered(kind: u32) -> Option<Self> {
        KINDS.iter().find(|(number, _)| *number == kind).map(|(_, storage)| *storage)
    }

    /// The reason why there may be two owners. `is_alone`: both hosts are on this machine.
    pub fn warning(self, is_alone: bool) -> Option<String> {
        match self {
            Self::Cluster => None,
            _ if is_alone => None,
            Self::Local(name) => Some(format!(
                "it is on {name}, of this machine alone. If the other host is on another machine, both will own the guest: take a file that both \
                 share, or etcd"
            )),
            Self::Expiring(name) => Some(format!(
                "it is on {name}, whose server gives the lock to the other host if this one stands still for longer than its lease time: there may \
                 be two owners for 0.9 s then. Take etcd"
            )),
            Self::Unsure(name) => Some(format!(
                "it is on {name}, which may keep locks on each machine for itself: then both hosts may own the guest. Take etcd"
            )),
            Self::Unlocked(name) => Some(format!(
                "it is on {name}, which keeps locks on each machine for itself: both hosts may own the guest. Take etcd"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_where_no_lock_holds_between_machines_is_warned_of_and_on_one_machine_it_is_not() {
        let warning = |number, is_alone| Storage::numbered(number).and_then(|storage| storage.warning(is_alone));
        for (number, words) in [
            (0x0102_1994, "of this machine alone"),
            (0x6969, "two owners for 0.9 s"),
            (0x6573_5546, "may keep locks"),
            (0x00c0_ffee, "keeps locks on each machine for itself"),
        ] {
            assert!(warning(number, false).is_some_and(|warning| warning.contains(words)), "{number:x}");
            assert_eq!(warning(number, true), None);
        }
        // OCFS2, GFS2 and CephFS.
        assert_eq!([0x7461_636f, 0x0116_1970, 0x00c3_6400].map(|number| warning(number, false)), [None, None, None]);
    }

    #[test]
    fn the_kernel_names_a_file_system_by_these_numbers() {
        assert_eq!(Storage::of(Path::new("/dev/shm")), Some(Storage::Local("tmpfs")));
        assert_eq!(Storage::of(Path::new("/none")), None);
    }
}
