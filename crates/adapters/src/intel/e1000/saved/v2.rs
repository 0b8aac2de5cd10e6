//! Version 2: causes and masks were among the registers, IOADDR beside them, and a deferred interrupt was saved as if it were due.

use nicety_adapter::RestoreError;
use nicety_adapter::snapshot::{Nothing, Version};
use serde::{Deserialize, Serialize};

use crate::intel::e1000::interrupts::{THROTTLE_NS, interrupts};
use crate::intel::phy;
use crate::intel::transmit::Transmit;
use crate::microwire::Microwire;

/// Indices of ICR, ITR and IMS in `registers`.
const ICR: usize = 11;
const ITR: usize = 12;
const IMS: usize = 14;

#[derive(Serialize, Deserialize)]
pub(super) struct State {
    registers: Vec<u32>,
    buffer: Option<Vec<u32>>,
    io_address: u32,
    phy: phy::State,
    eeprom: Microwire,
    transmit: Transmit,
    resume: u32,
    starved: bool,
    link_up: bool,
    function: Vec<u8>,
}

impl Version for State {
    const NUMBER: u16 = 2;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

impl State {
    /// Converts to version 3.
    pub(super) fn into_next(self) -> Result<super::State, RestoreError> {
        let Self { mut registers, buffer, io_address, phy, eeprom, transmit, resume: _, starved, link_up, function } =
            self;
        let mut take = |slot| registers.get_mut(slot).map(std::mem::take);
        let (Some(pending), Some(enabled)) = (take(ICR), take(IMS)) else {
            return Err(RestoreError::Impossible("registers"));
        };
        let mut interrupts = interrupts();
        interrupts.raise(pending.into());
        interrupts.enable(enabled.into());
        if let (Some(throttle), Some(interval)) = (interrupts.throttle(0), registers.get(ITR)) {
            throttle.set_interval(u64::from(*interval) * THROTTLE_NS);
        }
        // The line was up for every pending and enabled cause.
        interrupts.note_told();
        // The last register, in a region of its own.
        registers.push(io_address);
        Ok(super::State {
            registers,
            buffer,
            phy,
            eeprom,
            transmit,
            starved,
            link_up,
            interrupts,
            receive_delay: Default::default(),
            completions: Default::default(),
            function,
        })
    }
}
