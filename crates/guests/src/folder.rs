//! A folder for sockets and logs that is removed when it is dropped. If its process is killed, the next process that makes a folder
//! removes it.
//!
//! A process holds a lock on its folder. The kernel frees the lock when the process dies for any reason (flock(2)), so a folder with a
//! free lock is an orphan.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, process};

use nicety_socket::MAX_PATH;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, lstat, open};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::geteuid;
use thiserror::Error;

/// Maximum number of names to try when others have taken them.
const TRIES: u32 = 100;

/// The longest name of a socket in the folder, with the slash before it.
const SOCKET_NAME: usize = 20;

/// A folder that cannot be made.
#[derive(Debug, Error)]
pub enum FolderError {
    /// The system's error.
    #[error("making the folder {path} for sockets: {source}; XDG_RUNTIME_DIR or TMPDIR can name another place")]
    System {
        /// The folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A socket's path in it would be too long.
    #[error(
        "{0} is too long for a folder of sockets, whose paths have {MAX_PATH} bytes at most; XDG_RUNTIME_DIR or TMPDIR can name another place"
    )]
    TooLong(PathBuf),
    /// A file in it cannot be written.
    #[error("writing {path}: {source}; make room there, or let {named} name another folder")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
        /// The environment variable that names the folder, or could name it.
        named: &'static str,
    },
}

/// A folder that is removed when dropped (see the module's page).
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    named: &'static str,
    /// None where the file system has no locks. Then no other process can take the folder for an orphan.
    _lock: Option<OwnedFd>,
}

impl Folder {
    /// Makes a folder in `XDG_RUNTIME_DIR`, or else in the folder for temporary files, for this user alone. Its path is short enough for a
    /// socket's. The first call in a process removes the folders of killed processes.
    ///
    /// # Errors
    /// The parent folder cannot be written to.
    pub fn new() -> Result<Folder, FolderError> {
        static SWEEP: Once = Once::new();
        let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_dir());
        let (place, named) = match runtime {
            Some(runtime) => (runtime, "XDG_RUNTIME_DIR"),
            None => (env::temp_dir(), "TMPDIR"),
        };
        SWEEP.call_once(|| sweep(&place));
        Folder::new_in(&place, named)
    }

    fn new_in(place: &Path, named: &'static str) -> Result<Folder, FolderError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (mut path, mut taken) = (PathBuf::new(), Errno::EXIST);
        for _ in 0..TRIES {
            path = place.join(name(process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
            if path.as_os_str().len() + SOCKET_NAME > MAX_PATH {
                return Err(FolderError::TooLong(path));
            }
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(source) => return Err(FolderError::System { path, source }),
                Ok(()) => {}
            }
            // Until the folder is locked, another process may take it for an orphan and remove it.
            match own(&path, FlockOperation::LockExclusive) {
                Ok(lock) => return Ok(Folder { path, named, _lock: Some(lock) }),
                Err(Errno::NOENT) => taken = Errno::NOENT,
                Err(_) => return Ok(Folder { path, named, _lock: None }),
            }
        }
        Err(FolderError::System { path, source: taken.into() })
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path in it, as text.
    pub fn join(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    /// Creates a file in the folder.
    ///
    /// # Errors
    /// The file system refuses it. The message names the variable that can name another folder.
    pub fn create(&self, name: &str) -> Result<File, FolderError> {
        let path = self.path.join(name);
        File::create(&path).map_err(|source| FolderError::File { path, source, named: self.named })
    }

    /// Writes a file in the folder. Returns its path.
    ///
    /// # Errors
    /// Those of [`Folder::create`].
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf, FolderError> {
        let path = self.path.join(name);
        match self.create(name)?.write_all(content.as_ref()) {
            Ok(()) => Ok(path),
            Err(source) => Err(FolderError::File { path, source, named: self.named }),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing can be done about a folder that stays; the next process tries again.
        let _stays = fs::remove_dir_all(&self.path);
    }
}

fn name(process: u32, number: u32) -> String {
    format!("nicety-{process}-{number}.run")
}

fn is_name(name: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = name.strip_prefix("nicety-").and_then(|rest| rest.strip_suffix(".run")?.split_once('-'));
    numbers.is_some_and(|(process, number)| digits(process) && digits(number))
}

/// Locks a folder. NOENT if it no longer exists.
fn own(path: &Path, how: FlockOperation) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = open(path, flags, Mode::empty())?;
    retry_on_intr(|| flock(&folder, how))?;
    let (found, named) = (fstat(&folder)?, lstat(path)?);
    let same = (found.st_dev, found.st_ino) == (named.st_dev, named.st_ino);
    if same { Ok(folder) } else { Err(Errno::NOENT) }
}

/// Removes the folders of killed processes. One that cannot be removed stays and does no harm.
fn sweep(place: &Path) {
    let us = geteuid().as_raw();
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let path = entry.path();
        let ours = entry.file_name().to_str().is_some_and(is_name) && lstat(&path).is_ok_and(|stat| stat.st_uid == us);
        if ours && let Ok(_orphan) = own(&path, FlockOperation::NonBlockingLockExclusive) {
            let _stays = fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of the entries in a folder.
    fn names(place: &Path) -> Vec<String> {
        let entries = fs::read_dir(place).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_folder_is_its_owners_alone_and_gone_at_the_end() {
        use std::os::unix::fs::PermissionsExt;
        let folder = Folder::new().unwrap();
        let path = folder.path().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(folder.join("daemon.log"), "said").unwrap();
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn a_place_whose_path_leaves_no_room_for_a_socket_is_refused_with_the_limit() {
        let place = Folder::new().unwrap();
        let long = PathBuf::from(place.join(&"x".repeat(80)));
        fs::create_dir(&long).unwrap();
        let error = Folder::new_in(&long, "TMPDIR").unwrap_err().to_string();
        assert!(error.contains("107 bytes at most; XDG_RUNTIME_DIR or TMPDIR"), "{error}");
        assert_eq!(names(&long), Vec::<String>::new());
    }

    #[test]
    fn a_folder_without_room_is_named_with_the_variable_that_can_name_another() {
        let place = Folder::new().unwrap();
        for named in ["XDG_RUNTIME_DIR", "TMPDIR"] {
            let folder = Folder::new_in(place.path(), named).unwrap();
            // A write to the file meets a full disk.
            std::os::unix::fs::symlink("/dev/full", folder.join("host.toml")).unwrap();
            let error = folder.write("host.toml", "text").unwrap_err().to_string();
            let path = folder.join("host.toml");
            let expected = format!(
                "writing {path}: No space left on device (os error 28); make room there, or let {named} name another folder"
            );
            assert_eq!(error, expected);
            assert_eq!(fs::read_to_string(folder.write("other", "text").unwrap()).unwrap(), "text");
            assert!(
                folder
                    .create("absent/daemon.log")
                    .unwrap_err()
                    .to_string()
                    .ends_with(&format!("let {named} name another folder"))
            );
        }
    }

    #[test]
    fn an_orphan_is_removed_and_whatever_somebody_has_or_nobody_of_us_made_stays() {
        let place = Folder::new().unwrap();
        let held = Folder::new_in(place.path(), "TMPDIR").unwrap();
        let others = ["nicety-1-0", "nicety-lab-1.run", "nicety-1-.run", "nicety-x-0.run", "other-1-0.run"];
        for name in others {
            fs::create_dir(place.join(name)).unwrap();
        }
        fs::write(place.join("nicety-1-1.run"), "a file").unwrap();
        std::os::unix::fs::symlink(held.path(), place.join("nicety-1-2.run")).unwrap();
        fs::create_dir(place.join("nicety-1-3.run")).unwrap();
        fs::write(place.join("nicety-1-3.run/host.toml"), "orphan").unwrap();
        sweep(place.path());
        let mut left: Vec<String> =
            others.into_iter().chain(["nicety-1-1.run", "nicety-1-2.run"]).map(Into::into).collect();
        left.extend(held.path().file_name().and_then(|name| name.to_str()).map(str::to_owned));
        left.sort();
        assert_eq!(names(place.path()), left);
        drop(held);
        assert_eq!(names(place.path()).len(), left.len() - 1);
    }

    #[test]
    fn a_name_that_is_taken_is_passed_over() {
        let place = Folder::new().unwrap();
        let first = Folder::new_in(place.path(), "TMPDIR").unwrap();
        let number = |folder: &Folder| {
            let name = folder.path().file_stem().unwrap().to_str().unwrap().to_owned();
            name.rsplit('-').next().unwrap().parse::<u32>().unwrap()
        };
        let after = number(&first) + 1;
        for next in after..after + 20 {
            fs::create_dir(place.path().join(name(process::id(), next))).unwrap();
        }
        assert!(number(&Folder::new_in(place.path(), "TMPDIR").unwrap()) >= after + 20);
    }

    #[test]
    fn a_place_that_cannot_be_written_to_is_named() {
        let place = Folder::new().unwrap();
        let missing = place.path().join("missing");
        let error = Folder::new_in(&missing, "TMPDIR").unwrap_err().to_string();
        assert!(error.contains(&missing.display().to_string()) && error.contains("XDG_RUNTIME_DIR"), "{error}");
    }
}
