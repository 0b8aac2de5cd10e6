//! A page of doorbells that a guest has mapped. Writes to it cause no exit and no event, so the page is polled.

use std::sync::Arc;

use nicety_adapter::{Event, Mappable, Time};
use nicety_memory::{Map, Rights};

use crate::port::Port;

/// See the module's page.
#[derive(Debug)]
pub struct Doorbells {
    place: Mappable,
    map: Arc<Map>,
    /// Offset of each register in the page, and its value at the last scan.
    seen: Vec<(u32, u32)>,
    /// The register values now, if the page shows them.
    held: Vec<u32>,
    /// Another process has served this page, and the guest has gone on writing to it.
    goes_on: bool,
}

impl Doorbells {
    /// The BAR part with mappable doorbells of a port's adapter, if there is one.
    pub fn place(port: &Port, now: Time) -> Option<Mappable> {
        port.with_pci(now, |pci, _| pci.mappable()).flatten()
    }

    /// Gives the port a page for its doorbells: zeros, from address 0, as long as `place`.
    pub fn new(port: &Port, place: Mappable, map: Arc<Map>, now: Time) -> Self {
        let registers = port.with_pci(now, |pci, _| pci.doorbells()).unwrap_or_default();
        port.set_page(Some(Arc::clone(&map)));
        let held = vec![0; registers.len()];
        let seen = registers.into_iter().map(|offset| (offset, 0)).collect();
        let mut this = Self { place, map, seen, held, goes_on: false };
        // Write once, so that the page is allocated: it is read often.
        this.clear(port, now);
        this
    }

    /// The doorbells of a page that another process has served: `seen` is [its list](Doorbells::seen). Words that the guest has written
    /// since then take effect at the next [restore](Doorbells::restore_with). `None` if the adapter has other doorbells.
    pub fn again(port: &Port, place: Mappable, map: Arc<Map>, seen: Vec<(u32, u32)>, now: Time) -> Option<Self> {
        let registers = port.with_pci(now, |pci, _| pci.doorbells()).unwrap_or_default();
        if !registers.iter().eq(seen.iter().map(|(offset, _)| offset)) {
            return None;
        }
        port.set_page(Some(Arc::clone(&map)));
        Some(Self { place, map, held: vec![0; registers.len()], seen, goes_on: true })
    }

    /// The offset of each register in the page, and its value at the last scan.
    pub fn seen(&self) -> &[(u32, u32)] {
        &self.seen
    }

    /// The initial values of a new page are not doorbell writes.
    fn show(&mut self, port: &Port, now: Time) {
        port.with(now, |adapter, cx| adapter.notice(Event::Page, cx));
        if let Ok(window) = self.map.window(0, self.place.len as u32, Rights::BOTH) {
            self.seen.iter_mut().for_each(|(offset, seen)| *seen = window.load_u32(*offset as usize));
        }
    }

    /// Restores the device by `restore`. The guest may have written words since the last scan, while the saved port was stopped: these take
    /// effect afterwards. The rest of the page then shows the restored registers. [A page that goes on](Doorbells::again) is only read,
    /// because the guest writes to it meanwhile, and would not repeat a write.
    pub fn restore_with<E>(
        &mut self,
        port: &Port,
        now: Time,
        restore: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        if std::mem::take(&mut self.goes_on) {
            // Without a page the adapter shows nothing there.
            port.set_page(None);
            let restored = restore();
            port.set_page(Some(Arc::clone(&self.map)));
            restored?;
            self.scan(port, now);
            return Ok(());
        }
        let written: Vec<(u32, u32)> = match self.map.window(0, self.place.len as u32, Rights::BOTH) {
            Ok(window) => {
                let words = self.seen.iter().map(|(offset, seen)| (*offset, *seen, window.load_u32(*offset as usize)));
                words.filter(|(_, seen, word)| seen != word).map(|(offset, _, word)| (offset, word)).collect()
            }
            Err(_) => Vec::new(),
        };
        restore()?;
        self.show(port, now);
        self.refresh(port, now);
        if let Ok(window) = self.map.window(0, self.place.len as u32, Rights::BOTH) {
            written.iter().for_each(|(offset, word)| window.store_u32(*offset as usize, *word));
        }
        self.scan(port, now);
        Ok(())
    }

    /// Writes the device's changes to the page. Call it after a message that may have changed the device, and after a scan that
    /// found work.
    pub fn refresh(&mut self, port: &Port, now: Time) {
        let Self { place, map, seen, held, goes_on: _ } = self;
        // An adapter that writes the page itself has no values to show.
        if held.is_empty() {
            return;
        }
        if port.with_pci(now, |pci, _| pci.shown(held)) != Some(true) {
            held.clear();
            return;
        }
        let Ok(window) = map.window(0, place.len as u32, Rights::BOTH) else { return };
        for ((offset, seen), held) in seen.iter_mut().zip(held) {
            if seen != held {
                window.store_u32(*offset as usize, *held);
                *seen = *held;
            }
        }
    }

    /// The part of the BAR.
    pub fn part(&self) -> Mappable {
        self.place
    }

    /// Passes changed words to the adapter as register writes. True if there were any. An adapter in D3hot ignores writes, and the
    /// word gets its old value back.
    pub fn scan(&mut self, port: &Port, now: Time) -> bool {
        let Ok(window) = self.map.window(0, self.place.len as u32, Rights::BOTH) else { return false };
        let mut any = false;
        for (offset, seen) in &mut self.seen {
            let value = window.load_u32(*offset as usize);
            if value != *seen {
                any = true;
                let at = self.place.offset + u64::from(*offset);
                if port.store(self.place.bar, at, &value.to_le_bytes(), now) {
                    *seen = value;
                } else {
                    window.store_u32(*offset as usize, *seen);
                }
            }
        }
        if any {
            self.refresh(port, now);
        }
        any
    }

    /// Writes to the page like the guest. False outside the page.
    pub fn store(&self, bar: u8, offset: u64, value: u32) -> bool {
        let Some(at) = offset.checked_sub(self.place.offset).filter(|at| bar == self.place.bar && *at < self.place.len)
        else {
            return false;
        };
        let Ok(window) = self.map.window(0, self.place.len as u32, Rights::BOTH) else { return false };
        window.store_u32(at as usize, value);
        true
    }

    /// Resets the page to its initial state.
    pub fn clear(&mut self, port: &Port, now: Time) {
        if let Ok(window) = self.map.window(0, self.place.len as u32, Rights::BOTH) {
            window.write(0, &vec![0; self.place.len as usize]);
        }
        self.show(port, now);
        self.refresh(port, now);
    }
}
