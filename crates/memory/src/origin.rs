//! Origin of a memory file: only files that the kernel itself serves are mapped.
//!
//! A peer's own FUSE file system is served by the peer: its size, its pages, even closing it can block for any time, and so can
//! every access to the guest's memory. So no call is made on a file, not even fstat(2), before its origin is known. The kernel
//! answers F_GET_SEALS, but only for memory files (memfd, tmpfs, hugetlbfs; fcntl(2)). Any other file must lie on a disk in our own
//! mount namespace, which procfs reports without asking the file system. A peer's private mount is not in our namespace; one made
//! by `fusermount` is, and its type shows it (proc_pid_fdinfo(5), proc_pid_mountinfo(5)).

use std::os::fd::{AsRawFd, BorrowedFd};

use nicety_sandbox::ProcFile;
use rustix::fs::{FileType, fcntl_get_seals, fstat, readlink};

use crate::error::MappingError;

/// File systems whose files the kernel reads from a disk or keeps in memory. The operator chooses an overlay's layers.
const KERNELS_OWN: [&str; 12] =
    ["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "zfs", "jfs", "overlay", "ramfs", "rootfs"];

/// The origin of a file that can be queried, mapped and closed without blocking on anything but the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A memfd, or a file of a tmpfs or of hugetlbfs.
    Memory,
    Disk,
}

/// The origin of a file, if one call tells it, which never blocks.
pub(crate) fn check_quickly(fd: BorrowedFd<'_>) -> Option<Origin> {
    fcntl_get_seals(fd).is_ok().then_some(Origin::Memory)
}

/// Checks that a file has such an origin, and returns it.
pub(crate) fn check(fd: BorrowedFd<'_>) -> Result<Origin, MappingError> {
    if let Some(origin) = check_quickly(fd) {
        return Ok(origin);
    }
    let number = fd.as_raw_fd();
    // A descriptor without a path has no mount. Even its fdinfo may block (an epoll descriptor has a lock).
    let name = readlink(format!("/proc/self/fd/{number}"), Vec::new()).map_err(std::io::Error::from)?;
    if !name.as_bytes().starts_with(b"/") {
        return Err(MappingError::Origin(name.to_string_lossy().into_owned()));
    }
    let info = ProcFile::FdInfo(number).read()?;
    let mounts = ProcFile::MountInfo.read()?;
    match mount_of(&info).and_then(|mount| type_of(&mounts, mount)) {
        Some(known) if KERNELS_OWN.contains(&known) => {}
        Some(other) => return Err(MappingError::Origin(other.to_owned())),
        None => return Err(MappingError::Origin("a file system that is not mounted here".to_owned())),
    }
    let kind = FileType::from_raw_mode(fstat(fd).map_err(std::io::Error::from)?.st_mode);
    if kind == FileType::RegularFile { Ok(Origin::Disk) } else { Err(MappingError::Origin(format!("{kind:?}"))) }
}

/// The number of the mount on which a file was opened.
fn mount_of(fdinfo: &str) -> Option<&str> {
    fdinfo.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(str::trim)
}

/// The type of a mount: the field behind the hyphen that ends the optional fields.
fn type_of<'a>(mountinfo: &'a str, mount: &str) -> Option<&'a str> {
    let line = mountinfo.lines().find(|line| line.split(' ').next() == Some(mount))?;
    line.split(' ').skip(6).skip_while(|&field| field != "-").nth(1)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::event::epoll;
    use rustix::fs::{Mode, OFlags, open};

    use super::*;
    use crate::{Mapping, shared_file};

    /// The first line is from proc_pid_mountinfo(5); the others are Linux 6.18's.
    const MOUNTS: &str = "\
        36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n\
        6 1 0:45 / /home/u/- - rw,nosuid - fuse.sshfs host:/ rw,user_id=0,group_id=0\n\
        361 1 0:46 / /mnt/a\\040-\\040ext4 rw shared:2 propagate_from:1 - fuse /dev/fuse rw\n\
        7 1 0:47 / /srv rw - nfs4 host:/srv rw\n";

    #[test]
    fn a_mount_s_type_is_what_proc_tells_whatever_its_path_is_called() {
        let types = ["36", "361", "7", "3", "", "rw"].map(|mount| type_of(MOUNTS, mount));
        assert_eq!(types, [Some("ext3"), Some("fuse"), Some("nfs4"), None, None, None]);
        assert_eq!(mount_of("pos:\t0\nflags:\t0100002\nmnt_id:\t36\nino:\t12\n"), Some("36"));
        assert_eq!(mount_of("pos:\t0\n"), None);
        for refused in ["fuse", "fuseblk", "fuse.sshfs", "nfs", "nfs4", "9p", "cifs", "virtiofs", "proc", ""] {
            assert!(!KERNELS_OWN.contains(&refused), "{refused}");
        }
    }

    fn refused(fd: OwnedFd) -> String {
        Mapping::of_file(fd, 0, 4096, true).unwrap_err().to_string()
    }

    #[test]
    fn files_for_which_the_kernel_does_not_answer_are_refused_with_what_to_do() {
        let opened = |path| open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        for (fd, origin) in [
            (opened("/proc/self/status"), "proc"),
            (opened("/sys/kernel/mm/transparent_hugepage/enabled"), "sysfs"),
            (epoll::create(epoll::CreateFlags::CLOEXEC).unwrap(), "anon_inode:[eventpoll]"),
        ] {
            let error = refused(fd);
            assert!(
                error.contains(&format!("({origin})")) && error.contains("memory-backend-memfd,share=on"),
                "{error}"
            );
        }
    }

    #[test]
    fn memory_files_and_regular_files_on_a_disk_are_taken() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        assert_eq!(check(file.as_fd()).unwrap(), Origin::Disk);
        assert_eq!(check(shared_file("ours", 4096).unwrap().as_fd()).unwrap(), Origin::Memory);
        Mapping::of_file(OwnedFd::from(file), 0, 4096, true).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let folder = open(folder.path(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        Mapping::of_file(folder, 0, 4096, true).unwrap_err();
    }
}
