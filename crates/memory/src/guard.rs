//! SIGBUS: what a peer raises in us when it truncates a memory file that we have mapped.
//!
//! The handler finds the mapping that the faulting address lies in, puts zero pages over the whole of it and marks
//! it damaged; the port that owns it is closed on its next turn. A fault anywhere else is our own bug and ends the
//! process as it would have without us. Everything the handler touches is an atomic in a static table.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, Once};

/// How many mappings can be alive at once: a switch full of ports whose VMs have a dozen regions each, and some that have
/// many; fewer than the system's own limit (proc(5), vm.max_map_count).
pub(crate) const SLOTS: usize = 1 << 15;

struct Watched {
    start: AtomicUsize,
    len: AtomicUsize,
    damaged: AtomicBool,
}

static TABLE: [Watched; SLOTS] =
    [const { Watched { start: AtomicUsize::new(0), len: AtomicUsize::new(0), damaged: AtomicBool::new(false) } };
        SLOTS];
/// How often zero pages were put over a mapping.
static DAMAGES: AtomicUsize = AtomicUsize::new(0);
static FREE: Mutex<Free> = Mutex::new(Free { used: 0, returned: Vec::new() });
static INSTALL: Once = Once::new();

struct Free {
    used: usize,
    returned: Vec<usize>,
}

/// A place in the table; given back by [`forget`].
pub(crate) type Slot = usize;

/// Watches a mapping; `None` if the table is full.
pub(crate) fn watch(start: usize, len: usize) -> Option<(Slot, &'static AtomicBool)> {
    INSTALL.call_once(install);
    let slot = {
        let mut free = FREE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match free.returned.pop() {
            Some(slot) => slot,
            None if free.used < SLOTS => {
                free.used += 1;
                free.used - 1
            }
            None => return None,
        }
    };
    let watched = &TABLE[slot];
    watched.damaged.store(false, Ordering::Relaxed);
    watched.len.store(len, Ordering::Relaxed);
    watched.start.store(start, Ordering::Release);
    Some((slot, &watched.damaged))
}

/// How many mappings of this process were damaged so far: whoever has touched guest memory knows by two looks at this
/// whether to ask [`Map::damaged`](crate::Map::damaged).
pub fn damages() -> usize {
    DAMAGES.load(Ordering::Relaxed)
}

/// Stops watching. The caller unmaps afterwards.
pub(crate) fn forget(slot: Slot) {
    TABLE[slot].start.store(0, Ordering::Release);
    FREE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).returned.push(slot);
}

fn install() {
    // SAFETY: a zeroed sigaction is a valid value to fill in; the handler below is async-signal-safe (atomics and
    // mmap, sigaction, raise only), and its signature is the one that SA_SIGINFO asks for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid siginfo to a SA_SIGINFO handler; for SIGBUS si_addr is set.
    let address = unsafe { (*info).si_addr() } as usize;
    for watched in &TABLE {
        let start = watched.start.load(Ordering::Acquire);
        let len = watched.len.load(Ordering::Relaxed);
        if start != 0 && address.wrapping_sub(start) < len {
            watched.damaged.store(true, Ordering::Relaxed);
            DAMAGES.fetch_add(1, Ordering::Relaxed);
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
