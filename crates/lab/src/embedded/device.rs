//! A link as smoltcp's device: a queue of received packets, a queue of packets that await room on the link, and the offloads of both
//! directions.

use std::collections::VecDeque;
use std::num::NonZeroUsize;

use nicety_adapter::{Checksum, Offload, Segment, SegmentKind};
use nicety_frame::checksum::{self, Verdict};
use nicety_frame::{L3Kind, L4Kind, Layout};
use smoltcp::phy::{self, Device, DeviceCapabilities, Medium, PacketMeta};
use smoltcp::time::Instant;

use super::link::{GuestError, Link};

/// The largest frame: an MTU of 1500 and the Ethernet header.
const FRAME: usize = 1514;

/// smoltcp's device over a link (see the module's page).
pub struct LinkDevice {
    incoming: VecDeque<Vec<u8>>,
    free: Vec<Vec<u8>>,
    out: Out,
    frames_received: u64,
    bytes_received: u64,
}

struct Out {
    link: Box<dyn Link>,
    checksum: bool,
    packet: Vec<u8>,
    waiting: VecDeque<(Vec<u8>, Offload)>,
    error: Option<GuestError>,
    frames: u64,
    bytes: u64,
}

impl LinkDevice {
    /// A device over this link.
    pub fn new(link: Box<dyn Link>) -> LinkDevice {
        let (checksum, _) = link.offloads();
        let (packet, waiting) = (Vec::new(), VecDeque::new());
        let out = Out { link, checksum, packet, waiting, error: None, frames: 0, bytes: 0 };
        LinkDevice { incoming: VecDeque::new(), free: Vec::new(), out, frames_received: 0, bytes_received: 0 }
    }

    /// The link.
    pub fn link(&mut self) -> &mut dyn Link {
        self.out.link.as_mut()
    }

    /// Frames sent and received.
    pub fn frames(&self) -> u64 {
        self.out.frames + self.frames_received
    }

    /// Bytes of the packets sent and received.
    pub fn bytes(&self) -> u64 {
        self.out.bytes + self.bytes_received
    }

    /// Whether a packet waits for room. Nothing more is sent until the link interrupts.
    pub fn blocked(&self) -> bool {
        !self.out.waiting.is_empty()
    }

    /// Takes up to `budget` packets from the link. Returns true if more may be waiting.
    pub fn fill(&mut self, budget: usize) -> Result<bool, GuestError> {
        let LinkDevice { incoming, free, out, frames_received, bytes_received } = self;
        let taken = out.link.receive(budget, &mut |packet, info| {
            *frames_received += u64::from(info.frames);
            *bytes_received += packet.len() as u64;
            // As in an operating system: software checks the checksum unless the adapter has checked it.
            if info.checksum_good || checksum::check(packet, &Layout::parse(packet)) != Verdict::Bad {
                let empty = free.pop().unwrap_or_default();
                incoming.push_back(std::mem::replace(packet, empty));
            }
        })?;
        Ok(taken >= budget)
    }

    /// Retries the packets that had no room.
    pub fn retry(&mut self) -> Result<(), GuestError> {
        while let Some((packet, offload)) = self.out.waiting.front() {
            if !self.out.link.transmit(packet, offload)? {
                break;
            }
            self.out.waiting.pop_front();
        }
        Ok(())
    }

    /// Notifies the link of sent packets. Returns the error of an earlier send, if there was one.
    pub fn flush(&mut self) -> Result<(), GuestError> {
        match self.out.error.take() {
            Some(error) => Err(error),
            None => self.out.link.flush(),
        }
    }
}

impl Out {
    /// Offloads to request from the link. Prepares the packet's checksum field for them.
    fn offload(&mut self, segment_bytes: Option<u16>) -> Offload {
        let layout = Layout::parse(&self.packet);
        let Some(l4) = layout.l4.filter(|l4| l4.kind == L4Kind::Tcp) else { return Offload::default() };
        if !self.checksum {
            checksum::fill(&mut self.packet, &layout);
            return Offload::default();
        }
        let at = l4.checksum_at();
        let len = (self.packet.len() - usize::from(l4.offset)) as u32;
        let pseudo = checksum::pseudo(&self.packet, &layout, len).map_or(0, |sum| sum.fold());
        if let Some(field) = self.packet.get_mut(at..at + 2) {
            field.copy_from_slice(&pseudo.to_be_bytes());
        }
        let checksum = Checksum::Partial { start: l4.offset, field: at as u16 };
        let cut = segment_bytes.filter(|_| layout.l3.is_some_and(|l3| l3.kind == L3Kind::V4));
        let segment = cut.map(|mss| Segment { kind: SegmentKind::Tcp, mss, headers: layout.headers_len });
        Offload { checksum, segment }
    }

    fn send(&mut self, meta: PacketMeta) {
        let offload = self.offload(meta.segmentation_offload_size.map(|size| size.get()));
        self.frames += offload.segment.map_or(1, |cut| {
            self.packet.len().saturating_sub(cut.headers.into()).div_ceil(usize::from(cut.mss).max(1)) as u64
        });
        self.bytes += self.packet.len() as u64;
        let sent = match self.waiting.is_empty() {
            true => self.link.transmit(&self.packet, &offload),
            false => Ok(false),
        };
        match sent {
            Ok(true) => {}
            Ok(false) => self.waiting.push_back((std::mem::take(&mut self.packet), offload)),
            Err(error) => self.error = Some(error),
        }
    }
}

/// A received packet (smoltcp's receive token).
pub struct Arrived<'a> {
    packet: Vec<u8>,
    free: &'a mut Vec<Vec<u8>>,
}

impl phy::RxToken for Arrived<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(mut self, f: F) -> R {
        let result = f(&self.packet);
        self.packet.clear();
        self.free.push(self.packet);
        result
    }
}

/// A packet to be written (smoltcp's transmit token).
pub struct Leaving<'a> {
    out: &'a mut Out,
    meta: PacketMeta,
}

impl std::fmt::Debug for Out {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Out").field("frames", &self.frames).finish_non_exhaustive()
    }
}

impl phy::TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        // smoltcp writes every byte of the packet.
        self.out.packet.resize(len, 0);
        let result = f(&mut self.out.packet);
        self.out.send(self.meta);
        result
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.meta = meta;
    }
}

impl Device for LinkDevice {
    type RxToken<'a> = Arrived<'a>;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Arrived<'_>, Leaving<'_>)> {
        let packet = self.incoming.pop_front()?;
        let leaving = Leaving { out: &mut self.out, meta: PacketMeta::default() };
        Some((Arrived { packet, free: &mut self.free }, leaving))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Leaving<'_>> {
        let room = self.out.waiting.is_empty() && self.out.error.is_none();
        room.then(|| Leaving { out: &mut self.out, meta: PacketMeta::default() })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME;
        // In both directions this module and the adapter handle TCP checksums.
        capabilities.checksum.tcp = phy::Checksum::None;
        let (_, segment_bytes) = self.out.link.offloads();
        let segment_bytes = NonZeroUsize::new(segment_bytes as usize).filter(|bytes| bytes.get() > FRAME);
        capabilities.segmentation.tcpv4 = segment_bytes.filter(|_| self.out.checksum);
        capabilities
    }
}
