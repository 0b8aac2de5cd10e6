//! The 32 ports of BAR 0: the command register, its page, the data port, the reset port.

use std::ops::Range;

use nicety_adapter::bank::Direction;
use nicety_adapter::trace::Region;
use nicety_adapter::{Context, Outbox};

use super::Ne2000;
use super::dp8390::Effect;
use super::registers::{self as r, TABLE};

impl Ne2000 {
    pub(super) fn read_ports(&mut self, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        for part in TABLE.parts(r::PORTS, offset, data.len(), Direction::Read) {
            let Some(place) = &part.place else {
                cx.holes(1, false, Region::Bar(0), part.offset, part.of(data));
                part.put(part.hole, data);
                continue;
            };
            match place.name {
                r::DATA => self.chip.read_data(bytes(data, &part.bytes), part.bytes.len()),
                r::PAGED => {
                    let value = self.chip.read(place.index as u32 + 1, cx.now);
                    part.put(value, data);
                    self.let_in(cx);
                }
                r::RESET => {
                    part.put(0, data);
                    self.chip.reset();
                    self.generation = self.generation.wrapping_add(1);
                    self.offer_room(cx);
                }
                _ => part.put(self.chip.registers[r::CR], data),
            }
        }
        self.settle_line(cx);
    }

    pub(super) fn write_ports(&mut self, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        for part in TABLE.parts(r::PORTS, offset, data.len(), Direction::Write) {
            let Some(place) = &part.place else {
                cx.holes(1, true, Region::Bar(0), part.offset, part.of(data));
                continue;
            };
            let value = part.take(data, 0);
            let Effect { transmit, room, set_up } = match place.name {
                r::DATA => {
                    let written = data.get(part.bytes.clone()).unwrap_or_default();
                    self.chip.write_data(written, written.len());
                    continue;
                }
                r::PAGED => self.chip.write(place.index as u32 + 1, value),
                r::CR => self.chip.command(value),
                // The end of a reset.
                _ => continue,
            };
            if transmit {
                cx.out.work.insert(0);
            }
            if room {
                self.waiting = true;
                self.let_in(cx);
            }
            if set_up {
                // After a kill the driver is found by it.
                cx.out.stalled.insert(Outbox::KEEP);
            }
        }
        self.settle_line(cx);
    }
}

fn bytes<'d>(data: &'d mut [u8], range: &Range<usize>) -> &'d mut [u8] {
    data.get_mut(range.clone()).unwrap_or_default()
}
