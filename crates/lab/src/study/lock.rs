//! A lock that one lab holds on this machine: two at once would disturb each other's figures.
//!
//! The kernel frees it when the process ends for any reason (flock(2)). The file stays; it names the last holder.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

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
    #[error("{path}, the lock by which two labs know of each other: {error}; TMPDIR can name another folder")]
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
        Lock::take_at(&std::env::temp_dir().join("nicety-lab.lock"), command)
    }

    fn take_at(path: &Path, command: &str) -> Result<Lock, LockError> {
        let failed = |error| LockError::File { path: path.to_owned(), error };
        // Another user's file can be read and locked, but not written. Then the holder keeps its older name.
        let (file, is_ours) = match File::options().create(true).truncate(false).read(true).write(true).open(path) {
            Ok(file) => (file, true),
            Err(_) => (File::open(path).map_err(failed)?, false),
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

#[cfg(test)]
mod tests {
    use super::*;

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
