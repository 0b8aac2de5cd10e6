//! No interrupt is lost or doubled: every interleaving of raising, masking, enabling and taking, against a tiny model written apart.

use std::collections::HashSet;

use nicety_pci::{
    Bar, Capability, Changes, Function, Identity, Message, Mode, Msi, Msix, MsixCapability, Pin, Power, Raise, Window,
};

/// PCI 3.0 §6.8.2.6 and §6.8.3.4 in a few lines: what may not go now waits, once.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct Model {
    enabled: bool,
    mask_all: bool,
    no_master: bool,
    asleep: bool,
    masked: [bool; 2],
    waiting: [bool; 2],
}

impl Model {
    fn may_go(&self, vector: usize) -> bool {
        self.enabled && !self.mask_all && !self.no_master && !self.asleep && !self.masked[vector]
    }

    /// The vector that goes at once, if it may.
    fn raise(&mut self, vector: usize) -> Option<u16> {
        if self.may_go(vector) {
            return Some(vector as u16);
        }
        self.waiting[vector] = true;
        None
    }

    fn take_one(&mut self) -> Option<u16> {
        let vector = (0..2).find(|&vector| self.waiting[vector] && self.may_go(vector))?;
        self.waiting[vector] = false;
        Some(vector as u16)
    }
}

const TABLE: [(u64, u32); 2] = [(0xfee0_1000, 0x4051), (0x1_fee0_2004, 0x4062)];

fn delivered(message: Message) -> u16 {
    let (address, data) = TABLE[usize::from(message.vector)];
    assert_eq!((message.address, message.data), (address, data));
    message.vector
}

fn sent(raise: Raise) -> Option<u16> {
    match raise {
        Raise::Deliver(message) => Some(delivered(message)),
        Raise::Pending => None,
        other => panic!("{other:?}"),
    }
}

fn program(table: &mut Msix) {
    for (vector, (address, data)) in TABLE.into_iter().enumerate() {
        assert!(!table.write_table(16 * vector as u64, &address.to_le_bytes()));
        assert!(!table.write_table(16 * vector as u64 + 8, &data.to_le_bytes()));
    }
}

/// One step on a bare table; every step takes all that became due, as a device does.
fn step_table(table: &mut Msix, model: &mut Model, step: usize) {
    let vector = step % 2;
    let mut here = Vec::new();
    let mut there = Vec::new();
    let due = match step {
        0 | 1 => {
            here.extend(sent(table.raise(vector as u16)));
            there.extend(model.raise(vector));
            false
        }
        2..=5 => {
            model.masked[vector] = step < 4;
            table.write_table(16 * vector as u64 + 12, &[u8::from(step < 4), 0, 0, 0])
        }
        _ => {
            match step {
                6 | 7 => model.mask_all = step == 6,
                _ => model.enabled = step == 8,
            }
            table.set_open(model.enabled && !model.mask_all)
        }
    };
    assert_eq!(due, table.has_due());
    while let Some(message) = table.next_due() {
        here.push(delivered(message));
    }
    while let Some(vector) = model.take_one() {
        there.push(vector);
    }
    assert_eq!(here, there, "step {step}");
    let mut pba = [0; 8];
    table.read_pba(0, &mut pba);
    assert_eq!(u64::from_le_bytes(pba), u64::from(model.waiting[0]) | u64::from(model.waiting[1]) << 1);
}

#[test]
fn every_sequence_of_six_steps_on_a_table_delivers_what_the_model_does() {
    fn descend(table: &Msix, model: &Model, left: usize, count: &mut usize) {
        for step in 0..10 {
            let (mut table, mut model) = (table.clone(), model.clone());
            step_table(&mut table, &mut model, step);
            *count += 1;
            if left > 1 {
                descend(&table, &model, left - 1, count);
            }
        }
    }
    let mut table = Msix::new(2);
    program(&mut table);
    let model = Model { masked: [true; 2], ..Model::default() };
    let mut count = 0;
    descend(&table, &model, 6, &mut count);
    assert_eq!(count, 10 + 100 + 1_000 + 10_000 + 100_000 + 1_000_000);
}

fn with_msix() -> Function {
    Function::builder(Identity::default())
        .interrupt_pin(Pin::A)
        .bar(0, Bar::memory(4096))
        .capability_at(0x40, Capability::Power(Power::default()))
        .capability_at(
            0x50,
            Capability::Msix(MsixCapability {
                vectors: 2,
                table_bar: 0,
                table_offset: 0,
                pba_bar: 0,
                pba_offset: 0x800,
            }),
        )
        .build()
        .expect("fits")
}

/// One step on a whole function; taking is a step of its own, so that anything can come in between.
fn step_function(function: &mut Function, model: &mut Model, step: usize) {
    let vector = step % 2;
    match step {
        0 | 1 => assert_eq!(sent(function.msix_raise(vector as u16)), model.raise(vector)),
        2..=5 => {
            model.masked[vector] = step < 4;
            let table = function.msix_mut().expect("has a table");
            let _ = table.write_table(16 * vector as u64 + 12, &[u8::from(step < 4)]);
        }
        6..=9 => {
            model.mask_all = step & 1 != 0;
            model.enabled = step >= 8;
            let control = u8::from(model.enabled) << 7 | u8::from(model.mask_all) << 6;
            let _ = function.config_write(0x53, &[control]);
        }
        10 | 11 => {
            model.no_master = step == 10;
            let _ = function.config_write(4, &[u8::from(step == 11) << 2]);
        }
        12 | 13 => {
            model.asleep = step == 12;
            let _ = function.config_write(0x44, &[u8::from(step == 12) * 3]);
        }
        // While MSI-X is off nothing is asked for: another mode is in effect.
        _ => assert_eq!(function.next_due().map(delivered), model.take_one()),
    }
    assert_eq!(function.has_due(), model.clone().take_one().is_some());
}

/// Follows every step from every state that can be reached, until no new state appears: sequences of any length.
fn explore<M: Clone + Eq + std::hash::Hash>(
    start: (Function, M),
    steps: usize,
    mut step: impl FnMut(&mut Function, &mut M, usize),
) -> usize {
    let mut seen = HashSet::from([(start.0.save().to_bytes(), start.1.clone())]);
    let mut waiting = vec![start];
    while let Some((function, model)) = waiting.pop() {
        for number in 0..steps {
            let (mut function, mut model) = (function.clone(), model.clone());
            step(&mut function, &mut model, number);
            if seen.insert((function.save().to_bytes(), model.clone())) {
                waiting.push((function, model));
            }
        }
    }
    seen.len()
}

#[test]
fn sequences_of_any_length_on_a_function_with_msix_deliver_what_the_model_does() {
    let mut function = with_msix();
    program(function.msix_mut().expect("has a table"));
    let model = Model { masked: [true; 2], no_master: true, ..Model::default() };
    // Enabled, function mask, bus master, awake, two masks, two pending bits: each on or off.
    assert_eq!(explore((function, model), 15, step_function), 256);
}

fn with_msi(vectors: u8, maskable: bool) -> Function {
    let mut function = Function::builder(Identity::default())
        .interrupt_pin(Pin::A)
        .capability_at(0x50, Capability::Msi(Msi { vectors, maskable }))
        .build()
        .expect("fits");
    let _ = function.config_write(0x54, &0x1_fee0_3003_u64.to_le_bytes());
    let _ = function.config_write(0x5c, &0x4073_u16.to_le_bytes());
    function
}

#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct MsiModel {
    enabled: Option<u16>,
    master: bool,
    masked: [bool; 2],
    waiting: [bool; 2],
}

impl MsiModel {
    fn expected(&self, vector: u16) -> Message {
        let data = if self.enabled == Some(2) { 0x4072 | u32::from(vector) } else { 0x4073 };
        Message { vector, address: 0x1_fee0_3000, data }
    }

    fn step(&mut self, function: &mut Function, step: usize) {
        let vector = step % 2;
        match step {
            0 | 1 => {
                let shared = if self.enabled == Some(1) { 0 } else { vector };
                let goes = self.enabled.is_some() && self.master && !self.masked[shared];
                let expected = if goes { Raise::Deliver(self.expected(shared as u16)) } else { Raise::Pending };
                self.waiting[shared] |= !goes;
                assert_eq!(function.msi_raise(vector as u16), expected);
            }
            2..=5 => {
                self.masked[vector] = step < 4;
                let _ = function.config_write(0x60, &[u8::from(self.masked[0]) | u8::from(self.masked[1]) << 1]);
            }
            6..=9 => {
                self.enabled = [None, Some(1), Some(2), Some(2)][step - 6];
                // Asking for more than there are gives those there are.
                let _ = function.config_write(0x52, &[[0x00, 0x01, 0x11, 0x51][step - 6]]);
                if self.enabled == Some(1) {
                    self.waiting[0] |= std::mem::take(&mut self.waiting[1]);
                }
            }
            10 | 11 => {
                self.master = step == 10;
                let _ = function.config_write(4, &[u8::from(self.master) << 2]);
            }
            _ => assert_eq!(function.next_due(), self.take()),
        }
        assert_eq!(function.has_due(), self.clone().take().is_some());
        let mut pending = [0; 4];
        function.config_read(0x64, &mut pending);
        let model = u32::from(self.waiting[0]) | u32::from(self.waiting[1]) << 1;
        assert_eq!(u32::from_le_bytes(pending), model, "pending bits");
    }

    fn take(&mut self) -> Option<Message> {
        let enabled = self.enabled.filter(|_| self.master)?;
        let vector = (0..enabled).find(|&v| self.waiting[usize::from(v)] && !self.masked[usize::from(v)])?;
        self.waiting[usize::from(vector)] = false;
        Some(self.expected(vector))
    }
}

#[test]
fn sequences_of_any_length_on_a_function_with_maskable_msi_deliver_what_the_model_does() {
    let start = (with_msi(2, true), MsiModel::default());
    let states = explore(start, 13, |function, model, step| model.step(function, step));
    assert!(states > 100, "{states}");
}

#[test]
fn msi_without_masks_waits_for_enable_and_bus_mastering_only() {
    let mut function = with_msi(4, false);
    assert_eq!(function.msi_raise(3), Raise::Pending);
    assert_eq!(function.raise(3), Raise::Line);
    assert_eq!(function.msi_raise(4), Raise::Absent);
    assert_eq!(function.config_write(0x52, &[0x21]), Changes::MSI);
    assert_eq!(function.mode(), Mode::Msi);
    assert_eq!(function.config_write(4, &[4]), Changes::BUS_MASTER | Changes::DUE);
    let message = |vector, data| Message { vector, address: 0x1_fee0_3000, data };
    assert_eq!(function.next_due(), Some(message(3, 0x4073)));
    assert_eq!(function.next_due(), None);
    assert_eq!(function.raise(1), Raise::Deliver(message(1, 0x4071)));
    let mut beyond = [0; 10];
    function.config_read(0x5e, &mut beyond);
    assert_eq!(beyond, [0; 10], "no mask and pending registers");
}

#[test]
fn a_write_that_releases_messages_says_so() {
    let mut function = with_msix();
    program(function.msix_mut().expect("has a table"));
    assert_eq!(function.config_write(4, &[4]), Changes::BUS_MASTER);
    assert_eq!(function.config_write(0x52, &[0, 0xc0]), Changes::MSIX);
    assert!((function.msix_enabled(), function.msix_masked()) == (true, true));
    assert_eq!(function.raise(1), Raise::Pending);
    assert!(!function.msix_mut().expect("has a table").write_table(0x1c, &[0]));
    assert_eq!(function.config_write(0x53, &[0x80]), Changes::MSIX | Changes::DUE);
    assert_eq!(function.next_due().map(delivered), Some(1));
    assert_eq!(function.next_due(), None);
    assert_eq!(function.raise(2), Raise::Absent);
}

#[test]
fn a_table_after_reset_is_masked_and_keeps_reserved_bits_zero() {
    let mut table = Msix::new(3);
    let mut entry = [0xee; 16];
    table.read_table(32, &mut entry);
    assert_eq!(entry, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    assert!(!table.write_table(0, &[0xff; 64]));
    let mut all = [0; 64];
    table.read_table(0, &mut all);
    let ones = u128::from_le_bytes(entry) | 0xffff_ffff_ffff_ffff_ffff_fffc;
    assert_eq!(all[..16], ones.to_le_bytes());
    assert_eq!(all[48..], [0xff; 16], "beyond the table");
    table.read_pba(4, &mut all);
    assert_eq!((&all[..4], &all[4..8]), (&[0; 4][..], &[0xff; 4][..]));
    table.reset();
    assert_eq!(table, Msix::new(3));
    assert!(!table.write_table(u64::MAX - 1, &[0; 8]));
    table.read_table(u64::MAX - 1, &mut all);
    assert_eq!(all, [0xff; 64]);
}

#[test]
fn a_large_table_gives_every_pending_vector_once() {
    let mut table = Msix::new(2048);
    for vector in 0..2048 {
        assert_eq!(table.raise(vector), Raise::Pending);
        assert!(!table.set_masked(vector, false));
    }
    table.withdraw(77);
    assert!(table.set_open(true));
    let vectors: Vec<_> = std::iter::from_fn(|| table.next_due()).map(|message| message.vector).collect();
    assert_eq!(vectors, (0..2048).filter(|&vector| vector != 77).collect::<Vec<_>>());
}

#[test]
fn the_line_shows_in_status_and_is_masked_by_command_and_by_message_modes() {
    let mut function = with_msix();
    let status = |function: &Function| {
        let mut data = [0; 2];
        function.config_read(6, &mut data);
        u16::from_le_bytes(data)
    };
    assert_eq!(function.mode(), Mode::Intx);
    assert!(function.set_intx(true));
    assert_eq!(status(&function), 0x0018);
    assert_eq!(function.config_write(5, &[4]), Changes::INTX);
    assert_eq!((function.mode(), function.intx_asserted(), status(&function)), (Mode::None, false, 0x0018));
    assert_eq!(function.config_write(5, &[0]), Changes::INTX);
    assert!(function.intx_asserted());
    assert_eq!(function.config_write(0x53, &[0x80]), Changes::MSIX);
    assert_eq!((function.mode(), function.intx_asserted()), (Mode::Msix, false));
    assert_eq!(function.config_write(0x53, &[0]), Changes::MSIX);
    assert_eq!(function.config_write(0x44, &[3]), Changes::POWER);
    assert!(!function.intx_asserted(), "asleep");
    assert_eq!(function.config_write(0x44, &[0]), Changes::POWER);
    assert!(!function.set_intx(false));
    assert_eq!(status(&function), 0x0010);
    let mut without_pin = Function::builder(Identity::default()).build().expect("valid");
    assert!(!without_pin.set_intx(true));
    assert_eq!((without_pin.mode(), status(&without_pin)), (Mode::None, 0));
}

#[test]
fn an_access_to_the_region_finds_table_and_pending_bits() {
    let function = with_msix();
    let windows = [0, 0x1f, 0x20, 0x7ff, 0x800, 0x807, 0x808, u64::MAX].map(|offset| function.window(0, offset));
    let expected = [
        Some(Window::Table(0)),
        Some(Window::Table(0x1f)),
        None,
        None,
        Some(Window::Pba(0)),
        Some(Window::Pba(7)),
        None,
        None,
    ];
    assert_eq!(windows, expected);
    assert_eq!(function.window(1, 0), None);
}
