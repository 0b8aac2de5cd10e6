//! Register accesses, and the effect of each command (vmxnet_def.h, VMXNET_CMD_*).

use std::sync::Arc;

use nicety_adapter::bank::Bank;
use nicety_adapter::{Context, Registers};
use nicety_memory::Rights;

use super::Vmxnet;
use super::receive::Receive;
use super::registers::{self as r, Place, command, status};
use super::shared::Setup;
use super::transmit::Transmit;

/// Cost of INIT_LENGTH, in descriptors: see `Outbox::charge`.
const INIT_COST: u32 = 500;
/// Maximum bytes of headers that PIN_TX_BUFFERS may name.
const PINNED_MAX: u32 = 1 << 20;

impl Registers for Vmxnet {
    type Name = r::Reg;

    fn bank(&self) -> &Bank<r::Reg> {
        &self.registers
    }

    fn read_register(&mut self, place: &Place, cx: &mut Context<'_>) -> u32 {
        match place.name {
            // The doorbell.
            r::TX_ADDR => {
                cx.out.work.insert(0);
                self.look_for_room(cx);
                0
            }
            r::STATUS_ADDR => {
                let connected = if self.link_up { status::CONNECTED } else { 0 };
                status::ENABLED | connected | if self.pinned { status::TX_PINNED } else { 0 }
            }
            r::APROM_ADDR => self.mac.0.get(place.index).copied().unwrap_or(0).into(),
            _ => self.registers.read(place),
        }
    }

    fn write_register(&mut self, place: &Place, value: u32, cx: &mut Context<'_>) {
        match place.name {
            r::INIT_ADDR => {
                // The driver reclaims its memory, or is about to give another address.
                self.stop(cx);
                self.registers.write(place, value);
            }
            r::INIT_LENGTH => self.start(value, cx),
            r::COMMAND_ADDR => self.registers[r::COMMAND_ADDR] = self.execute(value, cx),
            _ => {
                self.registers.write(place, value);
            }
        }
    }
}

impl Vmxnet {
    /// INIT_LENGTH was written: the device reads the driver's data, and starts.
    fn start(&mut self, length: u32, cx: &mut Context<'_>) {
        self.stop(cx);
        let at = self.registers[r::INIT_ADDR];
        if at == 0 || length == 0 {
            return;
        }
        cx.out.charge(INIT_COST);
        let memory = Arc::clone(cx.memory);
        let enhanced = self.model.is_enhanced();
        let taken = if self.function.bus_master() { Setup::read(&memory, at, length, enhanced).ok() } else { None };
        let Some((setup, [receive, pages, transmit])) = taken else {
            let place = self.registers.table().error_place(r::INIT_ADDR, 0);
            let expected =
                "a Vmxnet2_DriverData in guest memory, with its rings in it, INIT_LENGTH bytes, and bus mastering";
            cx.guest_error(place, at.into(), expected);
            return;
        };
        self.setup = Some(setup);
        self.receive = Receive::at([receive, pages]);
        self.transmit = Transmit::at(transmit, setup.transmit.len);
        if let Ok(shared) = setup.open(&memory) {
            shared.set_cluster(0);
            self.filter.set_flags(shared.ifflags());
            self.filter.set_ladrf(shared.ladrf());
        }
        self.registers[r::INIT_LENGTH] = length;
        // Linux's driver never sends INTR_ENABLE.
        self.enable_interrupts(true, cx);
        cx.out.work.insert(0);
    }

    /// Stops use of the rings. Their positions are kept in them, because a driver may continue there (vmxnet.c of open-vm-tools'
    /// Solaris driver, Vxn_Stop and Vxn_Start).
    fn stop(&mut self, cx: &mut Context<'_>) {
        if let Some(setup) = self.running()
            && let Ok(shared) = setup.open(cx.memory)
        {
            let [receive, pages] = self.receive.next;
            shared.keep([receive, pages, self.transmit.position()]);
        }
        self.let_go(cx);
    }

    /// The same, without a write to the driver's memory.
    pub(super) fn let_go(&mut self, cx: &mut Context<'_>) {
        self.generation = self.generation.wrapping_add(1);
        self.offer_room(cx);
        (self.setup, self.pinned) = (None, false);
        (self.receive, self.transmit) = (Receive::default(), Transmit::default());
        self.stalls = [None; 2];
        self.registers[r::INIT_LENGTH] = 0;
        self.silence(cx);
    }

    /// Executes a command. The result is COMMAND_ADDR's value from now on.
    fn execute(&mut self, number: u32, cx: &mut Context<'_>) -> u32 {
        match number {
            command::INTR_ACK => self.acknowledge(cx),
            command::INTR_ENABLE => self.enable_interrupts(true, cx),
            command::INTR_DISABLE => self.enable_interrupts(false, cx),
            command::UPDATE_LADRF | command::UPDATE_IFF => self.update_filter(number, cx),
            // Completions happen without a request, so only unfetched entries are checked now.
            command::CHECK_TX_DONE => {
                cx.out.work.insert(0);
            }
            command::GET_NUM_RX_BUFFERS => return self.model.receive_buffers,
            command::GET_NUM_TX_BUFFERS => return self.model.transmit_buffers,
            command::GET_CAPABILITIES => return self.model.capabilities,
            command::GET_FEATURES => return self.model.features,
            command::PIN_TX_BUFFERS => return self.pin(cx),
            command::SET_POWER_FULL | command::SET_POWER_LOW => {}
            command::UNUSED_1 | command::UNUSED_2 | command::UNUSED_3 => {}
            _ => {
                let place = self.registers.table().error_place(r::COMMAND_ADDR, 0);
                cx.guest_error(place, number.into(), "a command that there is (VMXNET_CMD_*)");
            }
        }
        0
    }

    fn update_filter(&mut self, number: u32, cx: &mut Context<'_>) {
        let shared = self.running().and_then(|setup| setup.open(cx.memory).ok());
        match shared {
            Some(shared) if number == command::UPDATE_IFF => self.filter.set_flags(shared.ifflags()),
            Some(shared) => self.filter.set_ladrf(shared.ladrf()),
            // OpenBSD's vic sends it after INIT_ADDR too.
            None => {}
        }
    }

    /// PIN_TX_BUFFERS: the driver keeps headers in these buffers. Entries give their addresses like any other. Returns their
    /// number.
    fn pin(&mut self, cx: &mut Context<'_>) -> u32 {
        let shared = self.running().and_then(|setup| setup.open(cx.memory).ok());
        let buffers = shared.map(|shared| shared.pinned()).filter(|buffers| {
            let within = (1..=PINNED_MAX).contains(&buffers.len);
            within && cx.memory.translate(buffers.at.into(), buffers.len, Rights::READ, |_| true).is_ok()
        });
        self.pinned = buffers.is_some();
        let Some(buffers) = buffers else {
            let place = self.registers.table().error_place(r::COMMAND_ADDR, 0);
            let expected =
                "transmit buffers in guest memory for PIN_TX_BUFFERS (txBufferPhysStart, txBufferPhysLength)";
            cx.guest_error(place, command::PIN_TX_BUFFERS.into(), expected);
            return 0;
        };
        buffers.len.checked_div(buffers.each).unwrap_or(0)
    }
}
