//! The folder for a user-mode guest's memory, which is an unlinked file that servers map too. Its file system must have room, allow
//! code to run, and should not write the memory to a disk.

use std::{
    env,
    path::{Path, PathBuf},
};

use rustix::fs::{StatVfsMountFlags, statfs, statvfs};

use super::super::error::Error;

/// TMPFS_MAGIC (statfs(2)).
const TMPFS: u64 = 0x0102_1994;

/// Suitability of a folder for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// A file system in the host's memory, with room.
    Good,
    /// It works, but the host writes the memory to a disk.
    Disk,
    /// It cannot be used, for this reason.
    Bad(&'static str),
}

fn judge(folder: &Path, bytes: u64) -> Fit {
    let (Ok(mounted), Ok(kind)) = (statvfs(folder), statfs(folder)) else { return Fit::Bad("cannot be read") };
    if mounted.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Fit::Bad("is mounted noexec");
    }
    if mounted.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Fit::Bad("is mounted read-only");
    }
    if mounted.f_bavail.saturating_mul(mounted.f_frsize) < bytes {
        return Fit::Bad("has too little room");
    }
    if rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_err() {
        return Fit::Bad("cannot be written to");
    }
    if kind.f_type as u64 == TMPFS { Fit::Good } else { Fit::Disk }
}

/// The first good folder, or else the first that works.
fn choose(folders: &[PathBuf], bytes: u64) -> Result<PathBuf, Error> {
    let judged: Vec<(&PathBuf, Fit)> = folders.iter().map(|folder| (folder, judge(folder, bytes))).collect();
    let first = |fit: Fit| judged.iter().find(|(_, have)| *have == fit).map(|(folder, _)| (*folder).clone());
    first(Fit::Good).or_else(|| first(Fit::Disk)).ok_or_else(|| {
        let why = judged.iter().filter_map(|(folder, fit)| match fit {
            Fit::Bad(why) => Some(format!("{} {why}", folder.display())),
            _ => None,
        });
        Error::NoMemoryFolder { mib: bytes >> 20, tried: why.collect::<Vec<_>>().join(", ") }
    })
}

/// A folder for a guest's memory.
pub(in super::super) fn folder_for_memory(memory_mib: u32) -> Result<PathBuf, Error> {
    let named = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folders: Vec<PathBuf> =
        [Some("/dev/shm".into()), named("XDG_RUNTIME_DIR"), named("TMPDIR"), Some("/tmp".into())]
            .into_iter()
            .flatten()
            .collect();
    choose(&folders, u64::from(memory_mib) << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_nobody_can_use_is_refused_with_what_is_wrong_with_each() {
        // /proc is mounted noexec or has no room. The other one does not exist.
        let folders = ["/proc".into(), "/nowhere/at/all".into()];
        match choose(&folders, 1 << 20) {
            Err(Error::NoMemoryFolder { mib, tried }) => {
                assert_eq!(mib, 1);
                assert!(tried.starts_with("/proc ") && tried.ends_with("/nowhere/at/all cannot be read"), "{tried}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_guest_larger_than_the_room_is_refused() {
        let folders = [env::temp_dir()];
        assert!(choose(&folders, 1 << 20).is_ok());
        assert!(matches!(choose(&folders, 1 << 60), Err(Error::NoMemoryFolder { .. })));
    }
}
