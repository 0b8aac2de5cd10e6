//! Accesses to configuration space and the BARs.

use std::sync::Arc;

use nicety_adapter::bank::Direction;
use nicety_adapter::trace::Region;
use nicety_adapter::{Context, PciFace, RingFace};
use nicety_memory::Map;
use nicety_pci::{Changes, Function, Mode, Rom};

use super::common::NO_VECTOR;
use super::registers::{BAR, CONFIG_AT, LEGACY_BAR, LEGACY_CONFIG, LEGACY_LEN, MSIX_BAR, NOTIFY_AT, TABLE};
use super::{PCI_CFG, VirtioPci};
use crate::msix;
use crate::pieces::pieces;
use crate::virtio_net::kept::{KEPT_BYTES, Kept};

/// Offsets of the window's fields in its capability (4.1.4 and 4.1.4.9).
const WINDOW_KIND: u64 = 3;
const WINDOW_BAR: u64 = 4;
const WINDOW_OFFSET: u64 = 8;
const WINDOW_LEN: u64 = 12;
const WINDOW_DATA: u64 = 16;

impl VirtioPci {
    /// Start of device configuration space in a BAR, if an offset lies in it.
    fn config_at(&self, bar: u8, offset: u64) -> Option<u64> {
        let legacy = if self.function.mode() == Mode::Msix { LEGACY_CONFIG + 4 } else { LEGACY_CONFIG };
        match bar {
            BAR if (u64::from(CONFIG_AT)..u64::from(NOTIFY_AT)).contains(&offset) => Some(CONFIG_AT.into()),
            LEGACY_BAR if (legacy..LEGACY_LEN).contains(&offset) => Some(legacy),
            _ => None,
        }
    }

    /// The legacy interface's vectors, for configuration and for the selected queue, if an offset lies in them. They exist while
    /// MSI-X is enabled.
    fn legacy_vectors(&self, bar: u8, offset: u64) -> Option<[u8; 4]> {
        let within = (LEGACY_CONFIG..LEGACY_CONFIG + 4).contains(&offset);
        if bar != LEGACY_BAR || !within || self.function.mode() != Mode::Msix {
            return None;
        }
        let queue = self.common.queues.get(usize::from(self.common.select)).map_or(NO_VECTOR, |queue| queue.vector);
        let ([a, b], [c, d]) = (self.common.config_vector.to_le_bytes(), queue.to_le_bytes());
        Some([a, b, c, d])
    }

    fn write_legacy_vectors(&mut self, mut vectors: [u8; 4], skip: usize, data: &[u8]) {
        vectors.iter_mut().skip(skip).zip(data).for_each(|(to, from)| *to = *from);
        let [a, b, c, d] = vectors;
        let [config, queue] = [[a, b], [c, d]].map(|bytes| {
            let vector = u16::from_le_bytes(bytes);
            if vector < super::VECTORS { vector } else { NO_VECTOR }
        });
        self.common.config_vector = config;
        self.common.queues.get_mut(usize::from(self.common.select)).into_iter().for_each(|at| at.vector = queue);
    }

    fn read_bar(&mut self, bar: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        if bar == MSIX_BAR {
            return msix::read(&self.function, bar, offset, data);
        }
        for (at, part) in pieces(offset, data.len()) {
            let data = &mut data[part];
            if let Some(base) = self.config_at(bar, at) {
                data.fill(0);
                for (at, byte) in (at - base..).zip(data) {
                    // Bytes beyond its end are zero.
                    let _within = self.device.config(u32::try_from(at).unwrap_or(u32::MAX), std::slice::from_mut(byte));
                }
            } else if let Some(vectors) = self.legacy_vectors(bar, at) {
                let skip = (at - LEGACY_CONFIG) as usize;
                data.iter_mut().zip(&vectors[skip..]).for_each(|(to, from)| *to = *from);
            } else {
                self.read_table(bar, at, data, cx);
            }
        }
    }

    fn read_table(&mut self, bar: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        let holes = TABLE.read(TABLE.region(bar), offset, data, |place| self.read_register(place.name, cx));
        cx.holes(holes, false, Region::Bar(bar), offset, data);
    }

    fn write_bar(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        if bar == MSIX_BAR {
            return msix::write(&mut self.function, bar, offset, data);
        }
        self.apart(cx, |own, cx| own.write_pieces(bar, offset, data, cx));
    }

    fn write_pieces(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        for (at, part) in pieces(offset, data.len()) {
            let data = &data[part];
            // The driver sets its address by a command, because configuration space is read-only.
            if self.config_at(bar, at).is_some() {
                continue;
            }
            if let Some(vectors) = self.legacy_vectors(bar, at) {
                self.write_legacy_vectors(vectors, (at - LEGACY_CONFIG) as usize, data);
            } else {
                self.write_table(bar, at, data, cx);
            }
        }
    }

    fn write_table(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        for part in TABLE.parts(TABLE.region(bar), offset, data.len(), Direction::Write) {
            match &part.place {
                Some(place) => {
                    let narrow = part.bytes.len() < usize::from(place.row.width) && place.name.is_value();
                    let stored = if narrow { self.read_register(place.name, cx) } else { 0 };
                    self.write_register(place.name, place.index, part.take(data, stored), cx);
                }
                None => cx.holes(1, true, Region::Bar(bar), part.offset, part.of(data)),
            }
        }
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

    /// A write to the window: to its data, which is forwarded to the BAR; or to its address, which fetches the data there.
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
    fn kept_bytes(&self) -> u64 {
        KEPT_BYTES * u64::from(self.device.rings())
    }

    fn keep(&mut self, file: Arc<Map>) {
        if self.device.is_packed() {
            for (number, ring) in (0..).zip(&self.device.rings).filter(|(_, ring)| ring.started) {
                Kept::of(&file, number).into_iter().for_each(|kept| kept.write(ring.used, &[]));
            }
        }
        self.device.keep(Some(file));
    }

    fn function(&self) -> &Function {
        &self.function
    }

    fn config_write(&mut self, offset: u16, data: &[u8], cx: &mut Context<'_>) {
        let changes = self.function.config_write(u64::from(offset), data);
        if changes.intersects(Changes::FUNCTION_RESET | Changes::SOFT_RESET) {
            self.reset_function(cx);
            return;
        }
        if changes.intersects(Changes::INTX | Changes::MSIX | Changes::POWER | Changes::BUS_MASTER) {
            self.interrupts.mode_changed(&mut self.function, cx);
            self.interrupts.update(&mut self.function, cx);
        }
        if changes.intersects(Changes::BUS_MASTER | Changes::POWER) && self.may_act() {
            self.resume(cx);
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
