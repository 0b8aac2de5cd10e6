//! A port's policy on the switch, as configured.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use nicety_adapter::Shape;
use nicety_frame::{Mac, vlan};

/// The highest address limit of a port.
pub const ADDRESS_LIMIT_MAX: u16 = 64;

/// The number of a VLAN: 1 to 4094 (IEEE 802.1Q-2018, table 9-2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VlanId(u16);

/// Reasons why a text or a number is not a VLAN, or not a list of VLANs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VlanError(String);

impl fmt::Display for VlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is no VLAN: a VLAN is a number from 1 to {}, and a range is such as 20-30",
            self.0,
            vlan::ID_MAX
        )
    }
}

impl std::error::Error for VlanError {}

impl VlanId {
    /// `None` outside 1 to 4094.
    pub fn new(id: u16) -> Option<Self> {
        (1..=vlan::ID_MAX).contains(&id).then_some(Self(id))
    }

    /// The number.
    pub fn number(self) -> u16 {
        self.0
    }
}

impl fmt::Display for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for VlanId {
    type Err = VlanError;

    fn from_str(text: &str) -> Result<Self, VlanError> {
        text.trim().parse().ok().and_then(Self::new).ok_or_else(|| VlanError(text.to_owned()))
    }
}

/// A set of VLANs; prints itself as `10,20-30`.
#[derive(Clone, PartialEq, Eq)]
pub struct VlanSet(Box<[u64; 64]>);

impl Default for VlanSet {
    fn default() -> Self {
        Self(Box::new([0; 64]))
    }
}

impl VlanSet {
    /// All VLANs.
    pub fn all() -> Self {
        (1..=vlan::ID_MAX).map(VlanId).collect()
    }

    /// Whether a VLAN is in it.
    #[inline]
    pub fn contains(&self, id: VlanId) -> bool {
        self.0[usize::from(id.0 / 64) % 64] >> (id.0 % 64) & 1 != 0
    }

    /// Adds one.
    pub fn insert(&mut self, id: VlanId) {
        self.0[usize::from(id.0 / 64) % 64] |= 1 << (id.0 % 64);
    }

    /// The VLANs in order.
    pub fn iter(&self) -> impl Iterator<Item = VlanId> + '_ {
        (1..=vlan::ID_MAX).map(VlanId).filter(|id| self.contains(*id))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
}

impl FromIterator<VlanId> for VlanSet {
    fn from_iter<I: IntoIterator<Item = VlanId>>(ids: I) -> Self {
        let mut set = Self::default();
        ids.into_iter().for_each(|id| set.insert(id));
        set
    }
}

impl Extend<VlanId> for VlanSet {
    fn extend<I: IntoIterator<Item = VlanId>>(&mut self, ids: I) {
        ids.into_iter().for_each(|id| self.insert(id));
    }
}

impl fmt::Display for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<u16> = self.iter().map(VlanId::number).collect();
        for (index, run) in ids.chunk_by(|a, b| a + 1 == *b).enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match run {
                [one] => write!(f, "{comma}{one}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

impl fmt::Debug for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VlanSet({self})")
    }
}

impl FromStr for VlanSet {
    type Err = VlanError;

    /// Numbers and ranges with commas between them: `10,20-30`.
    fn from_str(text: &str) -> Result<Self, VlanError> {
        let mut set = Self::default();
        for part in text.split(',') {
            let wrong = || VlanError(part.trim().to_owned());
            match part.split_once('-') {
                None => set.insert(part.parse()?),
                Some((first, last)) => {
                    let (first, last): (VlanId, VlanId) = (first.parse()?, last.parse()?);
                    if first > last {
                        return Err(wrong());
                    }
                    set.extend((first.0..=last.0).map(VlanId));
                }
            }
        }
        Ok(set)
    }
}

/// A port's VLANs, and the tags of their frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Vlan {
    /// The flat network, shared by all such ports: frames pass with any tags. An uplink also carries, with their tags, the VLANs of
    /// other ports that no other uplink has.
    #[default]
    Flat,
    /// One VLAN, untagged on the guest's side: untagged and priority-tagged frames only.
    Access(VlanId),
    /// Several VLANs, each frame with its tag: 802.1Q, or 802.1ad for VLANs of [`Vlan::Service`] ports.
    Trunk {
        /// The allowed VLANs.
        allowed: VlanSet,
        /// The VLAN whose frames are untagged here; without it untagged frames are refused.
        native: Option<VlanId>,
    },
    /// A customer's port of a provider network: all frames that it sends, with any 802.1Q tags, are in this service VLAN, and get
    /// an 802.1ad tag on trunks. Service VLANs are separate from other VLANs with the same number.
    Service(VlanId),
}

/// A port's role in a private VLAN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Private {
    /// It reaches all ports, and all ports reach it. The default.
    #[default]
    Promiscuous,
    /// It reaches only promiscuous ports.
    Isolated,
    /// It reaches promiscuous ports, and ports of the community with the same number.
    Community(u16),
    /// It reaches uplinks alone, and only they reach it: a station behind a virtual Ethernet port aggregator (IEEE 802.1Q-2018, clause 40).
    /// The neighbour beyond the uplink returns frames for other such ports. A port's own frame that returns does not reach it.
    Vepa,
}

/// Frames that a port's guest may not send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guards {
    /// Spanning tree frames: to 01:80:c2:00:00:00, or Cisco's 01:00:0c:cc:cc:cd.
    pub bpdu: bool,
    /// DHCP server frames, IPv4 or IPv6.
    pub dhcp_server: bool,
    /// ARP, neighbour advertisements, neighbour and router solicitations that name another MAC address than the frame's source, or
    /// an IP address that [`Policy::ip`] does not allow.
    pub arp: bool,
    /// Router advertisements, and redirects, of IPv4 too.
    pub router_advertisement: bool,
    /// Queries of IGMP and MLD, and other messages that only multicast routers send (PIM, DVMRP, multicast router discovery).
    pub multicast_router: bool,
}

/// Limits on a guest's frames to many receivers, in frames per second; `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Storm {
    /// Broadcasts.
    pub broadcast: Option<u32>,
    /// Multicasts.
    pub multicast: Option<u32>,
    /// Frames to addresses that the switch does not know.
    pub unknown: Option<u32>,
}

/// A port's policy. The default is a port of a flat learning switch, without restrictions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The port's own addresses: the configured one, and others bound to it.
    pub addresses: Vec<Mac>,
    /// Its VLANs.
    pub vlan: Vlan,
    /// Priority of the tags that its frames get, with [`Vlan::Access`]: 0 to 7 (IEEE 802.1Q-2018, 6.9.3).
    pub priority: u8,
    /// The priority that the guest writes into tags does not count. Frames in a VLAN get [`Policy::priority`] instead (IEEE 802.1Q-2018,
    /// 6.9.4: priority regeneration).
    pub regenerates: bool,
    /// Beyond this uplink is no network, but a service of the switch, such as the querier of multicast groups.
    pub is_service: bool,
    /// Its role in a private VLAN.
    pub private: Private,
    /// VMware's "promiscuous mode": it gets every frame of its VLANs.
    pub promiscuous: bool,
    /// VMware's "MAC address changes": if false, frames to other addresses than its own do not reach it.
    pub mac_changes: bool,
    /// VMware's "forged transmits": if false, frames from other addresses than its own are refused.
    pub forged_transmits: bool,
    /// Most addresses that may send from it at once; up to [`ADDRESS_LIMIT_MAX`].
    pub address_limit: Option<u16>,
    /// Frames that its guest may not send.
    pub guards: Guards,
    /// The guest's IP addresses, for [`Guards::arp`]; empty: any.
    pub ip: Vec<IpAddr>,
    /// Storm control.
    pub storm: Storm,
    /// The longest packet that it may send, in bytes behind the Ethernet header and its tags.
    pub mtu: Option<u16>,
    /// Whether it gets only multicasts for groups that a host there has joined by IGMP or MLD, or that no port has joined.
    pub snooping: bool,
    /// Whether the plane keeps the port's LLDP neighbour.
    pub lldp: bool,
    /// Whether I/O control believes the priority and the code point that its frames bring along.
    pub trust_marks: bool,
    /// Whether it carries nothing: what comes in is dropped as `blocked`, and no frame leaves by it.
    pub blocked: bool,
    /// Whether refusals are logged.
    pub log: bool,
    /// Guest → wire.
    pub transmit: Option<Shape>,
    /// Wire → guest.
    pub receive: Option<Shape>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            vlan: Vlan::Flat,
            priority: 0,
            regenerates: false,
            is_service: false,
            private: Private::Promiscuous,
            promiscuous: false,
            mac_changes: true,
            forged_transmits: true,
            address_limit: None,
            guards: Guards::default(),
            ip: Vec::new(),
            storm: Storm::default(),
            mtu: None,
            snooping: false,
            lldp: false,
            trust_marks: false,
            blocked: false,
            log: false,
            transmit: None,
            receive: None,
        }
    }
}

impl Policy {
    /// Whether the policy has no effect on the switch: the port behaves as on a flat switch.
    pub fn is_plain(&self) -> bool {
        let addresses = self.addresses.clone();
        let (ip, lldp, trust_marks, log) = (self.ip.clone(), self.lldp, self.trust_marks, self.log);
        let Self { transmit, receive, regenerates, is_service, .. } = *self;
        // Without a VLAN tags pass as they are.
        let usual = Self { regenerates, is_service, ..Self::default() };
        *self == Self { addresses, ip, lldp, trust_marks, log, transmit, receive, ..usual }
    }
}
