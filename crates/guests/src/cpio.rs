//! An initramfs in the format that the kernel reads: "newc" of Documentation/driver-api/early-userspace/buffer-format.rst.

use std::io::Write;

use ::cpio::newc;

/// File type bits of `st_mode` (inode(7)).
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;

/// An archive that grows entry by entry. A folder must come before its content, because the kernel unpacks in order.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// An archive without entries.
    pub fn new() -> Archive {
        Archive { bytes: Vec::new(), entries: 0 }
    }

    /// Adds a folder. The caller must add every missing parent folder first.
    pub fn folder(&mut self, path: &str) {
        self.entry(path, DIRECTORY | 0o755, (0, 0), &[]);
    }

    /// A regular file.
    pub fn file(&mut self, path: &str, permissions: u32, content: &[u8]) {
        self.entry(path, REGULAR | permissions, (0, 0), content);
    }

    /// A symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.entry(path, SYMLINK | 0o777, (0, 0), target.as_bytes());
    }

    /// A character device.
    pub fn device(&mut self, path: &str, major: u32, minor: u32) {
        self.entry(path, CHARACTER | 0o600, (major, minor), &[]);
    }

    /// The finished archive.
    pub fn finish(self) -> Vec<u8> {
        newc::trailer(self.bytes).expect("a vector takes all bytes")
    }

    /// The modification time stays 0: the same content gives the same archive.
    ///
    /// # Panics
    /// If the content has 4 GiB or more: the format has no room for its length.
    fn entry(&mut self, path: &str, mode: u32, (major, minor): (u32, u32), content: &[u8]) {
        self.entries += 1;
        let links = if mode & DIRECTORY != 0 { 2 } else { 1 };
        let len = u32::try_from(content.len()).expect("less than 4 GiB");
        let entry =
            newc::Builder::new(path).ino(self.entries).mode(mode).nlink(links).rdev_major(major).rdev_minor(minor);
        let mut writer = entry.write(&mut self.bytes, len);
        writer.write_all(content).and_then(|()| writer.finish()).expect("a vector takes all bytes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{process::Command, process::Stdio};

    #[test]
    fn a_header_has_the_fields_of_the_kernels_document_in_its_order() {
        let mut archive = Archive::new();
        archive.file("a", 0o644, b"hello");
        let bytes = archive.finish();
        let header = b"070701\
            00000001000081a400000000000000000000000100000000000000050000000000000000000000000000000000000002\
            00000000a\0";
        assert_eq!(&bytes[..112], header);
        assert_eq!(&bytes[112..120], b"hello\0\0\0");
        assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn a_device_has_its_numbers_in_the_kernels_fields_for_them() {
        let mut archive = Archive::new();
        archive.device("dev/console", 5, 1);
        let bytes = archive.finish();
        // c_mode is the second field, c_rdevmajor and c_rdevminor are the tenth and the eleventh.
        assert_eq!((&bytes[14..22], &bytes[78..94]), (&b"00002180"[..], &b"0000000500000001"[..]));
    }

    #[test]
    fn an_independent_reader_lists_the_entries() {
        let Ok(mut reader) =
            Command::new("cpio").arg("-it").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
        else {
            return; // the host has no cpio: the kernel itself is the reader in the real-guest tests
        };
        let mut archive = Archive::new();
        archive.folder("bin");
        archive.link("bin/sh", "busybox");
        archive.file("init", 0o755, b"#!");
        let bytes = archive.finish();
        reader.stdin.take().map(|mut input| input.write_all(&bytes)).transpose().expect("the reader takes the archive");
        let output = reader.wait_with_output().expect("the reader ends");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "bin\nbin/sh\ninit\n");
    }
}
