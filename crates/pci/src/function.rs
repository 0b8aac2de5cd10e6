//! One function's configuration space: accesses, the changes that they made, and the meaning of the registers (PCI 3.0 §6, PCI PM 1.2 §3.2.4).

use bitflags::bitflags;

use crate::bar::{Bar, Hit, ROM_BAR, Space};
use crate::cells::offsets;
use crate::layout::Layout;
use crate::msix::Msix;
use crate::registers as r;

bitflags! {
    /// Changes made by a write to configuration space.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[must_use = "a reset may be due"]
    pub struct Changes: u16 {
        /// Command's bus mastering was switched; see also [`Changes::POWER`].
        const BUS_MASTER = 1;
        /// Memory decoding was switched.
        const MEMORY = 1 << 1;
        /// I/O decoding was switched.
        const IO = 1 << 2;
        /// INTx disable was switched.
        const INTX = 1 << 3;
        /// A base address register changed (sizing included).
        const BAR = 1 << 4;
        /// The ROM's address or enable bit changed.
        const ROM = 1 << 5;
        /// MSI's control, address, data or mask changed.
        const MSI = 1 << 6;
        /// MSI-X was enabled, disabled, masked or unmasked.
        const MSIX = 1 << 7;
        /// The power state changed, and with it the result of [`Function::bus_master`].
        const POWER = 1 << 8;
        /// D3hot to D0 without No_Soft_Reset: reset the device and call [`Function::reset`] (PCI PM 1.2 §5.4.1).
        const SOFT_RESET = 1 << 9;
        /// Software requested a function level reset: reset the device and call [`Function::reset`] (PCIe 4.0 §6.6.2).
        const FUNCTION_RESET = 1 << 10;
        /// Bytes of a vendor-specific or raw capability were written, changed or not (virtio's access window).
        const CAPABILITY = 1 << 11;
    }
}

/// A function's power state (PCI PM 1.2 §3.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PowerState {
    /// Fully on.
    D0,
    /// Light sleep, if supported.
    D1,
    /// Deeper sleep, if supported.
    D2,
    /// Off, but configuration space answers.
    D3Hot,
}

/// Configuration space of one function, with its MSI and MSI-X.
#[derive(Clone, Debug)]
pub struct Function {
    pub(crate) layout: Layout,
    pub(crate) bytes: Box<[u8]>,
    pub(crate) msix: Option<Msix>,
}

/// The registers whose changes a write reports.
#[derive(Clone, Copy)]
struct View {
    command: u16,
    bars: [u64; 3],
    rom: u32,
    power: PowerState,
    msi: [u64; 3],
    msix: u16,
}

impl Function {
    pub(crate) fn from_layout(layout: Layout) -> Self {
        let bytes = layout.bytes.iter().map(|byte| byte.reset).collect();
        let msix = layout.msix.map(|(_, msix)| Msix::new(msix.vectors));
        Self { layout, bytes, msix }
    }

    /// Returns to the state after power-on.
    pub fn reset(&mut self) {
        let Self { layout, bytes, msix } = self;
        for (byte, rule) in bytes.iter_mut().zip(&layout.bytes) {
            *byte = rule.reset;
        }
        if let Some(msix) = msix {
            msix.reset();
        }
    }

    /// Size of the space: 256 bytes, 4096 with PCI Express.
    #[must_use]
    pub fn config_size(&self) -> usize {
        self.bytes.len()
    }

    /// The behaviour of the byte at `offset`.
    #[must_use]
    pub fn rule(&self, offset: usize) -> Option<crate::Byte> {
        self.layout.bytes.get(offset).copied()
    }

    /// Reads, at any offset and width. Reserved bytes are zero; bytes beyond the space are ones.
    pub fn config_read(&self, offset: u64, data: &mut [u8]) {
        for (at, byte) in offsets(offset).zip(data) {
            let stored = usize::try_from(at).ok().and_then(|at| self.bytes.get(at));
            *byte = stored.copied().unwrap_or(0xff);
        }
    }

    /// Writes, at any offset and width, and returns the changes. Writes beyond the space are ignored.
    pub fn config_write(&mut self, offset: u64, data: &[u8]) -> Changes {
        let before = self.view();
        let mut changes = Changes::empty();
        for (at, &value) in offsets(offset).zip(data) {
            let Ok(at) = usize::try_from(at) else { break };
            let (Some(byte), Some(rule)) = (self.bytes.get_mut(at), self.layout.bytes.get(at)) else {
                break;
            };
            *byte = rule.after_write(*byte, value);
            if self.layout.bodies.iter().any(|&(start, len)| at >= start && at - start < len) {
                changes |= Changes::CAPABILITY;
            }
            let starts_reset = self.layout.flr.is_some_and(|flr| at == flr + r::EXPRESS_DEVICE_CONTROL + 1);
            if starts_reset && value & (r::EXPRESS_START_FLR >> 8) as u8 != 0 {
                changes |= Changes::FUNCTION_RESET;
            }
        }
        self.refuse_missing_power_state(before.power);
        self.clamp_vectors();
        changes | self.compare(&before)
    }

    /// Writes as the device itself. Only bits that it owns change (error bits, bodies of vendor-specific, raw and extended capabilities).
    /// For the interrupt status use [`Function::set_intx`].
    pub fn device_write(&mut self, offset: usize, data: &[u8]) {
        let bytes = self.bytes.iter_mut().zip(&self.layout.bytes).skip(offset);
        for ((byte, rule), &value) in bytes.zip(data) {
            *byte = *byte & !rule.device | value & rule.device;
        }
        self.clamp_vectors();
    }

    /// The offset of the first capability with that ID.
    #[must_use]
    pub fn capability(&self, id: u8) -> Option<usize> {
        self.capabilities().find(|&(other, _)| other == id).map(|(_, at)| at)
    }

    /// All capabilities in the list's order: ID and offset.
    pub fn capabilities(&self) -> impl Iterator<Item = (u8, usize)> {
        self.layout.capabilities.iter().map(|&(id, at)| (id, usize::from(at)))
    }

    /// The vendor and device IDs.
    #[must_use]
    pub fn ids(&self) -> (u16, u16) {
        (self.read16(r::VENDOR), self.read16(r::DEVICE))
    }

    /// Whether the function may start transactions, both DMA and messages: with bus mastering (PCI 3.0 §6.2.2), and in D0 (PCI PM 1.2
    /// §5.4.1, PCIe 4.0 §5.3.1.4).
    #[must_use]
    pub fn bus_master(&self) -> bool {
        self.command() & r::COMMAND_MASTER != 0 && self.power_state() == PowerState::D0
    }

    /// Whether memory accesses are answered.
    #[must_use]
    pub fn memory_enabled(&self) -> bool {
        self.command() & r::COMMAND_MEMORY != 0
    }

    /// Whether I/O accesses are answered.
    #[must_use]
    pub fn io_enabled(&self) -> bool {
        self.command() & r::COMMAND_IO != 0
    }

    /// Whether INTx is disabled by Command.
    #[must_use]
    pub fn intx_disabled(&self) -> bool {
        self.command() & r::COMMAND_INTX_DISABLE != 0
    }

    /// The power state; D0 if the function has no power management.
    #[must_use]
    pub fn power_state(&self) -> PowerState {
        let bits = self.layout.power.map_or(0, |at| self.read16(at + r::POWER_CONTROL)) & r::POWER_STATE;
        match bits {
            0 => PowerState::D0,
            1 => PowerState::D1,
            2 => PowerState::D2,
            _ => PowerState::D3Hot,
        }
    }

    /// The description of register `index`; `None` for an upper half.
    #[must_use]
    pub fn bar_kind(&self, index: usize) -> Option<Bar> {
        self.layout.bars.get(index).copied().flatten()
    }

    /// The size of the option ROM's region, if there is one.
    #[must_use]
    pub fn rom_size(&self) -> Option<u32> {
        self.layout.rom_size
    }

    /// The address in register `index` without the flags, decoded or not.
    #[must_use]
    pub fn bar_address(&self, index: usize) -> Option<u64> {
        let bar = self.bar_kind(index)?;
        let at = r::BAR + 4 * index;
        let value = if bar.is_wide() { self.read64(at) } else { u64::from(self.read32(at)) };
        Some(value & bar.writable())
    }

    /// The address of the region of register `index`; `None` if it does not answer (decoding off, not in D0, address zero).
    #[must_use]
    pub fn bar(&self, index: usize) -> Option<u64> {
        let enabled = match self.bar_kind(index)?.space() {
            Space::Memory => self.memory_enabled(),
            Space::Io => self.io_enabled(),
        };
        let awake = self.power_state() == PowerState::D0;
        self.bar_address(index).filter(|&address| enabled && awake && address != 0)
    }

    /// The address of the option ROM; `None` if it does not answer.
    #[must_use]
    pub fn rom(&self) -> Option<u64> {
        let size = self.layout.rom_size?;
        let value = self.read32(r::ROM);
        let address = u64::from(value & !size.wrapping_sub(1));
        let answers = value & 1 != 0 && self.memory_enabled() && self.power_state() == PowerState::D0;
        (answers && address != 0).then_some(address)
    }

    /// The decoded region that contains `address`: a register's, or the ROM's ([`ROM_BAR`]).
    #[must_use]
    pub fn bar_of(&self, space: Space, address: u64) -> Option<Hit> {
        for index in 0..self.layout.bars.len() {
            let Some(bar) = self.bar_kind(index).filter(|bar| bar.space() == space) else {
                continue;
            };
            let offset = self.bar(index).and_then(|start| address.checked_sub(start));
            if let Some(offset) = offset.filter(|&offset| offset < bar.size) {
                return Some(Hit { bar: index, offset });
            }
        }
        let offset = address.checked_sub(self.rom().filter(|_| space == Space::Memory)?)?;
        (offset < u64::from(self.layout.rom_size?)).then_some(Hit { bar: ROM_BAR, offset })
    }

    fn command(&self) -> u16 {
        self.read16(r::COMMAND)
    }

    /// A missing power state cannot be entered: the write is accepted, but the state stays (PCI PM 1.2 §3.2.4).
    fn refuse_missing_power_state(&mut self, before: PowerState) {
        let Some(at) = self.layout.power else { return };
        let capabilities = self.read16(at + 2);
        let missing = match self.power_state() {
            PowerState::D1 => capabilities & r::POWER_D1 == 0,
            PowerState::D2 => capabilities & r::POWER_D2 == 0,
            PowerState::D0 | PowerState::D3Hot => false,
        };
        if missing {
            let control = self.read16(at + r::POWER_CONTROL);
            self.store16(at + r::POWER_CONTROL, control & !r::POWER_STATE | before as u16);
        }
    }

    fn view(&self) -> View {
        let msi = self.layout.msi.map_or([0; 3], |place| {
            let mask = if place.maskable { self.read32(place.at + r::MSI_MASK) } else { 0 };
            let data = u64::from(self.read16(place.at + r::MSI_DATA));
            let control = u64::from(self.read16(place.at + r::MSI_CONTROL));
            [self.read64(place.at + r::MSI_ADDRESS), u64::from(mask), control << 16 | data]
        });
        View {
            command: self.command(),
            bars: [self.read64(r::BAR), self.read64(r::BAR + 8), self.read64(r::BAR + 16)],
            rom: self.read32(r::ROM),
            power: self.power_state(),
            msi,
            msix: self.layout.msix.map_or(0, |(at, _)| self.read16(at + r::MSIX_CONTROL)),
        }
    }

    fn compare(&self, before: &View) -> Changes {
        let View { command, bars, rom, power, msi, msix } = self.view();
        let switched = command ^ before.command;
        let woke = before.power == PowerState::D3Hot && power == PowerState::D0;
        let keeps =
            self.layout.power.is_some_and(|at| self.read16(at + r::POWER_CONTROL) & r::POWER_NO_SOFT_RESET != 0);
        [
            (switched & r::COMMAND_MASTER != 0, Changes::BUS_MASTER),
            (switched & r::COMMAND_MEMORY != 0, Changes::MEMORY),
            (switched & r::COMMAND_IO != 0, Changes::IO),
            (switched & r::COMMAND_INTX_DISABLE != 0, Changes::INTX),
            (bars != before.bars, Changes::BAR),
            (rom != before.rom, Changes::ROM),
            (msi != before.msi, Changes::MSI),
            (msix != before.msix, Changes::MSIX),
            (power != before.power, Changes::POWER),
            (woke && !keeps, Changes::SOFT_RESET),
        ]
        .into_iter()
        .filter(|&(holds, _)| holds)
        .map(|(_, change)| change)
        .collect()
    }

    fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        self.bytes.get(at..).and_then(|bytes| bytes.first_chunk()).copied().unwrap_or([0; N])
    }

    pub(crate) fn read16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.read(at))
    }

    pub(crate) fn read32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.read(at))
    }

    pub(crate) fn read64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.read(at))
    }

    /// Stores regardless of the masks: for bits that this crate itself keeps.
    pub(crate) fn store16(&mut self, at: usize, value: u16) {
        if let Some(bytes) = self.bytes.get_mut(at..).and_then(|bytes| bytes.first_chunk_mut()) {
            *bytes = value.to_le_bytes();
        }
    }
}
