//! Version 1: interrupts were the device's own, and a deferred interrupt was saved as if it were due.

use nicety_adapter::RestoreError;
use nicety_adapter::interrupts::Interrupts;
use nicety_adapter::snapshot::{Nothing, Version};
use serde::{Deserialize, Serialize};

use super::v2;
use crate::vmxnet3::filter::Filter;
use crate::vmxnet3::interrupts::interrupts;
use crate::vmxnet3::receive::ReceiveQueue;
use crate::vmxnet3::rss::Conf;
use crate::vmxnet3::shared::{ReceiveConf, Ring, Setup, TransmitConf};
use crate::vmxnet3::statistics::Statistics;
use crate::vmxnet3::transmit::TransmitQueue;

#[derive(Serialize, Deserialize)]
pub(super) struct Saved {
    function: Vec<u8>,
    link: bool,
    version: u8,
    values: [u32; super::REGISTERS],
    events: u32,
    capabilities: u32,
    fields: u32,
    interrupts: Vectors,
    filter: Filter,
    rss: Conf,
    setup: Option<Setup>,
    transmit: Vec<Transmit>,
    receive: Vec<Receive>,
}

/// The device's interrupts, a bit for each vector.
#[derive(Serialize, Deserialize)]
struct Vectors {
    masked: u128,
    pending: u128,
    asserted: u128,
    auto_mask: bool,
}

#[derive(Serialize, Deserialize)]
struct Transmit {
    ring: Ring,
    completions: Ring,
    vector: u8,
    at: u64,
    error: u32,
    statistics: Statistics,
    quiet: bool,
}

#[derive(Serialize, Deserialize)]
struct Receive {
    rings: [Ring; 2],
    completions: Ring,
    data: u64,
    data_len: u16,
    vector: u8,
    at: u64,
    error: u32,
    statistics: Statistics,
    resume: u32,
    starved: bool,
    lacks_bodies: bool,
    moderated: bool,
}

impl Version for Saved {
    const NUMBER: u16 = 1;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

impl From<Vectors> for Interrupts {
    fn from(Vectors { masked, pending, asserted, auto_mask }: Vectors) -> Self {
        let mut all = interrupts();
        all.enable(!masked);
        all.set_auto_mask(if auto_mask { u128::MAX } else { 0 });
        all.raise(pending);
        all.latch(asserted);
        all
    }
}

impl From<Transmit> for TransmitQueue {
    fn from(Transmit { ring, completions, vector, at, error, statistics, quiet }: Transmit) -> Self {
        let mut queue = Self::new(TransmitConf { ring, completions, vector }, at, statistics);
        (queue.error, queue.quiet) = (error, quiet);
        queue
    }
}

impl From<Receive> for ReceiveQueue {
    fn from(saved: Receive) -> Self {
        let Receive {
            rings,
            completions,
            data,
            data_len,
            vector,
            at,
            error,
            statistics,
            resume: _,
            starved,
            lacks_bodies,
            moderated,
        } = saved;
        let conf = ReceiveConf { rings, completions, data, data_len, vector, moderated };
        Self { error, starved, lacks_bodies, ..Self::new(conf, at, statistics) }
    }
}

impl Saved {
    /// Converts to version 2. Deferred interrupts have no deadline any more: the first tick checks them.
    pub(super) fn into_next(self) -> v2::Saved {
        let Self {
            function,
            link,
            version,
            values,
            events,
            capabilities,
            fields,
            interrupts,
            filter,
            rss,
            setup,
            transmit,
            receive,
        } = self;
        let starved = receive.iter().any(|queue| queue.starved);
        v2::Saved {
            function,
            link,
            version,
            registers: values,
            events,
            capabilities,
            fields,
            interrupts: interrupts.into(),
            filter,
            rss,
            setup,
            transmit: transmit.into_iter().map(Into::into).collect(),
            receive: receive.into_iter().map(Into::into).collect(),
            room_at: starved.then(Default::default),
            room_delay: super::ROOM_FIRST,
            masked_at: None,
        }
    }
}
