//! The flexible adapter: a lance until its driver turns it into a vmxnet through the morph port, without a restart (net.h,
//! LANCE_CHIP and VMXNET_CHIP; vmxnet.c of open-vm-tools' driver for Linux, vmxnet_morph_device).
//!
//! ```text
//!  BAR 0 (I/O), 128 bytes          0x2934 is written
//!  00  a lance's ports             ┌──────────────────────────┐
//!  20  the morph port              ▼                          │
//!  24  a vmxnet's registers      lance ──0x4392 is written─► vmxnet        reset of the bus: a lance
//! ```
//! Both personalities are one PCI function, 1022:2000, with one configuration space. A write to the port resets the device, even if
//! it selects the active personality. The inactive one's registers are unmapped.

use nicety_adapter::bank::Direction;
use nicety_adapter::snapshot::{Nothing, Version, decode, encode};
use nicety_adapter::trace::{Region, RegisterName};
use nicety_adapter::{
    Adapter, Batch, Budget, Context, Delivery, Event, Face, Frames, PciFace, Progress, Registers, Reset, RestoreError,
    Snapshot, Stall,
};
use nicety_pci::{Function, Rom};
use serde::{Deserialize, Serialize};

use super::Vmxnet;
use super::models::MORPHED;
use super::registers::{FLEXIBLE, LANCE_CHIP, MORPH, MORPH_AT, VMXNET_CHIP};
use crate::lance::{self, Lance};
use crate::settings::{CreateError, Settings};

/// A vmxnet's batches have other generations than a lance's, so a batch fetched before a morph is not completed after it.
const GENERATIONS: u32 = 1 << 31;

/// See the module's page. The inactive personality is in reset state, except its link.
#[derive(Debug)]
pub struct Flexible {
    lance: Lance,
    vmxnet: Vmxnet,
    morphed: bool,
}

/// Creates an adapter.
///
/// # Errors
/// Those of a vlance.
pub fn create(settings: &Settings) -> Result<Box<dyn Adapter>, CreateError> {
    let mut lance = Lance::new(&lance::models::FLEXIBLE, settings)?;
    let mut vmxnet = Vmxnet::new(&MORPHED, settings, lance.function_mut().clone())?;
    vmxnet.generation = GENERATIONS;
    Ok(Box::new(Flexible { lance, vmxnet, morphed: false }))
}

/// Name of the register at an offset.
pub fn name(region: Region, offset: u64) -> Option<RegisterName> {
    match region {
        Region::Bar(0) if offset >= MORPH_AT.into() => FLEXIBLE.name(region, offset),
        _ => lance::models::FLEXIBLE.registers.name(region, offset),
    }
}

impl Flexible {
    fn now(&self) -> &dyn Adapter {
        if self.morphed { &self.vmxnet } else { &self.lance }
    }

    fn now_mut(&mut self) -> &mut dyn Adapter {
        if self.morphed { &mut self.vmxnet } else { &mut self.lance }
    }

    fn pci(&mut self) -> &mut dyn PciFace {
        if self.morphed { &mut self.vmxnet } else { &mut self.lance }
    }

    /// Handles a write to the morph port.
    fn morph(&mut self, chip: u32, cx: &mut Context<'_>) {
        let to_vmxnet = match chip {
            LANCE_CHIP => false,
            VMXNET_CHIP => true,
            _ => {
                let expected = "a chip: 0x2934 (lance) or 0x4392 (vmxnet)";
                return cx.guest_error(FLEXIBLE.error_place(MORPH, 0), chip.into(), expected);
            }
        };
        if self.morphed {
            self.vmxnet.reset_chip(cx);
        } else {
            self.lance.reset_chip(cx);
        }
        self.become_one(to_vmxnet);
        // Frames that waited for the old buffers are refused, or find new ones.
        cx.out.room.insert(0);
    }

    fn become_one(&mut self, vmxnet: bool) {
        if std::mem::replace(&mut self.morphed, vmxnet) != vmxnet {
            std::mem::swap(self.lance.function_mut(), &mut self.vmxnet.function);
        }
    }

    /// Number of an access's bytes that belong to the lance.
    fn split(bar: u8, offset: u64, len: usize) -> usize {
        let lance = if bar == 0 { u64::from(MORPH_AT).saturating_sub(offset) } else { u64::MAX };
        usize::try_from(lance).map_or(len, |lance| lance.min(len))
    }
}

impl PciFace for Flexible {
    fn function(&self) -> &Function {
        if self.morphed { self.vmxnet.function() } else { self.lance.function() }
    }

    fn config_write(&mut self, offset: u16, data: &[u8], cx: &mut Context<'_>) {
        self.pci().config_write(offset, data, cx);
    }

    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        let (own, behind) = data.split_at_mut(Self::split(bar, offset, data.len()));
        if self.morphed && !own.is_empty() {
            own.fill(0xff);
            cx.holes(1, false, Region::Bar(bar), offset, own);
        } else {
            self.lance.read(bar, offset, own, cx);
        }
        let offset = offset.saturating_add(own.len() as u64);
        for part in FLEXIBLE.parts(0, offset, behind.len(), Direction::Read) {
            let value = match &part.place {
                Some(place) if place.name == MORPH => {
                    if self.morphed {
                        VMXNET_CHIP
                    } else {
                        LANCE_CHIP
                    }
                }
                Some(place) if self.morphed => self.vmxnet.read_register(place, cx),
                _ => {
                    cx.holes(1, false, Region::Bar(bar), part.offset, part.of(behind));
                    part.hole
                }
            };
            part.put(value, behind);
        }
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        let (own, behind) = data.split_at(Self::split(bar, offset, data.len()));
        if self.morphed && !own.is_empty() {
            cx.holes(1, true, Region::Bar(bar), offset, own);
        } else {
            self.lance.write(bar, offset, own, cx);
        }
        let offset = offset.saturating_add(own.len() as u64);
        for part in FLEXIBLE.parts(0, offset, behind.len(), Direction::Write) {
            match &part.place {
                // 16 or 32 bits: Linux's driver writes 16, OpenBSD's vic 32.
                Some(place) if place.name == MORPH && part.bytes.len() >= 2 => {
                    self.morph(part.take(behind, 0) & 0xffff, cx);
                }
                Some(place) if self.morphed && part.bytes.len() == usize::from(place.row.width) => {
                    self.vmxnet.write_register(place, part.take(behind, 0), cx);
                }
                _ => cx.holes(1, true, Region::Bar(bar), part.offset, part.of(behind)),
            }
        }
    }

    fn rom(&self) -> Option<&Rom> {
        self.lance.rom()
    }
}

impl Adapter for Flexible {
    fn face(&mut self) -> Face<'_> {
        Face::Pci(self)
    }

    fn fetch(&mut self, queue: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        self.now_mut().fetch(queue, budget, batch, cx)
    }

    fn complete(&mut self, batch: &Batch, cx: &mut Context<'_>) {
        self.now_mut().complete(batch, cx);
    }

    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        self.now_mut().deliver(frames, cx)
    }

    fn notice(&mut self, event: Event, cx: &mut Context<'_>) {
        match event {
            // Both personalities share one link.
            Event::Link(_) => {
                self.lance.notice(event, cx);
                self.vmxnet.notice(event, cx);
            }
            Event::Memory
            | Event::Page
            | Event::Restored
            | Event::Lost
            | Event::Answer(_)
            | Event::Missed(_)
            | Event::Unanswered => self.now_mut().notice(event, cx),
        }
    }

    fn tick(&mut self, cx: &mut Context<'_>) {
        self.now_mut().tick(cx);
    }

    fn reset(&mut self, kind: Reset, cx: &mut Context<'_>) {
        self.now_mut().reset(kind, cx);
        self.become_one(false);
        self.lance.reset(kind, cx);
        self.vmxnet.function.reset();
    }

    fn transmit_queues(&self) -> u16 {
        self.now().transmit_queues()
    }

    fn is_driven(&self) -> bool {
        self.now().is_driven()
    }

    fn features(&self) -> Vec<&'static str> {
        let mut features = self.now().features();
        features.insert(0, if self.morphed { "vmxnet" } else { "lance" });
        features
    }

    fn receive_block(&self) -> Option<&'static str> {
        self.now().receive_block()
    }

    fn stall(&self, number: u16) -> Option<Stall> {
        self.now().stall(number)
    }
}

#[derive(Serialize, Deserialize)]
struct State {
    morphed: bool,
    /// States of both personalities.
    lance: Vec<u8>,
    vmxnet: Vec<u8>,
}

impl Version for State {
    const NUMBER: u16 = 1;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

impl Snapshot for Flexible {
    fn save(&self) -> Vec<u8> {
        let Self { lance, vmxnet, morphed } = self;
        let state = State { morphed: *morphed, lance: lance.save(), vmxnet: vmxnet.save() };
        encode(MORPHED.about.name, State::NUMBER, &state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError> {
        let State { morphed, lance, vmxnet } = decode(MORPHED.about.name, saved)?;
        let before = self.lance.save();
        self.lance.restore(&lance)?;
        if let Err(refused) = self.vmxnet.restore(&vmxnet) {
            return self.lance.restore(&before).and(Err(refused));
        }
        self.morphed = morphed;
        Ok(())
    }
}
