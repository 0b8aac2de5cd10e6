//! Automatic receive steering (virtio 1.2, section 5.1.6.5.6): a flow goes to the receive queue of the pair on which the guest last
//! sent the flow's other direction.

use nicety_adapter::Batch;
use nicety_frame::{L3Kind, Layout};

/// Distinct flows that are remembered.
const ENTRIES: usize = 256;

/// Marks a flow that the guest has not sent yet: no queue has this number.
const UNKNOWN: u8 = u8::MAX;

/// Queue pair by flow.
#[derive(Clone, Debug)]
pub(super) struct Steering {
    pairs: [u8; ENTRIES],
}

impl Default for Steering {
    fn default() -> Self {
        Self { pairs: [UNKNOWN; ENTRIES] }
    }
}

impl Steering {
    /// Records that the guest sends the flows of this many last packets of the batch on that queue.
    pub fn learn(&mut self, batch: &Batch, packets: usize, queue: u16) {
        for packet in batch.packets().iter().rev().take(packets).rev() {
            let flow = flow(batch.head(packet), batch.layout(packet));
            self.pairs[usize::from(flow)] = queue as u8;
        }
    }

    /// The queue for this flow; above every queue number, if the guest has not sent it.
    pub fn queue(&self, flow: u8) -> u16 {
        u16::from(self.pairs[usize::from(flow)])
    }
}

/// Hash of a flow, equal for both directions: addresses and ports folded.
pub(super) fn flow(head: &[u8], layout: &Layout) -> u8 {
    let Some(l3) = layout.l3 else { return 0 };
    let at = usize::from(l3.offset);
    let addresses = match l3.kind {
        L3Kind::V4 => head.get(at + 12..at + 20),
        L3Kind::V6 => head.get(at + 8..at + 40),
    };
    let words = addresses.unwrap_or_default().chunks_exact(4);
    let folded = words.fold(0u32, |fold, word| fold ^ u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    let ports = layout.ports(head).map_or(0, |(source, destination)| source ^ destination);
    // A multiplicative hash (Knuth, TAOCP 6.4): its top bits depend on all input bits.
    ((folded ^ u32::from(ports)).wrapping_mul(0x9e37_79b1) >> 24) as u8
}
