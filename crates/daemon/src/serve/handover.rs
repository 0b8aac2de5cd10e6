//! A daemon hands its ports over to the next one, over a socket that the keeper has made for both (docs/adr/0020).
//!
//! ```text
//! old                                     new
//!  ◄──────────── Hello(version, build) ────┤  it runs
//!  ├── Offer(host file), listening sockets►│
//!  ◄──────────────────────── Prepared ─────┤  workers run, the sandbox is closed, no port yet
//!  │ workers stand still                   │
//!  ├── Images of some ports, descriptors ─►│  checks them, maps memory, touches nothing, while the next images are made
//!  ├── End ───────────────────────────────►│
//!  ◄─────────────────────────── Taken ─────┤                 until here either may give up, and the old one goes on
//!  ├── Go ────────────────────────────────►│  ports go on
//!  ◄──────────────── Going(time lost) ─────┤
//!  │ answers whoever has asked, ends       ▼
//! ```

mod arrivals;
pub mod give;
#[cfg(test)]
mod golden_test;
pub mod take;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use nicety_adapter::snapshot::{Nothing, RestoreError, Version, decode, encode};
use nicety_keeper::{Channel, ChannelError, FDS_MAX, Message};
use nicety_peer::Table;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, getsockname};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::run::image::{CountsImage, InterestImage, LearnedImage, NeighbourImage, TeamImage, VmImage};

/// The new daemon has this long to start, and to prepare. Meanwhile the old one serves.
const PREPARES: Duration = Duration::from_secs(10);
/// The new daemon has this long to read the images: VMs stand still meanwhile, and QEMU waits 5 s for an answer.
const TAKES: Duration = Duration::from_secs(3);
/// The longest state of all ports of a worker, in bytes.
const STATE_MAX: u64 = 1 << 30;

/// Messages.
mod kind {
    pub const HELLO: u8 = 1;
    pub const OFFER: u8 = 2;
    pub const PREPARED: u8 = 3;
    pub const IMAGE: u8 = 4;
    pub const DESCRIPTORS: u8 = 5;
    pub const END: u8 = 6;
    pub const TAKEN: u8 = 7;
    pub const GO: u8 = 8;
    pub const GOING: u8 = 9;
    /// Either way: a sentence.
    pub const REFUSED: u8 = 10;
    pub const FRONT: u8 = 11;
}

/// The offer to the next daemon, with listening sockets that are no port's, with which it goes on.
#[derive(Clone, Copy, Debug)]
pub struct Offering<'a> {
    /// The offer that is to be served.
    pub offer: &'a Offer,
    /// The control server's.
    pub control: BorrowedFd<'a>,
    /// The page's, if it is served.
    pub page: Option<BorrowedFd<'a>>,
}

/// The path at which a socket was made that another daemon hands over. `None`: it is no UNIX socket, or has no path.
pub fn path_of(socket: impl AsFd) -> Option<PathBuf> {
    let address = SocketAddrUnix::try_from(getsockname(socket).ok()?).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(address.path_bytes()?)))
}

/// The name of the offer in its envelope.
const OFFER_KIND: &str = "nicety-offer";

/// Parts that the new daemon prepares from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The host file's path.
    pub path: PathBuf,
    /// The host file as it was read.
    pub file: String,
    /// The host file as it runs.
    pub running: String,
    /// The start of the daemon's clock on CLOCK_MONOTONIC, in nanoseconds.
    pub origin_ns: u64,
    /// The numbers of the ports on the switch.
    pub ids: BTreeMap<String, u16>,
    /// The configuration of the fabric that is in force.
    pub groups: Option<String>,
}

/// Version 1: the fabric's configuration was read from the file of the last known state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer1 {
    path: PathBuf,
    file: String,
    running: String,
    origin_ns: u64,
    ids: BTreeMap<String, u16>,
}

impl Version for Offer {
    const NUMBER: u16 = 2;
    type Before = Offer1;

    fn from_before(Offer1 { path, file, running, origin_ns, ids }: Offer1) -> Result<Self, RestoreError> {
        Ok(Self { path, file, running, origin_ns, ids, groups: None })
    }
}

impl Version for Offer1 {
    const NUMBER: u16 = 1;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

/// The state that is no port's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Rest {
    /// The time at which the workers stopped, in nanoseconds of the daemon's clock.
    stopped_ns: u64,
    /// Addresses that the switch has learned.
    learned: Vec<LearnedImage>,
    /// Teams of uplinks, and of queues.
    teams: Vec<TeamImage>,
    /// LLDP frames by which uplinks announce themselves, by their names.
    announcements: Vec<(String, Vec<u8>)>,
    /// Ports' interests in multicast frames. `None`: they are not known.
    interests: Option<Vec<InterestImage>>,
    /// Neighbours by LLDP.
    neighbours: Vec<NeighbourImage>,
    /// Counts of classes, and of teams' former members.
    counts: Vec<CountsImage>,
    /// Protections of VMs that go on.
    vms: Vec<VmImage>,
    /// The last known state of the fabric, in the form of its file. `None`: there is no fabric.
    fabric: Option<Vec<u8>>,
}

/// Version 3: protections ended with their daemon, and what is known of the fabric was read from that file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Rest3 {
    stopped_ns: u64,
    learned: Vec<LearnedImage>,
    teams: Vec<TeamImage>,
    announcements: Vec<(String, Vec<u8>)>,
    interests: Option<Vec<InterestImage>>,
    neighbours: Vec<NeighbourImage>,
    counts: Vec<CountsImage>,
}

/// Version 2: those counts were not handed over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Rest2 {
    stopped_ns: u64,
    learned: Vec<LearnedImage>,
    teams: Vec<TeamImage>,
    announcements: Vec<(String, Vec<u8>)>,
    interests: Option<Vec<InterestImage>>,
    neighbours: Vec<NeighbourImage>,
}

/// Version 1: teams, LLDP and multicast interests were not handed over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Rest1 {
    stopped_ns: u64,
    learned: Vec<LearnedImage>,
}

impl Version for Rest {
    const NUMBER: u16 = 4;
    type Before = Rest3;

    fn from_before(before: Rest3) -> Result<Self, RestoreError> {
        let Rest3 { stopped_ns, learned, teams, announcements, interests, neighbours, counts } = before;
        Ok(Self {
            stopped_ns,
            learned,
            teams,
            announcements,
            interests,
            neighbours,
            counts,
            vms: Vec::new(),
            fabric: None,
        })
    }
}

impl Version for Rest3 {
    const NUMBER: u16 = 3;
    type Before = Rest2;

    fn from_before(before: Rest2) -> Result<Self, RestoreError> {
        let Rest2 { stopped_ns, learned, teams, announcements, interests, neighbours } = before;
        Ok(Self { stopped_ns, learned, teams, announcements, interests, neighbours, counts: Vec::new() })
    }
}

impl Version for Rest2 {
    const NUMBER: u16 = 2;
    type Before = Rest1;

    fn from_before(Rest1 { stopped_ns, learned }: Rest1) -> Result<Self, RestoreError> {
        Ok(Self { stopped_ns, learned, ..Self::default() })
    }
}

impl Version for Rest1 {
    const NUMBER: u16 = 1;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

const REST_KIND: &str = "nicety-rest";

/// The name of a vhost-user port in its envelope.
const FRONT_KIND: &str = "nicety-front";

/// The result of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Upgraded {
    /// The build that serves now.
    pub build: String,
    /// Time for which nothing moved, in nanoseconds: from the stop of the old daemon's workers until the last port went on.
    pub stopped_ns: u64,
    /// The same of each port, in the order in which they went on.
    pub ports: Vec<PortPause>,
    /// The parts of that time. A daemon of an earlier version does not say.
    #[serde(default)]
    pub steps: Steps,
    /// Ports that went on without their VMs, as the request asked.
    #[serde(default)]
    pub without: Vec<Loss>,
}

/// A port that goes on without its VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Loss {
    /// Name of the port.
    pub name: String,
    /// The loss of its VM, in words.
    pub loses: String,
}

/// The parts of the time for which nothing moved, one after the other, and how much was handed over in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Steps {
    /// Until all workers stood still, in nanoseconds.
    pub stop_ns: u64,
    /// Until the images of all ports were made and sent, in nanoseconds. The new daemon reads and checks the first ones meanwhile.
    pub image_ns: u64,
    /// Until the new daemon had checked the last one, in nanoseconds.
    pub check_ns: u64,
    /// Until the last port went on, in nanoseconds.
    pub go_ns: u64,
    /// Bytes of the images.
    pub bytes: u64,
    /// Descriptors.
    pub descriptors: u64,
}

/// The time for which a port stood still.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortPause {
    /// Name of the port.
    pub name: String,
    /// Nanoseconds.
    pub stopped_ns: u64,
}

/// A memory file with these bytes.
fn file_of(bytes: &[u8]) -> Result<OwnedFd, ChannelError> {
    let mut file = File::from(memfd_create("nicety-handover", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(file.into())
}

/// A memory file with these bytes, which nobody can change.
pub(crate) fn sealed_file_of(bytes: &[u8]) -> Result<OwnedFd, ChannelError> {
    let mut file = File::from(memfd_create("nicety-texts", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.write_all(bytes).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file.into())
}

/// The bytes of a memory file.
pub(crate) fn bytes_of(fd: Option<OwnedFd>) -> Result<Vec<u8>, String> {
    let file = File::from(fd.ok_or("a file is missing")?);
    let len = file.metadata().map_err(|error| error.to_string())?.len();
    if len > STATE_MAX {
        return Err(format!("a state of {len} bytes is too large"));
    }
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    file.read_exact_at(&mut bytes, 0).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// Sends bytes in a memory file, and the number of descriptors that follow.
fn send_state(
    channel: &Channel,
    kind: u8,
    bytes: &[u8],
    table: &Table,
    more: &[BorrowedFd<'_>],
) -> Result<(), ChannelError> {
    let file = file_of(bytes)?;
    let count = u32::try_from(table.len()).unwrap_or(u32::MAX).to_le_bytes();
    let first: Vec<BorrowedFd<'_>> = [file.as_fd()].into_iter().chain(more.iter().copied()).collect();
    channel.send(kind, &count, &first, TAKES)?;
    let fds: Vec<BorrowedFd<'_>> = table.iter().collect();
    fds.chunks(FDS_MAX).try_for_each(|fds| channel.send(kind::DESCRIPTORS, b"", fds, TAKES))
}

/// Receives the descriptors of a state.
fn table_of(channel: &Channel, message: &Message) -> Result<Table, String> {
    let count =
        message.content.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)).ok_or("a state without a number")?;
    let mut table = Table::default();
    while table.len() < count as usize {
        let more = channel.receive(TAKES).map_err(|error| error.to_string())?;
        if more.kind != kind::DESCRIPTORS || more.fds.is_empty() {
            return Err("descriptors are missing".to_owned());
        }
        more.fds.into_iter().for_each(|fd| table.push(fd));
    }
    Ok(table)
}

/// A message of this kind, or the reason why none came.
fn wanted(channel: &Channel, wanted: u8, within: Duration) -> Result<Message, String> {
    understood(channel.receive(within), wanted)
}

fn understood(received: Result<Message, ChannelError>, wanted: u8) -> Result<Message, String> {
    match received {
        Ok(message) if message.kind == wanted => Ok(message),
        Ok(message) if message.kind == kind::REFUSED => Err(message.text()),
        Ok(message) => Err(format!("it sent message {} instead of {wanted}", message.kind)),
        Err(error) => Err(error.to_string()),
    }
}

fn to_bytes<T: Version + Serialize>(name: &str, value: &T) -> Vec<u8> {
    encode(name, T::NUMBER, value)
}

fn from_bytes<T: Version>(name: &'static str, bytes: &[u8]) -> Result<T, String> {
    decode(name, bytes).map_err(|error| error.to_string())
}
