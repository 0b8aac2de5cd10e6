//! Counts sent bytes where the count outlives this process, so that the process that goes on with a socket knows what was sent.
//!
//! A process that notes what it has sent may be killed between the call and the note. So the kernel itself writes the count: sendmmsg(2)
//! stores the bytes of each message (`msg_len`) before it returns, and a killed process ends only where it would return to its program
//! (signal(7)). Here that structure lies in a page of a file, which another process holds as well.
//!
//! ```text
//! 64    a `struct mmsghdr` for each send of one set of messages
//! 576   which messages │ their bytes │ are these here? │ these
//! ```
#![allow(unsafe_code)]

use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes of the page. The first [`BEGIN`] are the file's owner's.
const PAGE: usize = 4096;
const BEGIN: usize = 64;
/// Most sends of one set of messages that are counted.
const SENDS: usize = 8;
const KEY: usize = BEGIN + SENDS * size_of::<libc::mmsghdr>();
const TOTAL: usize = KEY + 16;
const IS_HERE: usize = TOTAL + 4;
const BYTES: usize = IS_HERE + 4;
/// Most bytes of messages that are kept: others are only counted.
const ROOM: usize = PAGE - BYTES;
/// Most descriptors of a send that is counted.
const FDS: usize = 32;

const _: () = assert!(size_of::<libc::mmsghdr>() == 64 && BEGIN.is_multiple_of(align_of::<libc::mmsghdr>()));

/// A page that counts sent bytes. One thread uses it at a time.
#[derive(Debug)]
pub struct Tally(NonNull<u8>);

// SAFETY: the page is reached by calls of whoever has the value, and is no thread's own.
unsafe impl Send for Tally {}
// SAFETY: all accesses are of single words, or by the kernel; two threads at once could only confuse the count.
unsafe impl Sync for Tally {}

impl Tally {
    /// The first page of this file, which must be as long and stay so: a memory file of our own.
    ///
    /// # Errors
    /// The file cannot be mapped.
    pub fn of(file: impl AsFd) -> Result<Self, Errno> {
        // SAFETY: the kernel chooses the place, so no other mapping is touched.
        let page =
            unsafe { mmap(std::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)? };
        NonNull::new(page.cast()).map(Self).ok_or(Errno::FAULT)
    }

    /// These messages are about to be sent: `key` distinguishes them. `is_whole`: the bytes are all that there is to send, without
    /// descriptors.
    pub fn begin(&self, key: &[u8; 16], bytes: &[u8], is_whole: bool) {
        // Without a key nothing is known, whenever the process is killed.
        self.put(KEY, &[0; 16]);
        (0..SENDS).for_each(|send| self.set(length_of(send), 0));
        let is_here = is_whole && bytes.len() <= ROOM;
        if is_here {
            self.put(BYTES, bytes);
        }
        self.set(IS_HERE, u32::from(is_here));
        self.set(TOTAL, u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        fence(Ordering::Release);
        self.put(KEY, key);
    }

    /// The bytes that are left to send of the messages with this key. `None` if that is not known.
    pub fn left(&self, key: &[u8; 16]) -> Option<Vec<u8>> {
        let mut last = [0; 16];
        self.get(KEY, &mut last);
        if last != *key || last == [0; 16] {
            return None;
        }
        let sent: u64 = (0..SENDS).map(|send| u64::from(self.word(length_of(send)))).sum();
        let total = u64::from(self.word(TOTAL));
        if sent == total {
            return Some(Vec::new());
        }
        if self.word(IS_HERE) != 1 || sent > total || total > ROOM as u64 {
            return None;
        }
        let mut rest = vec![0; (total - sent) as usize];
        self.get(BYTES + sent as usize, &mut rest);
        Some(rest)
    }

    /// Sends bytes with descriptors on a UNIX stream socket, and never waits. Returns the number of bytes that the socket took.
    ///
    /// # Errors
    /// The socket's.
    pub fn send(&self, socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
        if fds.len() > FDS {
            return Err(Errno::INVAL);
        }
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // Aligned as a `struct cmsghdr` must be, and room for one with all of these.
        let mut control = [0u64; 4 + FDS / 2];
        // SAFETY: it is plain numbers and pointers, for which zeros are valid.
        let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
        message.msg_hdr.msg_iov = &raw mut part;
        message.msg_hdr.msg_iovlen = 1;
        if !fds.is_empty() {
            let len = size_of_val(fds) as libc::c_uint;
            message.msg_hdr.msg_control = control.as_mut_ptr().cast();
            // SAFETY: it only calculates.
            message.msg_hdr.msg_controllen = unsafe { libc::CMSG_SPACE(len) } as _;
            // SAFETY: the header lies in `control`, which has room for it and for `FDS` descriptors, and outlives the call.
            unsafe {
                let header = libc::CMSG_FIRSTHDR(&raw const message.msg_hdr);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(len) as _;
                let first = libc::CMSG_DATA(header).cast::<libc::c_int>();
                fds.iter().enumerate().for_each(|(at, fd)| first.add(at).write_unaligned(fd.as_raw_fd()));
            }
        }
        let mut uncounted = message;
        let place = match (0..SENDS).find(|send| self.word(length_of(*send)) == 0) {
            // SAFETY: the place is in the page, aligned, and written by nobody else.
            Some(send) => unsafe {
                let place = self.0.as_ptr().add(BEGIN + send * size_of::<libc::mmsghdr>()).cast::<libc::mmsghdr>();
                place.write_volatile(message);
                place
            },
            None => {
                self.put(KEY, &[0; 16]);
                &raw mut uncounted
            }
        };
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the kernel reads one message, whose parts outlive the call, and writes its `msg_len`.
        match unsafe { libc::sendmmsg(socket.as_fd().as_raw_fd(), place, 1, flags as _) } {
            1 => {
                // SAFETY: `place` is valid as above.
                Ok(unsafe { (&raw const (*place).msg_len).read_volatile() } as usize)
            }
            _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        debug_assert!(at + bytes.len() <= PAGE);
        // SAFETY: callers stay within the page, and it is no reference's.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.as_ptr().add(at), bytes.len()) };
        fence(Ordering::Release);
    }

    fn get(&self, at: usize, into: &mut [u8]) {
        debug_assert!(at + into.len() <= PAGE);
        fence(Ordering::Acquire);
        // SAFETY: as in `put`.
        unsafe { std::ptr::copy_nonoverlapping(self.0.as_ptr().add(at), into.as_mut_ptr(), into.len()) };
    }

    fn set(&self, at: usize, word: u32) {
        self.put(at, &word.to_ne_bytes());
    }

    fn word(&self, at: usize) -> u32 {
        let mut word = [0; 4];
        self.get(at, &mut word);
        u32::from_ne_bytes(word)
    }
}

/// The offset at which the kernel writes the bytes of this send.
fn length_of(send: usize) -> usize {
    BEGIN + send * size_of::<libc::mmsghdr>() + offset_of!(libc::mmsghdr, msg_len)
}

impl Drop for Tally {
    fn drop(&mut self) {
        // SAFETY: the page is this value's, and nobody has a reference into it.
        let _unmapped = unsafe { munmap(self.0.as_ptr().cast(), PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair, sockopt};

    use super::*;
    use crate::PeerFd;

    const KEY_1: [u8; 16] = [1; 16];
    const KEY_2: [u8; 16] = [2; 16];

    /// A file, and two processes' views of it.
    fn views() -> [Tally; 2] {
        let file = memfd_create("tally", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, PAGE as u64).unwrap();
        [Tally::of(&file).unwrap(), Tally::of(&file).unwrap()]
    }

    fn pair() -> [PeerFd; 2] {
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        [one.into(), other.into()]
    }

    fn received(socket: &PeerFd) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 20];
        let (count, _) = recv(socket, &mut bytes[..], RecvFlags::DONTWAIT).unwrap_or_default();
        bytes.truncate(count);
        bytes
    }

    #[test]
    fn another_process_knows_what_is_left_after_each_send() {
        let ([tally, next], [socket, peer]) = (views(), pair());
        assert_eq!(next.left(&KEY_1), None, "nothing was begun");
        tally.begin(&KEY_1, b"answers", true);
        assert_eq!(next.left(&KEY_1).as_deref(), Some(&b"answers"[..]));
        assert_eq!(tally.send(&socket, b"ans", &[]), Ok(3));
        assert_eq!(next.left(&KEY_1).as_deref(), Some(&b"wers"[..]));
        // The next process may send, too.
        assert_eq!(next.send(&socket, b"wer", &[]), Ok(3));
        assert_eq!(tally.send(&socket, b"s", &[]), Ok(1));
        assert_eq!((next.left(&KEY_1), next.left(&KEY_2)), (Some(vec![]), None));
        assert_eq!(received(&peer), b"answers");
        tally.begin(&KEY_2, b"more", true);
        assert_eq!((next.left(&KEY_1), next.left(&KEY_2)), (None, Some(b"more".to_vec())));
    }

    #[test]
    fn a_full_socket_takes_a_part_and_refuses_the_rest_and_both_are_counted() {
        let ([tally, next], [socket, peer]) = (views(), pair());
        sockopt::set_socket_send_buffer_size(&socket, 4096).unwrap();
        let bytes = vec![7; ROOM];
        let filled = std::iter::repeat_with(|| tally.send(&socket, &bytes, &[])).take_while(Result::is_ok).count();
        assert!((1..1000).contains(&filled));
        tally.begin(&KEY_1, &bytes, true);
        assert_eq!(tally.send(&socket, &bytes, &[]), Err(Errno::AGAIN));
        assert_eq!(next.left(&KEY_1).map(|rest| rest.len()), Some(ROOM));
        received(&peer);
        let sent = tally.send(&socket, &bytes, &[]).unwrap();
        assert_eq!(next.left(&KEY_1).map(|rest| rest.len()), Some(ROOM - sent));
    }

    #[test]
    fn what_is_not_known_is_not_said() {
        let ([tally, next], [socket, peer]) = (views(), pair());
        // Too much to be kept, and bytes with descriptors: only whether all was sent.
        for bytes in [&[5; ROOM + 1][..], b"with descriptors"] {
            tally.begin(&KEY_1, bytes, false);
            assert_eq!(next.left(&KEY_1), None);
            let fds = [socket.as_fd(), peer.as_fd(), socket.as_fd()];
            assert_eq!(tally.send(&socket, bytes, &fds), Ok(bytes.len()));
            assert_eq!(next.left(&KEY_1), Some(vec![]));
            assert_eq!(received(&peer), bytes);
        }
        // More sends than are counted.
        tally.begin(&KEY_1, &[6; 20], true);
        for _ in 0..=SENDS {
            assert_eq!(tally.send(&socket, &[6], &[]), Ok(1));
        }
        assert_eq!(next.left(&KEY_1), None);
        assert_eq!(received(&peer), [6; SENDS + 1]);
    }
}
