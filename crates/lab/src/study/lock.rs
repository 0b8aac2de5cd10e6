//! A lock that one lab holds on this machine: two at once would disturb each other's figures.
//!
//! The kernel frees it when the process ends for any reason (flock(2)). The file stays; it names the last holder. Its place is the same
//! for all users and whatever TMPDIR says: two labs must find the same file.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The lock's file.
const PLACE: &str = "/tmp/nicety-lab.lock";
/// Names another file: for labs that may run side by side, such as tests.
const VARIABLE: &str = "NICETY_LAB_LOCK";

/// The reason why there is no lock.
#[derive(Debug, Error)]
pub enum LockError {
    /// Another process holds it.
    #[error(
        "another lab runs on this machine ({holder}); two at once would disturb each other's figures: wait for its end"
    )]
    Held {
        /// Process and command of the other one.
        holder: String,
    },
    /// The lock file cannot be used.
    #[error("{path}, the lock by which two labs know of each other: {error}; {VARIABLE} can name another file")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
}

/// The lock. Dropping it frees it.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the machine's lock for `command`. Does not wait.
    ///
    /// # Errors
    /// Another lab holds it, or its file cannot be used.
    pub fn take(command: &str) -> Result<Lock, LockError> {
        Lock::take_at(&place(std::env::var_os(VARIABLE)), command)
    }

    fn take_at(path: &Path, command: &str) -> Result<Lock, LockError> {
        let failed = |error| LockError::File { path: path.to_owned(), error };
        // Another user's file can be read and locked, but not written. Then the holder keeps its older name.
        // Opening a symbolic link would truncate its target; opening a pipe would wait for its other end.
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let open = |options: &mut OpenOptions| options.read(true).custom_flags(flags.bits().cast_signed()).open(path);
        let (file, is_ours) = match open(File::options().create(true).truncate(false).write(true)) {
            Ok(file) => (file, true),
            Err(_) => (open(&mut File::options()).map_err(failed)?, false),
        };
        if file.try_lock().is_err() {
            let mut holder = String::new();
            // Without its name the message still says what matters.
            let _ = (&file).take(400).read_to_string(&mut holder);
            return Err(LockError::Held { holder: holder.trim().to_owned() });
        }
        if is_ours {
            let text = format!("process {}: {command}\n", std::process::id());
            file.set_len(0).and_then(|()| (&file).write_all(text.as_bytes())).map_err(failed)?;
        }
        Ok(Lock { _file: file })
    }
}

/// The lock's file; `named` is what the environment says.
fn place(named: Option<OsString>) -> PathBuf {
    named.filter(|named| !named.is_empty()).map_or_else(|| PLACE.into(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_one_for_all_folders_of_temporary_files_and_a_link_there_is_not_followed() {
        assert_eq!((place(None), place(Some(OsString::new()))), (PLACE.into(), PLACE.into()));
        assert_eq!(place(Some("/run/own.lock".into())), PathBuf::from("/run/own.lock"));
        let folder = std::env::temp_dir().join(format!("nicety-lab-link-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (target, link) = (folder.join("precious"), folder.join("lock"));
        std::fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let refused = Lock::take_at(&link, "nicety lab run kvm-scp").unwrap_err().to_string();
        assert!(refused.ends_with("; NICETY_LAB_LOCK can name another file"), "{refused}");
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_second_lab_is_told_who_the_first_is_and_may_begin_after_its_end() {
        let path = std::env::temp_dir().join(format!("nicety-lab-lock-{}", std::process::id()));
        let first = Lock::take_at(&path, "nicety lab run vmxnet3-iperf").unwrap();
        let second = Lock::take_at(&path, "nicety lab run kvm-scp").unwrap_err().to_string();
        let holder = format!("(process {}: nicety lab run vmxnet3-iperf)", std::process::id());
        assert!(second.contains(&holder), "{second}");
        drop(first);
        Lock::take_at(&path, "nicety lab run kvm-scp").unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
