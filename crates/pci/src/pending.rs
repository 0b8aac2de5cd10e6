//! Interrupt messages for a VMM that delivers them itself: which message a vector sends, and which vectors wait because they are masked
//! (PCI 3.0 §6.8.1, §6.8.2). A VMM behind a transport needs none of this: the transport's client keeps masks and pending bits.

use crate::cells::offsets;
use crate::function::Function;
use crate::interrupts::{Mode, Window};
use crate::msix::Message;

/// Vectors of the largest table (§6.8.2).
const VECTORS: u16 = 2048;

impl Function {
    /// The message of a vector in the interrupt mode in effect, masked or not. `None`: neither MSI nor MSI-X is enabled, or there is no
    /// such vector. With MSI, vectors beyond those that software enabled share the enabled ones.
    #[must_use]
    pub fn message(&self, vector: u16) -> Option<Message> {
        match self.mode() {
            Mode::Msix => self.msix()?.message(vector),
            Mode::Msi => {
                let msi = self.msi()?;
                let own = u16::from(msi.vectors) - 1;
                Some(Message { address: msi.address, data: u32::from(msi.data & !own | vector & own) })
            }
            Mode::Intx | Mode::None => None,
        }
    }

    /// Whether a vector is masked in the mode in effect, by itself or with all others.
    #[must_use]
    pub fn is_masked(&self, vector: u16) -> bool {
        match self.mode() {
            Mode::Msix => self.msix_masked() || self.msix().is_none_or(|msix| msix.is_masked(vector)),
            Mode::Msi => self.msi().is_some_and(|msi| {
                let own = u16::from(msi.vectors) - 1;
                msi.mask >> (vector & own) & 1 != 0
            }),
            Mode::Intx | Mode::None => false,
        }
    }
}

/// The pending bits of one function.
///
/// 1. When the device raises a vector, call [`raise`](Pending::raise), and deliver the message that it returns.
/// 2. When the guest has written configuration space or the BAR with the table, call [`due`](Pending::due) until it returns `None`, and
///    deliver each message.
/// 3. When the guest has read the BAR with the pending-bit array, call [`read`](Pending::read) on the same bytes.
/// 4. When the function is reset, call [`clear`](Pending::clear).
///
/// Pending bits need not be saved with a VM: a restored adapter raises all that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    words: Box<[u64]>,
}

impl Default for Pending {
    fn default() -> Self {
        Self { words: vec![0; usize::from(VECTORS) / 64].into_boxed_slice() }
    }
}

impl Pending {
    /// The message to deliver now for a vector. A masked vector waits. A function without bus mastering sends nothing.
    pub fn raise(&mut self, function: &Function, vector: u16) -> Option<Message> {
        let message = function.message(vector)?;
        if function.is_masked(vector) {
            if let Some(word) = self.words.get_mut(usize::from(vector) / 64) {
                *word |= 1 << (vector % 64);
            }
            return None;
        }
        function.bus_master().then_some(message)
    }

    /// The message of a waiting vector that is masked no more. It waits no more.
    pub fn due(&mut self, function: &Function) -> Option<Message> {
        if !function.bus_master() {
            return None;
        }
        let (vector, message) = (0..VECTORS)
            .filter(|vector| self.waits(*vector) && !function.is_masked(*vector))
            .find_map(|vector| Some((vector, function.message(vector)?)))?;
        if let Some(word) = self.words.get_mut(usize::from(vector) / 64) {
            *word &= !(1 << (vector % 64));
        }
        Some(message)
    }

    /// Whether a vector waits.
    #[must_use]
    pub fn waits(&self, vector: u16) -> bool {
        self.words.get(usize::from(vector) / 64).is_some_and(|word| word >> (vector % 64) & 1 != 0)
    }

    /// Nothing waits any more.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Sets the bits in what was read at `offset` of base address register `bar`, where that is the pending-bit array.
    pub fn read(&self, function: &Function, bar: u8, offset: u64, data: &mut [u8]) {
        for (at, byte) in offsets(offset).zip(data) {
            if let Some(Window::Pba(at)) = function.window(bar.into(), at) {
                let word = usize::try_from(at / 8).ok().and_then(|word| self.words.get(word));
                *byte = word.map_or(0, |word| word.to_le_bytes()[at as usize % 8]);
            }
        }
    }
}
