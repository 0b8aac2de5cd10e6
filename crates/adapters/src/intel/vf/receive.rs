//! Receive: offloads, formats and queues; and the counters. An 82576's function has its frames in queue 0, as long as the physical
//! function sorts by address alone (7.1.1.2: VMDq without RSS). An 82599's driver may have two queues, between which the physical
//! function's hash decides (82599 datasheet, 7.1.2.8).

use nicety_adapter::family::{Ask, Family};
use nicety_adapter::{Frames, Packet, Pick, Unfolded, Wants};
use nicety_pci::Changes;

use super::VirtualFunction;
use super::registers::{self as r, RXDCTL_VME, Reg, dctl, psrtype, rctl, vmolr};
use crate::intel::igb::queues::packet_type;
use crate::intel::mac::receive::Route;
use crate::intel::mac::{Chip, Facts, Known};
use crate::intel::receive::{Format, Offer, Ring, Verdict, shape};
use crate::intel::rss::Rss;

/// Bytes of a frame check sequence, which VMOLR.RLPML counts.
const CHECK: u32 = 4;
/// Bytes that a tag of the switch adds.
const TAG: u32 = 4;
/// Buffer size if SRRCTL names none (RCTL.BSIZE of the physical function).
const USUAL_BUFFER: u32 = 2048;

impl Chip for VirtualFunction {
    const FACTS: Facts = Facts {
        wired: false,
        advanced: true,
        tags_by_mode: false,
        takes_lone: false,
        tells_udp: true,
        master_disable: 0,
        routes: Changes::MSIX.union(Changes::POWER).union(Changes::BUS_MASTER),
    };

    fn wants(&self, queue: usize) -> Wants {
        Wants {
            frame_max: self.frame_max(),
            strip: if self.strips(queue) { self.registers[r::VET] as u16 } else { 0 },
            verify: true,
            ..Wants::default()
        }
    }

    fn shape(&self, queue: usize) -> (Format, [u32; 4]) {
        let control = self.registers.of(r::SRRCTL).get(queue).copied().unwrap_or(0);
        let (format, buffers) = shape(control, USUAL_BUFFER);
        (if self.own.model.ten_gigabit { Format::Extended10G } else { format }, buffers)
    }

    #[inline]
    fn steer(&mut self, frames: &Frames<'_>, _pick: Pick, packet: &Packet) -> Route {
        let (head, layout) = (frames.batch.head(packet), frames.batch.layout(packet));
        let mut verdict = Verdict { information: packet_type(layout), ..Verdict::default() };
        if !self.own.model.ten_gigabit {
            return Route { verdict, ..Route::default() };
        }
        let hash = self.rss.hash(&self.registers, head, layout);
        verdict.information |= hash.kind;
        verdict.hash = hash.value;
        let spread = hash.kind != 0 && self.spreads();
        let queue = if spread { usize::from(Rss::entry(&self.registers, hash.value) & 1) } else { 0 };
        Route { queue, verdict, timed: false }
    }

    /// [`Wants::frame_max`] does not count tags; the chip does.
    #[inline]
    fn fits(&self, offer: &Offer<'_, '_>, packet: &Packet, wants: Wants) -> bool {
        let most = self.frame_max();
        if packet.offload.segment.is_none() && packet.len() + TAG <= most {
            return true;
        }
        match Unfolded::new(offer.frames, offer.pick, wants) {
            Ok(unfolded) => unfolded.wanted().next().is_none_or(|first| unfolded.len(first) <= most),
            // The receiver finds the reason.
            Err(_) => true,
        }
    }

    /// No cause tells that few are left.
    fn threshold(&self, _ring: &Ring<'_>, _queue: usize) -> u32 {
        u32::MAX
    }

    fn checks_tags(&self) -> bool {
        self.own.checks_tags
    }

    /// Moves what the sender has counted to the function's counters, which wrap.
    fn walked(&mut self) {
        let [frames, octets] = [r::GPTC, r::GOTCL].map(|name| std::mem::take(&mut self.registers[name]));
        self.registers[r::GOTCH] = 0;
        self.count(r::VFGPTC, frames);
        self.count_octets(r::VFGOTC, r::VFGOTCH, octets);
    }

    fn known_features(&self) -> Known {
        let queues = self.registers.of(r::TXDCTL).iter().filter(|control| *control & dctl::ENABLE != 0).count();
        Known::from_iter([
            (self.own.mailbox.standing.ready, "rx-checksum"),
            (self.strips(0), "vlan-strip"),
            (self.own.mailbox.standing.vlans > 0, "vlan-filter"),
            (self.registers[r::VMOLR] & vmolr::RLPML > 1600, "jumbo"),
            (self.registers[r::RCTL] & rctl::MPE != 0, "all-multicast"),
            (self.spreads(), "rss"),
            (queues > 1, "mq"),
        ])
    }

    fn next_ask(&mut self) -> Option<Ask> {
        self.take_ask()
    }

    fn own_family(&self) -> Option<Box<dyn Family>> {
        Some(Box::new((self.own.model.card)(vec![self.own.policy])))
    }
}

impl VirtualFunction {
    /// Bytes of the longest frame in the guest's memory. It must be obeyed: Linux's buffers have no more, whatever SRRCTL says
    /// (igbvf_change_mtu, igbvf_setup_srrctl).
    fn frame_max(&self) -> u32 {
        (self.registers[r::VMOLR] & vmolr::RLPML).saturating_sub(CHECK)
    }

    /// Whether a queue's tags are stripped.
    fn strips(&self, queue: usize) -> bool {
        if self.own.model.ten_gigabit {
            self.registers.of(r::RXDCTL).get(queue).is_some_and(|control| control & RXDCTL_VME != 0)
        } else {
            self.registers[r::VMOLR] & vmolr::STRVLAN != 0
        }
    }

    /// Whether frames are spread over two queues.
    fn spreads(&self) -> bool {
        self.own.model.ten_gigabit && self.registers[r::PSRTYPE] & psrtype::TWO_QUEUES != 0
    }

    /// Moves what the receiver has counted to the function's counters, which wrap. Multicast counts broadcasts, too.
    pub(super) fn count_received(&mut self) {
        let names = [r::GPRC, r::GORCL, r::MPRC, r::BPRC];
        let [frames, octets, multicast, broadcast] = names.map(|name| std::mem::take(&mut self.registers[name]));
        self.registers[r::GORCH] = 0;
        self.count(r::VFGPRC, frames);
        self.count_octets(r::VFGORC, r::VFGORCH, octets);
        self.count(r::VFMPRC, multicast.wrapping_add(broadcast));
    }

    /// Adds to a counter that wraps.
    fn count(&mut self, name: Reg, more: u32) {
        self.registers[name] = self.registers[name].wrapping_add(more);
    }

    /// Adds to a counter of octets: 32 bits, of the 82599 36.
    fn count_octets(&mut self, low: Reg, high: Reg, more: u32) {
        let (sum, carry) = self.registers[low].overflowing_add(more);
        self.registers[low] = sum;
        if self.own.model.ten_gigabit {
            self.registers[high] = (self.registers[high] + u32::from(carry)) & 0xf;
        }
    }
}
