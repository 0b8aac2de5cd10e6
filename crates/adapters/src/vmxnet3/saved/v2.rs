//! Version 2: every vector was moderated at its requested level.

use std::time::Duration;

use nicety_adapter::interrupts::Interrupts;
use nicety_adapter::snapshot::Version;
use nicety_adapter::{RestoreError, Time};
use serde::{Deserialize, Serialize};

use super::{REGISTERS, v1};
use crate::vmxnet3::coalescing::Coalescing;
use crate::vmxnet3::filter::Filter;
use crate::vmxnet3::receive::ReceiveQueue;
use crate::vmxnet3::rss::Conf;
use crate::vmxnet3::shared::Setup;
use crate::vmxnet3::transmit::TransmitQueue;

#[derive(Serialize, Deserialize)]
pub(super) struct Saved {
    pub function: Vec<u8>,
    pub link: bool,
    pub version: u8,
    pub registers: [u32; REGISTERS],
    pub events: u32,
    pub capabilities: u32,
    pub fields: u32,
    pub interrupts: Interrupts,
    pub filter: Filter,
    pub rss: Conf,
    pub setup: Option<Setup>,
    pub transmit: Vec<TransmitQueue>,
    pub receive: Vec<ReceiveQueue>,
    pub room_at: Option<Time>,
    pub room_delay: Duration,
    pub masked_at: Option<Time>,
}

impl Version for Saved {
    const NUMBER: u16 = 2;
    type Before = v1::Saved;

    fn from_before(before: v1::Saved) -> Result<Self, RestoreError> {
        Ok(before.into_next())
    }
}

impl Saved {
    /// Converts to version 3.
    pub(super) fn into_next(self) -> super::Saved {
        let Self {
            function,
            link,
            version,
            registers,
            events,
            capabilities,
            fields,
            interrupts,
            filter,
            rss,
            setup,
            transmit,
            receive,
            room_at,
            room_delay,
            masked_at,
        } = self;
        super::Saved {
            function,
            link,
            version,
            registers,
            events,
            capabilities,
            fields,
            coalescing: Coalescing::default(),
            interrupts,
            filter,
            rss,
            setup,
            transmit,
            receive,
            room_at,
            room_delay,
            masked_at,
        }
    }
}
