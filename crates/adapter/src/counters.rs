//! What a port has done: frames and bytes per queue, drops by reason, accesses.

use nicety_memory::Fault;

/// How many queues are counted apart, each way. vmxnet3 has the most: 32.
pub const QUEUES: usize = 32;

macro_rules! reasons {
    ($($(#[$doc:meta])+ $name:ident = $text:literal,)+) => {
        /// Why a frame was not delivered. Counters, captures and metrics share these.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Reason {
            $($(#[$doc])+ $name,)+
        }

        impl Reason {
            /// All of them, in the order of their counters.
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
    /// No VM is attached to the receiver's port, or the port's state was saved and it stands still.
    NoVm = "no-vm",
    /// It had to wait for the receiver, and alone is larger than the port's receive buffer.
    NoBuffer = "no-buffer",
    /// The receiver's driver has not turned receiving on.
    ReceiverOff = "receiver-off",
    /// The receiver's own address or VLAN filter did not want it, as a real adapter's would not.
    Filtered = "filtered",
    /// Longer than the receiver takes.
    TooLong = "too-long",
    /// Shorter than an Ethernet header.
    TooShort = "too-short",
    /// A descriptor pointed at no memory, or at memory that a device may not touch.
    BadAddress = "bad-address",
    /// A descriptor or ring broke the adapter's own rules.
    BadDescriptor = "bad-descriptor",
    /// The offload that the driver asked for makes no sense for this frame.
    BadOffload = "bad-offload",
    /// More pieces than a frame can have.
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
    /// The uplink refused it.
    UplinkRefused = "uplink-refused",
    /// The receiver was reset, or left, while the frame waited for it.
    Removed = "removed",
    /// Guest memory that is not shared with this process.
    NotShared = "not-shared",
    /// The port that it was for, or came from, has failed.
    Failed = "failed",
    /// A tag that the sender's port may not send, or none where there must be one.
    Vlan = "vlan",
    /// The receiver is of another part of the private VLAN.
    PrivateVlan = "private-vlan",
    /// Its source is not an address of the sender's port (`forged_transmits`).
    Forged = "forged-transmit",
    /// Its destination is not an address of the receiver's port (`mac_changes`).
    MacChanged = "mac-changed",
    /// The sender's port has used as many addresses as it may.
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
    /// An ARP packet, or a neighbour advertisement, that says what is not so, from a guarded port.
    ArpGuard = "arp-guard",
    /// A router advertisement, or a redirect, from a guarded port.
    RouterGuard = "router-guard",
    /// Longer than the port's MTU guard lets through.
    Mtu = "mtu",
}

impl Reason {
    /// Whether the sender's port may not send it, by its policy.
    pub fn is_refusal(self) -> bool {
        self == Self::Policy || self as u8 >= Self::Vlan as u8
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

/// Frames of one queue, one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Packets as the guest sees them: one TSO packet is one.
    pub packets: u64,
    /// Frames as the wire would see them, after segmentation.
    pub frames: u64,
    /// Bytes of those packets, without frame check sequences.
    pub bytes: u64,
}

impl QueueCounters {
    /// One more packet: `frames` on the wire, `bytes` in all.
    #[inline]
    pub fn add(&mut self, frames: u64, bytes: u64) {
        self.add_all(Self { packets: 1, frames, bytes });
    }

    #[inline]
    fn add_all(&mut self, other: Self) {
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
    /// Frames that came from this port's guest and went nowhere, by [`Reason`].
    pub transmit_drops: [u64; Reason::ALL.len()],
    /// Frames that were for this port's guest and did not reach it, by [`Reason`].
    pub receive_drops: [u64; Reason::ALL.len()],
    /// Register reads by the guest.
    pub reads: u64,
    /// Register writes by the guest.
    pub writes: u64,
    /// Interrupts raised.
    pub interrupts: u64,
    /// Accesses of a wrong width, to a hole, or outside D0: answered with ones, or ignored.
    pub bad_accesses: u64,
    /// Breaches of the device's protocol by the guest.
    pub guest_errors: u64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            transmit: [QueueCounters::default(); QUEUES],
            receive: [QueueCounters::default(); QUEUES],
            transmit_drops: [0; Reason::ALL.len()],
            receive_drops: [0; Reason::ALL.len()],
            reads: 0,
            writes: 0,
            interrupts: 0,
            bad_accesses: 0,
            guest_errors: 0,
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

    /// Counts a packet of this port's guest that goes nowhere.
    pub fn transmit_drop(&mut self, reason: Reason) {
        self.transmit_drops[reason as usize] += 1;
    }

    /// Counts a packet for this port's guest that does not reach it.
    pub fn receive_drop(&mut self, reason: Reason) {
        self.receive_drops[reason as usize] += 1;
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
