//! A receive ring of Intel's controllers (Intel 317453, 3.2; 82574 datasheet, 7.1): frames into as many buffers as they need, with
//! the results of their checks.
//!
//! ```text
//!  63            48 47    40 39    32 31           16 15             0
//! | buffer address                                                    |  legacy
//! | special (VLAN) | errors | status | packet checksum | length       |
//!
//! | buffer address, then: hash               | information            |  extended, 82574 (82576: advanced)
//! | VLAN           | length | errors, status                          |
//!
//! | address of the headers' buffer, then as extended                  |  split: 32 bytes
//! | address of the first buffer, then as extended                     |
//! | address of the second, then: lengths 3, 2, 1 | headers            |
//! | address of the third                                              |
//!
//! | address of the packet's buffer, then as extended                  |  apart, 82576
//! | address of the headers' buffer, then as extended                  |
//! ```

use arrayvec::ArrayVec;
use nicety_adapter::{Batch, Checked, ErrorPlace, Frames, Packet, Pick, Reason, Scratch, Short, Unfolded, Wants};
use nicety_frame::{Fragment, L3Kind, L4Kind, Layout, Tci, checksum};
use nicety_memory::{Map, Rights, Span, Target, Translator, Window};

use super::DESCRIPTOR;
use super::filter::{Filter, Match};
use super::flow::Control;
use super::registers::*;
use super::statistics::Statistics;

/// Maximum pieces of guest memory for one frame: 16 KiB in buffers of 256 bytes, each across a page boundary.
const PIECES: usize = 132;
/// Shortest frame without its check sequence. Shorter ones arrive padded.
const SHORTEST: u32 = 60;

/// Bits of a descriptor's status.
mod status {
    pub const DD: u32 = 1;
    pub const EOP: u32 = 1 << 1;
    pub const IXSM: u32 = 1 << 2;
    pub const VP: u32 = 1 << 3;
    pub const UDPCS: u32 = 1 << 4;
    pub const TCPCS: u32 = 1 << 5;
    pub const IPCS: u32 = 1 << 6;
    pub const PIF: u32 = 1 << 7;
    pub const TCPE: u32 = 1 << 29;
    pub const IPE: u32 = 1 << 30;
    pub const RXE: u32 = 1 << 31;
}

/// Format of a ring's descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// One buffer; write-back keeps its address.
    #[default]
    Legacy,
    /// One buffer; write-back has more status.
    Extended,
    /// The same of a 10 Gbit/s chip, whose checksum errors lie one bit higher (82599: IXGBE_RXDADV_ERR_TCPE in Linux's ixgbe_type.h).
    Extended10G,
    /// A buffer for headers and three for data.
    Split,
    /// A buffer for data, and one for headers.
    Apart {
        /// The header buffer is always filled first.
        always: bool,
    },
}

/// Fields of a frame's last descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Status and errors in the extended format; legacy descriptors have the same in two bytes.
    pub status: u32,
    /// The stripped tag.
    pub tag: u16,
    /// The kind of hash, and the chip's other information. Not in legacy descriptors.
    pub information: u32,
    /// The hash. Not in legacy descriptors.
    pub hash: u32,
}

/// The ring during one delivery. Head, tail and size are in units of 16 bytes, as in the registers.
#[derive(Debug)]
pub struct Ring<'m> {
    /// Its memory.
    pub window: Window<'m>,
    /// Guest memory, for buffers.
    pub memory: &'m Map,
    /// The same, for frames in one buffer each.
    pub targets: Translator<'m>,
    /// Its size.
    pub size: u32,
    /// The next descriptor to use.
    pub head: u32,
    /// The first descriptor that the driver owns.
    pub tail: u32,
    /// Format of its descriptors.
    pub format: Format,
    /// Bytes of each buffer of a descriptor: one, or four; `Apart`: the packet's, the headers'.
    pub buffers: [u32; 4],
    /// Bytes of check sequence that the length includes.
    pub check: u32,
    /// A small frame arrived (RSRPD).
    pub small: bool,
    /// The ring is a lone descriptor. The chip owns it while the tail is 1.
    pub lone: bool,
    /// The tail lies beyond the ring and never meets the head: the chip owns each descriptor without DD (see [`Ring::owns`]).
    pub open_ended: bool,
    /// The descriptor by which the last frame was lost, and the address in it that the device may not write.
    pub blamed: Option<(u32, u64)>,
}

/// A packet to deliver.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'f, 'b> {
    /// The frames it belongs to.
    pub frames: &'f Frames<'b>,
    /// Its pick.
    pub pick: Pick,
    /// Descriptor fields known in advance: information and hash.
    pub verdict: Verdict,
}

/// Why a frame was not written to the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// There is no room yet for this frame of the packet.
    NoRoom(u32),
    /// There will never be room.
    Never(Reason),
}

/// Division of a frame into the buffers of consecutive descriptors.
#[derive(Clone, Copy)]
struct Shares {
    left: u32,
    /// Bytes of split headers; 0 if they are not split.
    headers: u32,
    first: bool,
}

impl Shares {
    /// Bytes in each buffer of the next descriptor.
    fn next(&mut self, buffers: &[u32; 4], format: Format) -> [u32; 4] {
        let mut share = [0; 4];
        if let Format::Apart { .. } = format {
            if std::mem::take(&mut self.first) {
                share[1] = self.headers.min(self.left);
            }
            share[0] = buffers[0].min(self.left - share[1]);
            self.left -= share[0] + share[1];
            return share;
        }
        for (n, (bytes, size)) in share.iter_mut().zip(buffers).enumerate() {
            *bytes = match (n, self.headers) {
                (0, 1..) if self.first => self.headers,
                (0, 1..) => 0,
                _ => *size,
            }
            .min(self.left);
            self.left -= *bytes;
        }
        self.first = false;
        share
    }
}

impl<'m> Ring<'m> {
    /// Units of one descriptor.
    fn step(&self) -> u32 {
        if self.format == Format::Split { 2 } else { 1 }
    }

    /// Whether the chip owns this many descriptors from the head on.
    ///
    /// NuttX's e1000_enable (drivers/net/e1000.c) writes the ring's length to RDT, and later the index of each descriptor that it has
    /// read. QEMU's e1000_has_rxbufs receives then, because RDH and RDT differ. It would overwrite frames that are unread; here a
    /// descriptor with DD, which the driver clears, is not used again.
    fn owns(&self, count: u32) -> bool {
        if !self.open_ended {
            return count <= self.free();
        }
        let mut at = self.head;
        (0..count).all(|_| {
            let done = self.window.load_u32(at as usize * DESCRIPTOR + 12) & status::DD != 0;
            at = self.after(at);
            !done
        })
    }

    /// Descriptors that the driver has posted.
    pub fn free(&self) -> u32 {
        if self.lone {
            self.tail
        } else if self.head < self.size && self.tail < self.size {
            let round = if self.tail < self.head { self.size } else { 0 };
            (self.tail + round - self.head) / self.step()
        } else if self.open_ended {
            self.size
        } else {
            0
        }
    }

    fn after(&self, at: u32) -> u32 {
        let next = at + self.step();
        if next >= self.size { 0 } else { next }
    }

    fn shares(&self, len: u32, headers: u32) -> Shares {
        Shares { left: len.max(SHORTEST) + self.check, headers, first: true }
    }

    /// Bytes of a frame if it fits in a single buffer, as most frames do.
    #[inline]
    fn sole(&self, shares: &Shares) -> Option<u32> {
        (self.format != Format::Split && shares.headers == 0 && shares.left <= self.buffers[0]).then_some(shares.left)
    }

    /// Descriptors for a frame. `None` if its buffers are empty.
    fn count(&self, mut shares: Shares) -> Option<u32> {
        if self.format != Format::Split {
            let left = shares.left.saturating_sub(shares.headers);
            return (self.buffers[0] > 0).then(|| left.div_ceil(self.buffers[0]).max(1));
        }
        let mut count = 0;
        while shares.left > 0 {
            let before = shares.left;
            shares.next(&self.buffers, self.format);
            count += 1;
            if shares.left == before {
                return None;
            }
        }
        Some(count)
    }

    /// The next buffer for a frame of `len` bytes, at least [`SHORTEST`], if it is alone in one descriptor and one region. `None` if
    /// [`Ring::room`] must look.
    #[inline]
    fn target(&mut self, len: u32) -> Option<Target<'m>> {
        let bytes = len + self.check;
        let is_sole = matches!(self.format, Format::Legacy | Format::Extended | Format::Extended10G);
        if !is_sole || bytes > self.buffers[0] || self.size + u32::from(self.lone) < 2 || !self.owns(1) {
            return None;
        }
        let address = u64::from_le_bytes(self.window.read(self.head as usize * DESCRIPTOR));
        self.targets.target(address, bytes)
    }

    /// Finds buffers for frame `index` of a packet, of `len` bytes: their pieces and the number of descriptors.
    fn room(&self, index: u32, len: u32, headers: u32, spans: &mut ArrayVec<Span, PIECES>) -> Result<u32, Miss> {
        if self.size == 0 {
            // The driver has enabled the receiver before its ring has a length.
            return Err(Miss::NoRoom(index));
        }
        let mut shares = self.shares(len, headers);
        let sole = self.sole(&shares);
        let count = if sole.is_some() { Some(1) } else { self.count(shares) };
        let count = count.ok_or(Miss::Never(Reason::BadDescriptor))?;
        if count.saturating_mul(self.step()) >= self.size + u32::from(self.lone) {
            return Err(Miss::Never(Reason::TooLong));
        }
        if !self.owns(count) {
            return Err(Miss::NoRoom(index));
        }
        let mut at = self.head;
        if let Some(bytes) = sole {
            let address = u64::from_le_bytes(self.window.read(at as usize * DESCRIPTOR));
            let push = |span| spans.try_push(span).is_ok();
            let found = self.memory.translate(address, bytes, Rights::WRITE, push);
            return found.map(|()| 1).map_err(|_| Miss::Never(Reason::BadAddress));
        }
        for _ in 0..count {
            let share = shares.next(&self.buffers, self.format);
            // The header buffer is first.
            let order = if let Format::Apart { .. } = self.format { [1, 0, 2, 3] } else { [0, 1, 2, 3] };
            for (n, bytes) in order.into_iter().map(|n| (n, share[n])).filter(|(_, bytes)| *bytes > 0) {
                let address = u64::from_le_bytes(self.window.read(at as usize * DESCRIPTOR + 8 * n));
                let push = |span| spans.try_push(span).is_ok();
                if self.memory.translate(address, bytes, Rights::WRITE, push).is_err() {
                    return Err(Miss::Never(Reason::BadAddress));
                }
            }
            at = self.after(at);
        }
        Ok(count)
    }

    /// The first descriptor and address for a frame that the device may not write.
    #[cold]
    fn find_bad(&self, len: u32, headers: u32) -> Option<(u32, u64)> {
        let mut shares = self.shares(len, headers);
        let mut at = self.head;
        for _ in 0..self.count(shares)? {
            for (n, bytes) in shares.next(&self.buffers, self.format).into_iter().enumerate() {
                let address = u64::from_le_bytes(self.window.read(at as usize * DESCRIPTOR + 8 * n));
                if bytes > 0 && self.memory.translate(address, bytes, Rights::WRITE, |_| true).is_err() {
                    return Some((at, address));
                }
            }
            at = self.after(at);
        }
        None
    }

    /// The place of a frame's loss, and the value there, for a queue.
    #[cold]
    pub fn blame(&self, queue: u16) -> (ErrorPlace, u64) {
        let (at, address) = self.blamed.unwrap_or((self.head, 0));
        (ErrorPlace::receive(queue, at), address)
    }

    /// Hands one descriptor to the guest. Its status is written last.
    fn give(&mut self, share: [u32; 4], headers: u32, verdict: Verdict) {
        let place = self.head as usize * DESCRIPTOR;
        let Verdict { status, tag, information, hash } = verdict;
        let tag = u32::from(tag) << 16;
        if self.format == Format::Legacy {
            let last = status & 0xff | status >> 16 & 0xff00 | tag;
            self.window.store_u64(place + 8, u64::from(share[0]) | u64::from(last) << 32);
        } else {
            let apart = if let Format::Apart { .. } = self.format { share[1] << 21 } else { 0 };
            let first = information | apart | if headers > 0 { apart.min(1) << 31 } else { 0 };
            self.window.write_u64(place, u64::from(first) | u64::from(hash) << 32);
            if self.format == Format::Split {
                const SPLIT: u32 = 1 << 15;
                let headers = if headers > 0 { headers | SPLIT } else { 0 };
                self.window.store_u32(place + 16, headers | share[1] << 16);
                self.window.store_u32(place + 20, share[2] | share[3] << 16);
            }
            let status = if self.format == Format::Extended10G { status_10g(status) } else { status };
            self.window.store_u64(place + 8, u64::from(status) | u64::from(share[0] | tag) << 32);
        }
        self.head = self.after(self.head);
        if self.lone {
            self.tail = 0;
        }
    }

    /// Hands the descriptors of a frame to the guest.
    fn give_frame(&mut self, count: u32, len: u32, headers: u32, verdict: Verdict) {
        let mut shares = self.shares(len, headers);
        if let Some(bytes) = self.sole(&shares) {
            return self.give([bytes, 0, 0, 0], headers, verdict);
        }
        for _ in 1..count {
            let share = shares.next(&self.buffers, self.format);
            self.give(share, headers, Verdict { status: status::DD, ..Verdict::default() });
        }
        let share = shares.next(&self.buffers, self.format);
        self.give(share, headers, verdict);
    }

    /// Whether the number of free descriptors has just fallen to a threshold.
    pub fn crossed(&self, before: u32, threshold: u32) -> bool {
        let had = (self.tail + self.size - before) % self.size.max(1) / self.step();
        had > threshold && self.free() <= threshold
    }

    /// The threshold of RCTL.RDMTS (317453, 13.4.22): a half, a quarter or an eighth of the ring.
    pub fn share(&self, control: u32) -> u32 {
        (self.size / self.step()) >> ((control >> 8 & 3) + 1).min(3)
    }
}

/// The receiver, during one delivery.
#[derive(Debug)]
pub struct Receiver<'a> {
    /// The chip's registers.
    pub registers: &'a mut Bank,
    /// The receiver's address filter.
    pub filter: &'a Filter,
    /// Offloads that it accepts.
    pub wants: Wants,
    /// Frames are the adapter's own, in loopback.
    pub looped: bool,
    /// UDP checksums have their own status bit (82574 and later).
    pub tells_udp: bool,
    /// Quanta of a PAUSE that was received and must be obeyed.
    pub pause: Option<u16>,
}

impl Receiver<'_> {
    /// Writes all frames of a packet; returns their number and bytes.
    #[inline(always)]
    pub fn place(
        &mut self,
        ring: &mut Ring<'_>,
        offer: &Offer<'_, '_>,
        scratch: &mut Scratch,
    ) -> Result<(u64, u64), Miss> {
        let Offer { frames, pick, .. } = *offer;
        let head = frames.batch.packet(pick.packet).map_or(&[][..], |packet| frames.batch.head(packet));
        match Control::of(self.registers, head) {
            Some(control) => self.place_control(control, ring, offer, scratch),
            None => self.place_frames(head, ring, offer, scratch),
        }
    }

    /// A MAC control frame, which the chip handles, and the driver may see.
    #[cold]
    fn place_control(
        &mut self,
        control: Control,
        ring: &mut Ring<'_>,
        offer: &Offer<'_, '_>,
        scratch: &mut Scratch,
    ) -> Result<(u64, u64), Miss> {
        let passes = control.passes(self.registers);
        let placed =
            if passes { self.place_frames(&[], ring, offer, scratch) } else { Err(Miss::Never(Reason::Filtered)) };
        if !matches!(placed, Err(Miss::NoRoom(_))) {
            control.count(self.registers, SHORTEST);
            self.pause = control.obeyed(self.registers).or(self.pause);
        }
        placed
    }

    /// `counted`: the head, for the statistics of good frames; empty if the frame is not counted.
    fn place_frames(
        &mut self,
        counted: &[u8],
        ring: &mut Ring<'_>,
        offer: &Offer<'_, '_>,
        scratch: &mut Scratch,
    ) -> Result<(u64, u64), Miss> {
        let Offer { frames, pick, mut verdict } = *offer;
        let filtered = Miss::Never(Reason::Filtered);
        let head = frames.batch.packet(pick.packet).map_or(&[][..], |packet| frames.batch.head(packet));
        let tag = frames.outer_tag(pick).filter(|tag| tag.tpid == self.registers[VET] as u16).map(|tag| tag.tci);
        if self.filter.wants(self.registers, head, tag).ok_or(filtered)? == Match::Inexact {
            verdict.status |= status::PIF;
        }
        if let Some(placed) = self.place_short(counted, ring, &Offer { verdict, ..*offer }) {
            return Ok(placed);
        }
        self.place_unfolded(counted, ring, &Offer { verdict, ..*offer }, scratch)
    }

    /// Writes a short frame that nothing changes into one buffer, as most are. `None` if it must be unfolded: then nothing has changed.
    #[inline]
    fn place_short(&mut self, counted: &[u8], ring: &mut Ring<'_>, offer: &Offer<'_, '_>) -> Option<(u64, u64)> {
        let Offer { frames, pick, verdict } = *offer;
        let frame = Short::of(frames, pick, &self.wants).filter(|frame| frame.bytes().len() >= SHORTEST as usize)?;
        let len = frame.bytes().len() as u32;
        if !ring.target(len)?.write::<0>(0, frame.bytes()) {
            return None;
        }
        let verdict = self.verdict(verdict, frames.batch, frame.packet(), None, frame.checked());
        ring.give([len + ring.check, 0, 0, 0], 0, verdict);
        self.arrived(counted, ring, len);
        Some((1, len.into()))
    }

    /// A frame of `len` bytes was written.
    #[inline]
    fn arrived(&mut self, counted: &[u8], ring: &mut Ring<'_>, len: u32) {
        ring.small |= len + 4 <= self.registers[RSRPD];
        if !counted.is_empty() {
            self.registers.count_received(counted, len.max(SHORTEST));
        }
    }

    /// Writes any frames that have passed the filter.
    #[inline(always)]
    fn place_unfolded(
        &mut self,
        counted: &[u8],
        ring: &mut Ring<'_>,
        offer: &Offer<'_, '_>,
        scratch: &mut Scratch,
    ) -> Result<(u64, u64), Miss> {
        let Offer { frames, pick, verdict } = *offer;
        let unfolded = Unfolded::new(frames, pick, self.wants).map_err(|reason| {
            let long = u32::from(reason == Reason::TooLong);
            self.registers.count(ROC, long);
            self.registers.count(RLEC, long);
            Miss::Never(reason)
        })?;
        let packet = unfolded.packet();
        for index in unfolded.wanted() {
            let mut spans = ArrayVec::new();
            let len = unfolded.len(index);
            let headers = match ring.format {
                Format::Split => {
                    unfolded.piece(index, scratch).map_or(0, |piece| headers(piece.head(), ring.buffers[0]))
                }
                Format::Apart { always } => {
                    unfolded.piece(index, scratch).map_or(0, |piece| match headers(piece.head(), ring.buffers[1]) {
                        0 if always => ring.buffers[1].min(len),
                        headers => headers,
                    })
                }
                Format::Legacy | Format::Extended | Format::Extended10G => 0,
            };
            let room = ring.room(index, len, headers, &mut spans);
            let descriptors = room.inspect_err(|miss| self.count_miss(ring, *miss, len, headers))?;
            let mut piece = unfolded.piece(index, scratch).ok_or(Miss::Never(Reason::BadOffload))?;
            let checked = piece.write(ring.memory, &spans);
            pad(ring.memory, &spans, len);
            let verdict = self.verdict(verdict, frames.batch, packet, piece.tag, checked);
            ring.give_frame(descriptors, len, headers, verdict);
            self.arrived(counted, ring, len);
        }
        Ok((u64::from(unfolded.count()), u64::from(packet.len())))
    }

    fn count_miss(&mut self, ring: &mut Ring<'_>, miss: Miss, len: u32, headers: u32) {
        match miss {
            Miss::NoRoom(_) => {
                self.registers.count(RNBC, 1);
                self.registers.count(MPC, u32::from(self.looped));
            }
            Miss::Never(Reason::BadAddress) => {
                ring.blamed = ring.find_bad(len, headers);
                self.registers.count(RXERRC, 1);
                let status = status::DD | status::EOP | status::IXSM | status::RXE;
                ring.give([0; 4], 0, Verdict { status, ..Verdict::default() });
            }
            Miss::Never(_) => {}
        }
    }

    /// Descriptor fields of a frame (317453, 3.2.3; 82574, 7.1.5).
    #[inline(always)]
    fn verdict(
        &self,
        mut verdict: Verdict,
        batch: &Batch,
        packet: &Packet,
        tag: Option<Tci>,
        checked: Checked,
    ) -> Verdict {
        let (offloads, layout) = (self.registers[RXCSUM], || batch.layout(packet));
        verdict.status |= status::DD | status::EOP;
        if let Some(control) = tag {
            verdict.status |= status::VP;
            verdict.tag = control.0;
        }
        let mut found = 0;
        if offloads & rxcsum::IPOFL != 0
            && let Some(l3) = layout().l3.filter(|l3| l3.kind == L3Kind::V4)
        {
            let start = usize::from(l3.offset);
            let header = batch.head(packet).get(start..start + usize::from(l3.len)).unwrap_or_default();
            // A segmented packet's headers are new and correct.
            let good = packet.offload.segment.is_some() || checksum::sum(header).fold() == 0xffff;
            found |= if good { status::IPCS } else { status::IPCS | status::IPE };
        }
        if offloads & rxcsum::TUOFL != 0
            && let Some(l4) = layout().l4
        {
            let udp = if self.tells_udp && l4.kind == L4Kind::Udp { status::UDPCS } else { 0 };
            found |= match checked {
                Checked::Good => status::TCPCS | udp,
                Checked::Bad => status::TCPCS | status::TCPE | udp,
                Checked::Unknown => 0,
            };
        }
        verdict.status |= if found == 0 { status::IXSM } else { found };
        verdict
    }
}

/// Bytes of split headers: to the end of TCP or UDP, or of IP; 0 if they do not fit (82574, 7.1.10).
fn headers(head: &[u8], most: u32) -> u32 {
    let layout = Layout::parse(head);
    let Some(l3) = layout.l3 else { return 0 };
    let len = match layout.l4.filter(|_| l3.fragment == Fragment::Whole) {
        Some(_) => u32::from(layout.headers_len),
        None => u32::from(l3.offset) + u32::from(l3.len),
    };
    if len <= most { len } else { 0 }
}

/// The status of a 10 Gbit/s chip: its checksum errors are the two highest bits; its bit 2 has another meaning.
fn status_10g(status: u32) -> u32 {
    let errors = status & (status::TCPE | status::IPE);
    status & !(status::TCPE | status::IPE | status::RXE | status::IXSM) | errors << 1
}

/// Pads a frame with zeros to Ethernet's minimum.
fn pad(memory: &Map, spans: &[Span], len: u32) {
    let (mut skip, mut left) = (len, SHORTEST.saturating_sub(len));
    for span in spans {
        if left == 0 {
            return;
        }
        let place = span.piece(skip, left);
        skip = skip.saturating_sub(span.len());
        memory.write_span(place, &[0; SHORTEST as usize][..place.len() as usize]);
        left -= place.len();
    }
}

/// Buffer size of legacy and extended descriptors (317453, 13.4.22: BSIZE, BSEX).
pub fn buffer_size(control: u32) -> u32 {
    let code = control >> 16 & 3;
    if control & rctl::BSEX != 0 && code != 0 { 32768 >> code } else { 2048 >> code }
}

/// Descriptor format and buffer sizes of SRRCTL (82576 datasheet, 8.10.2). `usual`: buffer size if it names none.
pub fn shape(control: u32, usual: u32) -> (Format, [u32; 4]) {
    let packet = match control & 0x7f {
        0 => usual,
        kilobytes => kilobytes << 10,
    };
    let headers = (control >> 8 & 0xf) * 64;
    let format = match control >> 25 & 7 {
        0 => Format::Legacy,
        2 if headers > 0 => Format::Apart { always: false },
        5 if headers > 0 => Format::Apart { always: true },
        _ => Format::Extended,
    };
    let apart = matches!(format, Format::Apart { .. });
    (format, [packet, if apart { headers } else { 0 }, 0, 0])
}
