//! Register accesses: the ports, then the registers behind them ("I/O Resources", "Control and Status Registers", "Bus
//! Configuration Registers").

use nicety_adapter::bank::Bank;
use nicety_adapter::{Context, Registers};

use super::Lance;
use super::interrupts::{CSR4_AT, CSR5_AT, UINT};
use super::registers::{self as r, Place, bcr, csr0, csr4, csr5, eecas};

impl Registers for Lance {
    type Name = r::Reg;

    fn bank(&self) -> &Bank<r::Reg> {
        &self.registers
    }

    /// Layout of the ports.
    fn region(&self, bar: u8) -> u8 {
        if bar > 1 {
            u8::MAX
        } else if self.has(r::BSBC, bcr::DWIO) {
            r::DWIO
        } else {
            r::WIO
        }
    }

    fn read_register(&mut self, place: &Place, cx: &mut Context<'_>) -> u32 {
        match place.name {
            r::APROM => self.prom.get(place.index).copied().unwrap_or(0).into(),
            r::RDP => self.read_csr(cx),
            r::RAP => self.rap.into(),
            r::RESET => {
                self.soft_reset(cx);
                0
            }
            r::BDP => self.read_bcr(),
            _ => 0,
        }
    }

    fn write_register(&mut self, place: &Place, value: u32, cx: &mut Context<'_>) {
        match place.name {
            r::APROM if self.has(r::MC, bcr::APROMWE) => {
                if let Some(byte) = self.prom.get_mut(place.index) {
                    *byte = value as u8;
                }
            }
            r::RDP => self.write_csr(value & 0xffff, cx),
            r::RAP => self.rap = (value % r::FILE) as u8,
            r::BDP => self.write_bcr(value & 0xffff),
            _ => {}
        }
    }
}

impl Lance {
    /// The register of a file that RAP selects.
    fn chosen(&self, file: u8) -> Option<Place> {
        self.registers.table().find(file, 2 * u64::from(self.rap))
    }

    /// Whether ring registers may change: the chip is stopped or suspended.
    fn still(&self) -> bool {
        self.has(r::CSR0, csr0::STOP) || self.suspended()
    }

    fn read_csr(&mut self, cx: &mut Context<'_>) -> u32 {
        let Some(place) = self.chosen(r::CSR) else { return 0 };
        let pending = self.interrupts.pending();
        match place.name {
            r::CSR0 => self.read_causes(cx) | self.registers[r::CSR0],
            r::CSR4 => self.registers[r::CSR4] | (pending >> CSR4_AT) as u32 & csr4::CAUSES,
            r::CSR5 => self.registers[r::CSR5] | (pending >> CSR5_AT) as u32 & csr5::CAUSES,
            r::SWS => self.registers[r::SWSTYLE],
            // A double word reads both.
            r::CHIPID => self.model.chip_id >> (16 * place.index),
            r::CRDA | r::NRDA | r::NNRD | r::CXDA | r::NXDA | r::NNXD | r::PXDA => {
                self.descriptor_at(place.name) >> (16 * place.index) & 0xffff
            }
            r::RCVRC => counter(self.receive.next, self.registers[r::RCVRL]),
            r::XMTRC => counter(self.transmit.position(), self.registers[r::XMTRL]),
            _ => self.registers.read(&place),
        }
    }

    /// Address of a descriptor: the current one, or one of those after it.
    fn descriptor_at(&self, name: r::Reg) -> u32 {
        let transmit = matches!(name, r::CXDA | r::NXDA | r::NNXD | r::PXDA);
        let (base, length, index) = if transmit {
            (r::BADX, self.registers[r::XMTRL], self.transmit.position())
        } else {
            (r::BADR, self.registers[r::RCVRL], self.receive.next)
        };
        let len = (length.wrapping_neg() & 0xffff).max(1);
        let ahead = match name {
            r::NRDA | r::NXDA => 1,
            r::NNRD | r::NNXD => 2,
            r::PXDA => len - 1,
            _ => 0,
        };
        let base = self.registers.of(base).iter().rev().fold(0, |base, word| base << 16 | word);
        base.wrapping_add((index % len + ahead) % len * self.style().bytes())
    }

    fn write_csr(&mut self, value: u32, cx: &mut Context<'_>) {
        let Some(place) = self.chosen(r::CSR) else { return };
        match place.name {
            r::CSR0 => self.write_csr0(value, cx),
            r::CSR3 => {
                self.registers.write(&place, value);
                self.look_for_room(cx);
                self.masks_changed(cx);
            }
            r::CSR4 => {
                self.registers.write(&place, value);
                self.interrupts.clear(u128::from(value & csr4::CAUSES) << CSR4_AT);
                if value & csr4::UINTCMD != 0 {
                    self.interrupts.raise(UINT);
                }
                self.masks_changed(cx);
            }
            r::CSR5 => {
                let old = self.registers.write(&place, value);
                self.interrupts.clear(u128::from(value & csr5::CAUSES) << CSR5_AT);
                if old & csr5::SPND != 0 && value & csr5::SPND == 0 {
                    cx.out.work.insert(0);
                    self.offer_room(cx);
                }
                self.masks_changed(cx);
            }
            r::SWS => self.write_style(value),
            _ if !self.still() => {}
            r::RCVRC => self.receive.next = position(value, self.registers[r::RCVRL]),
            r::XMTRC => {
                self.transmit = super::transmit::Transmit::at(position(value, self.registers[r::XMTRL]));
                self.forget_fetched();
            }
            r::MODE => {
                self.registers.write(&place, value);
                self.prepare_loopback();
            }
            r::BADX | r::XMTRL => {
                self.registers.write(&place, value);
                self.forget_fetched();
            }
            _ => {
                self.registers.write(&place, value);
            }
        }
    }

    fn read_bcr(&mut self) -> u32 {
        let Some(place) = self.chosen(r::BCR) else { return 0 };
        let value = self.registers.read(&place);
        match place.name {
            r::LED0 | r::LED1 | r::LED2 | r::LED3 => {
                let by_duplex = value & bcr::FDLSE != 0 && self.has(r::FDC, bcr::FDEN);
                let lit = self.link_up && (value & bcr::LNKSTE != 0 || by_duplex);
                value | if lit { bcr::LEDOUT } else { 0 }
            }
            r::EECAS => value & !eecas::EDI | self.eeprom.shown(),
            _ => value,
        }
    }

    fn write_bcr(&mut self, value: u32) {
        let Some(place) = self.chosen(r::BCR) else { return };
        match place.name {
            r::SWSTYLE => self.write_style(value),
            // The chip reads it again, and is done at once.
            r::EECAS if value & eecas::PREAD != 0 => self.prom = self.eeprom.read(),
            r::EECAS => {
                self.registers.write(&place, value);
                self.eeprom.drive(value);
            }
            _ => {
                self.registers.write(&place, value);
            }
        }
    }

    /// BCR20 and CSR58: the style, and the bits that follow from it.
    fn write_style(&mut self, value: u32) {
        if !self.still() {
            return;
        }
        let (style, flags) = match value & 0xff {
            1 => (1, bcr::SSIZE32),
            style @ 2..=3 => (style, bcr::SSIZE32 | bcr::CSRPCNET),
            _ => (0, bcr::CSRPCNET),
        };
        self.registers[r::SWSTYLE] = value & 0x400 | flags | style;
        self.forget_fetched();
    }
}

/// A ring counter (CSR72, CSR74): two's complement of the number of descriptors from this one to the end.
fn counter(index: u32, length: u32) -> u32 {
    length.wrapping_add(index) & 0xffff
}

/// The index of a ring counter; zero is the last descriptor's.
fn position(counter: u32, length: u32) -> u32 {
    let (len, left) = (length.wrapping_neg() & 0xffff, counter.wrapping_neg() & 0xffff);
    len.saturating_sub(left.max(1))
}
