//! The command register: the effect of each VMXNET3_CMD_*, and its answer in the next read of CMD.

use nicety_adapter::interrupts::ReceiveModeration;
use nicety_adapter::{Context, ErrorPlace, Outbox, Queue};
use nicety_memory::{Fault, Map};

use super::Vmxnet3;
use super::coalescing::Coalescing;
use super::receive::ReceiveQueue;
use super::registers::{CAPABILITIES, QUEUES, Reg, command, event, feature, stopped};
use super::rss::{Conf, FIELDS_DEFAULT, Rss, fields_on_offer};
use super::shared::{self, COMMAND_DATA, Ring, STATISTICS, STATUS, Setup, SetupError};
use super::transmit::TransmitQueue;

/// Link state in GET_LINK's answer: 10 Gbit/s, up.
const LINK_UP: u32 = 10_000 << 16 | 1;
/// Cost, in descriptors, of each queue that ACTIVATE_DEV sets up, and of the addresses to sort: see `Outbox::charge`.
const QUEUE_COST: u32 = 1500;
const ADDRESS_COST: u32 = 3;
/// Suggested bytes of a transmit data ring's entry: enough for the headers of any packet.
const TRANSMIT_DATA: u32 = 128;

/// Notes why a queue stops: at its next descriptor, where the packet begins.
#[cold]
fn blame_ring(queue: Queue, ring: Option<Ring>, error: u32, cx: &mut Context<'_>) {
    let Ring { base, next, .. } = ring.unwrap_or_default();
    let (place, value, expected) = match error {
        stopped::NO_EOP => (ErrorPlace::Descriptor(queue, next), base, "a descriptor with EOP before the ring is full"),
        stopped::DESCRIPTOR_TYPE => (ErrorPlace::Descriptor(queue, next), base, "descriptors of type 0 (VMXNET3_TXD)"),
        _ => (
            ErrorPlace::Ring(queue),
            base,
            "the queue's rings in guest memory (txRingBasePA, rxRingBasePA, compRingBasePA)",
        ),
    };
    cx.guest_error(place, value, expected);
}

impl Vmxnet3 {
    /// Executes a command. The result is CMD's value from now on.
    pub(super) fn execute(&mut self, number: u32, cx: &mut Context<'_>) -> u32 {
        let memory = &**cx.memory;
        match number {
            command::ACTIVATE => return self.activate(cx),
            command::QUIESCE => self.quiesce(cx),
            command::RESET => self.reset_device(cx),
            command::UPDATE_IML | command::UPDATE_PMCFG => {}
            // Buffer sizes and memory regions given in advance are not needed: every descriptor has its own.
            command::SET_RING_BUFFER_SIZE if self.version >= 7 => {}
            command::REGISTER_MEMREGS if self.version >= 3 => {}
            command::UPDATE_RX_MODE
            | command::UPDATE_MAC_FILTERS
            | command::UPDATE_VLAN_FILTERS
            | command::UPDATE_RSSIDT
            | command::UPDATE_FEATURE => {
                let Some(setup) = self.running() else { return command::FAILED };
                match self.update(number, setup.shared, memory) {
                    Ok(addresses) => cx.out.charge(addresses * ADDRESS_COST),
                    Err(_) => return self.fail_command(number, "its data in guest memory (Vmxnet3_DSDevRead)", cx),
                }
            }
            command::SET_COALESCE | command::GET_COALESCE if self.version >= 3 => {
                let Some(setup) = self.running() else { return command::FAILED };
                let done = match number {
                    command::GET_COALESCE => self.coalescing.write(memory, setup.shared),
                    _ => Coalescing::read(memory, setup.shared).map(|scheme| self.coalescing = scheme),
                };
                if done.is_err() {
                    let expected = "a scheme that there is, with its limits (Vmxnet3_CoalesceScheme)";
                    return self.fail_command(number, expected, cx);
                }
            }
            command::SET_RSS_FIELDS => return self.set_rss_fields(cx),
            command::GET_QUEUE_STATUS => self.write_status(memory),
            command::GET_STATS => self.write_statistics(memory),
            command::LOAD_PLUGIN => return command::FAILED,
            _ => return self.answer(number, cx),
        }
        0
    }

    /// Commands that only return an answer.
    fn answer(&mut self, number: u32, cx: &mut Context<'_>) -> u32 {
        let [a, b, c, d, e, f] = self.permanent.0;
        match number {
            command::GET_LINK => {
                if self.link {
                    LINK_UP
                } else {
                    0
                }
            }
            command::GET_PERM_MAC_LO => u32::from_le_bytes([a, b, c, d]),
            command::GET_PERM_MAC_HI => u32::from_le_bytes([e, f, 0, 0]),
            command::GET_DID_LO => 0x07b0,
            command::GET_DID_HI => 1,
            // Type automatic (MSI-X, MSI or INTx, as available), masks automatic.
            command::GET_CONF_INTR | command::GET_DEV_EXTRA_INFO => 0,
            command::GET_TXDATA_DESC_SIZE if self.version >= 3 => TRANSMIT_DATA,
            command::GET_RSS_FIELDS if self.version >= 4 => self.fields,
            command::GET_MAX_QUEUES_CONF if self.version >= 6 => u32::from(self.queues) << 8 | u32::from(self.queues),
            command::GET_MAX_CAPABILITIES if self.version >= 7 => CAPABILITIES,
            command::GET_DCR0 if self.version >= 7 => self.capabilities,
            _ => self.fail_command(number, "a command of this version (VMXNET3_CMD_*, VRRS)", cx),
        }
    }

    /// Notes a command that failed by the driver's mistake. Returns its result.
    #[cold]
    fn fail_command(&self, number: u32, expected: &'static str, cx: &mut Context<'_>) -> u32 {
        cx.guest_error(self.registers.table().error_place(Reg::CMD, 0), number.into(), expected);
        command::FAILED
    }

    /// ACTIVATE_DEV. A device that is already active starts anew: a crash kernel's driver finds it active.
    fn activate(&mut self, cx: &mut Context<'_>) -> u32 {
        self.quiesce(cx);
        let shared = u64::from(self.registers[Reg::DSAH]) << 32 | u64::from(self.registers[Reg::DSAL]);
        let taken = if self.function.bus_master() { self.take_setup(shared, cx) } else { Err(SetupError::Invalid) };
        if let Err(error) = taken {
            let expected = match error {
                _ if !self.function.bus_master() => "bus mastering before ACTIVATE_DEV",
                SetupError::Memory => "DriverShared, its queue descriptors and rings in guest memory (DSAL, DSAH)",
                SetupError::Invalid => "a DriverShared with its magic number, and rings within the limits (DSAL, DSAH)",
            };
            cx.guest_error(self.registers.table().error_place(Reg::DSAL, 0), shared, expected);
            self.setup = None;
            return command::FAILED;
        }
        if let Some(setup) = self.setup {
            self.configure_interrupts(setup.auto_mask, cx);
        }
        for queue in 0..self.transmit_count() {
            cx.out.work.insert(queue);
        }
        // After a kill the driver is reached through its shared memory.
        cx.out.stalled.insert(Outbox::KEEP);
        0
    }

    fn take_setup(&mut self, shared: u64, cx: &mut Context<'_>) -> Result<(), SetupError> {
        let memory = &**cx.memory;
        let setup = Setup::read(memory, shared, self.version)?;
        cx.out.charge(u32::from(setup.transmit + setup.receive) * QUEUE_COST);
        let mut transmit = Vec::with_capacity(usize::from(QUEUES));
        for index in 0..setup.transmit {
            let conf = setup.transmit_conf(memory, index)?;
            let before = self.transmit.get(usize::from(index)).map(|queue| queue.statistics).unwrap_or_default();
            transmit.push(TransmitQueue::new(conf, setup.transmit_at(index), before));
        }
        let mut receive = Vec::with_capacity(usize::from(QUEUES));
        for index in 0..setup.receive {
            let conf = setup.receive_conf(memory, index, self.version)?;
            let before = self.receive.get(usize::from(index)).map(|queue| queue.statistics).unwrap_or_default();
            receive.push(ReceiveQueue::new(conf, setup.receive_at(index), before));
        }
        // The device writes the threshold and the request for receive doorbells: 0 and no.
        for queue in &transmit {
            memory.write(queue.at + shared::THRESHOLD, &[0; 4])?;
        }
        for queue in &receive {
            memory.write(queue.at, &[0])?;
        }
        self.filter.read_mode(memory, shared)?;
        cx.out.charge(self.filter.read_groups(memory, shared)? * ADDRESS_COST);
        self.filter.read_vlans(memory, shared)?;
        self.rss = Rss::default();
        if setup.features & feature::RSS != 0 {
            self.rss = Rss::new(Conf::read(memory, shared)?, self.fields);
        }
        (self.transmit, self.receive, self.setup) = (transmit, receive, Some(setup));
        Ok(())
    }

    /// QUIESCE_DEV: the rings are not touched any more.
    pub(super) fn quiesce(&mut self, _cx: &mut Context<'_>) {
        self.generation = self.generation.wrapping_add(1);
        self.setup = None;
        self.room_at = None;
        for queue in &mut self.transmit {
            queue.forget();
        }
        for queue in &mut self.receive {
            (queue.starved, queue.moderation) = (false, ReceiveModeration::default());
        }
    }

    /// RESET_DEV: power-on state, except addresses, statistics and the selected version.
    pub(super) fn reset_device(&mut self, cx: &mut Context<'_>) {
        self.quiesce(cx);
        self.reset_interrupts(cx);
        self.events = 0;
        (self.fields, self.coalescing) = (FIELDS_DEFAULT, Coalescing::default());
        self.rss = Rss::default();
    }

    /// Returns the number of addresses read.
    fn update(&mut self, number: u32, shared: u64, memory: &Map) -> Result<u32, SetupError> {
        match number {
            command::UPDATE_RX_MODE => self.filter.read_mode(memory, shared)?,
            command::UPDATE_MAC_FILTERS => return Ok(self.filter.read_groups(memory, shared)?),
            command::UPDATE_VLAN_FILTERS => self.filter.read_vlans(memory, shared)?,
            command::UPDATE_RSSIDT => {
                self.rss = Rss::new(Conf::read(memory, shared)?, self.fields);
            }
            _ => {
                let features = shared::features(memory, shared)?;
                if let Some(setup) = &mut self.setup {
                    setup.features = features;
                }
                if features & feature::RSS == 0 {
                    self.rss = Rss::default();
                } else if !self.rss.is_on() {
                    self.rss = Rss::new(Conf::read(memory, shared)?, self.fields);
                }
            }
        }
        Ok(0)
    }

    /// SET_RSS_FIELDS: fields that are not offered stay off; GET_RSS_FIELDS shows the result.
    fn set_rss_fields(&mut self, cx: &mut Context<'_>) -> u32 {
        let Some(setup) = self.running().filter(|_| self.version >= 4) else { return command::FAILED };
        let Ok(asked) = shared::read32(cx.memory, setup.shared + COMMAND_DATA) else { return command::FAILED };
        self.fields = asked & fields_on_offer(self.version, self.capabilities);
        self.rss.set_fields(self.fields);
        0
    }

    fn write_status(&self, memory: &Map) {
        let transmit = self.transmit.iter().map(|queue| (queue.at, queue.error));
        let receive = self.receive.iter().map(|queue| (queue.at, queue.error));
        for (at, error) in transmit.chain(receive).filter(|_| self.running().is_some()) {
            let mut bytes = [0; 8];
            bytes[0] = u8::from(error != 0);
            bytes[4..].copy_from_slice(&error.to_le_bytes());
            self.ignore_fault(memory.write(at + STATUS, &bytes));
        }
    }

    fn write_statistics(&self, memory: &Map) {
        let transmit = self.transmit.iter().map(|queue| (queue.at, queue.statistics));
        let receive = self.receive.iter().map(|queue| (queue.at, queue.statistics));
        for (at, statistics) in transmit.chain(receive).filter(|_| self.running().is_some()) {
            self.ignore_fault(memory.write(at + STATISTICS, &statistics.to_bytes()));
        }
    }

    /// The queue descriptors were in memory when the device was activated. If they are gone, the error cannot be reported.
    fn ignore_fault(&self, _written: Result<(), Fault>) {}

    /// Raises an event for the driver, when memory can be reached.
    pub(super) fn raise_event(&mut self, events: u32, cx: &mut Context<'_>) {
        if self.setup.is_some() {
            self.events |= events;
            self.signal_events(cx);
        }
    }

    /// Interrupts for events that are not acknowledged.
    pub(super) fn signal_events(&mut self, cx: &mut Context<'_>) {
        let Some(setup) = self.running().filter(|_| self.events != 0) else { return };
        self.ignore_fault(cx.memory.write(setup.shared + shared::ECR, &self.events.to_le_bytes()));
        self.raise(setup.event_vector, cx);
    }

    /// A write to ECR: acknowledges these events.
    pub(super) fn acknowledge(&mut self, events: u32, cx: &mut Context<'_>) {
        self.events &= !events;
        if let Some(setup) = self.running() {
            self.ignore_fault(cx.memory.write(setup.shared + shared::ECR, &self.events.to_le_bytes()));
        }
    }

    /// Stops a transmit queue: the driver will reset the device.
    pub(super) fn stop_transmit(&mut self, queue: u16, error: u32, cx: &mut Context<'_>) {
        let ring = self.transmit.get(usize::from(queue)).map(|queue| queue.ring);
        blame_ring(Queue::Transmit(queue), ring, error, cx);
        cx.out.stalled.insert(2 * queue + 1);
        if let Some(queue) = self.transmit.get_mut(usize::from(queue)) {
            queue.error = error;
        }
        self.raise_event(event::TRANSMIT_ERROR, cx);
    }

    /// The memory map changed: addresses are translated in every call, so rings that were outside memory may be in it now.
    pub(super) fn look_for_rings(&mut self) {
        let errors = self.transmit.iter_mut().map(|queue| &mut queue.error);
        for error in errors.chain(self.receive.iter_mut().map(|queue| &mut queue.error)) {
            if *error == stopped::BAD_RING {
                *error = 0;
            }
        }
    }

    /// Stops a receive queue.
    pub(super) fn stop_receive(&mut self, queue: u16, error: u32, cx: &mut Context<'_>) {
        let ring = self.receive.get(usize::from(queue)).map(|queue| queue.rings[0]);
        blame_ring(Queue::Receive(queue), ring, error, cx);
        cx.out.stalled.insert(2 * queue);
        if let Some(queue) = self.receive.get_mut(usize::from(queue)) {
            queue.error = error;
        }
        self.raise_event(event::RECEIVE_ERROR, cx);
    }
}
