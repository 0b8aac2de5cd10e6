//! Accesses to the BARs of an adapter whose registers a [`Table`](crate::bank::Table) describes.

use crate::access::Region;
use crate::bank::{Bank, Direction, Names, Part, Place};
use crate::context::Context;

/// An adapter's registers. It says what a read and a write of one register do; accesses of any width and offset follow from the table.
pub trait Registers {
    /// The names of its registers.
    type Name: Names;

    /// Their values.
    fn bank(&self) -> &Bank<Self::Name>;

    /// The value that a guest reads.
    fn read_register(&mut self, place: &Place<Self::Name>, cx: &mut Context<'_>) -> u32;

    /// Handles a guest's write.
    fn write_register(&mut self, place: &Place<Self::Name>, value: u32, cx: &mut Context<'_>);

    /// The region of a BAR.
    fn region(&self, bar: u8) -> u8 {
        self.bank().table().region(bar)
    }

    /// The value that [`write_register`](Self::write_register) gets for an access with this `data`. `None` if the register takes only whole
    /// writes and this write is partial: it then counts as a write to a hole.
    fn written(&self, part: &Part<Self::Name>, place: &Place<Self::Name>, data: &[u8]) -> Option<u32> {
        (part.bytes.len() == usize::from(place.row.width)).then(|| part.take(data, 0))
    }

    /// Reads a part of a BAR into `data`.
    fn read_bar(&mut self, bar: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        let table = self.bank().table();
        for part in table.parts(self.region(bar), offset, data.len(), Direction::Read) {
            let value = match &part.place {
                Some(place) => self.read_register(place, cx),
                None => {
                    cx.holes(1, false, Region::Bar(bar), part.offset, part.of(data));
                    part.hole
                }
            };
            part.put(value, data);
        }
    }

    /// Writes a part of a BAR.
    fn write_bar(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        let table = self.bank().table();
        for part in table.parts(self.region(bar), offset, data.len(), Direction::Write) {
            match part.place.as_ref().and_then(|place| Some((place, self.written(&part, place, data)?))) {
                Some((place, value)) => self.write_register(place, value, cx),
                None => cx.holes(1, true, Region::Bar(bar), part.offset, part.of(data)),
            }
        }
    }
}
