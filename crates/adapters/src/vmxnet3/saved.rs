//! Saved state: all that a guest or the device can have changed, checked as a whole before any of it is taken.

use nicety_adapter::snapshot::{decode, encode};
use nicety_adapter::{Adapter, Context, Event, RestoreError, Snapshot};
use nicety_pci::Saved as SavedFunction;
use serde::{Deserialize, Serialize};

use super::filter::Filter;
use super::interrupts::Interrupts;
use super::receive::ReceiveQueue;
use super::registers::{DEVICE, QUEUES, VERSIONS, Values};
use super::rss::{Conf, FIELDS_ALL, Rss};
use super::shared::Setup;
use super::transmit::TransmitQueue;
use super::{ABOUT, ROOM_FIRST, Vmxnet3};

const VERSION: u16 = 1;

#[derive(Serialize, Deserialize)]
struct Saved {
    function: Vec<u8>,
    link: bool,
    version: u8,
    values: Values,
    events: u32,
    capabilities: u32,
    fields: u32,
    interrupts: Interrupts,
    filter: Filter,
    rss: Conf,
    setup: Option<Setup>,
    transmit: Vec<TransmitQueue>,
    receive: Vec<ReceiveQueue>,
}

impl Saved {
    fn check(&self) -> Result<(), RestoreError> {
        let impossible = |what| Err(RestoreError::Impossible(what));
        let offered = (1..=32).contains(&self.version) && VERSIONS >> (self.version - 1) & 1 != 0;
        if !offered {
            return impossible("device version");
        }
        let fixed = DEVICE.iter().zip(self.values).all(|(register, value)| {
            register.name == "CMD" || value & !register.write == register.reset & !register.write
        });
        if !fixed || self.fields & !FIELDS_ALL != 0 {
            return impossible("register");
        }
        if !self.interrupts.valid() || !self.filter.valid() || !self.rss.valid() {
            return impossible("interrupts, filter or receive hash");
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
        let Self {
            function,
            rom: _,
            permanent: _,
            queues: _,
            link,
            generation: _,
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
            room_at: _,
            room_delay: _,
            masked_at: _,
        } = self;
        let mut interrupts = *interrupts;
        // A completion that waits for company is told at once after a restore.
        transmit.iter().filter(|queue| queue.patience.due().is_some()).for_each(|queue| interrupts.hold(queue.vector));
        receive.iter().filter(|queue| queue.moderation.due().is_some()).for_each(|queue| interrupts.hold(queue.vector));
        let saved = Saved {
            function: function.save().to_bytes(),
            link: *link,
            version: *version,
            values: *values,
            events: *events,
            capabilities: *capabilities,
            fields: *fields,
            interrupts,
            filter: filter.clone(),
            rss: rss.conf().clone(),
            setup: *setup,
            transmit: transmit.clone(),
            receive: receive.clone(),
        };
        encode(ABOUT.name, VERSION, &saved)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError> {
        let saved: Saved = decode(ABOUT.name, VERSION, saved)?;
        saved.check()?;
        let function = SavedFunction::from_bytes(&saved.function).map_err(|_| RestoreError::Damaged)?;
        self.function.restore(&function).map_err(|_| RestoreError::Impossible("configuration space"))?;
        let Saved {
            function: _,
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
        } = saved;
        self.generation = self.generation.wrapping_add(1);
        (self.link, self.version, self.values, self.events) = (link, version, values, events);
        (self.capabilities, self.fields) = (capabilities, fields);
        (self.interrupts, self.filter, self.setup) = (interrupts, filter, setup);
        self.rss = Rss::new(rss, fields);
        (self.transmit, self.receive) = (transmit, receive);
        self.transmit.iter_mut().for_each(TransmitQueue::reserve);
        // Nobody knows how long ago: the first tick looks.
        let starved = self.receive.iter().any(|queue| queue.starved);
        (self.room_at, self.room_delay) = (starved.then(Default::default), ROOM_FIRST);
        Ok(())
    }
}

impl Vmxnet3 {
    /// Goes on from a restored state: shows masks and line, tells what waited, looks at the rings.
    pub(super) fn resume_restored(&mut self, cx: &mut Context<'_>) {
        if self.receive.iter().any(|queue| queue.starved || queue.resume != 0) {
            self.notice(Event::BacklogDropped, cx);
        }
        self.interrupts.resume_restored(&mut self.function, cx);
        (0..self.transmit_queues()).for_each(|queue| cx.out.work.insert(queue));
        self.tick(cx);
    }
}
