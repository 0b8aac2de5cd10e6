//! SIGBUS: raised in us when a peer truncates a memory file that we have mapped.
//!
//! The handler finds the mapping of the faulting address and marks it damaged; the port that owns it is closed on its next turn. The
//! thread continues behind the failed access (`touch.rs`) without waiting. On processors without fixups, and for other accesses (none
//! to guest memory), it maps zero pages over the whole mapping instead. A fault anywhere else is our own bug and ends the process as
//! usual. The handler touches only atomics in a static table, and a constant table.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once};

use crate::touch;

/// Most mappings at once: enough for a switch full of ports whose VMs have a dozen regions each, and for some VMs with many. It is
/// below the system's own limit (proc(5), vm.max_map_count).
pub(crate) const SLOTS: usize = 1 << 15;

/// Most bytes mapped for all VMs: half of a process's address space (x86-64: 128 TiB), so that stacks and files always have room.
pub(crate) const BYTES: u64 = 64 << 40;

/// An entry of the table. A handler that acts on a mapping pins the entry; the unmapping thread waits until the handler is done.
struct Watched {
    /// 0: none is watched.
    start: AtomicUsize,
    /// Changes only while `start` is 0 and nobody pins the entry.
    len: AtomicUsize,
    pins: AtomicUsize,
    damaged: AtomicBool,
}

impl Watched {
    const fn new() -> Self {
        Self {
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            pins: AtomicUsize::new(0),
            damaged: AtomicBool::new(false),
        }
    }

    fn begin(&self, start: usize, len: usize) {
        self.damaged.store(false, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.start.store(start, Ordering::SeqCst);
    }

    fn end(&self) {
        self.start.store(0, Ordering::SeqCst);
        while self.pins.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
    }

    /// Start and length of the mapping if the address lies in it. `between` is called between the two loads.
    fn find(&self, address: usize, between: impl FnOnce()) -> Option<(usize, usize)> {
        let start = self.start.load(Ordering::SeqCst);
        between();
        let len = self.len.load(Ordering::Relaxed);
        (start != 0 && address.wrapping_sub(start) < len).then_some((start, len))
    }

    /// Calls `act` with start and length of the mapping if the address lies in it. The mapping stays until `act` ends.
    fn with(&self, address: usize, between: impl FnOnce(), act: impl FnOnce(usize, usize) -> bool) -> bool {
        // The first search may find the start of one mapping and the length of the next.
        if self.find(address, between).is_none() {
            return false;
        }
        self.pins.fetch_add(1, Ordering::SeqCst);
        let done = self.find(address, || ()).is_some_and(|(start, len)| act(start, len));
        self.pins.fetch_sub(1, Ordering::SeqCst);
        done
    }
}

static TABLE: [Watched; SLOTS] = [const { Watched::new() }; SLOTS];
/// Number of entries that were ever in use.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Number of failed accesses to mappings.
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
    watched.begin(start, len);
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

/// Number of damaged mappings found so far. If it changes while you access guest memory, ask
/// [`Map::damaged`](crate::Map::damaged).
pub fn damages() -> usize {
    DAMAGES.load(Ordering::Relaxed)
}

/// Stops watching. The caller unmaps afterwards, and no handler acts on the mapping any more.
pub(crate) fn forget(slot: Slot) {
    TABLE[slot].end();
    free().give_back(slot, TABLE[slot].len.load(Ordering::Relaxed) as u64);
}

fn install() {
    // SAFETY: a zeroed sigaction is a valid value to fill in; the handler below is async-signal-safe (atomics, its context, and
    // mmap, sigaction, raise only), and its signature is the one that SA_SIGINFO requires.
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
        let is_past = watched.with(
            address,
            || (),
            |start, len| {
                watched.damaged.store(true, Ordering::Relaxed);
                DAMAGES.fetch_add(1, Ordering::Relaxed);
                touch::skip(context) || map_zeros(start, len)
            },
        );
        if is_past {
            return;
        }
    }
    // SAFETY: restoring the default action and raising again is the documented way to die of the signal.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// Maps zero pages over a mapping of ours. The caller keeps it mapped.
fn map_zeros(start: usize, len: usize) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the range is a live mapping of ours (its entry is pinned), and replacing its pages by zeros invalidates no Rust
    // reference: there is none to guest memory.
    let page = unsafe { libc::mmap(start as *mut libc::c_void, len, protection, flags, -1, 0) };
    page != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn an_address_in_neither_of_two_mappings_is_not_in_the_start_of_one_with_the_length_of_the_other() {
        let watched = Watched::new();
        watched.begin(0x1_0000, 0x1000);
        let replace = || {
            watched.end();
            watched.begin(0x4_0000, 0x10_0000);
        };
        assert!(!watched.with(0x2_0000, replace, |_, _| true));
        assert!(watched.with(0x4_0000, || (), |start, len| (start, len) == (0x4_0000, 0x10_0000)));
    }

    #[test]
    fn who_unmaps_waits_until_the_handler_is_done_with_the_mapping() {
        let (watched, done) = (Watched::new(), AtomicBool::new(false));
        watched.begin(0x1000, 0x1000);
        let (begin, begun) = mpsc::channel();
        thread::scope(|scope| {
            let is_found = watched.with(
                0x1800,
                || (),
                |start, len| {
                    scope.spawn(|| {
                        begin.send(()).unwrap();
                        watched.end();
                        assert!(done.load(Ordering::SeqCst));
                    });
                    begun.recv().unwrap();
                    (0..1000).for_each(|_| thread::yield_now());
                    done.store(true, Ordering::SeqCst);
                    (start, len) == (0x1000, 0x1000)
                },
            );
            assert!(is_found);
        });
        assert!(!watched.with(0x1800, || (), |_, _| true), "nothing is watched");
    }

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
