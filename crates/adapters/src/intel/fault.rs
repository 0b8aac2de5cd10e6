//! Ring registers with which a receiver takes no frame, and the words for them.

use nicety_adapter::Context;

use super::DESCRIPTOR;
use super::filter::Filter;
use super::receive::Ring;
use super::registers::*;

/// A position beyond the end of a ring.
pub const OUTSIDE: &str = "its head or tail lies beyond its end";

/// Why a receiver takes nothing, in the words of the 8254x's registers.
const NO_LENGTH: &str = "its receive ring has no length (RDLEN)";
const RING_OUTSIDE: &str = "RDH or RDT lies beyond its receive ring (RDLEN)";
const NO_QUEUE: &str = "no receive queue is on (RXDCTL.ENABLE)";
const NO_ADDRESS: &str = "its receive filter accepts no address (RCTL, RAL, RAH, MTA)";
/// The receiver itself.
pub const OFF: &str = "its receiver is off (RCTL.EN)";

/// The meaning of a tail beyond the end of its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tails {
    /// A mistake: the datasheets define no such tail.
    Inside,
    /// The chip goes on from descriptor to descriptor, as QEMU's e1000 does.
    OpenEnded,
}

/// A position of a receive ring that lies beyond its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    register: Reg,
    queue: usize,
    value: u32,
    expected: &'static str,
}

impl Fault {
    /// The fault of a queue's registers. `None` also if the ring has no length yet.
    pub fn of(registers: &Bank, queue: usize, tails: Tails) -> Option<Self> {
        let of = |name| registers.of(name).get(queue).copied().unwrap_or(0);
        let size = of(RDLEN) / DESCRIPTOR as u32;
        let is_outside = |name| size > 0 && of(name) >= size;
        let (register, expected) = if is_outside(RDH) {
            (RDH, "a head within the ring (RDH below RDLEN / 16)")
        } else if tails == Tails::Inside && is_outside(RDT) {
            (RDT, "a tail within the ring (RDT below RDLEN / 16)")
        } else {
            return None;
        };
        Some(Self { register, queue, value: of(register), expected })
    }

    /// The reason why a ring with these registers stands still, which is noted as the driver's mistake. `None` if the ring does not stand
    /// still.
    #[inline]
    pub fn seen(registers: &Bank, ring: &Ring<'_>, queue: usize, cx: &mut Context<'_>) -> Option<&'static str> {
        if ring.head.max(ring.tail) < ring.size {
            return None;
        }
        let tails = if ring.open_ended { Tails::OpenEnded } else { Tails::Inside };
        Self::of(registers, queue, tails).map(|fault| fault.report(registers, cx))
    }

    /// Notes it as the driver's mistake. Returns why the ring stands still.
    #[cold]
    fn report(self, registers: &Bank, cx: &mut Context<'_>) -> &'static str {
        let Self { register, queue, value, expected } = self;
        cx.guest_error(registers.table().error_place(register, queue), value.into(), expected);
        OUTSIDE
    }
}

/// Notes a guest error if a ring's length is a whole number of descriptors, but has bits that the chip cannot keep. A test that writes
/// patterns (e1000_reg_test in Linux's e1000_ethtool.c) writes no such length. Zephyr's eth_e1000.c writes 16 on purpose (`e1000/mod.rs`).
pub fn check_length(registers: &Bank, place: &Place, value: u32, cx: &mut Context<'_>) {
    let bytes = DESCRIPTOR as u32;
    let is_length = matches!(place.name, RDLEN | TDLEN) && value > bytes && value.is_multiple_of(bytes);
    if is_length && !value.is_multiple_of(8 * bytes) {
        let expected = "a length in units of eight descriptors (a multiple of 128 bytes)";
        cx.guest_error(registers.table().error_place(place.name, place.index), value.into(), expected);
    }
}

/// The reason why a receiver that is on takes no frame: no queue of these can take one, or the filter accepts none.
pub fn block(
    registers: &Bank,
    filter: &Filter,
    queues: impl Iterator<Item = usize>,
    tails: Tails,
) -> Option<&'static str> {
    let of = |queue| {
        let bytes = registers.of(RDLEN).get(queue).copied().unwrap_or(0);
        let is_lone = tails == Tails::OpenEnded && bytes == 0 && registers[RDT] == 1;
        match Fault::of(registers, queue, tails) {
            _ if bytes == 0 && !is_lone => Some(NO_LENGTH),
            fault => fault.map(|_| RING_OUTSIDE),
        }
    };
    let mut why = Some(NO_QUEUE);
    for queue in queues {
        why = of(queue);
        if why.is_none() {
            break;
        }
    }
    why.or_else(|| filter.is_closed(registers).then_some(NO_ADDRESS))
}
