//! A port's whole state as one value, for another process that goes on with the same VMM (docs/adr/0020).
//!
//! ```text
//! "nicety-image", version │ ports: name, number, counters, link                              some ports of a worker in each value
//!                                       link: session with half-read messages and owed replies, PortState, eventfds, DMA map, page
//! ```
//! Descriptors travel beside it, in a [`Table`](nicety_peer::Table): the value has their indexes. All times are of the daemon's clock,
//! which goes on. Unlike a [`PortState`], an image is read by a process on the same machine, at once.

mod before;

use std::net::IpAddr;
use std::time::Duration;

use nicety_adapter::PortId;
use nicety_adapter::snapshot::{RestoreError, Version, decode, encode};
use nicety_plane::{ClassState, SavedAgent, SavedFrames, SavedGate, SavedNumbers, SavedSteering};
use nicety_switch::{Interest, Wanted};
use nicety_vfio_user::{SavedConnections, SavedSession, Unread};
use serde::{Deserialize, Serialize};

use crate::run::saved::PortState;

/// The name in the envelope.
const KIND: &str = "nicety-image";

/// The ports of one worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The ports.
    pub ports: Vec<PortImage>,
}

/// One port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortImage {
    /// Its name.
    pub name: String,
    /// Its number on the switch.
    pub id: u16,
    /// Its counters.
    pub numbers: SavedNumbers,
    /// Interrupt descriptors written so far.
    pub signals: u64,
    /// Frames that wait.
    pub waiting: SavedFrames,
    /// The state of its agents.
    pub agents: Vec<SavedAgent>,
    /// Its adapter and VMM, or its link.
    pub link: LinkImage,
    /// Messages of its VMM that are in the socket still. `None`: they do not stay there until they were handled.
    pub unread: Option<Unread>,
    /// Its gate, if its VM is to be protected. A part of a port has one too, with the port's epochs.
    pub gate: Option<SavedGate>,
}

/// The adapter and VMM of a port, or an uplink's link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkImage {
    /// A PCI function behind vfio-user.
    Function(Box<FunctionImage>),
    /// An uplink. `None`: it is made again.
    Uplink(Option<UplinkImage>),
    /// Rings behind vhost-user. The front end's session is in a [`FrontImage`].
    Rings(RingsImage),
}

/// An uplink, as its kind saves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkImage {
    /// Its descriptors, in its kind's order.
    pub descriptors: Vec<u32>,
    /// Its state, in its kind's envelope.
    #[serde(with = "nicety_plane::bytes")]
    pub state: Vec<u8>,
}

/// A team of uplinks, or of the queues of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TeamImage {
    /// Its name.
    pub name: String,
    /// Its number on the switch.
    pub id: u16,
    /// Its address as an LACP system.
    pub system: [u8; 6],
    /// The members' names by their places.
    pub places: Vec<Option<String>>,
    /// The decision which members are used.
    pub steering: SavedSteering,
}

/// Counts that are kept beside a port's own: of an uplink with I/O control, or of a team's former members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountsImage {
    /// The number of the uplink or team on the switch.
    pub port: u16,
    /// Packets, frames and bytes that former members have carried, inward and outward.
    pub carried: [(u64, u64, u64); 2],
    /// The classes of I/O control, outward and inward.
    pub classes: [Vec<ClassImage>; 2],
}

/// The counts of a class of I/O control.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassImage {
    /// Its name.
    pub name: String,
    /// Packets sent.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// Packets marked.
    pub marked: u64,
}

impl ClassImage {
    /// Frames that wait are counted again where they wait.
    pub(crate) fn of(ClassState { name, packets, bytes, dropped, waiting: _, marked }: &ClassState) -> Self {
        Self { name: name.clone(), packets: *packets, bytes: *bytes, dropped: *dropped, marked: *marked }
    }

    pub(crate) fn state(&self) -> ClassState {
        let Self { name, packets, bytes, dropped, marked } = self;
        let (name, waiting) = (name.clone(), 0);
        ClassState { name, packets: *packets, bytes: *bytes, dropped: *dropped, waiting, marked: *marked }
    }
}

/// Rings behind vhost-user, as their worker knows them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingsImage {
    /// Rings with their kick descriptors.
    pub kicks: Vec<(u16, u32)>,
    /// The time by the adapter's clock in nanoseconds, and the adapter's state. `None`: the port has failed.
    pub state: Option<(u64, Vec<u8>)>,
}

/// A vhost-user port, as its own thread knows it. It has a table of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrontImage {
    /// The port's name.
    pub name: String,
    /// Its listening socket. `None`: it connects.
    pub listener: Option<u32>,
    /// The session of the front end, if one is connected.
    pub session: Option<nicety_vhost_user::SavedSession>,
    /// Rings with their call descriptors.
    pub calls: Vec<(u16, u32)>,
    /// Rings with their error descriptors.
    pub errors: Vec<(u16, u32)>,
}

impl Version for FrontImage {
    const NUMBER: u16 = 2;
    type Before = before::FrontImage1;

    fn from_before(before: before::FrontImage1) -> Result<Self, RestoreError> {
        Ok(before.into())
    }
}

/// A PCI function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionImage {
    /// The listening socket.
    pub listener: u32,
    /// The page of doorbells that the VM may have mapped.
    pub page: Option<PageImage>,
    /// The file of its empty page.
    pub empty_page: Option<u32>,
    /// The connected VMM.
    pub vmm: Option<VmmImage>,
}

/// A page of doorbells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageImage {
    /// Its file.
    pub file: u32,
    /// The offset of each register, and its value at the last scan.
    pub seen: Vec<(u32, u32)>,
}

/// A connected VMM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmmImage {
    /// Its connection.
    pub session: SavedSession,
    /// The adapter, with masks and pending interrupts. `None`: the port has failed, and its VMM is disconnected.
    pub state: PortState,
    /// Its eventfds.
    pub connections: SavedConnections,
    /// Its memory.
    pub regions: Vec<RegionImage>,
    /// Its process.
    pub process: Option<i32>,
    /// Checks of its memory.
    pub checks: Checks,
}

/// A region of a VMM's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionImage {
    /// First bus address.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// The device may read.
    pub read: bool,
    /// The device may write.
    pub write: bool,
    /// Its file, and the offset there in bytes. `None`: announced and not shared.
    pub file: Option<(u32, u64)>,
}

/// An address that the switch has learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedImage {
    /// The filtering identifier of its VLAN.
    pub fid: u16,
    /// The address.
    pub address: [u8; 6],
    /// The number of its port.
    pub port: u16,
    /// The time at which it last sent, in nanoseconds of the daemon's clock.
    pub at_ns: u64,
}

/// A port's interest in multicast frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterestImage {
    /// The filtering identifier of its VLAN.
    pub fid: u16,
    /// The number of the port.
    pub port: u16,
    /// The interest.
    pub interest: SavedInterest,
    /// The time until it expires, in nanoseconds.
    pub left_ns: u64,
}

/// A [`nicety_switch::Interest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SavedInterest {
    /// A group.
    Group(IpAddr),
    /// All groups of the VLAN.
    Router,
    /// All groups.
    Everything,
}

impl InterestImage {
    pub(crate) fn of(wanted: &Wanted) -> Self {
        let Wanted { fid, port, interest, left } = *wanted;
        let interest = match interest {
            Interest::Group(group) => SavedInterest::Group(group),
            Interest::Router => SavedInterest::Router,
            Interest::Everything => SavedInterest::Everything,
        };
        Self { fid, port: port.0, interest, left_ns: u64::try_from(left.as_nanos()).unwrap_or(u64::MAX) }
    }

    pub(crate) fn wanted(&self) -> Wanted {
        let interest = match self.interest {
            SavedInterest::Group(group) => Interest::Group(group),
            SavedInterest::Router => Interest::Router,
            SavedInterest::Everything => Interest::Everything,
        };
        Wanted { fid: self.fid, port: PortId(self.port), interest, left: Duration::from_nanos(self.left_ns) }
    }
}

/// A VM's protection that goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmImage {
    /// The VM's name.
    pub name: String,
    /// The run of its QEMU.
    pub run: u64,
    /// Its part of the protection.
    pub kept: nicety_protect::Kept,
    /// The descriptor of QEMU's stream, which stands still.
    pub stream: u32,
    /// Bytes of that stream so far, out and in.
    pub carried: [u64; 2],
    /// Bytes on the wire for it, out and in.
    pub traffic: [u64; 2],
}

/// A port's neighbour by LLDP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourImage {
    /// The number of the port.
    pub port: u16,
    /// The neighbour's name.
    pub system: String,
    /// Its port's name.
    pub name: String,
    /// The end of its time to live, in nanoseconds of the daemon's clock.
    pub until_ns: u64,
}

/// The result of the checks of a VMM's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checks {
    /// It was checked.
    pub is_checked: bool,
    /// Nobody but this process has written to it.
    pub is_blank: bool,
    /// The log has advised to share it.
    pub is_advised: bool,
    /// Violations of the device's protocol before this VM.
    pub breaches_before: u64,
}

impl Version for Image {
    const NUMBER: u16 = 4;
    type Before = before::Image3;

    fn from_before(before: before::Image3) -> Result<Self, RestoreError> {
        Ok(before.into())
    }
}

impl Image {
    /// Encodes it.
    pub fn to_bytes(&self) -> Vec<u8> {
        encode(KIND, Self::NUMBER, self)
    }

    /// Decodes it.
    ///
    /// # Errors
    /// The bytes are no image, are truncated, or have a version that cannot be read.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RestoreError> {
        decode(KIND, bytes)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;

    use nicety_adapter::{Rate, SavedCounters, Shape, Shaper};
    use nicety_peer::Table;
    use nicety_vfio_user::{Batch, SavedInterrupts, SavedVectors, Session};
    use serde_json::json;

    use super::*;

    /// A function with a value in every field.
    pub(crate) fn function() -> FunctionImage {
        let (_far, near) = UnixStream::pair().unwrap();
        let session = Session::new(OwnedFd::from(near)).save(&mut Table::default()).unwrap().unwrap();
        let msix = SavedVectors { masked: vec![1], pending: vec![2] };
        let interrupts = SavedInterrupts { line_masked: true, msi: SavedVectors::default(), msix };
        let vmm = VmmImage {
            session,
            state: PortState { at_ns: 20, adapter: vec![21, 22], interrupts },
            connections: SavedConnections { line: Some(1), unmask: Some(2), msi: vec![(0, 3)], msix: vec![(1, 4)] },
            regions: vec![RegionImage { base: 1 << 32, len: 4096, read: true, write: true, file: Some((5, 8192)) }],
            process: Some(4711),
            checks: Checks { is_checked: true, is_blank: true, is_advised: true, breaches_before: 23 },
        };
        let page = Some(PageImage { file: 6, seen: vec![(0x600, 24)] });
        FunctionImage { listener: 7, page, empty_page: Some(8), vmm: Some(vmm) }
    }

    /// An image with a value in every field that a version has. Version 1 has no state of uplinks, and no frames that wait; version 2 has no
    /// agents, and no messages that stay in the socket; version 3 has no gates.
    fn image(version: u16) -> Image {
        let state = if version >= 2 { vec![28, 29] } else { Vec::new() };
        let unread = (version > 2).then_some(Unread { batch: Some(Batch { first: [35; 16], len: 36 }) });
        let frame = json!({
            "lane": 1, "from": 2, "head": 0, "edit": { "Tag": [0x8100, 7] }, "since": 30, "bytes": [31, 32],
            "offload": { "checksum": { "Partial": [34, 50] }, "segment": ["Tcp", 1448, 66] }
        });
        let other = json!({
            "lane": 3, "from": 0, "head": 1, "edit": "Keep", "since": 33, "bytes": [34],
            "offload": { "checksum": "Verified", "segment": null }
        });
        let waiting = |has: bool| {
            if has { json!({ "outward": [frame], "inward": [other] }) } else { json!({ "outward": [], "inward": [] }) }
        };
        let waiting: SavedFrames = serde_json::from_value(waiting(!state.is_empty())).unwrap();
        let querier = json!({ "Querier": {
            "mac": [35, 36, 37, 38, 39, 40], "networks": [[41, [42, 43]]], "next": 1, "at": 44, "rounds": 45,
            "left": [{ "network": 1, "group": "ff15::1", "count": 2, "at": 46 }]
        } });
        let agents =
            json!(if version >= 3 { vec![querier, json!({ "Herald": [[47, 48], [49]] })] } else { Vec::new() });
        let agents: Vec<SavedAgent> = serde_json::from_value(agents).unwrap();
        let gate = json!({
            "epochs": { "is_mute": true, "current": 50, "released": 51, "taken": { "packets": 52, "bytes": 53 } },
            "held": [{
                "epoch": 54, "queue": 55, "head": 1, "bytes": [56, 57],
                "offload": { "checksum": "AsIs", "segment": ["Udp", 58, 59] }
            }]
        });
        let gate: Option<SavedGate> = (version > 3).then(|| serde_json::from_value(gate).unwrap());
        let counters = SavedCounters {
            transmit: vec![(1, 2, 3)],
            receive: vec![(4, 5, 6), (7, 8, 9)],
            transmit_drops: vec![("policy".to_owned(), 10)],
            receive_drops: vec![("removed".to_owned(), 11)],
            transmit_throttled_ns: 12,
            receive_throttled_ns: 13,
            reads: 14,
            writes: 15,
            interrupts: 16,
            bad_accesses: 17,
            guest_errors: 18,
        };
        let shape = Shape { average: Rate::new(1_000_000).unwrap(), peak: None, burst_bytes: 1500 };
        let tokens = [Some(Shaper::new(shape).save()), None];
        let numbers = SavedNumbers { counters, sent_before: 19, tokens };
        let function = function();
        let rings = RingsImage { kicks: vec![(0, 9)], state: Some((25, vec![26])) };
        let links = [
            LinkImage::Function(Box::new(function)),
            LinkImage::Uplink(Some(UplinkImage { descriptors: vec![10], state })),
            LinkImage::Rings(rings),
        ];
        let port = |(id, link): (u16, LinkImage)| PortImage {
            name: format!("vm{id}"),
            id,
            numbers: numbers.clone(),
            signals: 27,
            waiting: waiting.clone(),
            agents: agents.clone(),
            link,
            unread,
            gate: gate.clone(),
        };
        Image { ports: (1..).zip(links).map(port).collect() }
    }

    #[test]
    fn an_image_that_is_cut_or_newer_is_refused() {
        let image = image(Image::NUMBER);
        let bytes = image.to_bytes();
        assert_eq!(Image::from_bytes(&bytes), Ok(image.clone()));
        for cut in 0..bytes.len() {
            assert!(Image::from_bytes(&bytes[..cut]).is_err(), "{cut}");
        }
        let newer = encode(KIND, Image::NUMBER + 1, &image);
        let (found, newest) = (Image::NUMBER + 1, Image::NUMBER);
        assert_eq!(Image::from_bytes(&newer), Err(RestoreError::Version { found, oldest: 1, newest }));
        // A field that this version does not know.
        let longer = encode(KIND, Image::NUMBER, &(&image, 30u8));
        assert_eq!(Image::from_bytes(&longer), Err(RestoreError::Damaged));
    }

    /// A daemon of an earlier build hands such images over. Another form takes another version, and a conversion of this one. Only
    /// `NICETY_GOLDEN=write` makes the file of a new version.
    #[test]
    fn images_of_each_version_are_read_and_this_version_is_written_as_it_was() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let of = |version: u16| folder.join(format!("image-v{version}.image"));
        if std::env::var_os("NICETY_GOLDEN").is_some_and(|what| what == "write") {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(of(Image::NUMBER), image(Image::NUMBER).to_bytes()).unwrap();
        }
        for version in 1..=Image::NUMBER {
            let golden = std::fs::read(of(version)).unwrap();
            assert_eq!(Image::from_bytes(&golden), Ok(image(version)), "version {version}");
        }
        assert_eq!(std::fs::read(of(Image::NUMBER)).unwrap(), image(Image::NUMBER).to_bytes());
    }
}
