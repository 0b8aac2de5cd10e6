//! Register accesses: the masks of the table, and the side effects that all chips have (Intel 317453, chapter 13).

use nicety_adapter::{Context, Registers};

use super::{Chip, Link, Mac, Own};
use crate::intel::fault;
use crate::intel::registers::*;

impl<O: Own, const N: usize> Registers for Mac<O, N>
where
    Self: Chip,
{
    type Name = Reg;

    fn bank(&self) -> &Bank {
        &self.registers
    }

    fn read_register(&mut self, place: &Place, cx: &mut Context<'_>) -> u32 {
        self.read_other(place, cx)
    }

    fn write_register(&mut self, place: &Place, value: u32, cx: &mut Context<'_>) {
        let old = self.registers.write(place, value);
        let queue = place.index;
        match place.name {
            TDT => cx.out.work.insert(queue as u16),
            RDT => self.offer_room(1 << queue, cx),
            RDLEN => {
                fault::check_length(&self.registers, place, value, cx);
                self.offer_room(1 << queue, cx);
            }
            RXDCTL if Self::FACTS.advanced => self.offer_room(1 << queue, cx),
            TXDCTL if Self::FACTS.advanced && value & dctl::ENABLE != 0 => cx.out.work.insert(queue as u16),
            TXDCTL if Self::FACTS.advanced => self.forget_fetched(queue),
            TDH | TDBAL | TDBAH | TDLEN => {
                fault::check_length(&self.registers, place, value, cx);
                self.forget_fetched(queue);
            }
            RAL | RAH | RAL2 | RAH2 => self.filter.load(&self.registers),
            MRQC | RSSRK => self.rss.forget(),
            _ => self.write_other(place, old, value, cx),
        }
    }
}
