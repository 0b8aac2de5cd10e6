//! The integrated PHY, a Marvell M88E1011: IEEE 802.3 clause 22 registers and the vendor's own (manual, 13.4.7 and
//! table 13-12 on; Marvell 88E1011 datasheet). The cable is either good for 1000BASE-T full duplex or not there.

use serde::{Deserialize, Serialize};

/// Control: reset, loopback, speed, negotiation, power down.
const CONTROL: usize = 0;
const STATUS: usize = 1;
const ADVERTISE: usize = 4;
const GIGABIT_CONTROL: usize = 9;

const RESET: u16 = 1 << 15;
const LOOPBACK: u16 = 1 << 14;
const SPEED_LOW: u16 = 1 << 13;
const NEGOTIATE: u16 = 1 << 12;
const POWER_DOWN: u16 = 1 << 11;
const RESTART: u16 = 1 << 9;
const FULL_DUPLEX: u16 = 1 << 8;
const SPEED_HIGH: u16 = 1 << 6;

/// (register, value after reset, writable bits).
const RULES: [(usize, u16, u16); 18] = [
    (CONTROL, 0x1140, 0x7dc0),
    (STATUS, 0x7949, 0),
    (2, 0x0141, 0),
    (3, 0x0c20, 0),
    (ADVERTISE, 0x0de1, 0xafff),
    (5, 0x41e1, 0),
    (6, 0x000d, 0),
    (7, 0x2001, 0xb7ff),
    (GIGABIT_CONTROL, 0x0e00, 0xff00),
    (10, 0x3c00, 0),
    (15, 0x3000, 0),
    (16, 0x0360, 0xffff),
    (17, 0x0000, 0),
    (18, 0x0000, 0xffff),
    (20, 0x0d60, 0xffff),
    (24, 0x4100, 0xffff),
    (29, 0x0000, 0xffff),
    (30, 0x0000, 0xffff),
];

/// What a write to the PHY did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Negotiation began anew, which ends at once: the link came up again.
    pub negotiated: bool,
}

/// Its registers, and what the cable says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phy {
    registers: [u16; 32],
    /// Whether the cable carries a link.
    pub cable: bool,
    /// The link was lost since status was read last.
    lost: bool,
    identity: u16,
}

impl Phy {
    /// A PHY with the second identifier word of its model.
    pub fn new(identity: u16) -> Self {
        let mut this = Self { registers: [0; 32], cable: true, lost: false, identity };
        this.reset();
        this
    }

    /// Whether saved state can be this PHY's.
    pub fn fits(&self, identity: u16) -> bool {
        let known = |index: usize| RULES.iter().find(|rule| rule.0 == index);
        let legal = |(index, &value): (usize, &u16)| match known(index) {
            Some(&(3, _, _)) => value == identity,
            Some(&(_, reset, write)) => value & !write == reset & !write,
            None => value == 0,
        };
        self.identity == identity && self.registers.iter().enumerate().all(legal)
    }

    /// The hardware reset pin; the cable stays.
    pub fn reset(&mut self) {
        for (index, reset, _) in RULES {
            self.registers[index] = reset;
        }
        self.registers[3] = self.identity;
        self.lost = false;
    }

    /// The cable was plugged or pulled.
    pub fn plug(&mut self, cable: bool) {
        self.lost |= !cable;
        self.cable = cable;
    }

    /// Whether transmitted frames come back.
    pub fn loops(&self) -> bool {
        self.registers[CONTROL] & LOOPBACK != 0
    }

    /// Whether there is a link.
    pub fn link(&self) -> bool {
        self.registers[CONTROL] & POWER_DOWN == 0 && (self.cable || self.loops())
    }

    /// Speed as STATUS and PHY status code it: 0 is 10, 1 is 100, 2 is 1000 Mbit/s; and whether it is full duplex.
    pub fn mode(&self) -> (u16, bool) {
        let control = self.registers[CONTROL];
        if control & NEGOTIATE == 0 {
            let speed = match (control & SPEED_HIGH != 0, control & SPEED_LOW != 0) {
                (true, _) => 2,
                (false, true) => 1,
                (false, false) => 0,
            };
            return (speed, control & FULL_DUPLEX != 0);
        }
        let (advertise, gigabit) = (self.registers[ADVERTISE], self.registers[GIGABIT_CONTROL]);
        match (gigabit & 0x200 != 0, advertise & 0x100 != 0, advertise & 0x80 != 0, advertise & 0x40 != 0) {
            (true, ..) => (2, true),
            (_, true, ..) => (1, true),
            (_, _, true, _) => (1, false),
            (.., full) => (0, full),
        }
    }

    /// Reads a register.
    pub fn read(&mut self, register: usize) -> u16 {
        let value = self.registers.get(register).copied().unwrap_or(0);
        match register {
            STATUS => {
                let link = self.link() && !std::mem::take(&mut self.lost);
                let negotiated = self.link() && self.registers[CONTROL] & NEGOTIATE != 0;
                value | u16::from(link) << 2 | u16::from(negotiated) << 5
            }
            5 | 6 | 10 if !self.link() => 0,
            17 => {
                let (speed, full) = self.mode();
                speed << 14 | u16::from(full) << 13 | if self.link() { 0x0c00 } else { 0 }
            }
            _ => value,
        }
    }

    /// Writes a register.
    pub fn write(&mut self, register: usize, value: u16) -> Effect {
        let Some(&(_, _, write)) = RULES.iter().find(|rule| rule.0 == register) else { return Effect::default() };
        let before = self.link();
        let old = self.registers[register];
        self.registers[register] = old & !write | value & write;
        self.lost |= before && !self.link();
        let begins = register == CONTROL && value & (RESET | RESTART) != 0 && value & NEGOTIATE != 0;
        Effect { negotiated: begins && self.link() }
    }
}
