//! Files that are replaced as a whole. The new file is written beside its place, flushed and renamed. The old file stays until
//! the rename.
//!
//! All names are looked up in one descriptor of the folder, and the new file is always created, never opened. So a user who may
//! write to the folder cannot redirect it to another file by a link.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Uid, fchmod, fchown, fstat, open, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

/// A folder, and a name in it.
#[derive(Debug)]
struct Place {
    folder: OwnedFd,
    name: OsString,
}

impl Place {
    fn of(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(Errno::ISDIR)?.to_owned();
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { folder: open(folder, flags, Mode::empty())?, name })
    }

    /// The name with a suffix.
    fn beside(&self, ending: &str) -> OsString {
        let mut name = self.name.clone();
        name.push(ending);
        name
    }

    fn remove(&self, name: &OsStr) -> io::Result<()> {
        match unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// A file under construction. It is removed if it is not finished.
#[derive(Debug)]
pub struct Whole {
    place: Place,
    new: OsString,
    file: File,
    is_done: bool,
}

impl Whole {
    /// Begins a file for its owner only, as `PATH.new`. A leftover of that name is removed.
    pub fn begin(path: &Path) -> io::Result<Self> {
        let place = Place::of(path)?;
        let new = place.beside(".new");
        place.remove(&new)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&place.folder, &new, flags, Mode::RUSR | Mode::WUSR)?.into();
        Ok(Self { place, new, file, is_done: false })
    }

    /// Begins a file with this mode.
    pub fn begin_with(path: &Path, mode: u32) -> io::Result<Self> {
        let this = Self::begin(path)?;
        fchmod(&this.file, Mode::from_raw_mode(mode))?;
        Ok(this)
    }

    /// Begins a file with the mode and owner of the existing file, if there is one.
    pub fn begin_like(path: &Path) -> io::Result<Self> {
        let this = Self::begin(path)?;
        match statat(&this.place.folder, &this.place.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => {
                if (there.st_uid, there.st_gid) != (geteuid().as_raw(), fstat(&this.file)?.st_gid) {
                    fchown(&this.file, Some(Uid::from_raw(there.st_uid)), Some(Gid::from_raw(there.st_gid)))?;
                }
                fchmod(&this.file, Mode::from_raw_mode(there.st_mode & 0o777))?;
            }
            Err(Errno::NOENT) => fchmod(&this.file, Mode::from_raw_mode(0o644))?,
            Err(errno) => return Err(errno.into()),
        }
        Ok(this)
    }

    /// Writes the content and puts the file in its place.
    pub fn finish(mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.file.sync_all()?;
        let Self { place, new, .. } = &self;
        renameat(&place.folder, new, &place.folder, &place.name)?;
        self.is_done = true;
        // The rename is on the disk only after the folder is flushed.
        Ok(rustix::fs::fsync(&self.place.folder)?)
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        if !self.is_done {
            // Nothing can be done about a failure. The next file of this name replaces it.
            let _ = self.place.remove(&self.new);
        }
    }
}

/// The last line of a file that has these bytes before it.
pub(crate) fn digest(bytes: &[u8]) -> String {
    format!("crc32 {:08x}\n", nicety_frame::crc::fcs(bytes))
}

/// The bytes before the last line, if their digest is correct.
pub(crate) fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (text, last) = bytes.split_at_checked(bytes.len().checked_sub(digest(b"").len())?)?;
    (last == digest(text).as_bytes()).then_some(text)
}

/// Reads the first `most` bytes of a regular file. `None` if there is none. A link is not followed.
pub fn read(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    let Place { folder, name } = match Place::of(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        place => place?,
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match openat(&folder, &name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err(io::Error::other("it is a link, and must be a file")),
        file => file?,
    };
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is no file"));
    }
    let mut bytes = Vec::new();
    File::from(file).take(most).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Removes a file if it exists.
pub fn remove(path: &Path) -> io::Result<()> {
    let place = Place::of(path)?;
    place.remove(&place.name)
}

/// Renames a file: adds a suffix to its name.
pub fn set_aside(path: &Path, ending: &str) -> io::Result<()> {
    let place = Place::of(path)?;
    Ok(renameat(&place.folder, &place.name, &place.folder, place.beside(ending))?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn no_link_that_somebody_has_laid_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("precious"), "text").unwrap();
        symlink(at("precious"), at("file.new")).unwrap();
        symlink(at("precious"), at("link")).unwrap();
        Whole::begin(&at("file")).unwrap().finish(b"whole").unwrap();
        Whole::begin(&at("link")).unwrap().finish(b"whole").unwrap();
        assert_eq!(fs::read(at("precious")).unwrap(), b"text");
        for name in ["file", "link"] {
            assert_eq!(read(&at(name), 9).unwrap().unwrap(), b"whole");
            assert!(fs::symlink_metadata(at(name)).unwrap().is_file(), "{name}");
        }
        symlink(at("precious"), at("read")).unwrap();
        assert_eq!(read(&at("read"), 9).unwrap_err().to_string(), "it is a link, and must be a file");
        set_aside(&at("read"), ".old").unwrap();
        assert_eq!(fs::read_link(at("read.old")).unwrap(), at("precious"), "the link itself was renamed");
        remove(&at("read.old")).unwrap();
        assert_eq!(fs::read(at("precious")).unwrap(), b"text");
    }

    #[test]
    fn what_is_not_finished_leaves_what_was_there_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "before").unwrap();
        drop(Whole::begin(&path).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"before");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(read(&folder.path().join("absent/file"), 9).unwrap(), None);
    }

    #[test]
    fn a_file_is_its_owners_alone_or_for_whom_it_was_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        Whole::begin(&path).unwrap().finish(b"").unwrap();
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, PermissionsExt::from_mode(0o664)).unwrap();
        Whole::begin_like(&path).unwrap().finish(b"1").unwrap();
        assert_eq!(mode(), 0o664);
        let new = Whole::begin_with(&path, 0o755).unwrap();
        let before = fs::metadata(folder.path().join("file.new")).unwrap().permissions().mode() & 0o777;
        new.finish(b"2").unwrap();
        assert_eq!((before, mode()), (0o755, 0o755), "at no time it has another mode in its place");
    }
}
