//! Files of procfs that threads need although they may open none. The starter thread reads them; it does not read any others.

use std::io;

/// A file of this process in procfs (proc(5)), which the kernel itself answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcFile {
    /// The kernel's information about this descriptor.
    FdInfo(i32),
    /// The mounts.
    MountInfo,
}

impl ProcFile {
    /// Its text; wrong UTF-8 is replaced.
    ///
    /// # Errors
    /// The system's.
    pub fn read(self) -> io::Result<String> {
        super::read(self)
    }

    pub(crate) fn read_here(self) -> io::Result<String> {
        let bytes = match self {
            Self::FdInfo(number) => std::fs::read(format!("/proc/self/fdinfo/{number}")),
            Self::MountInfo => std::fs::read("/proc/self/mountinfo"),
        };
        Ok(String::from_utf8_lossy(&bytes?).into_owned())
    }
}
