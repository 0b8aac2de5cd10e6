//! Flow control (Intel 317453, 3.7 and 13.4.22; IEEE 802.3, annex 31B): received PAUSE frames stop the transmitter for their
//! quanta, and TCTL.SWXOFF sends one.
//!
//! ```text
//! | destination: FCAL, FCAH (01:80:c2:00:00:01) | source: RAL, RAH | FCT (0x8808) | opcode 1 | quanta: FCTTV | zeros, to 60 bytes |
//! ```
//! No bridge forwards a frame to that address, so a PAUSE comes from this adapter itself (loopback) or from a peer without a
//! switch. A PAUSE to the station's own address is counted and not obeyed: such frames do pass a switch, and one guest must not
//! stop another. FCRTL and FCRTH send no PAUSE: there is no packet buffer that could fill. Frames without a descriptor wait in the
//! port.

use nicety_adapter::{Batch, Counters, Reason, Time};

use super::registers::*;
use super::statistics::Statistics;

/// CTRL: received PAUSE frames are obeyed (RFCE).
const OBEY: u32 = 1 << 27;
/// RCTL: a PAUSE to the station's address is discarded (DPF).
const DISCARD_PAUSE: u32 = 1 << 22;
/// RCTL: MAC control frames other than PAUSE are received (PMCF).
const PASS_CONTROL: u32 = 1 << 23;
/// TCTL: send a PAUSE.
pub const SWXOFF: u32 = 1 << 22;
/// Opcode of a PAUSE.
const PAUSE: u16 = 1;
/// Bit times of a quantum.
const QUANTUM_BITS: u64 = 512;

/// A MAC control frame for the chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// The quanta of a PAUSE; `None` for other frames.
    pub pause: Option<u16>,
    /// It was sent to the flow control address, not to the station.
    group: bool,
}

/// The address in a pair of registers.
fn address(low: u32, high: u32) -> [u8; 6] {
    let ([a, b, c, d], [e, f, ..]) = (low.to_le_bytes(), high.to_le_bytes());
    [a, b, c, d, e, f]
}

fn flow_address(registers: &Bank) -> [u8; 6] {
    address(registers[FCAL], registers[FCAH])
}

fn station(registers: &Bank) -> [u8; 6] {
    let first = |name| registers.of(name).first().copied().unwrap_or(0);
    address(first(RAL), first(RAH))
}

impl Control {
    /// The control frame with this head, if it is one.
    #[inline]
    pub fn of(registers: &Bank, head: &[u8]) -> Option<Self> {
        let kind: [u8; 2] = *head.get(12..)?.first_chunk()?;
        if kind != [0x88, 0x08] {
            return None;
        }
        Self::read(registers, head)
    }

    #[cold]
    fn read(registers: &Bank, head: &[u8]) -> Option<Self> {
        let word = |at: usize| head.get(at..)?.first_chunk().copied().map(u16::from_be_bytes);
        let destination: [u8; 6] = *head.first_chunk()?;
        let group = destination == flow_address(registers);
        if registers[FCT] != u32::from(word(12)?) || !(group || destination == station(registers)) {
            return None;
        }
        Some(Self { pause: word(16).filter(|_| word(14) == Some(PAUSE)), group })
    }

    /// Counts it. `len`: its bytes.
    pub fn count(self, registers: &mut Bank, len: u32) {
        let counter = match self.pause {
            Some(0) => XONRXC,
            Some(_) => XOFFRXC,
            None => FCRUC,
        };
        registers.count(counter, 1);
        registers.count_control(TPR, TORL, TORH, len);
    }

    /// Whether it may proceed to the address filters.
    pub fn passes(self, registers: &Bank) -> bool {
        let control = registers[RCTL];
        match self.pause {
            Some(_) => self.group || control & DISCARD_PAUSE == 0,
            None => control & PASS_CONTROL != 0,
        }
    }

    /// Quanta for which the transmitter must stop: 0 restarts it. `None`: no change.
    pub fn obeyed(self, registers: &Bank) -> Option<u16> {
        self.pause.filter(|_| self.group && registers[CTRL] & OBEY != 0)
    }
}

/// The transmitter's pause. It is not saved: at 1 Gbit/s it lasts at most 33 ms, and an early end loses nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause(Option<Time>);

impl Pause {
    /// Starts a pause. `speed`: 0 is 10, 1 is 100, 2 is 1000 Mbit/s.
    pub fn begin(&mut self, quanta: u16, speed: u16, now: Time) {
        let bit_ps = 100_000 / 10_u64.pow(speed.min(2).into());
        let ns = u64::from(quanta) * QUANTUM_BITS * bit_ps / 1000;
        // A pause of 0 also sets a deadline, so that the next tick resumes the work.
        self.0 = Some(now.after_ns(ns));
    }

    /// Its end.
    pub fn due(&self) -> Option<Time> {
        self.0
    }

    /// Whether frames must not be sent now.
    pub fn holds(&self, now: Time) -> bool {
        self.0.is_some_and(|until| until > now)
    }

    /// Ends the pause if its time has passed; true if it ended.
    pub fn over(&mut self, now: Time) -> bool {
        self.0.is_some() && !self.holds(now) && self.0.take().is_some()
    }
}

/// Sends the PAUSE that TCTL.SWXOFF requests, even during a pause.
pub fn send(registers: &mut Bank, link_up: bool, looped: bool, batch: &mut Batch, counters: &mut Counters) {
    if registers[TCTL] & (SWXOFF | tctl::EN) != SWXOFF | tctl::EN {
        return;
    }
    let Some(mut draft) = batch.draft(0) else { return };
    registers[TCTL] &= !SWXOFF;
    if !link_up && !looped {
        return counters.transmit_drop(Reason::LinkDown);
    }
    draft.pad_to(60);
    let len = draft.len();
    let quanta = registers[FCTTV] as u16;
    let words = [registers[FCT] as u16, PAUSE, quanta].map(u16::to_be_bytes);
    let fields = flow_address(registers).into_iter().chain(station(registers)).chain(words.into_iter().flatten());
    draft.head_mut().iter_mut().zip(fields).for_each(|(byte, value)| *byte = value);
    draft.finish_plain(0);
    registers.count(if quanta == 0 { XONTXC } else { XOFFTXC }, 1);
    registers.count_control(TPT, TOTL, TOTH, len);
    if !looped {
        counters.sent(0, 1, len.into());
    }
}
