//! Whether a memory file has anything in it, told without touching its holes.
//!
//! A file of huge pages does not tell its holes (hugetlbfs answers SEEK_DATA as if all were data), but reads them as zeros
//! without taking a page: there the first 4 MiB count, holes and all.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, seek};

/// How many bytes of a file are looked at: more zeros than any memory begins with that is in use.
const LOOKED_AT: u64 = 4 << 20;
const PIECE: usize = 64 << 10;

/// Whether the range `[from, end)` of a file is all holes and zeros, as far as it is looked at. A file that cannot be looked at is
/// not blank.
pub fn is_blank(file: &File, from: u64, end: u64) -> bool {
    // Opened anew, for the position in an open file is the peer's as well.
    let Ok(file) = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())) else { return false };
    let (mut at, mut left, mut piece) = (from, LOOKED_AT, vec![0; PIECE]);
    while left > 0 {
        // ENXIO: from here on it has only holes (lseek(2)).
        let Ok(data) = seek(&file, SeekFrom::Data(at)) else { return true };
        let most = left.min(end.saturating_sub(data)).min(PIECE as u64);
        let Some(piece) = piece.get_mut(..most as usize).filter(|piece| !piece.is_empty()) else { return true };
        match file.read_at(piece, data) {
            Ok(0) => return true,
            Ok(count) if piece.iter().take(count).all(|&byte| byte == 0) => {
                left -= count as u64;
                at = data + count as u64;
            }
            _ => return false,
        }
    }
    true
}
