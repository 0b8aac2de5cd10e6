//! The first frame of a file: pcap (draft-ietf-opsawg-pcap), pcapng (draft-ietf-opsawg-pcapng), or hexadecimal digits.

/// LINKTYPE_ETHERNET.
const ETHERNET: u32 = 1;
/// Block types: a section, an interface, a simple packet and an enhanced packet (sections 4.1 to 4.4).
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const SIMPLE: u32 = 3;
const PACKET: u32 = 6;
/// Byte-order magic of a section.
const ORDER: u32 = 0x1a2b_3c4d;
/// Option code of a comment.
const COMMENT: u16 = 1;
/// First word of a pcap file, with microseconds and with nanoseconds.
const MAGIC: [u32; 2] = [0xa1b2_c3d4, 0xa1b2_3c4d];

/// A frame in a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub frame: Vec<u8>,
    /// The file's comment on the frame.
    pub comment: Option<String>,
    /// Bytes in the file, and bytes of the original frame.
    pub bytes: usize,
    pub whole: usize,
}

impl Found {
    fn new(frame: &[u8], whole: u32) -> Self {
        Self { frame: frame.to_vec(), comment: None, bytes: frame.len(), whole: whole as usize }
    }
}

/// Reads numbers of a file in its byte order.
#[derive(Clone, Copy)]
struct Numbers {
    big: bool,
}

impl Numbers {
    fn word(self, bytes: &[u8], at: usize) -> Option<u32> {
        let bytes = *bytes.get(at..)?.first_chunk()?;
        Some(if self.big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    fn half(self, bytes: &[u8], at: usize) -> Option<u16> {
        let bytes = *bytes.get(at..)?.first_chunk()?;
        Some(if self.big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    }

    /// The byte order in which the word at `at` is one of `words`.
    fn matching(bytes: &[u8], at: usize, words: &[u32]) -> Option<Self> {
        [false, true]
            .map(|big| Self { big })
            .into_iter()
            .find(|order| order.word(bytes, at).is_some_and(|word| words.contains(&word)))
    }
}

/// The first frame; `None` if it is missing or incomplete. The error is a text for people.
pub fn first_frame(bytes: &[u8]) -> Result<Option<Found>, String> {
    if let Some(order) = Numbers::matching(bytes, 0, &MAGIC) {
        return pcap(bytes, order);
    }
    // The type of a section header is the same in both byte orders.
    if bytes.starts_with(&SECTION.to_be_bytes()) {
        return pcapng(bytes);
    }
    digits(bytes)
}

fn pcap(bytes: &[u8], order: Numbers) -> Result<Option<Found>, String> {
    // The upper bits describe frame check sequences.
    if let Some(link) = order.word(bytes, 20) {
        is_ethernet(link & 0x0fff_ffff)?;
    }
    let found = || {
        let (len, whole) = (order.word(bytes, 32)?, order.word(bytes, 36)?);
        Some(Found::new(bytes.get(40..)?.get(..len as usize)?, whole))
    };
    Ok(found())
}

fn pcapng(bytes: &[u8]) -> Result<Option<Found>, String> {
    let (mut rest, mut order, mut links) = (bytes, Numbers { big: false }, Vec::new());
    loop {
        if rest.starts_with(&SECTION.to_be_bytes()) && rest.len() >= 12 {
            order = Numbers::matching(rest, 8, &[ORDER]).ok_or("its section has no order of bytes")?;
            links.clear();
        }
        let (Some(kind), Some(len)) = (order.word(rest, 0), order.word(rest, 4)) else { return Ok(None) };
        if len < 12 || len % 4 != 0 {
            return Err(format!("a block of it has {len} bytes"));
        }
        let Some(block) = rest.get(..len as usize) else { return Ok(None) };
        let cut = || "a block of it is cut".to_owned();
        match kind {
            INTERFACE => links.push(u32::from(order.half(block, 8).ok_or_else(cut)?)),
            SIMPLE => {
                is_ethernet(*links.first().ok_or_else(cut)?)?;
                let whole = order.word(block, 8).ok_or_else(cut)?;
                let frame = block.get(12..block.len() - 4).ok_or_else(cut)?;
                return Ok(Some(Found::new(&frame[..frame.len().min(whole as usize)], whole)));
            }
            PACKET => {
                let interface = order.word(block, 8).ok_or_else(cut)?;
                is_ethernet(*links.get(interface as usize).ok_or_else(cut)?)?;
                let (len, whole) = (order.word(block, 20).ok_or_else(cut)?, order.word(block, 24).ok_or_else(cut)?);
                let frame = block.get(28..).and_then(|rest| rest.get(..len as usize)).ok_or_else(cut)?;
                let options = block.get(28 + (len as usize).next_multiple_of(4)..block.len() - 4);
                let comment = options.and_then(|options| comment(options, order));
                return Ok(Some(Found { comment, ..Found::new(frame, whole) }));
            }
            _ => {}
        }
        rest = &rest[len as usize..];
    }
}

fn comment(mut options: &[u8], order: Numbers) -> Option<String> {
    loop {
        let (code, len) = (order.half(options, 0)?, usize::from(order.half(options, 2)?));
        if code == COMMENT {
            return Some(String::from_utf8_lossy(options.get(4..4 + len)?).into_owned());
        }
        options = options.get(4 + len.next_multiple_of(4)..).filter(|_| code != 0)?;
    }
}

fn is_ethernet(link: u32) -> Result<(), String> {
    if link == ETHERNET { Ok(()) } else { Err(format!("its frames are not Ethernet's (link type {link})")) }
}

/// Hexadecimal digits, two per byte; blanks, colons and dashes between them are ignored.
fn digits(bytes: &[u8]) -> Result<Option<Found>, String> {
    let none = "it is no pcap or pcapng file, and no hexadecimal digits, two for each byte";
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8).ok_or(none);
    let plain = bytes.iter().filter(|byte| !byte.is_ascii_whitespace() && !matches!(byte, b':' | b'-'));
    let digits: Vec<u8> = plain.map(digit).collect::<Result<_, _>>()?;
    let (pairs, []) = digits.as_chunks::<2>() else { return Err(none.to_owned()) };
    let frame: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
    Ok((!frame.is_empty()).then(|| Found::new(&frame, frame.len() as u32)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pcap_file::DataLink;
    use pcap_file::Endianness::{Big, Little};
    use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
    use pcap_file::pcapng::PcapNgWriter;
    use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;

    use super::*;

    const FRAME: [u8; 61] = [7; 61];

    fn pcap(endianness: pcap_file::Endianness, datalink: DataLink) -> Vec<u8> {
        let header = PcapHeader { endianness, datalink, ..PcapHeader::default() };
        let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
        writer.write_packet(&PcapPacket::new(Duration::from_secs(1), 100, &FRAME)).unwrap();
        writer.write_packet(&PcapPacket::new(Duration::from_secs(2), 9, &[1; 9])).unwrap();
        writer.into_writer()
    }

    fn pcapng(endianness: pcap_file::Endianness, linktype: DataLink) -> Vec<u8> {
        let mut writer = PcapNgWriter::with_endianness(Vec::new(), endianness).unwrap();
        let interface = InterfaceDescriptionBlock { linktype, snaplen: 0, options: Vec::new() };
        writer.write_pcapng_block(interface).unwrap();
        let packet = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_secs(1),
            original_len: 100,
            data: FRAME[..].into(),
            options: vec![EnhancedPacketOption::Comment("to vm2".into())],
        };
        writer.write_pcapng_block(packet).unwrap();
        writer.into_inner()
    }

    #[test]
    fn the_first_frame_of_a_file_of_either_kind_and_order_is_found() {
        for order in [Big, Little] {
            let found = first_frame(&pcap(order, DataLink::ETHERNET)).unwrap().unwrap();
            assert_eq!((found.frame.as_slice(), found.bytes, found.whole), (&FRAME[..], 61, 100));
            let found = first_frame(&pcapng(order, DataLink::ETHERNET)).unwrap().unwrap();
            assert_eq!((found.frame.as_slice(), found.bytes, found.whole), (&FRAME[..], 61, 100));
            assert_eq!(found.comment.as_deref(), Some("to vm2"));
        }
    }

    #[test]
    fn a_file_that_is_cut_anywhere_has_no_frame_yet() {
        for file in [pcap(Little, DataLink::ETHERNET), pcapng(Little, DataLink::ETHERNET)] {
            // All lengths up to the frame's last byte; four bytes are enough to identify the kind.
            let end = file.windows(FRAME.len()).position(|bytes| bytes == FRAME).unwrap() + FRAME.len();
            assert!((4..end).all(|len| first_frame(&file[..len]) == Ok(None)));
        }
    }

    #[test]
    fn digits_may_have_anything_usual_between_them() {
        let frame = |text: &str| first_frame(text.as_bytes()).map(|found| found.map(|found| found.frame));
        for text in ["ffFF5254", "ff:ff:52:54\n", "ff-ff 5254"] {
            assert_eq!(frame(text), Ok(Some(vec![0xff, 0xff, 0x52, 0x54])));
        }
        assert_eq!(frame(""), Ok(None));
        for text in ["fff", "vm1.pcap", "0x52"] {
            assert!(frame(text).unwrap_err().contains("no hexadecimal digits"), "{text}");
        }
    }

    #[test]
    fn what_is_not_ethernet_or_is_damaged_is_said() {
        for file in [pcap(Little, DataLink::RAW), pcapng(Little, DataLink::RAW)] {
            assert!(first_frame(&file).unwrap_err().contains("not Ethernet's (link type 101)"));
        }
        let mut odd = pcapng(Little, DataLink::ETHERNET);
        odd[4] = 5;
        assert_eq!(first_frame(&odd).unwrap_err(), "a block of it has 5 bytes");
        odd[8] = 0;
        assert_eq!(first_frame(&odd).unwrap_err(), "its section has no order of bytes");
    }
}
