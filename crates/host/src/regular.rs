//! Opens regular files that a person has named. Opening a pipe blocks without a peer, and opening a device may have any effect.
//! Both are refused, even if the file becomes one between check and open.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Opens a regular file but no link. For writing, in a folder in which others may have made a link. Never blocks.
pub fn open_no_link(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    if path.symlink_metadata().is_ok_and(|there| there.is_symlink()) {
        return Err(io::Error::other("it is a link, and must be a file"));
    }
    with(path, options, OFlags::NOFOLLOW)
}

/// Opens a regular file or a link to one. Refuses anything else, and never blocks.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    with(path, options, OFlags::empty())
}

fn with(path: &Path, options: &mut OpenOptions, more: OFlags) -> io::Result<File> {
    // If the file is missing or cannot be examined, the open below reports the reason.
    if let Ok(there) = path.metadata() {
        check(&there)?;
    }
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | more;
    let file = options.custom_flags(flags.bits().cast_signed()).open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

/// Reads at most this many bytes of a regular file.
pub(super) fn read_most(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = open(path, OpenOptions::new().read(true))?;
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn check(there: &Metadata) -> io::Result<()> {
    let kind = there.file_type();
    let what = match kind {
        _ if kind.is_file() => return Ok(()),
        _ if kind.is_dir() => return Err(Errno::ISDIR.into()),
        _ if kind.is_fifo() => "a pipe",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::other(format!("it is {what}, and must be a file")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    #[test]
    fn what_is_no_file_is_refused_and_not_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        mknodat(CWD, at("pipe"), FileType::Fifo, 0o600.into(), 0).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        std::fs::write(at("file"), "text").unwrap();
        for (link, to) in [("link", "file"), ("piped", "pipe"), ("device", "/dev/zero")] {
            std::os::unix::fs::symlink(to, at(link)).unwrap();
        }
        for (name, message) in [
            ("file", None),
            ("link", None),
            ("pipe", Some("it is a pipe, and must be a file")),
            ("piped", Some("it is a pipe, and must be a file")),
            ("socket", Some("it is a socket, and must be a file")),
            ("device", Some("it is a device, and must be a file")),
            (".", Some("Is a directory (os error 21)")),
            ("absent", Some("No such file or directory (os error 2)")),
        ] {
            for write in [false, true] {
                let (path, (send, opened)) = (at(name), mpsc::channel());
                // A thread that blocks in `open` blocks for ever.
                std::thread::spawn(move || {
                    let options = &mut OpenOptions::new();
                    send.send(open(&path, options.read(!write).write(write)).map_err(|error| error.to_string()))
                });
                let opened = opened.recv_timeout(Duration::from_secs(20)).expect(name);
                assert_eq!(opened.err().as_deref(), message, "{name}");
            }
        }
    }
}
