//! Signals an eventfd from inside the kernel. `eventfd_signal` (Linux, fs/eventfd.c) adds one, or leaves a full counter unchanged,
//! and never blocks, whatever the file's flags. write(2) may block, and has no per-call flag against it.
//!
//! The kernel calls it when an asynchronous request completes (io_submit(2), IOCB_FLAG_RESFD; fs/aio.c). The request here reads
//! zero bytes from the eventfd itself and completes within the call (a real read(2) of an eventfd needs eight bytes). Each thread
//! makes its own context at its first signal, so threads share no lock.
#![allow(unsafe_code)]

use std::cell::OnceCell;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Most unfetched completions of a thread; the kernel may allow more. Each thread takes this many of `fs.aio-max-nr` (65,536 by
/// default).
const REQUESTS: usize = 32;
/// Most submissions for one signal. Completions are fetched after each refusal; one fetch is enough.
const TRIES: usize = 4;

const READ: u16 = 0;
const SIGNAL: u32 = 1;

/// `struct iocb` (include/uapi/linux/aio_abi.h).
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    /// The byte order decides the order of these two; both are 0.
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    signalled: u32,
}

const _: () = assert!(size_of::<Request>() == 64);

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct End {
    data: u64,
    request: u64,
    result: i64,
    result2: i64,
}

const _: () = assert!(size_of::<End>() == 32);

/// An `aio_context_t`.
struct Context(libc::c_ulong);

thread_local! {
    static CONTEXT: OnceCell<Result<Context, Errno>> = const { OnceCell::new() };
}

/// See [`crate::ready`].
pub(crate) fn ready() -> Result<(), Errno> {
    CONTEXT
        .try_with(|context| context.get_or_init(Context::new).as_ref().map(drop).map_err(|errno| *errno))
        .unwrap_or(Ok(()))
}

/// Signals an eventfd. Fails if there is no context for it.
pub(crate) fn signal(eventfd: BorrowedFd<'_>) -> Result<Result<(), Errno>, NoContext> {
    let result = CONTEXT.try_with(|context| match context.get_or_init(Context::new) {
        Ok(context) => Ok(context.signal(eventfd)),
        Err(_) => Err(NoContext),
    });
    result.unwrap_or(Err(NoContext))
}

/// The kernel gave no context, or the thread is ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoContext;

impl Context {
    fn new() -> Result<Self, Errno> {
        let mut id: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context's number to `id`, which outlives the call and is zero, as it must be.
        checked(unsafe { libc::syscall(libc::SYS_io_setup, REQUESTS, &raw mut id) })?;
        Ok(Self(id))
    }

    fn signal(&self, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        // A descriptor is never negative.
        let fd = eventfd.as_raw_fd() as u32;
        let mut request = Request { opcode: READ, fd, flags: SIGNAL, signalled: fd, ..Request::default() };
        for _ in 0..TRIES {
            let mut list = [&raw mut request];
            // SAFETY: the list has one entry, which points to a request that outlives the call; the kernel reads it, and
            // writes its key. It names a buffer of no bytes, and the eventfd stays open: it is borrowed.
            match checked(unsafe { libc::syscall(libc::SYS_io_submit, self.0, 1usize, list.as_mut_ptr()) }) {
                Err(Errno::AGAIN) => self.fetch()?,
                submitted => return submitted,
            }
        }
        Err(Errno::NOBUFS)
    }

    /// Fetches completions, so that there is room for more. Never blocks.
    fn fetch(&self) -> Result<(), Errno> {
        let mut ends = [End::default(); 2 * REQUESTS];
        let mut at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes at most `ends.len()` ends and reads the time; both outlive the call.
        checked(unsafe {
            libc::syscall(libc::SYS_io_getevents, self.0, 0usize, ends.len(), ends.as_mut_ptr(), &raw mut at_once)
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context is this thread's alone, and nobody names it afterwards.
        let _destroyed = unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

fn checked(result: libc::c_long) -> Result<(), Errno> {
    if result >= 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
