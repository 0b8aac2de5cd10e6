//! Guests of a host, each at the port with its number, and with that number in its address.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nicety_adapter::{Batch, Budget, Context, Delivery, Frames, PortId, Progress, Time};
use nicety_memory::Map;
use nicety_plane::{End, Port};

use crate::ringed::{Ringed, Traffic};
use crate::silent::Silent;

/// Counts of frames by flow: the last byte of their IPv4 source address.
pub type Received = Arc<[AtomicU64; 3]>;

/// A guest that counts the frames of each flow, and sends one frame, so that the switch knows where it is.
pub struct Guest {
    received: Received,
    has_sent: bool,
}

impl Guest {
    pub fn new(received: &Received) -> Self {
        Self { received: Arc::clone(received), has_sent: false }
    }
}

impl Traffic for Guest {
    fn fetch(&mut self, _: u16, _: Budget, batch: &mut Batch, _: &mut Context<'_>) -> Progress {
        if !std::mem::replace(&mut self.has_sent, true) {
            let mut draft = batch.draft(0).unwrap();
            draft.push(0, 60).unwrap();
            draft.finish_plain(0);
        }
        Progress { more: false, armed: true }
    }

    fn deliver(&mut self, frames: &Frames<'_>, _: &mut Context<'_>) -> Delivery {
        for (_, _, packet) in frames.iter() {
            let flow = frames.batch.head(packet)[29];
            if let Some(count) = self.received.get(usize::from(flow)) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
        Delivery::default()
    }
}

/// The port of a guest, with a broadcast from it at the start of its memory.
pub fn port(id: u16, guest: impl Traffic + 'static) -> Arc<Port> {
    let port = Port::new(PortId(id), End::guest(Box::new(Ringed(guest))), Box::new(Silent), 4 << 20).unwrap();
    port.attach();
    let map = Map::private(1 << 16).unwrap();
    map.write(0, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, id as u8, 0x88, 0xb5]).unwrap();
    port.set_memory(Arc::new(map), Time::ZERO);
    Arc::new(port)
}
