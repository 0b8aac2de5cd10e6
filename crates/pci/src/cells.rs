//! The behaviour of each bit of configuration space, as data: reset value, writable, cleared by writing one, owned by the device (PCI 3.0 §6.1).

/// Behaviour of one byte of configuration space. A bit in none of the masks is read-only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Byte {
    /// Value after reset.
    pub reset: u8,
    /// Bits that software writes.
    pub write: u8,
    /// Bits that software clears by writing one.
    pub clear: u8,
    /// Bits that the device itself may change, independent of software's rights.
    pub device: u8,
}

impl Byte {
    /// The byte's new value after software writes `value` over `old`.
    #[must_use]
    pub const fn after_write(&self, old: u8, value: u8) -> u8 {
        ((old & !self.write) | (value & self.write)) & !(value & self.clear)
    }

    /// The bits that can ever differ from the reset value.
    #[must_use]
    pub const fn changeable(&self) -> u8 {
        self.write | self.clear | self.device
    }
}

/// The offsets of an access that begins at `first`; they stay at the end of the space instead of wrapping into it.
pub(crate) fn offsets(first: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(first), |at| Some(at.saturating_add(1)))
}

/// A run of bytes with their behaviour, while a capability or the header is under construction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cells(Vec<Byte>);

impl Cells {
    pub(crate) fn of_len(len: usize) -> Self {
        Self(vec![Byte::default(); len])
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn push(&mut self, byte: Byte) {
        self.0.push(byte);
    }

    pub(crate) fn into_bytes(self) -> Box<[Byte]> {
        self.0.into_boxed_slice()
    }

    /// Copies `other` over this run from `at` on; false if it does not fit.
    pub(crate) fn place(&mut self, at: usize, other: &Self) -> bool {
        let Some(target) = at.checked_add(other.len()).and_then(|end| self.0.get_mut(at..end)) else {
            return false;
        };
        target.copy_from_slice(&other.0);
        true
    }

    fn each(&mut self, at: usize, len: usize, mut change: impl FnMut(&mut Byte, usize)) {
        for (index, byte) in self.0.iter_mut().skip(at).take(len).enumerate() {
            change(byte, index);
        }
    }

    pub(crate) fn set8(&mut self, at: usize, reset: u8, write: u8) {
        self.each(at, 1, |byte, _| (byte.reset, byte.write) = (reset, write));
    }

    pub(crate) fn set16(&mut self, at: usize, reset: u16, write: u16) {
        let (reset, write) = (reset.to_le_bytes(), write.to_le_bytes());
        self.each(at, 2, |byte, i| (byte.reset, byte.write) = (reset[i], write[i]));
    }

    pub(crate) fn set32(&mut self, at: usize, reset: u32, write: u32) {
        let (reset, write) = (reset.to_le_bytes(), write.to_le_bytes());
        self.each(at, 4, |byte, i| (byte.reset, byte.write) = (reset[i], write[i]));
    }

    /// Bits that the device sets and software clears by writing one.
    pub(crate) fn clear16(&mut self, at: usize, bits: u16) {
        let bits = bits.to_le_bytes();
        self.each(at, 2, |byte, i| (byte.clear, byte.device) = (bits[i], byte.device | bits[i]));
    }

    pub(crate) fn device16(&mut self, at: usize, bits: u16) {
        let bits = bits.to_le_bytes();
        self.each(at, 2, |byte, i| byte.device |= bits[i]);
    }

    pub(crate) fn device32(&mut self, at: usize, bits: u32) {
        let bits = bits.to_le_bytes();
        self.each(at, 4, |byte, i| byte.device |= bits[i]);
    }
}
