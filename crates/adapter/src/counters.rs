//! A port's counters: frames and bytes per queue, drops by reason, accesses.

use nicety_memory::Fault;

use crate::guest_error::{GuestError, GuestErrors};
use crate::time::Time;

/// Number of queues that are counted separately, per direction. vmxnet3 has the most: 32.
pub const QUEUES: usize = 32;

macro_rules! reasons {
    ($($(#[$doc:meta])+ $name:ident = $text:literal,)+) => {
        /// Reasons why a frame was not delivered. Counters, captures and metrics share these.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Reason {
            $($(#[$doc])+ $name,)+
        }

        impl Reason {
            /// All reasons, in the order of their counters.
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)+];

            /// The name that metrics and `nicety ports` show.
            pub fn name(self) -> &'static str {
                match self {
                    $(Reason::$name => $text,)+
                }
            }
        }
    };
}

reasons! {
    /// No VM is attached to the receiver's port, or the port was saved and is stopped.
    NoVm = "no-vm",
    /// The frame had to wait, and is larger than the port's whole receive buffer.
    NoBuffer = "no-buffer",
    /// The receiver's driver has not enabled receiving.
    ReceiverOff = "receiver-off",
    /// The receiver's own address or VLAN filter rejected it, as a real adapter's would.
    Filtered = "filtered",
    /// Longer than the receiver accepts.
    TooLong = "too-long",
    /// Shorter than an Ethernet header.
    TooShort = "too-short",
    /// A descriptor pointed outside memory, or to memory that a device may not access.
    BadAddress = "bad-address",
    /// A descriptor or ring broke the adapter's own rules.
    BadDescriptor = "bad-descriptor",
    /// The driver's offload request is invalid for this frame.
    BadOffload = "bad-offload",
    /// More pieces than a frame may have.
    TooManyPieces = "too-many-pieces",
    /// The sender's link, or the uplink's, is down.
    LinkDown = "link-down",
    /// The frame would leave by the port that it came from.
    SamePort = "same-port",
    /// The switch has no other port.
    NoReceiver = "no-receiver",
    /// The port's policy forbids it (source address, for one).
    Policy = "policy",
    /// The receive buffer, or an uplink's queue, is full.
    BufferFull = "buffer-full",
    /// It came in by an uplink, and frames have waited there for too long: its sender is told so by the loss (inward I/O control).
    Congestion = "congestion",
    /// The uplink refused it.
    UplinkRefused = "uplink-refused",
    /// The receiver was reset, or left, while the frame waited.
    Removed = "removed",
    /// Guest memory that is not shared with this process.
    NotShared = "not-shared",
    /// The receiver's or the sender's port failed.
    Failed = "failed",
    /// The sender's transmit queue is started but disabled: its frames are discarded (vhost-user, SET_VRING_ENABLE).
    QueueOff = "queue-off",
    /// It came in on a link that its team does not use now.
    UnusedLink = "unused-link",
    /// The guest's twin on another host owns its addresses: this one sends and receives nothing.
    Twin = "twin",
    /// It came in by an uplink, or by a team, that is blocked.
    Blocked = "blocked",
    /// It had left by another uplink: the two lead into one network, or it is a probe that proves that.
    Looped = "looped",
    /// It came from the port that gets a mirror's copies: nothing goes from there into the switch.
    MirrorPort = "mirror-port",
    /// A mirror's copy beyond the mirror's rate.
    MirrorLimit = "mirror-limit",
    /// A datagram that is no VXLAN: too short, or without the flag that its network identifier is valid.
    NotVxlan = "not-vxlan",
    /// It came to a tunnel from a host that is not among its peers.
    UnknownPeer = "unknown-peer",
    /// It is of a network that the tunnel does not carry.
    UnknownNetwork = "unknown-network",
    /// No drop: a frame for the switch itself (LACP, LLDP, a probe for loops). It is counted here so that the sum has every frame, and shown
    /// apart.
    Taken = "taken",
    /// A tag that the sender's port may not send, or a required tag is missing.
    Vlan = "vlan",
    /// The receiver is in another part of the private VLAN.
    PrivateVlan = "private-vlan",
    /// Its source is not an address of the sender's port (`forged_transmits`).
    Forged = "forged-transmit",
    /// Its destination is not an address of the receiver's port (`mac_changes`).
    MacChanged = "mac-changed",
    /// The sender's port has reached its address limit.
    AddressLimit = "address-limit",
    /// More broadcasts than the sender's port may send.
    BroadcastStorm = "broadcast-storm",
    /// More multicasts than the sender's port may send.
    MulticastStorm = "multicast-storm",
    /// More frames for unknown addresses than the sender's port may send.
    UnknownStorm = "unknown-storm",
    /// A spanning-tree frame from a guarded port.
    BpduGuard = "bpdu-guard",
    /// A DHCP server's frame from a guarded port.
    DhcpGuard = "dhcp-guard",
    /// A false ARP packet, or a false neighbour advertisement, from a guarded port.
    ArpGuard = "arp-guard",
    /// A router advertisement, or a redirect, from a guarded port.
    RouterGuard = "router-guard",
    /// Longer than the port's MTU guard permits.
    Mtu = "mtu",
    /// A query of IGMP or MLD, or another multicast router's message, from a guarded port.
    MulticastRouterGuard = "multicast-router-guard",
}

impl Reason {
    /// Whether the sender's policy refused it.
    pub fn is_refusal(self) -> bool {
        self == Self::Policy || self as u8 >= Self::Vlan as u8
    }
}

impl Reason {
    /// What the sender's driver should have done, if this drop is its mistake.
    pub fn sender_expected(self) -> Option<&'static str> {
        Some(match self {
            Self::BadAddress => "the address of a buffer in guest memory that the device may read",
            Self::BadDescriptor => "a complete packet in descriptors that keep the ring's rules",
            Self::BadOffload => "an offload request that fits the frame's headers",
            Self::TooManyPieces => "a frame in fewer descriptors",
            Self::TooShort => "a frame of at least 14 bytes, an Ethernet header",
            Self::TooLong => "a frame no longer than the device can send",
            _ => return None,
        })
    }

    /// What the receiver's driver should have done, if this drop is its mistake.
    pub fn receiver_expected(self) -> Option<&'static str> {
        match self {
            Self::BadAddress => Some("the address of a receive buffer in guest memory that the device may write"),
            Self::BadDescriptor => Some("receive buffers that have a length"),
            _ => None,
        }
    }
}

impl From<Fault> for Reason {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Refused { .. } => Self::BadAddress,
            Fault::Absent(_) => Self::NotShared,
        }
    }
}

/// Frames of one queue in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Packets as the guest sees them: one TSO packet is one.
    pub packets: u64,
    /// Frames on the wire, after segmentation.
    pub frames: u64,
    /// Bytes of those packets, without frame check sequences.
    pub bytes: u64,
}

impl QueueCounters {
    /// Adds a packet: `frames` on the wire, `bytes` in all.
    #[inline]
    pub fn add(&mut self, frames: u64, bytes: u64) {
        self.add_all(Self { packets: 1, frames, bytes });
    }

    /// Adds another queue's packets.
    #[inline]
    pub fn add_all(&mut self, other: Self) {
        let Self { packets, frames, bytes } = other;
        self.packets = self.packets.wrapping_add(packets);
        self.frames = self.frames.wrapping_add(frames);
        self.bytes = self.bytes.wrapping_add(bytes);
    }
}

/// A port's counters. Plain numbers, counted under the port's lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Guest → wire, by queue.
    pub transmit: [QueueCounters; QUEUES],
    /// Wire → guest, by queue.
    pub receive: [QueueCounters; QUEUES],
    /// Dropped frames from this port's guest, by [`Reason`].
    pub transmit_drops: [u64; Reason::ALL.len()],
    /// Dropped frames for this port's guest, by [`Reason`].
    pub receive_drops: [u64; Reason::ALL.len()],
    /// Time for which frames from this port's guest waited for a rate limit, in nanoseconds.
    pub transmit_throttled_ns: u64,
    /// Time for which frames for this port's guest waited for a rate limit, in nanoseconds.
    pub receive_throttled_ns: u64,
    /// Register reads by the guest.
    pub reads: u64,
    /// Register writes by the guest.
    pub writes: u64,
    /// Interrupts raised.
    pub interrupts: u64,
    /// See [`Counters::bad_accesses`].
    bad_accesses: u64,
    /// See [`Counters::guest_errors`].
    guest_errors: u64,
    /// The last of both.
    errors: GuestErrors,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            transmit: [QueueCounters::default(); QUEUES],
            receive: [QueueCounters::default(); QUEUES],
            transmit_drops: [0; Reason::ALL.len()],
            receive_drops: [0; Reason::ALL.len()],
            transmit_throttled_ns: 0,
            receive_throttled_ns: 0,
            reads: 0,
            writes: 0,
            interrupts: 0,
            bad_accesses: 0,
            guest_errors: 0,
            errors: GuestErrors::default(),
        }
    }
}

impl Counters {
    /// Counts a packet that the guest has sent: `frames` on the wire, `bytes` in all.
    pub fn sent(&mut self, queue: u16, frames: u64, bytes: u64) {
        of(&mut self.transmit, queue).add(frames, bytes);
    }

    /// Counts packets that the guest has sent.
    pub fn sent_all(&mut self, queue: u16, packets: QueueCounters) {
        of(&mut self.transmit, queue).add_all(packets);
    }

    /// Counts a packet that the guest has received.
    pub fn received(&mut self, queue: u16, frames: u64, bytes: u64) {
        of(&mut self.receive, queue).add(frames, bytes);
    }

    /// Counts packets that the guest has received.
    pub fn received_all(&mut self, queue: u16, packets: QueueCounters) {
        of(&mut self.receive, queue).add_all(packets);
    }

    /// Counts a dropped packet from this port's guest.
    pub fn transmit_drop(&mut self, reason: Reason) {
        self.transmit_drops[reason as usize] += 1;
    }

    /// Counts a dropped packet for this port's guest.
    pub fn receive_drop(&mut self, reason: Reason) {
        self.receive_drops[reason as usize] += 1;
    }

    /// Accesses of a wrong width, to a hole, or outside D0: answered with ones, or ignored.
    pub fn bad_accesses(&self) -> u64 {
        self.bad_accesses
    }

    /// Numbers that an earlier process has counted.
    pub(crate) fn count_errors(&mut self, bad_accesses: u64, guest_errors: u64) {
        (self.bad_accesses, self.guest_errors) = (bad_accesses, guest_errors);
    }

    /// Protocol violations by the guest's driver.
    pub fn guest_errors(&self) -> u64 {
        self.guest_errors
    }

    /// The last bad accesses and protocol violations.
    pub fn errors(&self) -> &GuestErrors {
        &self.errors
    }

    /// Sets by how many nanoseconds the adapter's clock is ahead of the port's.
    pub fn set_shift(&mut self, shift_ns: i64) {
        self.errors.set_shift(shift_ns);
    }

    /// Counts and notes a protocol violation.
    pub(crate) fn guest_error(&mut self, error: GuestError, now: Time) {
        self.guest_errors = self.guest_errors.wrapping_add(1);
        self.errors.note(error, now);
    }

    /// Counts and notes an access that hit `holes` holes.
    pub(crate) fn bad_access(&mut self, holes: u64, error: GuestError, now: Time) {
        self.bad_accesses = self.bad_accesses.wrapping_add(holes);
        self.errors.note(error, now);
    }

    /// Adds the counters of another adapter, which serves other queues of the same device.
    pub fn add_part(&mut self, other: &Self) {
        let Self { transmit, receive, transmit_drops, receive_drops, .. } = self;
        for (sums, parts) in [(transmit, &other.transmit), (receive, &other.receive)] {
            sums.iter_mut().zip(parts).for_each(|(sum, part)| sum.add_all(*part));
        }
        for (sums, parts) in [(transmit_drops, &other.transmit_drops), (receive_drops, &other.receive_drops)] {
            sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
        }
        self.transmit_throttled_ns += other.transmit_throttled_ns;
        self.receive_throttled_ns += other.receive_throttled_ns;
        self.reads += other.reads;
        self.writes += other.writes;
        self.interrupts += other.interrupts;
        self.bad_accesses += other.bad_accesses;
        self.guest_errors += other.guest_errors;
        if self.errors.noted() == 0 {
            self.errors.clone_from(&other.errors);
        }
    }

    /// All queues, guest → wire.
    pub fn transmitted(&self) -> QueueCounters {
        total(&self.transmit)
    }

    /// All queues, wire → guest.
    pub fn taken(&self) -> QueueCounters {
        total(&self.receive)
    }
}

fn of(queues: &mut [QueueCounters; QUEUES], queue: u16) -> &mut QueueCounters {
    &mut queues[usize::from(queue).min(QUEUES - 1)]
}

fn total(queues: &[QueueCounters; QUEUES]) -> QueueCounters {
    queues.iter().fold(QueueCounters::default(), |mut sum, queue| {
        sum.add_all(*queue);
        sum
    })
}
