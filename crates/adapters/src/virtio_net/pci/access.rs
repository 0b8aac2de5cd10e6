//! Accesses to configuration space and the BARs.

use nicety_adapter::bank::Way;
use nicety_adapter::{Context, PciFace, RingFace};
use nicety_pci::{Changes, Function, Mode, Rom};

use super::common::NO_VECTOR;
use super::registers::{BAR, CONFIG_AT, LEGACY_BAR, LEGACY_CONFIG, MSIX_BAR, NOTIFY_AT, TABLE};
use super::{PCI_CFG, VirtioPci};
use crate::msix;

/// Where the window's fields lie in its capability (4.1.4 and 4.1.4.9).
const WINDOW_KIND: u64 = 3;
const WINDOW_BAR: u64 = 4;
const WINDOW_OFFSET: u64 = 8;
const WINDOW_LEN: u64 = 12;
const WINDOW_DATA: u64 = 16;

impl VirtioPci {
    /// Where device configuration space begins in a BAR, if an offset lies in it.
    fn config_at(&self, bar: u8, offset: u64) -> Option<u64> {
        let legacy = if self.function.mode() == Mode::Msix { LEGACY_CONFIG + 4 } else { LEGACY_CONFIG };
        match bar {
            BAR if (u64::from(CONFIG_AT)..u64::from(NOTIFY_AT)).contains(&offset) => Some(CONFIG_AT.into()),
            LEGACY_BAR if offset >= legacy => Some(legacy),
            _ => None,
        }
    }

    /// The legacy interface's vectors: of configuration and of the selected queue, while MSI-X is enabled.
    fn legacy_vector(&mut self, offset: u64) -> Option<&mut u16> {
        let at = offset.checked_sub(LEGACY_CONFIG).filter(|at| *at < 4)?;
        if self.function.mode() != Mode::Msix {
            return None;
        }
        match at {
            0 | 1 => Some(&mut self.common.config_vector),
            _ => self.common.queues.get_mut(usize::from(self.common.select)).map(|queue| &mut queue.vector),
        }
    }

    fn read_bar(&mut self, bar: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        if bar == MSIX_BAR {
            return msix::read(&self.function, bar, offset, data);
        }
        data.fill(0);
        if let Some(base) = self.config_at(bar, offset) {
            for (at, byte) in (offset - base..).zip(data) {
                // Beyond its end are zeros.
                let _within = self.device.config(u32::try_from(at).unwrap_or(u32::MAX), std::slice::from_mut(byte));
            }
            return;
        }
        if bar == LEGACY_BAR && offset >= LEGACY_CONFIG {
            let vector = self.legacy_vector(offset).copied().unwrap_or(NO_VECTOR);
            data.iter_mut().zip(vector.to_le_bytes()).for_each(|(to, from)| *to = from);
            return;
        }
        for part in TABLE.parts(TABLE.region(bar), offset, data.len(), Way::Read) {
            let value = match &part.place {
                Some(place) => self.read_register(place.name, cx),
                None => {
                    cx.counters.bad_accesses += 1;
                    part.hole
                }
            };
            part.put(value, data);
        }
    }

    fn write_bar(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        if bar == MSIX_BAR {
            return msix::write(&mut self.function, bar, offset, data);
        }
        // The driver sets its address by a command; configuration space is read-only.
        if self.config_at(bar, offset).is_some() {
            return;
        }
        if bar == LEGACY_BAR && offset >= LEGACY_CONFIG {
            let value = data.first_chunk().map_or(NO_VECTOR, |bytes| u16::from_le_bytes(*bytes));
            let value = if value < super::VECTORS { value } else { NO_VECTOR };
            self.legacy_vector(offset).into_iter().for_each(|vector| *vector = value);
            return;
        }
        for part in TABLE.parts(TABLE.region(bar), offset, data.len(), Way::Write) {
            match &part.place {
                Some(place) => {
                    let stored = if part.bytes.len() < usize::from(place.row.width) && place.name.is_value() {
                        self.read_register(place.name, cx)
                    } else {
                        0
                    };
                    self.write_register(place.name, place.index, part.take(data, stored), cx);
                }
                None => cx.counters.bad_accesses += 1,
            }
        }
        self.settle(cx);
    }

    fn window(&self) -> Option<u64> {
        let kind = |at: u64| {
            let mut byte = [0];
            self.function.config_read(at + WINDOW_KIND, &mut byte);
            byte[0]
        };
        let all = self.function.capabilities().filter(|(id, _)| *id == 9).map(|(_, at)| at as u64);
        all.into_iter().find(|at| kind(*at) == PCI_CFG)
    }

    /// A write to the window: to its data, which goes on to the BAR; or to where it looks, which is looked at.
    fn use_window(&mut self, written: u64, cx: &mut Context<'_>) {
        let Some(at) = self.window().filter(|at| (at + WINDOW_BAR..at + WINDOW_DATA + 4).contains(&written)) else {
            return;
        };
        let dword = |function: &Function, field: u64| {
            let mut bytes = [0; 4];
            function.config_read(at + field, &mut bytes);
            bytes
        };
        let bar = dword(&self.function, WINDOW_BAR)[0];
        let offset = u64::from(u32::from_le_bytes(dword(&self.function, WINDOW_OFFSET)));
        let len = u32::from_le_bytes(dword(&self.function, WINDOW_LEN)) as usize;
        if !matches!(len, 1 | 2 | 4) || !offset.is_multiple_of(len as u64) {
            return;
        }
        if written >= at + WINDOW_DATA {
            let data = dword(&self.function, WINDOW_DATA);
            self.write_bar(bar, offset, &data[..len], cx);
        } else {
            let mut data = [0; 4];
            self.read_bar(bar, offset, &mut data[..len], cx);
            self.function.device_write((at + WINDOW_DATA) as usize, &data);
        }
    }
}

impl PciFace for VirtioPci {
    fn function(&self) -> &Function {
        &self.function
    }

    fn config_write(&mut self, offset: u16, data: &[u8], cx: &mut Context<'_>) {
        let changes = self.function.config_write(u64::from(offset), data);
        if changes.intersects(Changes::FUNCTION_RESET | Changes::SOFT_RESET) {
            self.reset_device(cx);
            self.function.reset();
            self.interrupts.show(&mut self.function, cx);
            return;
        }
        if changes.intersects(Changes::INTX | Changes::MSIX | Changes::POWER | Changes::BUS_MASTER) {
            self.interrupts.mode_changed(&mut self.function, cx);
            self.interrupts.update(&mut self.function, cx);
        }
        if changes.intersects(Changes::BUS_MASTER | Changes::POWER) && self.may_act() {
            for ring in 0..self.device.rings() {
                self.device.wake(ring, cx);
            }
        }
        if changes.contains(Changes::CAPABILITY) {
            self.use_window(offset.into(), cx);
        }
    }

    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        self.read_bar(bar, offset, data, cx);
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        self.write_bar(bar, offset, data, cx);
    }

    fn rom(&self) -> Option<&Rom> {
        self.rom.as_ref()
    }
}
