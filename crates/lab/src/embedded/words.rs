//! Messages between bench and guest, one JSON value a line: orders on the guest's standard input, answers on its standard
//! output. The end of the input ends the guest.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::bench::Percentile;
use crate::series::Sampler;
use crate::windows::Windows;

/// An order to a guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Attach and listen. It comes first, once.
    Configure {
        /// Attachment to the network.
        attach: Attach,
        /// The station's own address, in a network of 24 bits.
        address: [u8; 4],
    },
    /// Send as much as possible to the discard service of another station.
    Send {
        /// The station's address.
        to: [u8; 4],
        /// Duration in seconds.
        seconds: f64,
        /// Streams, writes and buffers.
        #[serde(default)]
        shape: Shape,
    },
    /// Send to the discard services of several stations at once.
    SendEach {
        /// The stations' addresses. One that is there several times gets so many times the streams.
        to: Vec<[u8; 4]>,
        /// Duration in seconds.
        seconds: f64,
        /// Streams to each, writes and buffers.
        shape: Shape,
        /// Most bytes a second, of all streams together; without it, as much as possible.
        #[serde(default)]
        bytes_a_second: Option<u64>,
        /// The sender's number, where one process stands for several stations.
        #[serde(default)]
        from: u8,
    },
    /// Let the discard service take streams of this shape, and count anew: all of them together.
    Listen {
        /// Streams and buffers.
        shape: Shape,
    },
    /// Exchange single bytes with the echo service of another station.
    Transact {
        /// The station's address.
        to: [u8; 4],
        /// Duration in seconds.
        seconds: f64,
    },
    /// Send a pattern to the echo service of another station, and compare what comes back.
    Compare {
        /// The station's address.
        to: [u8; 4],
        /// Duration in seconds.
        seconds: f64,
        /// Most bytes a second; without it, as much as possible.
        #[serde(default)]
        bytes_a_second: Option<u64>,
    },
    /// Send broadcast frames as fast as the adapter takes them.
    Flood {
        /// Bytes of each frame, without its frame check sequence.
        bytes: u16,
        /// Duration in seconds.
        seconds: f64,
    },
    /// Send broadcast frames one by one at a fixed rate, asleep between them.
    Trickle {
        /// Bytes of each frame, without its frame check sequence.
        bytes: u16,
        /// Frames a second.
        a_second: u32,
        /// Duration in seconds.
        seconds: f64,
    },
    /// Attach to all of these, receive packets and answer none. It replaces `Configure`.
    Crowd {
        /// Attachments to the network, one per port.
        attach: Vec<Attach>,
    },
    /// Stand for all stations at once, by the kernel's TCP over a veth pair. It replaces `Configure`.
    Natively {
        /// The link's rate in Mbit/s. None: as fast as it goes.
        mbit: Option<u32>,
    },
    /// Read and write registers that have no effect: what a message costs.
    Touch {
        /// Reads, each with its answer.
        reads: u32,
        /// Writes, posted or as doorbells.
        writes: u32,
    },
    /// At two ports: send frames into the first at a fixed rate, and count what comes out of the second.
    Offer {
        /// Bytes of a frame with its check sequence.
        wire_bytes: u16,
        /// Frames a second.
        a_second: f64,
        /// Duration in seconds.
        seconds: f64,
    },
    /// Report the counts so far.
    Report,
    /// Report the bytes over time that the discard service received on its latest connection.
    Series,
    /// Report the bytes that the discard service received from each station in windows of time, and forget them.
    Windows,
}

/// The shape of a bulk transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shape {
    /// Connections at once.
    pub streams: u16,
    /// Bytes that the application writes at a time.
    pub write_bytes: u32,
    /// Buffer bytes of each connection and direction.
    pub buffer_bytes: u32,
}

impl Default for Shape {
    /// One stream. A Linux socket grows to this buffer on a fast local network.
    fn default() -> Shape {
        Shape { streams: 1, write_bytes: 64 << 10, buffer_bytes: 512 << 10 }
    }
}

/// A station's attachment to the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attach {
    /// An adapter that is a PCI function behind a vfio-user socket.
    VfioUser {
        /// The driver's name.
        driver: String,
        /// The port's socket.
        socket: PathBuf,
        /// Folder of a tmpfs or of hugetlbfs for the file of the guest's memory; without it, a memfd.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory: Option<PathBuf>,
    },
    /// virtio-net behind a vhost-user socket.
    VhostUser {
        /// The port's socket.
        socket: PathBuf,
        /// Folder of a tmpfs or of hugetlbfs for the file of the guest's memory; without it, a memfd.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory: Option<PathBuf>,
    },
    /// The far end of a switch's pair uplink.
    Pair {
        /// The uplink's socket.
        socket: PathBuf,
        /// The station's MAC address.
        mac: [u8; 6],
    },
    /// A tap of the network in which the guest's process runs.
    Tap {
        /// The tap's name.
        name: String,
        /// The station's MAC address.
        mac: [u8; 6],
    },
}

/// A guest's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The guest is configured and its link is up, or its service listens.
    Ready,
    /// A send is over; all bytes were acknowledged, or the wait for the rest was given up.
    Sent {
        /// Bytes given to TCP.
        bytes: u64,
    },
    /// A transact is over.
    Transacted {
        /// Total time in nanoseconds.
        elapsed_ns: u64,
        /// Time of each transaction in nanoseconds.
        each_ns: Vec<u64>,
    },
    /// A comparison is over.
    Compared(Compared),
    /// A flood or a trickle is over.
    Flooded {
        /// Frames that the adapter took.
        frames: u64,
    },
    /// An offer is over.
    Offered(Offered),
    /// A touch is over.
    Touched,
    /// The counts.
    Counts(Counts),
    /// Bytes over time that the discard service received.
    Series(Sampler),
    /// Bytes that the discard service received in windows of time, by the sender's address.
    Windows(Vec<([u8; 4], Windows)>),
    /// The reason for which the guest cannot continue. The guest ends.
    Failed(String),
}

/// The bytes of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compared {
    /// Bytes given to TCP.
    pub sent: u64,
    /// Bytes that came back. Fewer than were sent: the connection has ended, or nothing came for 65 s.
    pub received: u64,
    /// The number of these that are not what was sent.
    pub different: u64,
}

/// The frames of an offer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Offered {
    /// Frames that were due.
    pub due: u64,
    /// Frames that the adapter took.
    pub sent: u64,
    /// Frames that came out of the other port.
    pub received: u64,
    /// Time over which they were due, in seconds.
    pub seconds: f64,
    /// Percentiles of the time from one driver to the other.
    pub latency: Vec<Percentile>,
}

/// A station's counts since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Register reads that took a message.
    pub reads: u64,
    /// Writes and doorbells that took a message or a signal.
    pub writes: u64,
    /// Interrupts that the device raised.
    pub interrupts: u64,
    /// Frames sent and received, after segmentation.
    pub frames: u64,
    /// Bytes of the packets sent and received, without frame check sequences.
    #[serde(default)]
    pub bytes: u64,
    /// CPU time of this process, in seconds.
    pub cpu_seconds: f64,
    /// Bytes that the discard service received on its latest connection.
    pub discarded_bytes: u64,
    /// Time from the first to the last of these bytes, in nanoseconds.
    pub discarded_ns: u64,
}
