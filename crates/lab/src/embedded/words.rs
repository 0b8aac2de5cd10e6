//! What bench and guest say to each other: a JSON value a line, orders on the guest's standard input, answers on its
//! standard output. The end of the input ends the guest.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::series::Sampler;

/// What a guest is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Attach, and listen: comes first, once.
    Configure {
        /// To what.
        attach: Attach,
        /// Its own address, in a network of 24 bits.
        address: [u8; 4],
    },
    /// Send as much as possible to the discard service of another station.
    Send {
        /// The station.
        to: [u8; 4],
        /// For how long.
        seconds: f64,
    },
    /// Exchange single bytes with the echo service of another station.
    Transact {
        /// The station.
        to: [u8; 4],
        /// For how long.
        seconds: f64,
    },
    /// Send broadcast frames as fast as the adapter takes them.
    Flood {
        /// Bytes of each, without its frame check sequence.
        bytes: u16,
        /// For how long.
        seconds: f64,
    },
    /// Send broadcast frames one by one, steadily, asleep between them.
    Trickle {
        /// Bytes of each, without its frame check sequence.
        bytes: u16,
        /// How many.
        a_second: u32,
        /// For how long.
        seconds: f64,
    },
    /// Attach to all of these, take what comes and answer nothing: instead of `Configure`.
    Crowd {
        /// To what.
        attach: Vec<Attach>,
    },
    /// Tell the counts so far.
    Report,
    /// Tell what the discard service took over time, from its latest connection.
    Series,
}

/// How a station reaches the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attach {
    /// An adapter that is a PCI function behind a vfio-user socket.
    VfioUser {
        /// The driver's name.
        driver: String,
        /// The port's socket.
        socket: PathBuf,
    },
    /// virtio-net behind a vhost-user socket.
    VhostUser {
        /// The port's socket.
        socket: PathBuf,
    },
    /// The other end of a switch's uplink of the pair kind.
    Pair {
        /// The uplink's socket.
        socket: PathBuf,
        /// Its address.
        mac: [u8; 6],
    },
}

/// What a guest says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Configured, and the link is up.
    Ready,
    /// A send is over, and all of it was acknowledged or given up.
    Sent {
        /// Bytes that were given to TCP.
        bytes: u64,
    },
    /// A transact is over.
    Transacted {
        /// How long it took, in nanoseconds.
        elapsed_ns: u64,
        /// How long each transaction took, in nanoseconds.
        each_ns: Vec<u64>,
    },
    /// A flood or a trickle is over.
    Flooded {
        /// Frames that the adapter took.
        frames: u64,
    },
    /// The counts.
    Counts(Counts),
    /// What the discard service took over time, in bytes.
    Series(Sampler),
    /// Nothing more can be done, and why. The guest ends.
    Failed(String),
}

/// What a station has counted since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Reads of the device that took a message.
    pub reads: u64,
    /// Writes and doorbells that took a message or a signal.
    pub writes: u64,
    /// Interrupts that the device raised.
    pub interrupts: u64,
    /// Frames sent and received, after segmentation.
    pub frames: u64,
    /// CPU time of this process, in seconds.
    pub cpu_seconds: f64,
    /// Bytes that the discard service took from its latest connection.
    pub discarded_bytes: u64,
    /// From the first to the last of them, in nanoseconds.
    pub discarded_ns: u64,
}
