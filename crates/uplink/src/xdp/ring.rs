//! A ring that is shared with the kernel: one side writes entries and moves the producer index, the other reads them and moves the
//! consumer index. Indices count entries and wrap at 2^32; the ring's size is a power of two. Follows Linux's
//! `Documentation/networking/af_xdp.rst` and `net/xdp/xsk_queue.h`.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::{XdpDesc, XdpRingFlags, XdpRingOffset};

/// The type of a ring's entries.
pub(super) trait Entry: Copy {}
/// An address in the shared memory: of the fill ring and the completion ring.
impl Entry for u64 {}
/// A frame: of the receive ring and the transmit ring.
impl Entry for XdpDesc {}

/// See the module's page.
#[derive(Debug)]
pub(super) struct Ring<T> {
    base: NonNull<u8>,
    len: usize,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    mask: u32,
    kind: PhantomData<T>,
}

// SAFETY: the mapping belongs to this value alone, in this process.
unsafe impl<T> Send for Ring<T> {}

impl<T: Entry> Ring<T> {
    /// Maps a socket's ring of `size` entries, a power of two, at this offset of the socket's.
    pub(super) fn map(socket: BorrowedFd<'_>, at: u64, offset: XdpRingOffset, size: u32) -> io::Result<Self> {
        assert!(size.is_power_of_two());
        let wrong = || io::Error::other("the kernel's layout of an AF_XDP ring is not one that is known");
        let flags = offset.flags.ok_or_else(wrong)?;
        let [producer, consumer, flags, entries] =
            [offset.producer, offset.consumer, flags, offset.desc].map(|at| at as usize);
        let len = entries + size as usize * size_of::<T>();
        let is_fit = |at: usize| at.is_multiple_of(4) && at + 4 <= entries;
        if ![producer, consumer, flags].into_iter().all(is_fit) || !entries.is_multiple_of(align_of::<T>()) {
            return Err(wrong());
        }
        // SAFETY: the kernel chooses an address where nothing lies.
        let base = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED | MapFlags::POPULATE, socket, at)?
        };
        let base = NonNull::new(base.cast()).ok_or_else(wrong)?;
        Ok(Self { base, len, producer, consumer, flags, entries, mask: size - 1, kind: PhantomData })
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `at` is one of the three words that `map` found in the mapping and aligned; the mapping lives as long as this.
        // The kernel accesses them atomically, too.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    fn entry(&self, index: u32) -> *mut T {
        let place = (index & self.mask) as usize * size_of::<T>();
        // SAFETY: the index is below the ring's size, so the entry lies in the mapping.
        unsafe { self.base.as_ptr().add(self.entries + place).cast() }
    }

    /// Entries that were produced and not consumed. The kernel's numbers are believed no further than the ring's size.
    pub(super) fn waiting(&self) -> u32 {
        let (producer, consumer) = (self.word(self.producer), self.word(self.consumer));
        let waiting = producer.load(Ordering::Acquire).wrapping_sub(consumer.load(Ordering::Acquire));
        waiting.min(self.mask + 1)
    }

    /// The producer index and the consumer index.
    pub(super) fn indices(&self) -> (u32, u32) {
        (self.word(self.producer).load(Ordering::Acquire), self.word(self.consumer).load(Ordering::Acquire))
    }

    /// The entry with this index, of a ring that the kernel fills. The kernel must not write to its place now.
    pub(super) fn past(&self, index: u32) -> T {
        // SAFETY: the place is in the mapping and aligned; any bytes are a value.
        unsafe { self.entry(index).read_volatile() }
    }

    /// Whether the kernel wants a call to go on with this ring.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.word(self.flags).load(Ordering::Relaxed) & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits() != 0
    }

    /// Takes the next entry, of a ring that the kernel fills.
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.waiting() == 0 {
            return None;
        }
        let consumer = self.word(self.consumer).load(Ordering::Relaxed);
        // SAFETY: the place is in the mapping and aligned, the kernel has written it and will not before it is given back; any bytes
        // are a value.
        let entry = unsafe { self.entry(consumer).read_volatile() };
        self.word(self.consumer).store(consumer.wrapping_add(1), Ordering::Release);
        Some(entry)
    }

    /// Adds an entry, to a ring that the kernel empties. False if it is full.
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.waiting() > self.mask {
            return false;
        }
        let producer = self.word(self.producer).load(Ordering::Relaxed);
        // SAFETY: the place is in the mapping and aligned, and the kernel does not read it before the index has moved.
        unsafe { self.entry(producer).write_volatile(entry) };
        self.word(self.producer).store(producer.wrapping_add(1), Ordering::Release);
        true
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: it is our mapping, and nothing borrows it any more.
        let _unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
