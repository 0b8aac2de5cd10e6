//! The PHY: IEEE 802.3 clause 22 registers and the vendor's own, as data of a model. The cable either supports 1000BASE-T full
//! duplex or is unplugged.

use nicety_adapter::RestoreError;
use serde::{Deserialize, Serialize};

/// Control: reset, loopback, speed, negotiation, power down.
const CONTROL: usize = 0;
const STATUS: usize = 1;
/// The second identifier word: the model.
const IDENTITY: usize = 3;
const ADVERTISE: usize = 4;
const GIGABIT_CONTROL: usize = 9;
/// The page of registers 16 and up, in PHYs that have pages.
const PAGE: usize = 22;

const RESET: u16 = 1 << 15;
const LOOPBACK: u16 = 1 << 14;
const SPEED_LOW: u16 = 1 << 13;
const NEGOTIATE: u16 = 1 << 12;
const POWER_DOWN: u16 = 1 << 11;
const RESTART: u16 = 1 << 9;
const FULL_DUPLEX: u16 = 1 << 8;
const SPEED_HIGH: u16 = 1 << 6;

/// A register of a PHY.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Its number.
    pub register: usize,
    /// Its value after a reset.
    pub reset: u16,
    /// Bits that software may write.
    pub write: u16,
}

/// A PHY as data. Other registers read as zeros.
pub type Rules = &'static [Rule];

const fn rule(register: usize, reset: u16, write: u16) -> Rule {
    Rule { register, reset, write }
}

/// A Marvell M88E1000 with this second identifier word (manual, 13.4.7 and table 13-12 on; Marvell 88E1011 datasheet).
pub const fn m88e1000(identity: u16) -> [Rule; 18] {
    [
        rule(CONTROL, 0x1140, 0x7dc0),
        rule(STATUS, 0x7949, 0),
        rule(2, 0x0141, 0),
        rule(IDENTITY, identity, 0),
        rule(ADVERTISE, 0x0de1, 0xafff),
        rule(5, 0x41e1, 0),
        rule(6, 0x000d, 0),
        rule(7, 0x2001, 0xb7ff),
        rule(GIGABIT_CONTROL, 0x0e00, 0xff00),
        rule(10, 0x3c00, 0),
        rule(15, 0x3000, 0),
        rule(16, 0x0360, 0xffff),
        rule(17, 0x0000, 0),
        rule(18, 0x0000, 0xffff),
        rule(20, 0x0d60, 0xffff),
        rule(24, 0x4100, 0xffff),
        rule(29, 0x0000, 0xffff),
        rule(30, 0x0000, 0xffff),
    ]
}

/// The BM PHY of the 82574 (82574 datasheet, 10.2.2 and chapter 9; its numbers in Linux's e1000e/phy.h): page 0.
pub const fn bm(identity: u16) -> [Rule; 22] {
    [
        rule(CONTROL, 0x1140, 0x7dc0),
        rule(STATUS, 0x7949, 0),
        rule(2, 0x0141, 0),
        rule(IDENTITY, identity, 0),
        rule(ADVERTISE, 0x0de1, 0xafff),
        rule(5, 0x41e1, 0),
        rule(6, 0x000d, 0),
        rule(7, 0x2001, 0xb7ff),
        rule(GIGABIT_CONTROL, 0x0e00, 0xff00),
        rule(10, 0x3c00, 0),
        rule(15, 0x3000, 0),
        rule(16, 0x3360, 0xffff),
        rule(17, 0x0000, 0),
        rule(18, 0x0000, 0xffff),
        rule(20, 0x0000, 0xffff),
        rule(21, 0x0000, 0),
        rule(PAGE, 0x0000, 0xffff),
        rule(23, 0x0000, 0),
        rule(25, 0x0000, 0xfbff),
        rule(26, 0x0000, 0xffff),
        rule(29, 0x0000, 0xffff),
        rule(30, 0x0000, 0xffff),
    ]
}

/// The first identifier word of Intel's own PHYs.
const IGP: u16 = 0x02a8;
/// Their page register, for registers from 16 on.
const IGP_PAGE: usize = 31;

/// Intel's IGP03E1000, the PHY inside the 82576 (IGP03E1000_E_PHY_ID in igb's e1000_defines.h in Linux; registers 16 to 25 in its
/// e1000_phy.h).
pub const IGP03E1000: [Rule; 17] = [
    rule(CONTROL, 0x1140, 0x7dc0),
    rule(STATUS, 0x7949, 0),
    rule(2, IGP, 0),
    rule(IDENTITY, 0x0391, 0),
    rule(ADVERTISE, 0x0de1, 0xafff),
    rule(5, 0x41e1, 0),
    rule(6, 0x000d, 0),
    rule(7, 0x2001, 0xb7ff),
    rule(GIGABIT_CONTROL, 0x0e00, 0xff00),
    rule(10, 0x3c00, 0),
    rule(15, 0x3000, 0),
    rule(16, 0x0120, 0xffff),
    rule(17, 0x0000, 0),
    rule(18, 0x1000, 0xffff),
    rule(19, 0x0000, 0),
    rule(25, 0x008d, 0xffff),
    rule(IGP_PAGE, 0x0000, 0xffff),
];

/// Effect of a write to the PHY.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Whether negotiation was restarted. It completed at once, and the link came up again.
    pub negotiated: bool,
}

/// Register values and cable state of a PHY.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    registers: [u16; 32],
    /// Whether the cable has a link.
    cable: bool,
    /// The link was lost since the last read of status.
    lost: bool,
    /// The second identifier word again.
    identity: u16,
}

/// A PHY.
#[derive(Clone, Debug)]
pub struct Phy {
    rules: Rules,
    registers: [u16; 32],
    cable: bool,
    lost: bool,
}

impl Phy {
    /// A PHY in its power-on state, with a cable.
    pub fn new(rules: Rules) -> Self {
        let mut this = Self { rules, registers: [0; 32], cable: true, lost: false };
        this.reset();
        this
    }

    fn rule(&self, register: usize) -> Option<&'static Rule> {
        self.rules.iter().find(|rule| rule.register == register)
    }

    /// Its state.
    pub fn save(&self) -> State {
        let Self { rules: _, registers, cable, lost } = *self;
        State { registers, cable, lost, identity: registers[IDENTITY] }
    }

    /// A PHY of the same model with a saved state.
    pub fn with(&self, state: &State) -> Result<Self, RestoreError> {
        let legal = |(index, &value): (usize, &u16)| {
            self.rule(index).map_or(value == 0, |rule| (value ^ rule.reset) & !rule.write == 0)
        };
        let State { registers, cable, lost, identity } = *state;
        let own = registers.iter().enumerate().all(legal) && identity == registers[IDENTITY];
        own.then_some(Self { rules: self.rules, registers, cable, lost }).ok_or(RestoreError::Impossible("PHY"))
    }

    /// The hardware reset pin. The cable's state stays.
    pub fn reset(&mut self) {
        for rule in self.rules {
            self.registers[rule.register & 31] = rule.reset;
        }
        self.lost = false;
    }

    /// Changes the cable's state.
    pub fn plug(&mut self, cable: bool) {
        self.lost |= !cable;
        self.cable = cable;
    }

    /// Whether the cable is plugged in.
    pub fn is_plugged(&self) -> bool {
        self.cable
    }

    /// Whether transmitted frames return (loopback).
    pub fn loops(&self) -> bool {
        self.registers[CONTROL] & LOOPBACK != 0
    }

    /// Whether there is a link.
    pub fn link(&self) -> bool {
        self.registers[CONTROL] & POWER_DOWN == 0 && (self.cable || self.loops())
    }

    /// Speed in the code of STATUS and PHY status: 0 is 10, 1 is 100, 2 is 1000 Mbit/s; and whether it is full duplex.
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

    /// Whether a register is on a page that does not exist. Such a page reads as zeros.
    fn is_elsewhere(&self, register: usize) -> bool {
        if self.is_intels() {
            return self.registers[IGP_PAGE] >> 5 != 0 && (16..IGP_PAGE).contains(&register);
        }
        self.registers[PAGE] != 0 && register >= 16 && register != PAGE
    }

    fn is_intels(&self) -> bool {
        self.registers[2] == IGP
    }

    /// An access through MDIC, to the only PHY, at address 1 (317453, 13.4.7). Returns MDIC's new value, and a write's effect.
    pub fn access(&mut self, mdic: u32) -> (u32, Option<Effect>) {
        const READY: u32 = 1 << 28;
        const ERROR: u32 = 1 << 30;
        let (register, address) = ((mdic >> 16 & 0x1f) as usize, mdic >> 21 & 0x1f);
        let answer = mdic & 0x2fff_ffff | READY;
        match (address, mdic >> 26 & 3) {
            (1, 0b10) => (answer & !0xffff | u32::from(self.read(register)), None),
            (1, 0b01) => (answer, Some(self.write(register, mdic as u16))),
            _ => (answer | ERROR, None),
        }
    }

    /// Reads a register.
    pub fn read(&mut self, register: usize) -> u16 {
        if self.is_elsewhere(register) {
            // The gain of each of the four pairs: a cable of a few metres (IGP02E1000_PHY_AGC_A to D in igb's e1000_phy.h, and the
            // table of lengths in its e1000_phy.c).
            return if self.is_intels() && register == 17 { 20 << 9 } else { 0 };
        }
        let value = self.registers.get(register).copied().unwrap_or(0);
        match register {
            STATUS => {
                let link = self.link() && !std::mem::take(&mut self.lost);
                let negotiated = self.link() && self.registers[CONTROL] & NEGOTIATE != 0;
                value | u16::from(link) << 2 | u16::from(negotiated) << 5
            }
            5 | 6 | 10 if !self.link() => 0,
            17 if self.is_intels() => {
                let (speed, full) = self.mode();
                let link = if self.link() { 0x0400 } else { 0 };
                (speed + 1) << 14 | u16::from(full) << 9 | link
            }
            17 => {
                let (speed, full) = self.mode();
                speed << 14 | u16::from(full) << 13 | if self.link() { 0x0c00 } else { 0 }
            }
            _ => value,
        }
    }

    /// Writes a register.
    pub fn write(&mut self, register: usize, value: u16) -> Effect {
        let Some(&Rule { write, .. }) = self.rule(register).filter(|_| !self.is_elsewhere(register)) else {
            return Effect::default();
        };
        let before = self.link();
        let old = self.registers[register];
        self.registers[register] = old & !write | value & write;
        self.lost |= before && !self.link();
        let begins = register == CONTROL && value & (RESET | RESTART) != 0 && value & NEGOTIATE != 0;
        Effect { negotiated: begins && self.link() }
    }
}
