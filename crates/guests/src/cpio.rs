//! An initramfs in the format that the kernel reads: "newc" of Documentation/driver-api/early-userspace/buffer-format.rst.

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
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.entries += 1;
        let links = if mode & DIRECTORY != 0 { 2 } else { 1 };
        let fields = [
            self.entries,
            mode,
            0, // user
            0, // group
            links,
            0, // modification time: the same content gives the same archive
            u32::try_from(content.len()).unwrap_or(u32::MAX),
            0, // device that holds the file
            0,
            device.0,
            device.1,
            u32::try_from(path.len() + 1).unwrap_or(u32::MAX),
            0, // checksum: not in this variant
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Write, process::Command, process::Stdio};

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
