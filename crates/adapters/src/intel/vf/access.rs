//! Side effects of register accesses that only virtual functions have, and their resets.

use nicety_adapter::family::Answer;
use nicety_adapter::{Context, Reset};

use super::family::ixgbe::RSS_KEY;
use super::family::word;
use super::registers::{self as r, Place, ctrl, links, mailbox, status};
use super::{VirtualFunction, interrupts};
use crate::intel::mac::{Interrupting, Link};

impl Link for VirtualFunction {
    fn read_other(&mut self, place: &Place, cx: &mut Context<'_>) -> u32 {
        match place.name {
            r::STATUS if self.own.model.ten_gigabit => 0,
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
            r::EICS => self.peek_causes(),
            r::EIMS | r::EIMC => self.interrupts.enabled() as u32,
            _ => self.registers.read(place),
        }
    }

    fn write_other(&mut self, place: &Place, _old: u32, value: u32, cx: &mut Context<'_>) {
        match place.name {
            r::V2PMAILBOX => self.write_mailbox(value, cx),
            r::CTRL if value & ctrl::RST != 0 => self.reset_function(cx),
            r::EICR => self.clear_causes(value, cx),
            r::EICS => self.cause(value, cx),
            r::EIMS => self.enable_causes(value, cx),
            r::EIMC => {
                self.interrupts.disable(value.into());
                self.settle(cx);
            }
            r::EIAC | r::EIAM => self.modes_written(cx),
            r::EITR => self.set_throttle(place.index, value, cx),
            _ => {}
        }
    }

    fn plug(&mut self, up: bool, cx: &mut Context<'_>) {
        if std::mem::replace(&mut self.link_up, up) != up {
            self.link_changed(cx);
        }
    }

    fn restart(&mut self, kind: Reset, cx: &mut Context<'_>) {
        // Frames that wait for buffers are lost with them.
        self.offer_room(!0, cx);
        self.function.reset();
        match kind {
            // The family keeps nothing of a function, so it need not hear of a new one.
            Reset::Bus => self.clear_function(),
            // As CTRL.RST (igb_vf_reset_event, ixgbe_vf_reset_event).
            Reset::Function => {
                self.clear_but_kept();
                self.own.mailbox.ask_for_reset();
                self.call_family(cx);
            }
        }
        self.settle(cx);
    }

    /// Repeats what was asked, too.
    fn resume(&mut self, cx: &mut Context<'_>) {
        self.starved = 0;
        self.own.is_restored = true;
        self.look_at_all_queues(cx);
        self.call_family(cx);
        self.time_passed(cx);
    }

    /// As after a reset of the physical function. RSTD makes the drivers' watchdogs read the mailbox (check_for_link in Linux's
    /// igbvf/vf.c and ixgbevf/vf.c), and their acknowledgement of a message without CTS is answered with NACK, after which they
    /// reset. The routes and masks of interrupts are lost: one comes from each vector.
    fn lose(&mut self, cx: &mut Context<'_>) {
        self.offer_room(!0, cx);
        self.clear_but_kept();
        self.registers[r::VMBMEM] = word::CONTROL;
        self.registers[r::V2PMAILBOX] = mailbox::PFSTS | mailbox::RSTD;
        self.own.mailbox.wait_for_reader();
        if self.function.msix_enabled() {
            (0..r::VECTORS).for_each(|vector| cx.out.messages.insert(vector));
        }
    }

    fn answered(&mut self, answer: &Answer, cx: &mut Context<'_>) {
        self.take_answer(answer, cx);
    }

    fn is_started(&self) -> bool {
        (0..self.queues).any(|queue| self.receives(queue) || self.has_transmitter(queue))
    }
}

impl VirtualFunction {
    /// CTRL.RST (4.2.1.5): rings and interrupts as after power-on; the counters go on, and the mailbox keeps its words. RSTD tells
    /// the driver that the reset is over.
    fn reset_function(&mut self, cx: &mut Context<'_>) {
        self.offer_room(!0, cx);
        let words: [u32; 16] = std::array::from_fn(|n| self.registers.of(r::VMBMEM).get(n).copied().unwrap_or(0));
        self.clear_but_kept();
        self.registers.of_mut(r::VMBMEM).iter_mut().zip(words).for_each(|(word, kept)| *word = kept);
        self.registers[r::V2PMAILBOX] = r::mailbox::RSTD;
        self.own.mailbox.ask_for_reset();
        self.call_family(cx);
        self.settle(cx);
    }

    /// Like [`Self::clear_function`], but counters and the last address stay: a trusted function gets its address again.
    fn clear_but_kept(&mut self) {
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
        self.interrupts = interrupts::causes();
        self.registers.of_mut(r::RSSRK).copy_from_slice(&RSS_KEY);
        self.clear_queues();
    }
}
