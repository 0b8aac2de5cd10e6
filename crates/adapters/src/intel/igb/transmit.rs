//! Advanced transmit descriptors (82576 datasheet, 7.2.2).
//!
//! ```text
//!  63                                   32 31          24 23  20 19            0
//! | buffer address                                                              |  advanced data
//! | PAYLEN | POPTS | CC | IDX | status    | command      | type 3 | MAC | length |
//! | sequence number seed                  | VLAN   | MACLEN | IPLEN             |  context
//! | MSS | L4LEN | IDX                     | DEXT         | type 2 | TUCMD        |
//! ```
//! A queue keeps two contexts; IDX in a packet's first data descriptor selects one.

use serde::{Deserialize, Serialize};

use crate::intel::transmit::{Contexts, Descriptor, Request, Task};

/// Bits 23:20: an advanced context.
const CONTEXT: u32 = 2;
/// Command: insert the context's tag.
const VLE: u32 = 1 << 30;
/// Command: segment.
const TSE: u32 = 1 << 31;
/// MAC: take a departure time stamp.
const STAMP: u32 = 1 << 19;

/// A context descriptor's fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ContextFields {
    lengths: u32,
    command: u32,
    segments: u32,
}

/// The two contexts of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advanced([ContextFields; 2]);

impl ContextFields {
    /// Offsets of a packet: after MACLEN bytes an IP header of IPLEN bytes, then TCP, UDP or SCTP.
    fn task(self) -> Task {
        let mac = (self.lengths >> 9 & 0x7f) as u16;
        let ip = (self.lengths & 0x1ff) as u16;
        let (start, tcp) = (mac + ip, self.command >> 11 & 3 == 1);
        Task {
            ip_start: mac,
            ip_field: mac + 10,
            start,
            field: start + if tcp { 16 } else { 6 },
            end: 0,
            tcp,
            headers: start + (self.segments >> 8 & 0xff) as u16,
            mss: (self.segments >> 16) as u16,
        }
    }

    /// SCTP has another checksum (RFC 9260, appendix A).
    fn is_sctp(self) -> bool {
        self.command >> 11 & 3 == 2
    }
}

impl Contexts for Advanced {
    fn is_context(descriptor: Descriptor) -> bool {
        descriptor.lower >> 20 & 0xf == CONTEXT
    }

    fn data_len(descriptor: Descriptor) -> u32 {
        descriptor.lower & 0xffff
    }

    fn keep(&mut self, descriptor: Descriptor) {
        let fields =
            ContextFields { lengths: descriptor.address as u32, command: descriptor.lower, segments: descriptor.upper };
        self.0[(descriptor.upper >> 4 & 1) as usize] = fields;
    }

    fn request(&self, first: Descriptor) -> Request {
        let fields = self.0[(first.upper >> 4 & 1) as usize];
        let options = first.upper >> 8;
        let checksum = options & 2 != 0;
        let mut task = fields.task();
        if checksum && fields.is_sctp() {
            // Not supported: no packet has its checksum at offset 0.
            task.field = 0;
        }
        Request {
            segment: first.lower & TSE != 0,
            ip_checksum: options & 1 != 0,
            checksum,
            task,
            tag: (first.lower & VLE != 0).then_some((fields.lengths >> 16) as u16),
            stamp: first.lower & STAMP != 0,
        }
    }
}
