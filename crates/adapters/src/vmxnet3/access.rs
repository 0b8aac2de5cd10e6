//! Accesses to configuration space and the three BARs, and their side effects (vmxnet3_defs.h, "BAR 0", "BAR 1").

use nicety_adapter::bank::{Bank, Place};
use nicety_adapter::{Context, Mappable, PciFace, Registers};
use nicety_pci::{Changes, Function, Rom};

use crate::msix;

use super::Vmxnet3;
use super::registers::{self, REGISTERS, Reg};

impl Registers for Vmxnet3 {
    type Name = Reg;

    fn bank(&self) -> &Bank<Reg> {
        &self.registers
    }

    fn read_register(&mut self, place: &Place<Reg>, cx: &mut Context<'_>) -> u32 {
        let index = place.index;
        let receive = |ring: usize| self.receive.get(index).map_or(0, |queue| queue.rings[ring].next);
        match place.name {
            Reg::IMR => u32::from(self.is_masked(index as u16)),
            Reg::TXPROD => self.transmit.get(index).map_or(0, |queue| queue.ring.next),
            Reg::RXPROD => receive(0),
            Reg::RXPROD2 => receive(1),
            Reg::ICR => self.take_causes(cx),
            Reg::ECR => self.events,
            _ => self.registers.read(place),
        }
    }

    fn write_register(&mut self, place: &Place<Reg>, value: u32, cx: &mut Context<'_>) {
        self.registers.write(place, value);
        match place.name {
            Reg::IMR => {
                let masked = value & 1 != 0;
                self.set_masked(place.index as u16, masked, cx);
                if !masked {
                    self.look_for_room(cx);
                }
            }
            Reg::TXPROD => {
                let queue = place.index as u16;
                if queue < self.transmit_count() {
                    self.check_index(place, value, cx);
                    cx.out.work.insert(queue);
                }
            }
            Reg::RXPROD | Reg::RXPROD2 => {
                self.check_index(place, value, cx);
                self.look_for_room(cx);
            }
            // Exactly one bit, of the offered versions.
            Reg::VRRS if value.is_power_of_two() && value & registers::VERSIONS != 0 => {
                self.begin(value.trailing_zeros() as u8 + 1);
            }
            // The driver reclaims its memory.
            Reg::DSAL if value == 0 => self.quiesce(cx),
            Reg::CMD => self.registers[Reg::CMD] = self.execute(value, cx),
            Reg::ECR => self.acknowledge(value, cx),
            Reg::DCR if self.version >= 7 => self.capabilities = value & registers::CAPABILITIES,
            _ => {}
        }
    }
}

impl Vmxnet3 {
    /// A producer index beyond its ring is the driver's mistake. Descriptors count by their generation bits all the same.
    fn check_index(&self, place: &Place<Reg>, value: u32, cx: &mut Context<'_>) {
        let receive = |ring: usize| self.receive.get(place.index).map(|queue| queue.rings[ring].size);
        let size = match place.name {
            Reg::TXPROD => self.transmit.get(place.index).map(|queue| queue.ring.size),
            Reg::RXPROD => receive(0),
            _ => receive(1),
        };
        if self.setup.is_some() && size.is_some_and(|size| size > 0 && value >= size) {
            let at = self.registers.table().error_place(place.name, place.index);
            cx.guest_error(
                at,
                value.into(),
                "an index below the ring's size (Vmxnet3_TxQueueConf, Vmxnet3_RxQueueConf)",
            );
        }
    }
}

impl PciFace for Vmxnet3 {
    fn function(&self) -> &Function {
        &self.function
    }

    fn config_write(&mut self, offset: u16, data: &[u8], cx: &mut Context<'_>) {
        let changes = self.function.config_write(u64::from(offset), data);
        if changes.intersects(Changes::FUNCTION_RESET | Changes::SOFT_RESET) {
            self.reset_function(cx);
            return;
        }
        let routes = Changes::INTX | Changes::MSI | Changes::MSIX | Changes::POWER | Changes::BUS_MASTER;
        if changes.intersects(routes) {
            self.interrupts.mode_changed(&mut self.function, cx);
            self.update_interrupts(cx);
        }
        if changes.intersects(Changes::BUS_MASTER | Changes::POWER) && self.running().is_some() {
            (0..self.transmit_count()).for_each(|queue| cx.out.work.insert(queue));
            // Reports events that happened meanwhile.
            self.signal_events(cx);
        }
    }

    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        if bar == 2 {
            return msix::read(&self.function, bar, offset, data);
        }
        self.read_bar(bar, offset, data, cx);
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        if bar == 2 {
            return msix::write(&mut self.function, bar, offset, data);
        }
        self.write_bar(bar, offset, data, cx);
    }

    fn mappable(&self) -> Option<Mappable> {
        Some(Mappable { bar: 0, offset: 0, len: registers::PT_LEN, usual: true })
    }

    fn doorbells(&self) -> Vec<u32> {
        REGISTERS.places().filter(|(region, ..)| *region == 0).map(|(_, offset, _)| offset).collect()
    }

    fn empty_page(&self) -> Option<Mappable> {
        let at = registers::EMPTY_PAGE_AT;
        Some(Mappable { bar: 2, offset: at, len: registers::MSIX_LEN - at, usual: true })
    }

    fn rom(&self) -> Option<&Rom> {
        self.rom.as_ref()
    }
}
