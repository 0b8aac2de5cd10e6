//! Prefetch hints for guest memory, and for tables, that will be accessed soon.
//!
//! Another core wrote the bytes last, or they are in memory alone, so each cache line takes a hundred nanoseconds to arrive; prefetched
//! lines arrive in parallel. A hint reads nothing and never faults.

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// Kind of the coming access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// Read: a shared copy of the line is enough.
    Read,
    /// Written: the other core gives up the line.
    Write,
}

/// Prefetches the first cache line of a value that will soon be accessed in this way.
#[inline(always)]
pub fn prefetch<T>(value: &T, touch: Touch) {
    line(std::ptr::from_ref(value).cast(), touch);
}

/// Prefetches the lines of `len` bytes from `first`.
#[inline]
pub(crate) fn lines(first: *const u8, len: usize, touch: Touch) {
    if len == 0 {
        return;
    }
    let mut at = 0;
    while at < len {
        line(first.wrapping_add(at), touch);
        at += LINE;
    }
    line(first.wrapping_add(len - 1), touch);
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn line(place: *const u8, touch: Touch) {
    // SAFETY: a prefetch changes no memory and no register and raises no exception, whatever the address. Processors
    // without `prefetchw` that run 64-bit code take it for a no-op (AMD64 manual, volume 3; Intel SDM, volume 2B).
    unsafe {
        match touch {
            Touch::Read => {
                std::arch::asm!("prefetcht0 [{}]", in(reg) place, options(nostack, preserves_flags, readonly));
            }
            Touch::Write => {
                std::arch::asm!("prefetchw [{}]", in(reg) place, options(nostack, preserves_flags, readonly));
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn line(_place: *const u8, _touch: Touch) {}
