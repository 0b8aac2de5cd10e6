//! The frames that a generator sends repeatedly: one capture file (libpcap's format, version 2.4) per port.

use std::io::{BufWriter, Write};
use std::{fs::File, io, path::Path};

/// Bytes of Ethernet, IPv4 and UDP headers.
const HEADERS: usize = 14 + 20 + 8;
/// Minimum number of frames in a file, so that a generator's bursts have their usual length.
const FRAMES_MIN: u32 = 256;

/// Traffic of one port: to each address behind the other port in turn, from an equal number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// The port: 0 or 1.
    pub port: u8,
    /// Addresses behind each port.
    pub addresses: u32,
    /// Bytes of a frame on the wire, including its check sequence (which no virtual adapter carries).
    pub wire_bytes: u16,
}

impl Traffic {
    /// Frame number `index`: UDP over IPv4, padded with zeros.
    pub fn frame(&self, index: u32) -> Vec<u8> {
        let station = index % self.addresses.max(1);
        let len = usize::from(self.wire_bytes).saturating_sub(4).max(HEADERS);
        let mut frame = Vec::with_capacity(len);
        frame.extend(mac(1 - self.port.min(1), station));
        frame.extend(mac(self.port.min(1), station));
        frame.extend([0x08, 0x00]);
        let [_, _, high, low] = station.to_be_bytes();
        let total = (len - 14) as u16;
        let mut ip =
            [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, self.port, high, low, 10, 1 - self.port.min(1), high, low];
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        let sum = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u32>();
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        frame.extend(ip);
        // Ports of the discard protocol (RFC 863); no checksum (RFC 768).
        frame.extend([0, 9, 0, 9]);
        frame.extend((total - 20).to_be_bytes());
        frame.extend([0, 0]);
        frame.resize(len, 0);
        frame
    }

    /// Writes the file.
    ///
    /// # Errors
    /// The file system's error.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut out = BufWriter::new(File::create(path)?);
        let header: [u32; 6] = [0xa1b2_c3d4, 2 | 4 << 16, 0, 0, 65_535, 1];
        for word in header {
            out.write_all(&word.to_le_bytes())?;
        }
        for index in 0..self.addresses.max(FRAMES_MIN) {
            let frame = self.frame(index);
            let len = frame.len() as u32;
            for word in [0, index, len, len] {
                out.write_all(&word.to_le_bytes())?;
            }
            out.write_all(&frame)?;
        }
        out.flush()
    }
}

/// A locally administered address. Each port has its own.
fn mac(port: u8, station: u32) -> [u8; 6] {
    let [a, b, c, d] = station.to_be_bytes();
    [0x02, port, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use nicety_frame::{L4Kind, Layout};

    #[test]
    fn a_frame_is_as_long_as_asked_and_understood_by_another_reader() {
        for (wire_bytes, len) in [(64, 60), (1518, 1514)] {
            let traffic = Traffic { port: 1, addresses: 1000, wire_bytes };
            let frame = traffic.frame(1_999);
            assert_eq!(frame.len(), len);
            let layout = Layout::parse(&frame);
            assert_eq!(layout.l4.map(|l4| l4.kind), Some(L4Kind::Udp));
            assert_eq!(layout.l4_total_len(&frame), Some(len - 34));
        }
    }

    #[test]
    fn what_one_port_sends_to_is_what_the_other_sends_from() {
        let [one, other] = [0, 1].map(|port| Traffic { port, addresses: 100_000, wire_bytes: 64 }.frame(77_777));
        assert_eq!((&one[..6], &one[6..12]), (&other[6..12], &other[..6]));
    }
}
