//! A link that is a pair of queues, with a switch for its carrier and a limit to what it takes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use nicety_adapter::{Batch, Budget, Counters, Delivery, Edit, Frames, PortId, Progress, Reason, Time, Uplink};
use nicety_memory::Map;

/// The test's view of a link.
#[derive(Default)]
pub struct Wire {
    /// Frames from the world.
    pub outgoing: VecDeque<Vec<u8>>,
    /// Frames to it.
    pub incoming: Vec<Vec<u8>>,
    /// The edits of their tags.
    pub edits: Vec<Edit>,
    /// Number of frames that it still takes.
    pub room: usize,
    pub carrier: bool,
}

pub struct Link {
    wire: Arc<Mutex<Wire>>,
    map: Arc<Map>,
}

/// A link with a carrier and much room.
pub fn link() -> (Link, Arc<Mutex<Wire>>) {
    let wire = Arc::new(Mutex::new(Wire { room: 1 << 20, carrier: true, ..Wire::default() }));
    (Link { wire: Arc::clone(&wire), map: Arc::new(Map::private(1 << 20).unwrap()) }, wire)
}

impl Uplink for Link {
    fn fetch(&mut self, port: PortId, budget: Budget, batch: &mut Batch, counters: &mut Counters, _: Time) -> Progress {
        batch.start(&self.map, port, 0);
        let mut wire = self.wire.lock().unwrap();
        let mut at = 0;
        while budget.allows(batch) {
            let Some(frame) = wire.outgoing.pop_front() else { break };
            self.map.write(at, &frame).unwrap();
            let mut draft = batch.draft(0).unwrap();
            draft.push(at, frame.len() as u32).unwrap();
            draft.finish_plain(0);
            counters.sent(0, 1, frame.len() as u64);
            at += 2048;
        }
        Progress { more: !wire.outgoing.is_empty(), armed: true }
    }

    fn complete(&mut self, _: &Batch) {}

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, _: Time) -> Delivery {
        let mut delivery = Delivery::default();
        let mut wire = self.wire.lock().unwrap();
        for (index, pick, packet) in frames.iter() {
            if !wire.carrier {
                counters.receive_drop(Reason::LinkDown);
                continue;
            }
            if wire.room == 0 {
                delivery.refuse(index, 0, 0);
                continue;
            }
            wire.room -= 1;
            let mut frame = vec![0; packet.len() as usize];
            frames.batch.copy(packet, &mut frame);
            counters.received(0, 1, frame.len() as u64);
            wire.incoming.push(frame);
            wire.edits.push(pick.edit);
        }
        delivery
    }

    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn carrier(&self) -> bool {
        self.wire.lock().unwrap().carrier
    }
}
