//! Reads a capture with another library than the one that wrote it.

use std::borrow::Cow;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use nicety_uplink::CaptureOptions;
use pcap_file::DataLink;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};

/// Origin of the captures' time.
pub const ORIGIN: Duration = Duration::from_secs(1_763_000_000);

/// Options of the captures here.
pub fn options(most_bytes: Option<u64>) -> CaptureOptions {
    CaptureOptions { interface: "uplink7".to_owned(), origin: ORIGIN, most_bytes }
}

/// A packet as read from the file.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    pub time: Duration,
    pub flags: u32,
    pub lost: Option<u64>,
    pub comment: Option<String>,
    pub frame: Vec<u8>,
}

/// All packets of a file, in order; the interface is that of [`options`].
pub fn read(path: &Path) -> Vec<Seen> {
    let mut reader = PcapNgReader::new(File::open(path).unwrap()).unwrap();
    let mut out = Vec::new();
    while let Some(block) = reader.next_block() {
        match block.unwrap() {
            Block::InterfaceDescription(interface) => {
                assert_eq!(interface.linktype, DataLink::ETHERNET);
                let name = InterfaceDescriptionOption::IfName(Cow::Borrowed("uplink7"));
                assert_eq!(interface.options, [name, InterfaceDescriptionOption::IfTsResol(9)]);
            }
            Block::EnhancedPacket(packet) => {
                let mut seen = Seen {
                    // This reader does not apply the unit: nanoseconds, according to if_tsresol.
                    time: packet.timestamp,
                    flags: 0,
                    lost: None,
                    comment: None,
                    frame: packet.data.to_vec(),
                };
                assert_eq!(packet.original_len as usize, packet.data.len());
                for option in packet.options {
                    match option {
                        EnhancedPacketOption::Flags(flags) => seen.flags = flags,
                        EnhancedPacketOption::DropCount(lost) => seen.lost = Some(lost),
                        EnhancedPacketOption::Comment(comment) => seen.comment = Some(comment.into_owned()),
                        other => panic!("an option that nobody wrote: {other:?}"),
                    }
                }
                out.push(seen);
            }
            other => panic!("a block that nobody wrote: {other:?}"),
        }
    }
    out
}
