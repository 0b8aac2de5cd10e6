//! The driver's side of a split virtqueue (virtio 1.2, section 2.7), with event indices for notifications (2.7.10).

use nicety_adapter::RingPlace;
use nicety_memory::{Map, Rights, Window, full_barrier};

use crate::{Arena, DriverError};

/// Section 2.7.5: flags of a descriptor.
pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;
pub(super) const INDIRECT: u16 = 4;
pub(super) const DESCRIPTOR: usize = 16;
/// Sections 2.7.6 and 2.7.8: the only flag of either side, which suppresses notifications or interrupts.
const SUPPRESS: u16 = 1;
const INDEX: usize = 2;
const ENTRIES: usize = 4;

/// A descriptor's 16 bytes.
pub(super) fn descriptor(address: u64, len: u32, flags: u16, next: u16) -> [u8; DESCRIPTOR] {
    let mut bytes = [0; DESCRIPTOR];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ring {
    base: u64,
    size: u16,
    available: usize,
    used: usize,
    bytes: u32,
    events: bool,
    /// Chains added to the available ring, and chains that the device can see.
    added: u16,
    shown: u16,
    /// Value of `shown` at the last check for a notification.
    notified: u16,
    /// Used chains that the driver has taken back.
    seen: u16,
}

impl Ring {
    /// An empty ring in new memory: descriptors, then the available ring, then the used ring.
    pub(super) fn new(memory: &Map, arena: &mut Arena, size: u16, events: bool) -> Result<Ring, DriverError> {
        let available = DESCRIPTOR * usize::from(size);
        let used = (available + ENTRIES + 2 * usize::from(size) + 2).next_multiple_of(4);
        let bytes = used + ENTRIES + 8 * usize::from(size) + 2;
        let base = arena.take(bytes as u64, 4096)?;
        memory.write(base, &vec![0; bytes])?;
        Ok(Ring { base, size, available, used, bytes: bytes as u32, events, ..Ring::default() })
    }

    pub(super) fn place(&self) -> RingPlace {
        RingPlace {
            size: self.size,
            descriptors: self.base,
            driver: self.base + self.available as u64,
            device: self.base + self.used as u64,
        }
    }

    pub(super) fn size(&self) -> u16 {
        self.size
    }

    pub(super) fn window<'a>(&self, memory: &'a Map) -> Result<Window<'a>, DriverError> {
        Ok(memory.window(self.base, self.bytes, Rights::BOTH)?)
    }

    /// Chains that the device has not returned.
    pub(super) fn outstanding(&self) -> u16 {
        self.added.wrapping_sub(self.seen)
    }

    pub(super) fn set(&self, window: &Window<'_>, index: u16, bytes: &[u8; DESCRIPTOR]) {
        window.write(usize::from(index) * DESCRIPTOR, bytes);
    }

    /// Puts a chain into the available ring. The device does not see it yet.
    pub(super) fn add(&mut self, window: &Window<'_>, head: u16) {
        let entry = usize::from(self.added % self.size);
        window.write(self.available + ENTRIES + 2 * entry, &head.to_le_bytes());
        self.added = self.added.wrapping_add(1);
    }

    /// Makes all added chains visible to the device.
    pub(super) fn show(&mut self, window: &Window<'_>) {
        if self.shown != self.added {
            self.shown = self.added;
            window.store_u16(self.available + INDEX, self.added);
        }
    }

    /// Whether the device wants a notification for the chains shown since the last check.
    pub(super) fn must_notify(&mut self, window: &Window<'_>) -> bool {
        let (old, new) = (self.notified, self.shown);
        if old == new {
            return false;
        }
        self.notified = new;
        full_barrier();
        if self.events {
            let event = window.load_u16(self.used + ENTRIES + 8 * usize::from(self.size));
            // Section 2.7.10.1: the event index is among the added chains.
            return new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old);
        }
        window.load_u16(self.used) & SUPPRESS == 0
    }

    /// The next returned chain: its head, and the bytes that the device wrote.
    pub(super) fn take(&mut self, window: &Window<'_>) -> Result<Option<(u16, u32)>, DriverError> {
        let ready = window.load_u16(self.used + INDEX).wrapping_sub(self.seen);
        if ready == 0 {
            return Ok(None);
        }
        if ready > self.outstanding() {
            return Err(DriverError::Device("gives back more chains than it was given"));
        }
        let at = self.used + ENTRIES + 8 * usize::from(self.seen % self.size);
        let (id, len) = (window.load_u32(at), window.load_u32(at + 4));
        self.seen = self.seen.wrapping_add(1);
        match u16::try_from(id) {
            Ok(head) if head < self.size => Ok(Some((head, len))),
            _ => Err(DriverError::Device("gives back a chain that there is not")),
        }
    }

    /// Disables interrupts for now. With event indices it is enough not to advance the event.
    pub(super) fn quiet(&self, window: &Window<'_>) {
        if !self.events {
            window.store_u16(self.available, SUPPRESS);
        }
    }

    /// Disables interrupts until [`Ring::arm`]: the event index is moved as far away as possible.
    pub(super) fn mute(&self, window: &Window<'_>) {
        self.quiet(window);
        self.set_event(window, self.seen.wrapping_sub(1));
    }

    fn set_event(&self, window: &Window<'_>, event: u16) {
        window.store_u16(self.available + ENTRIES + 2 * usize::from(self.size), event);
    }

    /// Requests an interrupt when `more` chains beyond the next one have returned. True if they have already.
    pub(super) fn arm(&self, window: &Window<'_>, more: u16) -> bool {
        let event = self.seen.wrapping_add(more);
        match self.events {
            true => self.set_event(window, event),
            false => window.store_u16(self.available, 0),
        }
        full_barrier();
        window.load_u16(self.used + INDEX).wrapping_sub(self.seen) > more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(events: bool) -> (Map, Ring) {
        let memory = Map::private(1 << 16).unwrap();
        let ring = Ring::new(&memory, &mut Arena::new(0, 1 << 16), 8, events).unwrap();
        (memory, ring)
    }

    #[test]
    fn the_parts_lie_where_section_2_7_aligns_them() {
        let (_, ring) = ring(true);
        let place = ring.place();
        assert_eq!((place.descriptors, place.driver), (0, 128));
        // 6 + 2 * 8 bytes, aligned to 4; the whole used ring with its event takes 6 + 8 * 8.
        assert_eq!((place.device, ring.bytes), (152, 152 + 70));
    }

    #[test]
    fn the_device_is_told_when_its_event_lies_among_what_was_added() {
        let (memory, mut ring) = ring(true);
        let window = ring.window(&memory).unwrap();
        // Event 0: the device wants a notification for the first buffer.
        ring.add(&window, 3);
        assert!(!ring.must_notify(&window), "nothing was shown");
        ring.show(&window);
        assert!(ring.must_notify(&window));
        assert_eq!((window.load_u16(128 + 2), window.load_u16(128 + 4)), (1, 3));
        ring.add(&window, 4);
        ring.show(&window);
        assert!(!ring.must_notify(&window), "the event has passed");
        // Event 3: no notification for the third buffer, but for the fourth.
        window.store_u16(152 + 4 + 64, 3);
        for expected in [false, true, false] {
            ring.add(&window, 0);
            ring.show(&window);
            assert_eq!(ring.must_notify(&window), expected);
        }
    }

    #[test]
    fn arming_tells_of_what_has_come_back_meanwhile() {
        let (memory, mut ring) = ring(true);
        let window = ring.window(&memory).unwrap();
        (0..3).for_each(|head| ring.add(&window, head));
        ring.show(&window);
        assert!(!ring.arm(&window, 0));
        assert_eq!(window.load_u16(128 + 4 + 16), 0, "the next one");
        window.store_u16(152 + 2, 1);
        assert!(ring.arm(&window, 0));
        assert!(!ring.arm(&window, 1));
        assert_eq!(ring.take(&window).unwrap(), Some((0, 0)));
        assert_eq!(ring.take(&window).unwrap(), None);
        window.store_u16(152 + 2, 4);
        assert!(ring.take(&window).is_err(), "it was given three");
        window.store_u16(152 + 2, 3);
        ring.take(&window).unwrap();
        ring.take(&window).unwrap();
        window.store_u16(152 + 2, 4);
        assert!(ring.take(&window).is_err(), "all three are back");
    }

    #[test]
    fn without_events_flags_say_the_same() {
        let (memory, mut ring) = ring(false);
        let window = ring.window(&memory).unwrap();
        ring.quiet(&window);
        assert_eq!(window.load_u16(128), 1);
        ring.arm(&window, 0);
        assert_eq!(window.load_u16(128), 0);
        ring.add(&window, 0);
        ring.show(&window);
        window.store_u16(152, 1);
        assert!(!ring.must_notify(&window));
        window.store_u16(152, 0);
        ring.add(&window, 1);
        ring.show(&window);
        assert!(ring.must_notify(&window));
    }
}
