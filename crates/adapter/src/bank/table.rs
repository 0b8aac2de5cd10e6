//! The registers of a model: rows, the blocks that repeat them, and the regions by which they are accessed.

use std::ops::Range;

use crate::access::{Region as TraceRegion, RegisterName};
use crate::guest_error::ErrorPlace;

/// The registers of a family of devices by name. Made by [`register_names!`](crate::register_names).
///
/// A name owns the same slots of storage in every model of the family. The [`Table`] of a model contains its registers and their
/// offsets.
pub trait Names: Copy + Eq + std::fmt::Debug + Send + Sync + 'static {
    /// Slots of the whole family.
    const SLOTS: usize;

    /// The slots of a name: one, or one for each of several registers.
    fn slots(self) -> Range<usize>;

    /// The name in the data sheet.
    fn word(self) -> &'static str;
}

/// Names the registers of a family: an `enum` whose variants are the data sheet's names, each with the number of registers of that
/// name if there are several (an array, or one per queue).
///
/// ```
/// nicety_adapter::register_names! {
///     /// A small device's.
///     pub enum Reg { CTRL, STATUS, TAIL[4] }
/// }
/// use nicety_adapter::bank::Names;
/// assert_eq!((Reg::TAIL.slots(), Reg::TAIL.word(), Reg::SLOTS), (2..6, "TAIL", 6));
/// ```
#[macro_export]
macro_rules! register_names {
    ($(#[$doc:meta])* $vis:vis enum $Names:ident { $($name:ident $([$count:literal])?),+ $(,)? }) => {
        $(#[$doc])*
        #[allow(missing_docs, non_camel_case_types, clippy::upper_case_acronyms)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u16)]
        $vis enum $Names { $($name,)+ }

        impl $Names {
            const COUNTS: &'static [usize] = &[$(1 $(* $count)?,)+];

            /// The first slot of each name, and the total at the end.
            const FIRST: [usize; Self::COUNTS.len() + 1] = {
                let mut first = [0; Self::COUNTS.len() + 1];
                let mut i = 0;
                while i < Self::COUNTS.len() {
                    first[i + 1] = first[i] + Self::COUNTS[i];
                    i += 1;
                }
                first
            };
        }

        impl $crate::bank::Names for $Names {
            const SLOTS: usize = Self::FIRST[Self::COUNTS.len()];

            #[inline]
            fn slots(self) -> ::std::ops::Range<usize> {
                // By reference: an unoptimized build copies the whole array for each use of the constant itself.
                let first: &'static [usize] = &Self::FIRST;
                first[self as usize]..first[self as usize + 1]
            }

            fn word(self) -> &'static str {
                const WORDS: &[&str] = &[$(stringify!($name),)+];
                WORDS[self as usize]
            }
        }
    };
}

/// The access widths that reach a register: bit n is n + 1 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Widths(u8);

impl Widths {
    /// One byte.
    pub const BYTE: Self = Self(1);
    /// Two bytes.
    pub const WORD: Self = Self(1 << 1);
    /// Four bytes.
    pub const DWORD: Self = Self(1 << 3);
    /// Any part of a register that an access covers.
    pub const ANY: Self = Self(0xff);

    /// These widths and others.
    pub const fn or(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Whether an access of this many bytes is allowed.
    pub const fn allow(self, bytes: usize) -> bool {
        0 < bytes && bytes <= 8 && self.0 >> (bytes - 1) & 1 != 0
    }
}

/// An address space: a BAR, several BARs with the same registers, or registers behind an address port (a PCnet's CSRs, a page of a
/// NE2000), which have no BAR.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// The BARs by which a guest accesses it directly.
    pub bars: &'static [u8],
    /// Length in bytes. Beyond it, reads return ones.
    pub len: u32,
    /// Access widths that can read. They apply to a register's part of an access, after the access was split at register boundaries.
    pub reads: Widths,
    /// Access widths that can write.
    pub writes: Widths,
    /// The value read where there is no register, or with a wrong width.
    pub hole: u32,
}

/// One register, or several at regular distances.
#[derive(Clone, Copy, Debug)]
pub struct Row<N> {
    /// Its name.
    pub name: N,
    /// Offset of the first one, in the first repetition of the block.
    pub offset: u32,
    /// Bytes per register: 1, 2 or 4.
    pub width: u8,
    /// Number per block.
    pub count: u32,
    /// Bytes from one to the next.
    pub stride: u32,
    /// Value after reset.
    pub reset: u32,
    /// Readable bits; the others read as zeros.
    pub read: u32,
    /// Bits that a write stores.
    pub write: u32,
    /// Bits that a write of ones clears.
    pub write_clears: u32,
    /// Bits that reading clears.
    pub read_clears: u32,
    /// Bits that the device itself may set or clear.
    pub device: u32,
    /// Nothing is stored: accesses have only side effects.
    pub port: bool,
    /// Section of the data sheet. Where it was not verified: the register's name.
    pub section: &'static str,
}

impl<N: Copy> Row<N> {
    /// A dword that software writes and reads.
    pub const fn rw(name: N, offset: u32, write: u32, reset: u32, section: &'static str) -> Self {
        Self {
            name,
            offset,
            width: 4,
            count: 1,
            stride: 4,
            reset,
            read: !0,
            write,
            write_clears: 0,
            read_clears: 0,
            device: 0,
            port: false,
            section,
        }
    }

    /// A port of this many bytes.
    pub const fn port(name: N, offset: u32, width: u8, section: &'static str) -> Self {
        Self { port: true, ..Self::rw(name, offset, 0, 0, section) }.wide(width)
    }

    /// Adds bits that the device may change.
    pub const fn device(self, device: u32) -> Self {
        Self { device, ..self }
    }

    /// Adds bits that reading clears. The device may set them.
    pub const fn read_clears(self, bits: u32) -> Self {
        Self { read_clears: bits, device: self.device | bits, ..self }
    }

    /// Adds bits that a write of ones clears. The device may set them.
    pub const fn write_clears(self, bits: u32) -> Self {
        Self { write_clears: bits, device: self.device | bits, ..self }
    }

    /// Restricts the readable bits.
    pub const fn reads(self, bits: u32) -> Self {
        Self { read: bits, ..self }
    }

    /// Sets the width in bytes.
    pub const fn wide(self, width: u8) -> Self {
        Self { width, stride: width as u32, ..self }
    }

    /// Repeats it this many times, without gaps.
    pub const fn times(self, count: u32) -> Self {
        Self { count, ..self }
    }

    /// Repeats it this many times, at this distance.
    pub const fn every(self, stride: u32, count: u32) -> Self {
        Self { stride, count, ..self }
    }

    const fn end(&self) -> u32 {
        self.offset + self.stride * (self.count - 1) + self.width as u32
    }
}

/// Rows that belong together, once, or once per queue.
#[derive(Clone, Copy, Debug)]
pub struct Block<N: 'static> {
    /// The region, an index into [`Table::regions`].
    pub region: u8,
    /// Offset of the first repetition.
    pub base: u32,
    /// Bytes from one repetition to the next; all rows must fit.
    pub stride: u32,
    /// Number of repetitions.
    pub count: u32,
    /// Its rows, by offset. Interleaved registers (low, high, low, high) are a block of their own.
    pub rows: &'static [Row<N>],
}

/// A second range of offsets for the same registers.
#[derive(Clone, Copy, Debug)]
pub struct Alias {
    /// The region.
    pub region: u8,
    /// The other offset.
    pub from: u32,
    /// The offset in the rows.
    pub to: u32,
    /// Bytes.
    pub len: u32,
}

/// All registers of a model.
#[derive(Debug)]
pub struct Table<N: 'static> {
    /// The address spaces.
    pub regions: &'static [Region],
    /// Sorted by region and base, without overlap.
    pub blocks: &'static [Block<N>],
    /// Sorted by region and offset. A register at an offset wins over an alias.
    pub aliases: &'static [Alias],
}

/// A register that was looked up.
#[derive(Clone, Copy, Debug)]
pub struct Place<N: 'static> {
    /// Its name.
    pub name: N,
    /// Its index among registers of that name.
    pub index: usize,
    /// Its properties.
    pub row: &'static Row<N>,
    /// Its slot in the bank.
    pub(super) slot: usize,
    /// The offset of the accessed byte in the register.
    byte: u32,
}

/// The part of an access that one register handles, or none.
#[derive(Clone, Debug)]
pub struct Part<N: 'static> {
    /// The register, if there is one and the width is allowed.
    pub place: Option<Place<N>>,
    /// Offset in the region.
    pub offset: u64,
    /// The bytes of the access.
    pub bytes: Range<usize>,
    /// The value to read if there is no register.
    pub hole: u32,
    /// The first byte of the register.
    shift: u32,
}

/// The direction of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The guest reads.
    Read,
    /// The guest writes.
    Write,
}

impl<N: Names> Part<N> {
    /// Puts a register's value, or the [`hole`](Self::hole), into the `data` of a read.
    pub fn put(&self, value: u32, data: &mut [u8]) {
        let bytes = value.to_le_bytes();
        let from = bytes.get(self.shift as usize..).unwrap_or_default();
        for (to, byte) in data.iter_mut().skip(self.bytes.start).take(self.bytes.len()).zip(from) {
            *to = *byte;
        }
    }

    /// The bytes of an access's `data` that fall into this part.
    pub fn of<'d>(&self, data: &'d [u8]) -> &'d [u8] {
        data.get(self.bytes.clone()).unwrap_or_default()
    }

    /// The value written by an access with this `data`; missing bytes come from `stored`.
    pub fn take(&self, data: &[u8], stored: u32) -> u32 {
        let mut bytes = stored.to_le_bytes();
        let to = bytes.get_mut(self.shift as usize..).unwrap_or_default();
        for (to, byte) in to.iter_mut().zip(data.get(self.bytes.clone()).unwrap_or_default()) {
            *to = *byte;
        }
        u32::from_le_bytes(bytes)
    }
}

/// All ports of a name share its first slot, which stays zero.
fn slot<N: Names>(row: &Row<N>, index: usize) -> usize {
    row.name.slots().start + if row.port { 0 } else { index }
}

impl<N: Names> Table<N> {
    /// The register at an offset. O(log n), no allocation.
    pub fn find(&self, region: u8, offset: u64) -> Option<Place<N>> {
        let offset = u32::try_from(offset).ok()?;
        self.lies_at(region, offset).or_else(|| {
            let next = self.aliases.partition_point(|alias| (alias.region, alias.from) <= (region, offset));
            let alias = self.aliases.get(next.checked_sub(1)?)?;
            let within = alias.region == region && offset - alias.from < alias.len;
            if within { self.lies_at(region, alias.to + (offset - alias.from)) } else { None }
        })
    }

    fn lies_at(&self, region: u8, offset: u32) -> Option<Place<N>> {
        let next = self.blocks.partition_point(|block| (block.region, block.base) <= (region, offset));
        let block = self.blocks.get(next.checked_sub(1)?)?;
        if block.region != region {
            return None;
        }
        let queue = (offset - block.base) / block.stride;
        let at = offset - queue * block.stride;
        if queue >= block.count {
            return None;
        }
        let next = block.rows.partition_point(|row| row.offset <= at);
        let row = block.rows.get(next.checked_sub(1)?)?;
        let (n, byte) = ((at - row.offset) / row.stride, (at - row.offset) % row.stride);
        (n < row.count && byte < u32::from(row.width)).then(|| {
            let index = (queue * row.count + n) as usize;
            Place { name: row.name, index, row, slot: slot(row, index), byte }
        })
    }

    /// The region of a BAR. If there is none, the number of a region that does not exist: then everything is a hole.
    pub fn region(&self, bar: u8) -> u8 {
        let index = self.regions.iter().position(|region| region.bars.contains(&bar));
        index.and_then(|index| u8::try_from(index).ok()).unwrap_or(u8::MAX)
    }

    /// Splits an access at register boundaries.
    pub fn parts(
        &'static self,
        region: u8,
        offset: u64,
        len: usize,
        direction: Direction,
    ) -> impl Iterator<Item = Part<N>> {
        let space = self.regions.get(usize::from(region));
        let mut done = 0;
        std::iter::from_fn(move || {
            if done >= len {
                return None;
            }
            let at = offset.saturating_add(done as u64);
            let begin = done;
            let found = space.filter(|space| at < u64::from(space.len)).and_then(|_| self.find(region, at));
            let most = match &found {
                Some(place) => u64::from(place.row.width) - u64::from(place.byte),
                // A hole ends with its dword, or before the next register.
                None => (1..4 - (at & 3))
                    .find(|n| self.find(region, at.saturating_add(*n)).is_some())
                    .unwrap_or(4 - (at & 3)),
            };
            done = len.min(begin + most as usize);
            let widths = space.map(|space| if direction == Direction::Read { space.reads } else { space.writes });
            let place = found.filter(|_| widths.is_some_and(|widths| widths.allow(done - begin)));
            let hole = space.filter(|space| at < u64::from(space.len)).map_or(!0, |space| space.hole);
            Some(Part { place, offset: at, bytes: begin..done, hole, shift: found.map_or(0, |place| place.byte) })
        })
    }

    /// Reads a part of a region into `data`, with the values from `read`, or the hole's value. Returns the number of holes.
    pub fn read(
        &'static self,
        region: u8,
        offset: u64,
        data: &mut [u8],
        mut read: impl FnMut(&Place<N>) -> u32,
    ) -> u64 {
        let mut holes = 0;
        for part in self.parts(region, offset, data.len(), Direction::Read) {
            let value = part.place.as_ref().map(&mut read);
            holes += u64::from(value.is_none());
            part.put(value.unwrap_or(part.hole), data);
        }
        holes
    }

    /// Writes a part of a region: calls `write` with each register's value, in which missing bytes are zero. Returns the number of
    /// holes.
    pub fn write(&'static self, region: u8, offset: u64, data: &[u8], mut write: impl FnMut(&Place<N>, u32)) -> u64 {
        let mut holes = 0;
        for part in self.parts(region, offset, data.len(), Direction::Write) {
            match &part.place {
                Some(place) => write(place, part.take(data, 0)),
                None => holes += 1,
            }
        }
        holes
    }

    /// Every register: its region, its offset there, and its place.
    pub fn places(&'static self) -> impl Iterator<Item = (u8, u32, Place<N>)> {
        self.blocks.iter().flat_map(|block| {
            (0..block.count).flat_map(move |queue| {
                block.rows.iter().flat_map(move |row| {
                    (0..row.count).map(move |n| {
                        let index = (queue * row.count + n) as usize;
                        let offset = queue * block.stride + row.offset + n * row.stride;
                        (block.region, offset, Place { name: row.name, index, row, slot: slot(row, index), byte: 0 })
                    })
                })
            })
        })
    }

    /// Every register that has a value, in the same order.
    pub(super) fn stored(&'static self) -> impl Iterator<Item = Place<N>> {
        self.places().filter_map(|(_, _, place)| (!place.row.port).then_some(place))
    }

    /// A register as the place of a guest error: its name, and the offset at which a guest accesses it. Walks the rows, not the
    /// registers.
    #[cold]
    pub fn error_place(&self, name: N, index: usize) -> ErrorPlace {
        let mut several = false;
        let mut at = None;
        for block in self.blocks {
            for row in block.rows.iter().filter(|row| row.name == name) {
                several |= row.count > 1 || block.count > 1;
                let (queue, n) = (index as u32 / row.count, index as u32 % row.count);
                let bar = self.regions.get(usize::from(block.region)).and_then(|region| region.bars.first());
                let offset = queue.saturating_mul(block.stride).saturating_add(row.offset + n * row.stride);
                at = at.or(bar.filter(|_| queue < block.count).map(|bar| (TraceRegion::Bar(*bar), offset)));
            }
        }
        ErrorPlace::Register { name: RegisterName { word: name.word(), index: several.then_some(index as u32) }, at }
    }

    /// The BAR by which a guest accesses a region, as the place of an access; the first one if it has none.
    pub fn bar(&self, region: u8) -> TraceRegion {
        let bars = self.regions.get(usize::from(region)).map_or(&[][..], |region| region.bars);
        TraceRegion::Bar(bars.first().copied().unwrap_or(0))
    }

    /// The data sheet's name of the register at an offset of a BAR.
    pub fn name(&self, region: TraceRegion, offset: u64) -> Option<RegisterName> {
        let TraceRegion::Bar(bar) = region else { return None };
        let place = self.find(self.region(bar), offset)?;
        let several = self
            .blocks
            .iter()
            .any(|block| block.rows.iter().any(|row| row.name == place.name && (row.count > 1 || block.count > 1)));
        Some(RegisterName { word: place.name.word(), index: several.then_some(place.index as u32) })
    }

    /// Checks the table, for a test.
    pub fn check(&'static self) -> Result<(), String> {
        let mut end = (0, 0);
        for block in self.blocks {
            let Some(region) = self.regions.get(usize::from(block.region)) else {
                return Err(format!("block {:#x} lies in no region", block.base));
            };
            if (block.region, block.base) < end || block.base + block.stride * block.count > region.len {
                return Err(format!("block {:#x} overlaps, is out of order or leaves its region", block.base));
            }
            end = (block.region, block.base + block.stride * block.count);
            for row in block.rows {
                let word = row.name.word();
                let within = block.base <= row.offset && row.end() <= block.base + block.stride;
                if !within || !row.port && row.count as usize * block.count as usize > row.name.slots().len() {
                    return Err(format!("{word} leaves its block, or has too few slots"));
                }
                if ![1, 2, 4].contains(&row.width) || row.section.is_empty() {
                    return Err(format!("{word} has no width or no section"));
                }
            }
        }
        let sorted = self
            .aliases
            .windows(2)
            .all(|two| (two[0].region, two[0].from + two[0].len) <= (two[1].region, two[1].from));
        if !sorted || self.aliases.iter().any(|alias| self.lies_at(alias.region, alias.to).is_none()) {
            return Err("an alias is out of order, or of nothing".into());
        }
        for (region, offset, place) in self.places() {
            for byte in 0..u32::from(place.row.width) {
                let found = self.lies_at(region, offset + byte).map(|found| (found.name, found.index, found.byte));
                if found != Some((place.name, place.index, byte)) {
                    return Err(format!("{}[{}] at {offset:#x} is hidden by another", place.name.word(), place.index));
                }
            }
        }
        Ok(())
    }
}

/// Rows without the ones at some offsets, which a model lacks. `LEFT` must be the number of remaining rows.
pub const fn without<N: Copy, const ALL: usize, const LEFT: usize>(
    rows: &[Row<N>; ALL],
    offsets: &[u32],
) -> [Row<N>; LEFT] {
    assert!(LEFT + offsets.len() == ALL);
    let mut left = [rows[0]; LEFT];
    let (mut from, mut to) = (0, 0);
    while from < ALL {
        let mut gone = false;
        let mut i = 0;
        while i < offsets.len() {
            gone |= rows[from].offset == offsets[i];
            i += 1;
        }
        if !gone {
            left[to] = rows[from];
            to += 1;
        }
        from += 1;
    }
    assert!(to == LEFT);
    left
}

/// Rows with some replaced: registers that have other bits in a model.
pub const fn changed<N: Copy, const ALL: usize>(mut rows: [Row<N>; ALL], others: &[Row<N>]) -> [Row<N>; ALL] {
    let mut i = 0;
    while i < others.len() {
        let (mut n, mut found) = (0, false);
        while n < ALL {
            if rows[n].offset == others[i].offset {
                rows[n] = others[i];
                found = true;
            }
            n += 1;
        }
        assert!(found);
        i += 1;
    }
    rows
}
