//! A switch whose ports have policies, and its incoming frames.

use std::sync::Arc;

use nicety_adapter::{Batch, Offload, PortId, Time};
use nicety_memory::Map;
use nicety_switch::{Limits, Plan, Policy, Switch};

pub struct World {
    pub switch: Switch,
    map: Arc<Map>,
    pub batch: Batch,
    pub plan: Plan,
    pub now: Time,
}

impl World {
    /// Ports with these policies, from 0 on.
    pub fn new(policies: &[Policy]) -> Self {
        let switch = Switch::new(Limits { addresses: 1024, ..Limits::default() });
        for (policy, port) in policies.iter().zip(0..) {
            switch.set_policy(PortId(port), policy);
            switch.join(PortId(port), ()).unwrap();
        }
        let map = Arc::new(Map::private(1 << 20).unwrap());
        Self { switch, map, batch: Batch::new(), plan: Plan::new(), now: Time(1_000_000_000) }
    }

    /// Loads the batch with these frames from a port.
    pub fn load(&mut self, from: u16, frames: &[Vec<u8>], offload: Offload) {
        self.batch.start(&self.map, PortId(from), 0);
        let mut at = 0;
        for bytes in frames {
            self.map.write(at, bytes).unwrap();
            let mut draft = self.batch.draft(0).unwrap();
            draft.push(at, bytes.len() as u32).unwrap();
            draft.finish(offload, 0).unwrap();
            at += bytes.len() as u64;
        }
    }
}
