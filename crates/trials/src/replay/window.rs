//! Registers that a driver reaches through a window: a register of a PCnet by RAP, of an NE2000 by the page in CR. The trace has
//! the window's accesses, so the selection is known from the writes before.

use nicety_adapter::trace::RegisterName;

/// A register's name in the lists of [`LeftOut`](super::LeftOut).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// A register with an address of its own.
    Named(&'static str),
    /// A control and status register of a PCnet.
    Csr(u64),
    /// A bus configuration register of a PCnet.
    Bcr(u64),
    /// A paged register of an NE2000: page and number.
    Paged(u64, u32),
}

/// The selection by which the driver's next access is understood.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    /// Last value of a PCnet's RAP.
    rap: u64,
    /// CSR1 and CSR2 of a PCnet: the initialization block's address.
    iadr: [u64; 2],
    /// Page of an NE2000: bits 7 and 6 of CR (DP8390D, 10.3).
    page: u64,
}

impl Window {
    /// The register behind a name of the table.
    pub(super) fn word(&self, register: RegisterName) -> Word {
        match (register.word, register.index) {
            ("RDP", _) => Word::Csr(self.rap),
            ("BDP", _) => Word::Bcr(self.rap),
            ("PAGED", Some(number)) => Word::Paged(self.page, number),
            (word, _) => Word::Named(word),
        }
    }

    /// Follows a write.
    pub(super) fn written(&mut self, word: Word, value: u64) {
        match word {
            Word::Named("RAP") => self.rap = value & 0xff,
            Word::Named("CR") => self.page = value >> 6 & 3,
            Word::Csr(1) => self.iadr[0] = value & 0xffff,
            Word::Csr(2) => self.iadr[1] = value & 0xffff,
            _ => {}
        }
    }

    /// Address of a PCnet's initialization block.
    pub(super) fn initialization_block(&self) -> u64 {
        self.iadr[0] | self.iadr[1] << 16
    }
}
