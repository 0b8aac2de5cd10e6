//! What a guest is told about a packet that is too long for the tunnel: a message of `nicety_frame::icmp`, which comes in as if the packet's
//! destination had sent it. Only a packet for an address that is known behind another host is answered: otherwise the switch would learn a
//! wrong place from the answer.

use std::net::IpAddr;

use arrayvec::ArrayVec;
use nicety_adapter::{Edit, Frames, Packet, Pick, SegmentKind, Time};
use nicety_frame::ethernet::ethertype;
use nicety_frame::icmp::{MESSAGE_MAX, TooBig};
use nicety_frame::vlan::{TAG_LEN, TAG_OFFSET};
use nicety_frame::{Layout, Mac, Tag, Tci};

use super::guide::Guide;
use super::wire;

/// Most messages that wait for the next turn.
pub(super) const WAITING_MAX: usize = 16;
/// One message a millisecond, and as many as 50 ms allow at once: Linux's own limits (`net.ipv4.icmp_msgs_per_sec`, `icmp_msgs_burst`).
/// All guests share them.
const INTERVAL_NS: u64 = 1_000_000;
const BURST_NS: u64 = 50_000_000;
/// Longest message, with its tag.
pub(super) const ANSWER_MAX: usize = MESSAGE_MAX + TAG_LEN;

/// A message as it enters the switch.
pub(super) type Answer = ArrayVec<u8, ANSWER_MAX>;

/// A limit of so many a second.
#[derive(Debug, Default)]
pub(super) struct Limit {
    /// From then on it allows a whole burst again.
    restored_at: Time,
}

impl Limit {
    pub(super) fn may(&self, now: Time) -> bool {
        self.restored_at.0 <= now.0.saturating_add(BURST_NS)
    }

    pub(super) fn count(&mut self, now: Time) {
        self.restored_at = self.restored_at.max(now).after_ns(INTERVAL_NS);
    }
}

/// Messages that wait for the next turn. Another process does not get them: the guest sends again.
#[derive(Debug, Default)]
pub(super) struct Answers {
    waiting: ArrayVec<Answer, WAITING_MAX>,
    limit: Limit,
}

/// The packet that is answered, or a frame of it.
struct Refused<'a> {
    head: &'a [u8],
    layout: &'a Layout,
    /// Length of the frame, or of the first one that it is cut into.
    len: u32,
    /// Its VLAN; 0: it has no tag.
    vlan: u16,
    /// The MTU that guests may have.
    mtu: u32,
}

impl Answers {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Those that wait, in order.
    pub(super) fn take(&mut self) -> ArrayVec<Answer, WAITING_MAX> {
        std::mem::take(&mut self.waiting)
    }

    /// A packet is longer than the tunnel's own limit.
    pub(super) fn too_long(
        &mut self,
        (frames, pick, packet): (&Frames<'_>, Pick, &Packet),
        guide: &mut Guide<'_>,
    ) -> Option<()> {
        let (head, layout) = (frames.batch.head(packet), frames.batch.layout(packet));
        let outer = frames.outer_tag(pick);
        // Tags below the outer one: such a frame has no place in a tunnel.
        let inner = match pick.edit {
            Edit::Keep | Edit::Retag(_) => layout.tag_count().saturating_sub(1),
            Edit::Untag => layout.tag_count().saturating_sub(2),
            Edit::Tag(_) => layout.tag_count(),
        };
        if inner > 0 || outer.is_some_and(|tag| tag.tpid != ethertype::VLAN) {
            return None;
        }
        let len = match packet.offload.segment {
            Some(segment) => {
                let is_tunnel = segment.kind == SegmentKind::Tunnel;
                let headers = if is_tunnel { segment.headers } else { layout.headers_len };
                packet.len().min(u32::from(headers) + u32::from(segment.mss))
            }
            None => packet.len(),
        };
        let vlan = outer.map_or(0, |tag| tag.tci.id());
        let mtu = guide.frame_max.saturating_sub(wire::ETHERNET_BYTES);
        self.answer(&Refused { head, layout, len, vlan, mtu }, guide)
    }

    /// A frame of this network, whose start this is, is longer than its way to another host permits, which carries IP packets of `way_mtu`
    /// bytes.
    pub(super) fn returned(
        &mut self,
        (vni, head, len): (u32, &[u8], u32),
        (own, way_mtu): (IpAddr, u32),
        guide: &mut Guide<'_>,
    ) -> Option<()> {
        let (_, vlan) = guide.networks.vlan(vni)?;
        let mtu = wire::inner_mtu(u16::try_from(way_mtu).unwrap_or(u16::MAX), own);
        self.answer(&Refused { head, layout: &Layout::parse(head), len, vlan, mtu }, guide)
    }

    fn answer(&mut self, refused: &Refused<'_>, guide: &mut Guide<'_>) -> Option<()> {
        let Refused { head, layout, len, vlan, mtu } = *refused;
        let vni = guide.networks.vni(vlan)?;
        guide.table.place_of(vni, Mac(*head.first_chunk()?), guide.now)?;
        if self.waiting.is_full() || !self.limit.may(guide.now) {
            return None;
        }
        let (len, mtu) = (len.saturating_sub(layout.l2_len.into()), u16::try_from(mtu).unwrap_or(u16::MAX));
        let mut message = [0; MESSAGE_MAX];
        let end = TooBig { head, layout, len, mtu }.answer(&mut message)?;
        let (stations, rest) = message.get(..end)?.split_at_checked(TAG_OFFSET)?;
        let tag = (vlan != 0).then(|| Tag::customer(Tci::new(0, false, vlan)).to_bytes());
        let mut answer = Answer::new();
        for part in [stations, tag.as_ref().map_or(&[], |tag| &tag[..]), rest] {
            answer.try_extend_from_slice(part).ok()?;
        }
        self.waiting.try_push(answer).ok()?;
        self.limit.count(guide.now);
        Some(())
    }
}
