//! Descriptors that the keeper holds for a daemon.
//!
//! A daemon sends them in groups, each with a name and a number. A new group of a name replaces the older ones only when the daemon says
//! so: until then its own record may still refer to an older one.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard};

/// Most names: a daemon has one for each port.
pub(crate) const NAMES_MOST: usize = 4096;
/// Most groups of a name at a time.
const GROUPS_MOST: usize = 4;
/// Longest name in bytes.
const NAME_MOST: usize = 255;

/// Descriptors that were held for a daemon that has ended.
#[derive(Debug)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its number: a higher one is newer.
    pub number: u64,
    /// The descriptors, in the order in which they were sent.
    pub fds: Vec<OwnedFd>,
}

/// The content of a message about a group.
pub(crate) fn content(number: u64, name: &str) -> Vec<u8> {
    [&number.to_le_bytes(), name.as_bytes()].concat()
}

/// The number and the name in a message.
pub(crate) fn named(content: &[u8]) -> Option<(u64, String)> {
    let (number, name) = content.split_first_chunk()?;
    let name = std::str::from_utf8(name).ok().filter(|name| name.len() <= NAME_MOST)?;
    Some((u64::from_le_bytes(*number), name.to_owned()))
}

/// Most threads that close descriptors. All of them may wait: a VMM can make its socket's last close wait for as long as it likes
/// (SO_LINGER of a socket in flight in it, socket(7)).
const CLOSING_MOST: usize = 64;
/// A thread's stack: it calls close(2).
const STACK: usize = 64 << 10;

/// Descriptors to close, and the threads that do it.
static CLOSING: Mutex<(Vec<OwnedFd>, usize)> = Mutex::new((Vec::new(), 0));

fn closing() -> MutexGuard<'static, (Vec<OwnedFd>, usize)> {
    CLOSING.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Closes a VMM's descriptors on another thread.
pub(crate) fn close(fds: Vec<OwnedFd>) {
    let mut closing = closing();
    let (waiting, threads) = &mut *closing;
    waiting.extend(fds);
    if waiting.is_empty() || *threads == CLOSING_MOST {
        return;
    }
    // The next call tries again.
    let started = std::thread::Builder::new().name("closing".into()).stack_size(STACK).spawn(close_waiting);
    *threads += usize::from(started.is_ok());
}

fn close_waiting() {
    loop {
        let mut closing = closing();
        let Some(fd) = closing.0.pop() else {
            closing.1 -= 1;
            return;
        };
        drop(closing);
        drop(fd);
    }
}

/// All groups of a daemon.
#[derive(Debug, Default)]
pub(crate) struct Held(BTreeMap<String, Vec<(u64, Vec<OwnedFd>)>>);

impl Held {
    /// Holds a group. The daemon may be compromised: beyond the limits it is closed.
    pub fn hold(&mut self, content: &[u8], fds: Vec<OwnedFd>) {
        let Some((number, name)) = named(content) else { return close(fds) };
        if self.0.len() >= NAMES_MOST && !self.0.contains_key(&name) {
            return close(fds);
        }
        let groups = self.0.entry(name).or_default();
        // A daemon's last message may be read after its heir's first one.
        if groups.iter().any(|(other, _)| *other > number) {
            return close(fds);
        }
        groups.push((number, fds));
        let surplus = groups.len().saturating_sub(GROUPS_MOST);
        close(groups.drain(..surplus).flat_map(|(_, fds)| fds).collect());
    }

    /// Closes the groups of a name below a number.
    pub fn forget(&mut self, content: &[u8]) {
        let Some((number, name)) = named(content) else { return };
        if let Some(groups) = self.0.get_mut(&name) {
            close(groups.extract_if(.., |(other, _)| *other < number).flat_map(|(_, fds)| fds).collect());
            if groups.is_empty() {
                self.0.remove(&name);
            }
        }
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each group: its name, its number, its descriptors.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64, &[OwnedFd])> {
        self.0
            .iter()
            .flat_map(|(name, groups)| groups.iter().map(|(number, fds)| (name.as_str(), *number, fds.as_slice())))
    }
}

#[cfg(test)]
#[path = "../../peer/tests/lingering/mod.rs"]
mod lingering;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    /// Less than a descriptor lingers.
    const SOON: Duration = Duration::from_secs(20);

    fn is_open(peer: &mut UnixStream) -> bool {
        peer.set_nonblocking(true).unwrap();
        !matches!(peer.read(&mut [0]), Ok(0))
    }

    fn is_closed_soon(peer: &mut UnixStream) -> bool {
        peer.set_nonblocking(false).unwrap();
        peer.set_read_timeout(Some(SOON)).unwrap();
        matches!(peer.read(&mut [0]), Ok(0))
    }

    #[test]
    fn a_vmm_whose_descriptor_is_slow_to_close_holds_up_no_other() {
        let (slow, _peer) = lingering::lingering();
        let (mut other, ours) = UnixStream::pair().unwrap();
        let mut held = Held::default();
        held.hold(&content(1, "vm1"), vec![slow]);
        held.hold(&content(1, "vm2"), vec![ours.into()]);
        held.forget(&content(2, "vm1"));
        held.forget(&content(2, "vm2"));
        assert!(is_closed_soon(&mut other));
    }

    #[test]
    fn an_older_group_is_closed_when_the_daemon_says_so_and_not_before() {
        let mut held = Held::default();
        let (mut first, ours) = UnixStream::pair().unwrap();
        held.hold(&content(5, "vm1"), vec![ours.into()]);
        let (mut second, ours) = UnixStream::pair().unwrap();
        held.hold(&content(6, "vm1"), vec![ours.into()]);
        held.forget(&content(9, "vm2"));
        assert!(is_open(&mut first) && is_open(&mut second));
        held.forget(&content(6, "vm1"));
        assert!(is_closed_soon(&mut first) && is_open(&mut second));
        let all: Vec<_> = held.iter().map(|(name, number, fds)| (name.to_owned(), number, fds.len())).collect();
        assert_eq!(all, [("vm1".to_owned(), 6, 1)]);
        held.forget(&content(u64::MAX, "vm1"));
        assert!(is_closed_soon(&mut second) && held.is_empty());
    }

    #[test]
    fn a_group_that_comes_after_a_newer_one_is_closed() {
        let mut held = Held::default();
        held.hold(&content(6, "vm1"), Vec::new());
        let (mut peer, ours) = UnixStream::pair().unwrap();
        held.hold(&content(5, "vm1"), vec![ours.into()]);
        assert!(is_closed_soon(&mut peer));
    }

    #[test]
    fn a_daemon_cannot_make_it_hold_without_end() {
        let mut held = Held::default();
        for number in 0..20 {
            held.hold(&content(number, "vm1"), Vec::new());
        }
        assert_eq!(held.iter().map(|(_, number, _)| number).collect::<Vec<_>>(), [16, 17, 18, 19]);
        for number in 0..2 * NAMES_MOST {
            held.hold(&content(0, &number.to_string()), Vec::new());
        }
        held.hold(&[1, 2], Vec::new());
        held.hold(&content(0, &"x".repeat(NAME_MOST + 1)), Vec::new());
        assert_eq!(held.0.len(), NAMES_MOST);
    }
}
