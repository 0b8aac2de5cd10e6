//! A file beside a vhost-user port's socket. It records the positions of packed rings if the front end keeps no such file itself.
//! Its content outlives a daemon that is killed.

use std::ffi::OsString;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use nicety_memory::{Map, Mapping, Rights};
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, fallocate, fchmod, fstat, ftruncate, open, unlink};
use rustix::io::Errno;
use rustix::process::geteuid;

/// The file of one port. It is made when it is needed.
#[derive(Debug)]
pub(crate) struct RingsFile {
    path: PathBuf,
    map: OnceLock<Arc<Map>>,
}

impl RingsFile {
    /// The file beside a socket: its path with `.rings` at the end.
    pub fn beside(socket: &Path) -> Self {
        let mut path = OsString::from(socket);
        path.push(".rings");
        Self { path: path.into(), map: OnceLock::new() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file with `len` bytes. The content of an earlier daemon stays if the file had the same length.
    pub fn open(&self, len: u64) -> Result<Arc<Map>> {
        if let Some(map) = self.map.get() {
            return Ok(Arc::clone(map));
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = open(&self.path, flags, Mode::RUSR | Mode::WUSR)?;
        let found = fstat(&file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(Error::other("it is no file"));
        }
        // A user who may write to the folder must not make us use another file of ours.
        if found.st_uid != geteuid().as_raw() || found.st_nlink != 1 {
            return Err(Error::other("it is another user's, or has another name too: remove it"));
        }
        fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        if found.st_size as u64 != len {
            ftruncate(&file, 0)?;
            ftruncate(&file, len)?;
        }
        match fallocate(&file, FallocateFlags::empty(), 0, len) {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mapping = Mapping::of_file(file, 0, len, true).map_err(Error::other)?;
        let map = Map::default().with(0, Arc::new(mapping), Rights::BOTH).map_err(Error::other)?;
        Ok(Arc::clone(self.map.get_or_init(|| Arc::new(map))))
    }

    /// Removes the file if it was opened here.
    pub fn remove(&self) {
        if self.map.get().is_some() {
            // Nothing more can be done on failure; the next daemon uses or replaces the file.
            let _ = unlink(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(map: &Map) -> [u8; 4] {
        let mut bytes = [0; 4];
        map.read(4092, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_was_written_is_there_for_the_next_daemon_unless_it_has_other_rings() {
        let folder = tempfile::tempdir().unwrap();
        let new = || RingsFile::beside(&folder.path().join("vm.sock"));
        let (first, second) = (new(), new());
        first.remove();
        first.open(8192).unwrap().write(4092, &[1, 2, 3, 4]).unwrap();
        assert_eq!(read(&second.open(8192).unwrap()), [1, 2, 3, 4]);
        assert_eq!(read(&new().open(4096).unwrap()), [0; 4]);
        second.remove();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_no_file_of_our_own_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("precious"), "text").unwrap();
        std::os::unix::fs::symlink(at("precious"), at("link.rings")).unwrap();
        std::fs::hard_link(at("precious"), at("name.rings")).unwrap();
        std::fs::create_dir(at("folder.rings")).unwrap();
        let _listens = std::os::unix::net::UnixListener::bind(at("socket.rings")).unwrap();
        for name in ["link", "name", "folder", "socket", "absent/vm"] {
            RingsFile::beside(&at(name)).open(4096).unwrap_err();
        }
        assert_eq!(std::fs::read(at("precious")).unwrap(), b"text");
    }
}
