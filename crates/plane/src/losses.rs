//! Frames that a receiving port dropped when they were offered: the counters of flows ask for them.

use nicety_adapter::{PortId, Reason};

/// Packets that one receiver dropped for one reason, a bit each. A segmented packet of which a part found no room is among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    /// The receiver, as the switch knows it: a team, and not its member.
    pub receiver: PortId,
    pub reason: Reason,
    pub packets: u64,
}

/// The losses of a batch, in the order in which its receivers were offered frames. Kept from batch to batch, so that it allocates no more
/// when it has been long enough.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// Whether anybody asks. If not, nothing is noted.
    is_on: bool,
    receiver: PortId,
    all: Vec<Loss>,
}

impl Losses {
    /// Notes nothing.
    pub fn off() -> Self {
        Self::default()
    }

    /// A batch begins. `is_on`: its losses are noted.
    #[inline]
    pub fn begin(&mut self, is_on: bool) {
        self.is_on = is_on;
        self.all.clear();
    }

    /// Frames are offered to this receiver from now on.
    #[inline]
    pub fn offer_to(&mut self, receiver: PortId) {
        self.receiver = receiver;
    }

    /// Whether losses are noted.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// The receiver dropped this packet.
    pub fn note(&mut self, packet: u16, reason: Reason) {
        if !self.is_on {
            return;
        }
        let (receiver, bit) = (self.receiver, 1u64.checked_shl(packet.into()).unwrap_or(0));
        let mut its = self.all.iter_mut().rev().take_while(|loss| loss.receiver == receiver);
        match its.find(|loss| loss.reason == reason) {
            Some(loss) => loss.packets |= bit,
            None => self.all.push(Loss { receiver, reason, packets: bit }),
        }
    }

    /// All losses that were noted.
    #[inline]
    pub fn all(&self) -> &[Loss] {
        &self.all
    }
}
