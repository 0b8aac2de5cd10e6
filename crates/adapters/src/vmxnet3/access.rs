//! Accesses to configuration space and the three BARs, and what they do beyond storing (vmxnet3_defs.h, "BAR 0", "BAR 1").
//!
//! Registers are read at any width and place, as they lie: an access is cut into dwords, as QEMU's model has its cut or filled up to
//! four bytes (hw/net/vmxnet3.c, `impl` of `b0_ops` and `b1_ops`). Writes of less than a register, of which no document says what
//! they do, do nothing here.

use nicety_adapter::{Context, Mappable, PciFace};
use nicety_pci::{Changes, Function, Rom, Window as MsixWindow};

use crate::pieces::{pieces, read_from_dword};

use super::Vmxnet3;
use super::registers::{self, CMD, DSAL, Doorbell, ECR, ICR, VRRS};

impl Vmxnet3 {
    fn read_register(&mut self, bar: u8, offset: u64, cx: &mut Context<'_>) -> Option<u32> {
        if bar == 1 {
            let index = registers::device_register(offset)?;
            return Some(match index {
                ICR => self.interrupts.take_causes(&mut self.function, cx),
                ECR => self.events,
                _ => self.values[index] & registers::DEVICE[index].read,
            });
        }
        let position = |ring: Option<u32>| Some(ring.unwrap_or(0));
        match registers::doorbell(offset)? {
            Doorbell::Mask(vector) => Some(u32::from(self.interrupts.is_masked(vector))),
            Doorbell::Transmit(queue) => position(self.transmit.get(usize::from(queue)).map(|q| q.ring.next)),
            Doorbell::Receive(queue, ring) => {
                position(self.receive.get(usize::from(queue)).map(|q| q.rings[usize::from(ring & 1)].next))
            }
        }
    }

    fn read_msix(&self, offset: u64, data: &mut [u8]) {
        match (self.function.window(2, offset), self.function.msix()) {
            (Some(MsixWindow::Table(at)), Some(msix)) => msix.read_table(at, data),
            (Some(MsixWindow::Pba(at)), Some(msix)) => msix.read_pba(at, data),
            _ => data.fill(0),
        }
    }

    fn write_register(&mut self, bar: u8, offset: u64, value: u32, cx: &mut Context<'_>) -> Option<()> {
        if bar == 1 {
            let index = registers::device_register(offset)?;
            self.write_device_register(index, value, cx);
            return Some(());
        }
        match registers::doorbell(offset)? {
            Doorbell::Mask(vector) => {
                let masked = value & 1 != 0;
                self.interrupts.set_masked(vector, masked, &mut self.function, cx);
                if !masked {
                    self.look_for_room(cx);
                }
            }
            Doorbell::Transmit(queue) => {
                if queue < self.transmit_count() {
                    cx.out.work.insert(queue);
                }
            }
            Doorbell::Receive(..) => self.look_for_room(cx),
        }
        Some(())
    }

    fn write_device_register(&mut self, index: usize, value: u32, cx: &mut Context<'_>) {
        let stored = registers::DEVICE[index].write;
        self.values[index] = self.values[index] & !stored | value & stored;
        match index {
            // One bit, of those on offer.
            VRRS if value.is_power_of_two() && value & registers::VERSIONS != 0 => {
                self.version = value.trailing_zeros() as u8 + 1;
            }
            // The driver takes its memory back.
            DSAL if value == 0 => self.quiesce(cx),
            CMD => self.values[CMD] = self.execute(value, cx),
            ECR => self.acknowledge(value, cx),
            registers::DCR => self.capabilities = value & registers::CAPABILITIES,
            _ => {}
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
            self.reset_all(cx);
            return;
        }
        let routes = Changes::INTX | Changes::MSI | Changes::MSIX | Changes::POWER | Changes::BUS_MASTER;
        if changes.intersects(routes) {
            self.interrupts.reroute(&mut self.function, cx);
        }
        if changes.intersects(Changes::BUS_MASTER | Changes::POWER) && self.running().is_some() {
            (0..self.transmit_count()).for_each(|queue| cx.out.work.insert(queue));
            // What happened meanwhile.
            self.tell_events(cx);
        }
    }

    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        for (at, part) in pieces(offset, data.len()) {
            if bar == 2 {
                self.read_msix(at, &mut data[part]);
                continue;
            }
            let register = if bar < 2 { self.read_register(bar, at & !3, cx) } else { None };
            cx.counters.bad_accesses += u64::from(register.is_none());
            read_from_dword(register.unwrap_or(!0), at, &mut data[part]);
        }
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        if bar == 2 {
            if let (Some(MsixWindow::Table(at)), Some(msix)) =
                (self.function.window(2, offset), self.function.msix_mut())
            {
                // What that releases is the transport's: it holds masks and pending bits.
                let _released = msix.write_table(at, data);
            }
            return;
        }
        // Only whole registers can be written.
        for (at, part) in pieces(offset, data.len()) {
            let value = <[u8; 4]>::try_from(&data[part]).map(u32::from_le_bytes).ok().filter(|_| bar < 2);
            if value.and_then(|value| self.write_register(bar, at, value, cx)).is_none() {
                cx.counters.bad_accesses += 1;
            }
        }
    }

    fn mappable(&self) -> Option<Mappable> {
        Some(Mappable { bar: 0, offset: 0, len: registers::PT_LEN })
    }

    fn doorbells(&self) -> Vec<u32> {
        let offsets = (0..registers::PT_LEN).filter(|offset| registers::doorbell(*offset).is_some());
        offsets.map(|offset| offset as u32).collect()
    }

    fn spare(&self) -> Option<Mappable> {
        let at = registers::SPARE_AT;
        Some(Mappable { bar: 2, offset: at, len: registers::MSIX_LEN - at })
    }

    fn rom(&self) -> Option<&Rom> {
        self.rom.as_ref()
    }
}
