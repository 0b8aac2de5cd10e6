//! The effects of CSR0's commands: initialize, start, stop; and the resets ("Initialization", "Re-Initialization", "Reset").

use nicety_adapter::{Context, Outbox};

use super::Lance;
use super::interrupts::{CSR4_AT, CSR5_AT, Tidings};
use super::polling::Polling;
use super::receive::Receive;
use super::registers::{self as r, bcr, csr0, csr4, csr5, mode};
use super::ring::Style;
use super::transmit::Transmit;

/// Maximum ring size in an initialization block, as a power of two.
const LENGTH_MAX: u32 = 9;

/// The initialization block ("Initialization Block").
///
/// ```text
///  16 bits, 24 bytes                       32 bits, 28 bytes
///  00 MODE  02 PADR  08 LADRF              00 MODE  02 RLEN in 7:4  03 TLEN in 7:4  04 PADR  0c LADRF
///  10 RLEN in 31:29, RDRA                  14 RDRA
///  14 TLEN in 31:29, TDRA                  18 TDRA
/// ```
struct Block {
    mode: u32,
    lengths: [u32; 2],
    physical: [u8; 6],
    logical: [u8; 8],
    rings: [u32; 2],
}

impl Block {
    fn of(bytes: &[u8; 28], style: Style) -> Self {
        let half = |at: usize| u32::from(bytes[at]) | u32::from(bytes[at + 1]) << 8;
        let word = |at: usize| half(at) | half(at + 2) << 16;
        let (mut physical, mut logical) = ([0; 6], [0; 8]);
        let (addresses, filter, rings) = if style.wide { (4, 12, [20, 24]) } else { (2, 8, [16, 20]) };
        physical.copy_from_slice(&bytes[addresses..addresses + 6]);
        logical.copy_from_slice(&bytes[filter..filter + 8]);
        let rings = rings.map(word);
        let lengths = if style.wide { [half(2) >> 4 & 15, half(2) >> 12] } else { rings.map(|ring| ring >> 29) };
        Self { mode: half(0), lengths, physical, logical, rings: rings.map(|ring| style.address(ring) as u32) }
    }
}

impl Lance {
    /// Layout of structures (BCR20).
    pub(super) fn style(&self) -> Style {
        let style = self.registers[r::SWSTYLE];
        Style {
            wide: style & bcr::SSIZE32 != 0,
            swapped: style & 0xff == 3,
            upper: (self.registers.of(r::IADR)[1] & 0xff00) << 16,
        }
    }

    /// Handles a write to CSR0.
    pub(super) fn write_csr0(&mut self, value: u32, cx: &mut Context<'_>) {
        self.interrupts.clear((value & csr0::CAUSES).into());
        if value & csr0::STOP != 0 {
            return self.stop(cx);
        }
        let old = self.registers[r::CSR0];
        self.registers[r::CSR0] = old & !csr0::IENA | value & csr0::IENA;
        if value & csr0::INIT != 0 && old & csr0::INIT == 0 {
            self.initialize(cx);
        }
        if value & csr0::STRT != 0 && old & csr0::STRT == 0 {
            if self.has(r::CSR0, csr0::STOP) {
                self.rewind();
            }
            self.start();
            // After a kill the rings are found by it.
            cx.out.stalled.insert(Outbox::KEEP);
            self.begin_polling();
        }
        if value & csr0::TDMD != 0 {
            self.poll_demanded();
        }
        if self.has(r::CSR0, csr0::TXON) {
            cx.out.work.insert(0);
        }
        self.look_for_room(cx);
        self.masks_changed(cx);
    }

    fn initialize(&mut self, cx: &mut Context<'_>) {
        let style = self.style();
        let address = self.registers.of(r::IADR).iter().rev().fold(0, |address, word| address << 16 | u64::from(*word));
        let mut bytes = [0; 28];
        let len = if style.wide { 28 } else { 24 };
        let read = self.function.bus_master() && cx.memory.read(address & !1, &mut bytes[..len]).is_ok();
        if !read {
            let place = self.registers.table().error_place(r::IADR, 0);
            let expected = "the address of an initialization block in guest memory (CSR1, CSR2), and bus mastering";
            cx.guest_error(place, address, expected);
            self.interrupts.raise(csr0::MERR.into());
            return;
        }
        let Block { mode, lengths: [receive, transmit], physical, logical, rings } = Block::of(&bytes, style);
        let complement = |length: u32| (1_u32 << length.min(LENGTH_MAX)).wrapping_neg() & 0xffff;
        self.registers[r::MODE] = mode;
        self.registers[r::CSR6] = transmit << 12 | receive << 8;
        self.registers[r::RCVRL] = complement(receive);
        self.registers[r::XMTRL] = complement(transmit);
        self.load_words(r::PADR, &physical);
        self.load_words(r::LADR, &logical);
        self.load_words(r::BADR, &rings[0].to_le_bytes());
        self.load_words(r::BADX, &rings[1].to_le_bytes());
        self.rewind();
        self.prepare_loopback();
        self.registers[r::CSR0] = self.registers[r::CSR0] & !csr0::STOP | csr0::INIT;
        self.interrupts.raise(csr0::IDON.into());
        self.offer_room(cx);
    }

    /// Writes bytes into consecutive word registers.
    pub(super) fn load_words(&mut self, name: r::Reg, bytes: &[u8]) {
        for (word, two) in self.registers.of_mut(name).iter_mut().zip(bytes.chunks_exact(2)) {
            *word = two.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        }
    }

    /// Both rings begin at their first descriptor: after INIT, and at STRT after STOP ("Re-Initialization"). The Am7990 went on at its
    /// old descriptors there, and suspension (CSR5.SPND) still does. Drivers rely on it: promiscuous in 9front's ether79c970.c, and
    /// LANCE_MUST_REINIT_RING in Linux's lance.c, which names the PCnet chips.
    fn rewind(&mut self) {
        self.transmit = Transmit::default();
        self.forget_fetched();
        self.receive.next = 0;
        self.lost = false;
    }

    fn start(&mut self) {
        let mode = self.registers[r::MODE];
        let mut on = csr0::STRT;
        on |= if mode & mode::DTX == 0 { csr0::TXON } else { 0 };
        on |= if mode & mode::DRX == 0 { csr0::RXON } else { 0 };
        self.registers[r::CSR0] = self.registers[r::CSR0] & !(csr0::STOP | csr0::TXON | csr0::RXON) | on;
    }

    /// CSR0.STOP: stops both rings, clears all causes, disables interrupts. Rings and filters stay.
    fn stop(&mut self, cx: &mut Context<'_>) {
        self.registers[r::CSR0] = csr0::STOP;
        self.registers[r::CSR5] &= !csr5::SPND;
        let causes =
            u128::from(csr0::CAUSES) | u128::from(csr4::CAUSES) << CSR4_AT | u128::from(csr5::CAUSES) << CSR5_AT;
        self.interrupts.clear(causes);
        self.tidings.forget();
        self.forget_fetched();
        self.offer_room(cx);
        self.masks_changed(cx);
    }

    /// S_RESET, by a read of the reset register: resets the CSRs, except the initialization block's address. pcnet32_poll in
    /// Linux's pcnet32.c initializes anew after it without a write to CSR1, CSR2 and BCR20.
    pub(super) fn soft_reset(&mut self, cx: &mut Context<'_>) {
        self.offer_room(cx);
        self.clear_chip();
        self.settle(cx);
    }

    /// The reset itself, without an effect outside the chip.
    pub(super) fn clear_chip(&mut self) {
        let [low, high] = [0, 1].map(|word| self.registers.of(r::IADR)[word]);
        self.registers.reset(|region| region == r::CSR);
        self.registers.of_mut(r::IADR).copy_from_slice(&[low, high]);
        let prom = self.prom;
        self.load_words(r::PADR, &prom[..6]);
        self.rap = 0;
        self.transmit = Transmit::default();
        self.polling = Polling::default();
        self.receive = Receive::default();
        self.stalls = [None; 2];
        self.lost = false;
        self.interrupts.reset();
        self.tidings = Tidings::default();
        self.generation = self.generation.wrapping_add(1);
    }
}
