//! Register accesses: the masks of the table, and their side effects.

use nicety_adapter::Context;

use super::VirtualFunction;
use super::family::ixgbe::RSS_KEY;
use super::registers::{self as r, Place, ctrl, dctl, links, status};
use crate::intel::fault;
use crate::intel::igb::transmit::forget_fetched;

impl VirtualFunction {
    /// Reads a part of the registers.
    pub(super) fn read_registers(&mut self, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        let table = self.registers.table();
        let holes = table.read(r::WINDOW, offset, data, |place| self.read_register(place, cx));
        cx.holes(holes, false, table.bar(r::WINDOW), offset, data);
    }

    /// Writes a part of the registers. Only whole dwords are writable.
    pub(super) fn write_registers(&mut self, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        let table = self.registers.table();
        let holes = table.write(r::WINDOW, offset, data, |place, value| self.write_register(place, value, cx));
        cx.holes(holes, true, table.bar(r::WINDOW), offset, data);
    }

    fn read_register(&mut self, place: &Place, cx: &mut Context<'_>) -> u32 {
        match place.name {
            r::STATUS if self.model.ten_gigabit => 0,
            r::STATUS => status::FD | status::SPEED_1000 | if self.link_up { status::LU } else { 0 },
            r::VFLINKS => {
                if self.link_up {
                    links::UP | links::SPEED_10G
                } else {
                    0
                }
            }
            r::FRTIMER => (cx.now.0 / 1000) as u32,
            r::EICR => self.read_causes(cx),
            r::EICS => self.causes.pending() as u32,
            r::EIMS | r::EIMC => self.causes.enabled() as u32,
            _ => self.registers.read(place),
        }
    }

    fn write_register(&mut self, place: &Place, value: u32, cx: &mut Context<'_>) {
        self.registers.write(place, value);
        match place.name {
            r::TDT => cx.out.work.insert(place.index as u16),
            r::RDT | r::RXDCTL => self.offer_room(1 << place.index, cx),
            r::RDLEN => {
                fault::check_length(&self.registers, place, value, cx);
                self.offer_room(1 << place.index, cx);
            }
            r::TXDCTL if value & dctl::ENABLE != 0 => cx.out.work.insert(place.index as u16),
            r::TXDCTL | r::TDH | r::TDBAL | r::TDBAH | r::TDLEN => {
                fault::check_length(&self.registers, place, value, cx);
                forget_fetched(&mut self.transmit, &self.registers, place.index)
            }
            r::V2PMAILBOX => self.write_mailbox(value, cx),
            r::CTRL if value & ctrl::RST != 0 => self.reset_function(cx),
            r::EICR => {
                self.causes.clear(value.into());
                self.settle(cx);
            }
            r::EICS => {
                self.causes.raise(value.into());
                self.settle(cx);
            }
            r::EIMS => {
                self.causes.enable(value.into());
                self.settle(cx);
            }
            r::EIMC => {
                self.causes.disable(value.into());
                self.settle(cx);
            }
            r::EIAC | r::EIAM => self.modes_written(cx),
            r::EITR => self.set_throttle(place.index, value, cx),
            _ => {}
        }
    }

    /// Marks all transmit queues as possibly having work.
    pub(super) fn look_at_all_queues(&self, cx: &mut Context<'_>) {
        (0..self.model.queues as u16).for_each(|queue| cx.out.work.insert(queue));
    }

    /// CTRL.RST (4.2.1.5): rings and interrupts as after power-on; the counters go on, and the mailbox keeps its words. RSTD tells
    /// the driver that the reset is over.
    pub(super) fn reset_function(&mut self, cx: &mut Context<'_>) {
        self.offer_room(!0, cx);
        let words: [u32; 16] = std::array::from_fn(|n| self.registers.of(r::VMBMEM).get(n).copied().unwrap_or(0));
        self.clear_but_kept();
        self.registers.of_mut(r::VMBMEM).iter_mut().zip(words).for_each(|(word, kept)| *word = kept);
        self.registers[r::V2PMAILBOX] = r::mailbox::RSTD;
        self.mailbox.ask_for_reset();
        self.call_family(cx);
        self.settle(cx);
    }

    /// Like [`Self::clear_function`], but counters and the last address stay: a trusted function gets its address again.
    pub(super) fn clear_but_kept(&mut self) {
        let kept = r::KEPT.map(|name| self.registers[name]);
        let last = [r::RAL, r::RAH].map(|name| self.registers.of(name).first().copied().unwrap_or(0));
        self.clear_function();
        for (name, value) in [r::RAL, r::RAH].into_iter().zip(last) {
            self.registers.of_mut(name).first_mut().into_iter().for_each(|register| *register = value);
        }
        r::KEPT.into_iter().zip(kept).for_each(|(name, value)| self.registers[name] = value);
    }

    /// Everything as after power-on, without an effect outside the function.
    pub(super) fn clear_function(&mut self) {
        self.registers.reset(|_| true);
        self.clear_mailbox();
        self.clear_interrupts();
        self.registers.of_mut(r::RSSRK).copy_from_slice(&RSS_KEY);
        self.rss.forget();
        for queue in &mut self.transmit {
            queue.reset();
        }
        self.stalls = Default::default();
        self.starved = 0;
    }
}
