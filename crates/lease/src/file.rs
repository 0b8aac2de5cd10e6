//! The lease in a file that both hosts can lock (flock(2)): on this machine, or on storage that they share.
//!
//! No clock is shared: a lease has expired for a host that has seen the file unchanged for the lease's duration, by its own clock.
//!
//! Others may write to the folder. So nothing here follows a link, waits for a pipe or reads a file that has no end.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nicety_sandbox::Kind;
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, flock, openat, renameat, statat};
use rustix::io::Errno;

use crate::asker::ThirdParty;
use crate::lease::{Answer, Lease, NodeId, Request};

/// Most bytes of a lease's file, of its lock, and of the file that replaces it. A lease has less than 100.
const BYTES_MAX: u64 = 4096;
/// Time between two tries to lock.
const LOCK_AGAIN: Duration = Duration::from_millis(2);

/// See the module's page.
#[derive(Debug)]
pub struct LeaseFile {
    path: PathBuf,
    term: Duration,
    who: NodeId,
    /// The file's last change that this host has seen, and when.
    seen: Option<(Lease, Instant)>,
}

/// The error of a path, for a person.
fn of(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Checks that a file is regular and small.
fn check(mode: u32, size: u64) -> io::Result<()> {
    let what = match FileType::from_raw_mode(mode) {
        FileType::RegularFile if size <= BYTES_MAX => return Ok(()),
        FileType::RegularFile => {
            let what = format!("it has {size} bytes, and a lease at most {BYTES_MAX}: name another place");
            return Err(io::Error::other(what));
        }
        FileType::Symlink => "a link",
        FileType::Directory => "a folder",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "a device",
    };
    Err(io::Error::other(format!("it is {what}, and must be a file: remove it, or name another place")))
}

/// Opens a small regular file, and no link to one. Never blocks: opening a pipe could, and opening a device may do anything.
fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) => check(there.st_mode, there.st_size.cast_unsigned())?,
        Err(Errno::NOENT) if flags.contains(OFlags::CREATE) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = openat(CWD, path, flags, Mode::from_raw_mode(0o666))?;
    // It may have become another one meanwhile.
    let there = rustix::fs::fstat(&file)?;
    check(there.st_mode, there.st_size.cast_unsigned())?;
    Ok(file.into())
}

/// Has a folder's names outlast a power cut, where the file system can do that.
fn sync_folder(folder: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::fsync(openat(CWD, folder, flags, Mode::empty())?) {
        // fsync(2): the file system keeps its names by itself, or not at all.
        Ok(()) | Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

impl LeaseFile {
    /// The lease at `path`, for this host. The file need not exist, and its folder must.
    pub fn new(path: &Path, term: Duration, who: NodeId) -> Self {
        Self { path: path.to_owned(), term, who, seen: None }
    }

    fn notice(&mut self, lease: Lease) {
        if self.seen.is_none_or(|(seen, _)| seen != lease) {
            self.seen = Some((lease, Instant::now()));
        }
    }

    fn read(&self) -> io::Result<Lease> {
        let file = match open(&self.path, OFlags::RDONLY) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Lease::default()),
            Err(error) => return Err(error),
        };
        let mut text = String::new();
        let odd = || io::Error::new(io::ErrorKind::InvalidData, "this is no lease: remove the file if no host uses it");
        file.take(BYTES_MAX).read_to_string(&mut text).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => odd(),
            _ => error,
        })?;
        text.parse().map_err(|_no_lease| odd())
    }

    /// Locks the file against the other host, which holds the lock for a moment only. The lock ends with the file.
    fn lock(&self, path: &Path) -> io::Result<File> {
        let (lock, begun, limit) = (open(path, OFlags::CREATE | OFlags::WRONLY)?, Instant::now(), self.term / 3);
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(lock),
                Err(Errno::WOULDBLOCK) if begun.elapsed() < limit => std::thread::sleep(LOCK_AGAIN),
                Err(Errno::WOULDBLOCK) => {
                    let what = format!("another process has held this lock for {} ms", limit.as_millis());
                    return Err(io::Error::new(io::ErrorKind::TimedOut, what));
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Replaces the file whole. It outlasts a power cut: both the new file and its name are on the disk when this returns.
    fn write(&self, lease: &Lease, new: &Path) -> io::Result<()> {
        let mut file = open(new, OFlags::CREATE | OFlags::WRONLY).map_err(of(new))?;
        let written = file.set_len(0).and_then(|()| file.write_all(lease.to_string().as_bytes()));
        written.and_then(|()| file.sync_all()).map_err(of(new))?;
        renameat(CWD, new, CWD, &self.path).map_err(|errno| of(&self.path)(errno.into()))?;
        let folder = self.folder().unwrap_or(Path::new("."));
        sync_folder(folder).map_err(of(folder))
    }

    /// Counts a renewal in place. It is not synced: a disk that takes a second for that would cost the lease. A power cut may take back a
    /// count, and that is a change like another. It takes back nothing else, because the file that the last grant has synced stays.
    /// False: the file is another host's, or of an earlier version, and is to be replaced.
    fn count(&self, lease: &Lease) -> io::Result<bool> {
        let Ok(mut file) = open(&self.path, OFlags::WRONLY) else { return Ok(false) };
        let text = lease.to_string();
        if file.metadata()?.len() != text.len() as u64 {
            return Ok(false);
        }
        file.write_all(text.as_bytes()).map(|()| true)
    }
}

impl ThirdParty for LeaseFile {
    fn kind(&self) -> Kind {
        Kind::LeaseFile
    }

    fn folder(&self) -> Option<&Path> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        Some(folder.unwrap_or(Path::new(".")))
    }

    fn be(&mut self, who: NodeId) {
        self.who = who;
    }

    fn look(&mut self) {
        // A file that cannot be read says nothing new.
        if let Ok(lease) = self.read() {
            self.notice(lease);
        }
    }

    fn ask(&mut self, request: Request) -> io::Result<Answer> {
        let [lock, new] = ["lock", "new"].map(|end| self.path.with_added_extension(end));
        let _lock = self.lock(&lock).map_err(of(&lock))?;
        let mut lease = self.read().map_err(of(&self.path))?;
        self.notice(lease);
        let expired = self.seen.is_some_and(|(_, since)| since.elapsed() >= self.term);
        let answer = lease.ask(self.who, request, expired);
        if answer.granted {
            let is_counted = request == Request::Renew && self.count(&lease).map_err(of(&self.path))?;
            if !is_counted {
                self.write(&lease, &new)?;
            }
            self.notice(lease);
        }
        Ok(answer)
    }
}

#[cfg(test)]
#[path = "file_test.rs"]
mod tests;
