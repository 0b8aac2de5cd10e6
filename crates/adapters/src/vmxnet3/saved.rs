//! Saved state: everything that a guest or the device can have changed. It is checked as a whole before any of it is used.

use std::time::Duration;

use nicety_adapter::interrupts::Interrupts;
use nicety_adapter::snapshot::{Nothing, Version, decode, encode};
use nicety_adapter::{Adapter, Context, RestoreError, Snapshot, Time};
use nicety_memory::Window;
use nicety_pci::Saved as SavedFunction;
use serde::{Deserialize, Serialize};

use super::coalescing::Coalescing;
use super::filter::Filter;
use super::interrupts::{interrupts, read_masks, show_masks};
use super::receive::ReceiveQueue;
use super::registers::{QUEUES, VERSIONS, event, stopped};
use super::rss::{Conf, FIELDS_ALL, Rss};
use super::shared::Setup;
use super::transmit::TransmitQueue;
use super::{ABOUT, ROOM_MAX, Vmxnet3};

/// Number of registers that store a value: those of BAR 1.
const REGISTERS: usize = 11;

#[derive(Serialize, Deserialize)]
struct Saved {
    function: Vec<u8>,
    link: bool,
    version: u8,
    registers: [u32; REGISTERS],
    events: u32,
    capabilities: u32,
    fields: u32,
    coalescing: Coalescing,
    interrupts: Interrupts,
    filter: Filter,
    rss: Conf,
    setup: Option<Setup>,
    transmit: Vec<TransmitQueue>,
    receive: Vec<ReceiveQueue>,
    room_at: Option<Time>,
    room_delay: Duration,
    masked_at: Option<Time>,
}

impl Version for Saved {
    const NUMBER: u16 = 4;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

impl Saved {
    fn check(&self) -> Result<(), RestoreError> {
        let impossible = |what| Err(RestoreError::Impossible(what));
        let offered = (1..=32).contains(&self.version) && VERSIONS >> (self.version - 1) & 1 != 0;
        if !offered {
            return impossible("device version");
        }
        if self.fields & !FIELDS_ALL != 0 {
            return impossible("register");
        }
        if !self.interrupts.fits(&interrupts()) || !self.filter.valid() || !self.rss.valid() {
            return impossible("interrupts, filter or receive hash");
        }
        if self.room_delay > ROOM_MAX || !self.coalescing.valid() {
            return impossible("delay");
        }
        let most = usize::from(QUEUES);
        let counted = self.transmit.len() <= most && self.receive.len() <= most;
        let queues = self.transmit.iter().all(TransmitQueue::valid) && self.receive.iter().all(ReceiveQueue::valid);
        let agreed = self.setup.is_none_or(|setup| {
            let lens = (usize::from(setup.transmit), usize::from(setup.receive));
            setup.valid() && lens == (self.transmit.len(), self.receive.len())
        });
        if !counted || !queues || !agreed {
            return impossible("queue");
        }
        Ok(())
    }
}

impl Snapshot for Vmxnet3 {
    fn save(&self) -> Vec<u8> {
        self.save_with(self.interrupts.clone())
    }

    fn save_mapped(&self, page: &Window<'_>) -> Vec<u8> {
        let mut interrupts = self.interrupts.clone();
        read_masks(&mut interrupts, page);
        self.save_with(interrupts)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError> {
        let saved: Saved = decode(ABOUT.name, saved)?;
        saved.check()?;
        let function = SavedFunction::from_bytes(&saved.function).map_err(|_| RestoreError::Damaged)?;
        let mut registers = self.registers.clone();
        registers.restore(&saved.registers)?;
        self.function.restore(&function).map_err(|_| RestoreError::Impossible("configuration space"))?;
        let Saved {
            function: _,
            link,
            version,
            registers: _,
            events,
            capabilities,
            fields,
            coalescing,
            interrupts,
            filter,
            rss,
            setup,
            transmit,
            receive,
            room_at,
            room_delay,
            masked_at,
        } = saved;
        self.generation = self.generation.wrapping_add(1);
        (self.link, self.version, self.registers, self.events) = (link, version, registers, events);
        (self.capabilities, self.fields, self.coalescing) = (capabilities, fields, coalescing);
        (self.interrupts, self.filter, self.setup) = (interrupts, filter, setup);
        self.rss = Rss::new(rss, fields);
        (self.transmit, self.receive) = (transmit, receive);
        self.transmit.iter_mut().for_each(TransmitQueue::reserve);
        (self.room_at, self.room_delay, self.masked_at) = (room_at, room_delay, masked_at);
        Ok(())
    }
}

impl Vmxnet3 {
    fn save_with(&self, interrupts: Interrupts) -> Vec<u8> {
        let Self {
            function,
            rom: _,
            permanent: _,
            queues: _,
            link,
            generation: _,
            version,
            registers,
            events,
            capabilities,
            fields,
            coalescing,
            interrupts: _,
            filter,
            rss,
            setup,
            transmit,
            receive,
            room_at,
            room_delay,
            masked_at,
        } = self;
        let registers = registers.save();
        let saved = Saved {
            function: function.save().to_bytes(),
            link: *link,
            version: *version,
            registers: std::array::from_fn(|index| registers.get(index).copied().unwrap_or_default()),
            events: *events,
            capabilities: *capabilities,
            fields: *fields,
            coalescing: *coalescing,
            interrupts,
            filter: filter.clone(),
            rss: rss.conf().clone(),
            setup: *setup,
            transmit: transmit.clone(),
            receive: receive.clone(),
            room_at: *room_at,
            room_delay: *room_delay,
            masked_at: *masked_at,
        };
        encode(ABOUT.name, Saved::NUMBER, &saved)
    }

    /// Resumes from restored state: shows masks and line, sends waiting interrupts, checks the rings.
    pub(super) fn resume_restored(&mut self, cx: &mut Context<'_>) {
        // Frames that waited for room waited in another process.
        self.receive.iter_mut().for_each(|queue| queue.starved = false);
        self.room_at = None;
        show_masks(&self.interrupts, cx.page);
        self.interrupts.show(&mut self.function, cx);
        self.update_interrupts(cx);
        (0..self.transmit_queues()).for_each(|queue| cx.out.work.insert(queue));
        self.tick(cx);
    }

    /// The rings' positions are lost: stops all queues. The driver resets the device when it hears of that (vmxnet3_drv.c,
    /// vmxnet3_process_events).
    pub(super) fn lose(&mut self, cx: &mut Context<'_>) {
        self.transmit.iter_mut().for_each(|queue| queue.error = stopped::LOST);
        for queue in &mut self.receive {
            (queue.error, queue.starved) = (stopped::LOST, false);
        }
        self.room_at = None;
        // The driver's masks may be newer than these. One interrupt more is harmless.
        self.interrupts.enable(u128::MAX);
        self.interrupts.show(&mut self.function, cx);
        self.raise_event(event::TRANSMIT_ERROR | event::RECEIVE_ERROR, cx);
    }
}
