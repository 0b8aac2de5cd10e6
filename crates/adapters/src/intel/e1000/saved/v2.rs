//! Version 2: causes and masks lay among the registers, IOADDR beside them, and what waited for a time was saved as if that had come.

use nicety_adapter::RestoreError;
use nicety_adapter::snapshot::{Nothing, Version};
use serde::{Deserialize, Serialize};

use crate::intel::e1000::interrupts::{THROTTLE_NS, interrupts};
use crate::intel::phy;
use crate::intel::transmit::Transmit;
use crate::microwire::Microwire;

/// Where ICR, ITR and IMS lay in `registers`.
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
    /// As version 3 has it.
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
        // The line was up for every cause that was pending and enabled.
        interrupts.note_told();
        // The last register, in a space of its own.
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
