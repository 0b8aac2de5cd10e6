//! Why memory cannot be mapped, and the most that may be.

use crate::guard;

/// Most bytes that a VM may share, in all regions together: 4 TiB.
pub const MAX_BYTES: u64 = 4 << 40;

/// Why memory could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The range ends beyond the end of its file.
    #[error("the memory file has {file} bytes, but the range asked for ends at byte {end}")]
    BeyondFile {
        /// The file's size in bytes.
        file: u64,
        /// The end of the range.
        end: u64,
    },
    /// Zero bytes, more than a VM may share, or a length or offset that the address space cannot hold.
    #[error("a memory region of {0} bytes cannot be mapped")]
    Length(u64),
    /// The operating system refused.
    #[error("mapping guest memory: {0}")]
    Os(#[from] std::io::Error),
    /// The kernel itself does not serve the file.
    #[error(
        "memory must be a memory file (QEMU: memory-backend-memfd,share=on), or a file of a tmpfs, of hugetlbfs or of a disk that is \
         mounted here; this is none ({0})"
    )]
    Origin(String),
    /// The VM's limit of shared files is reached.
    #[error(
        "a VM may share {0} memory files at most, as many as leave descriptors for the other VMs (`ulimit -Hn`; systemd: LimitNOFILE=)"
    )]
    TooManyFiles(usize),
    /// All files of the VM together are too large.
    #[error("a VM's memory files have more than {} TiB", MAX_BYTES >> 40)]
    FilesTooLarge,
    /// A writable region in a file that may not be written.
    #[error("the memory file may not be written to")]
    ReadOnly,
    /// Too many mappings in this process.
    #[error("more than {0} guest memory regions are mapped: detach a VM first")]
    TooMany(usize),
    /// Too many bytes of all VMs are mapped in this process.
    #[error("with {len} bytes more, guest memory of more than {} TiB would be mapped: detach a VM first", guard::BYTES >> 40)]
    TooMuch {
        /// The length of this mapping.
        len: usize,
    },
}
