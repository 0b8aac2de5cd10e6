//! SIGBUS: raised in us when a peer truncates a memory file that we have mapped.
//!
//! The handler finds the mapping of the faulting address and marks it damaged; the port that owns it is closed on its next turn. The
//! thread continues behind the failed access (`touch.rs`) without waiting. On processors without fixups, and for other accesses (none
//! to guest memory), it maps zero pages over the whole mapping instead. A fault anywhere else is our own bug and ends the process as
//! usual. The handler touches only atomics in a static table, and a constant table.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once};

use crate::touch;

/// Most mappings at once: enough for a switch full of ports whose VMs have a dozen regions each, and for some with many. It is
/// below the system's own limit (proc(5), vm.max_map_count).
pub(crate) const SLOTS: usize = 1 << 15;

/// Most bytes mapped for all VMs: half of a process's address space (x86-64: 128 TiB), so that stacks and files always have room.
pub(crate) const BYTES: u64 = 64 << 40;

struct Watched {
    start: AtomicUsize,
    len: AtomicUsize,
    damaged: AtomicBool,
}

static TABLE: [Watched; SLOTS] =
    [const { Watched { start: AtomicUsize::new(0), len: AtomicUsize::new(0), damaged: AtomicBool::new(false) } };
        SLOTS];
/// How many entries were ever in use.
static USED: AtomicUsize = AtomicUsize::new(0);
/// How often an access to a mapping has failed.
static DAMAGES: AtomicUsize = AtomicUsize::new(0);
static FREE: Mutex<Free> = Mutex::new(Free { used: 0, returned: Vec::new(), bytes: 0 });
static INSTALL: Once = Once::new();

struct Free {
    used: usize,
    returned: Vec<usize>,
    /// Mapped bytes.
    bytes: u64,
}

/// The limit of mappings, or of mapped bytes, is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    Slots,
    Bytes,
}

/// An index into the table; released by [`forget`].
pub(crate) type Slot = usize;

/// Watches a mapping, if the limits allow one more of this length.
pub(crate) fn watch(start: usize, len: usize) -> Result<(Slot, &'static AtomicBool), Full> {
    INSTALL.call_once(install);
    let slot = free().take(len as u64)?;
    USED.fetch_max(slot + 1, Ordering::Release);
    let watched = &TABLE[slot];
    watched.damaged.store(false, Ordering::Relaxed);
    watched.len.store(len, Ordering::Relaxed);
    watched.start.store(start, Ordering::Release);
    Ok((slot, &watched.damaged))
}

fn free() -> MutexGuard<'static, Free> {
    FREE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Free {
    fn take(&mut self, len: u64) -> Result<Slot, Full> {
        let bytes = self.bytes.checked_add(len).filter(|&bytes| bytes <= BYTES).ok_or(Full::Bytes)?;
        let slot = match self.returned.pop() {
            Some(slot) => slot,
            None if self.used < SLOTS => {
                self.used += 1;
                self.used - 1
            }
            None => return Err(Full::Slots),
        };
        self.bytes = bytes;
        Ok(slot)
    }

    fn give_back(&mut self, slot: Slot, len: u64) {
        self.bytes -= len;
        self.returned.push(slot);
    }
}

/// How often a mapping was found damaged so far. If it changes while you access guest memory, ask
/// [`Map::damaged`](crate::Map::damaged).
pub fn damages() -> usize {
    DAMAGES.load(Ordering::Relaxed)
}

/// Stops watching. The caller unmaps afterwards.
pub(crate) fn forget(slot: Slot) {
    TABLE[slot].start.store(0, Ordering::Release);
    free().give_back(slot, TABLE[slot].len.load(Ordering::Relaxed) as u64);
}

fn install() {
    // SAFETY: a zeroed sigaction is a valid value to fill in; the handler below is async-signal-safe (atomics, its context, and
    // mmap, sigaction, raise only), and its signature is the one that SA_SIGINFO asks for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid siginfo to a SA_SIGINFO handler; for SIGBUS si_addr is set.
    let address = unsafe { (*info).si_addr() } as usize;
    for watched in TABLE.iter().take(USED.load(Ordering::Acquire)) {
        let start = watched.start.load(Ordering::Acquire);
        let len = watched.len.load(Ordering::Relaxed);
        if start != 0 && address.wrapping_sub(start) < len {
            watched.damaged.store(true, Ordering::Relaxed);
            DAMAGES.fetch_add(1, Ordering::Relaxed);
            if touch::skip(context) {
                return;
            }
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
            // SAFETY: the range is a live mapping of ours (it is in the table until before it is unmapped), and
            // replacing its pages by zeros invalidates no Rust reference: nobody makes one to guest memory.
            let page = unsafe { libc::mmap(start as *mut libc::c_void, len, protection, flags, -1, 0) };
            if page != libc::MAP_FAILED {
                return;
            }
        }
    }
    // SAFETY: restoring the default action and raising again is the documented way to die of the signal.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_so_many_mappings_and_bytes_and_no_more_until_some_are_given_back() {
        let mut free = Free { used: 0, returned: Vec::new(), bytes: 0 };
        let all = free.take(BYTES).unwrap();
        assert_eq!(free.take(1), Err(Full::Bytes));
        assert_eq!(free.take(u64::MAX), Err(Full::Bytes));
        free.give_back(all, BYTES);
        let slots: Vec<Slot> = (0..SLOTS).map(|_| free.take(1).unwrap()).collect();
        assert_eq!(free.take(1), Err(Full::Slots));
        slots.into_iter().for_each(|slot| free.give_back(slot, 1));
        assert_eq!((free.take(BYTES), free.used), (Ok(SLOTS - 1), SLOTS));
    }
}
