//! Parts of a trace that cannot be replayed, by driver. The lists follow from the registers' meaning in the datasheets.

use super::window::Word::{self, Csr, Named, Paged};

/// Accesses left out of a driver's trace.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeftOut {
    /// Doorbells that are not written: indices of rings in the recorded guest's memory.
    not_played: &'static [Word],
    /// Registers whose values depend on frames or on causes of interrupts: not compared after the first traffic.
    traffic: &'static [&'static [Word]],
    /// Registers whose values depend on time: never compared.
    clocks: &'static [Word],
}

impl LeftOut {
    /// Whether a write to this register is not played.
    pub(super) fn is_written(&self, word: Word) -> bool {
        self.not_played.contains(&word)
    }

    /// Whether a read of this register is not compared. `traffic`: there was some.
    pub(super) fn is_read(&self, word: Word, traffic: bool) -> bool {
        self.clocks.contains(&word) || traffic && self.traffic.iter().any(|words| words.contains(&word))
    }
}

/// The lists of one of our drivers, which knows the same devices as Linux's.
pub(super) fn of(driver: &str) -> LeftOut {
    match driver {
        "e1000" => LeftOut { not_played: INTEL_TAILS, traffic: &[INTEL_CAUSES, INTEL_FRAMES], clocks: &[] },
        "e1000e" => LeftOut { not_played: INTEL_TAILS, traffic: &[INTEL_CAUSES, INTEL_FRAMES], clocks: INTEL_CLOCK },
        "igb" => LeftOut { not_played: INTEL_TAILS, traffic: &[INTEL_CAUSES, INTEL_FRAMES, IGB], clocks: INTEL_CLOCK },
        "igbvf" | "ixgbevf" => LeftOut { not_played: INTEL_TAILS, traffic: &[VIRTUAL_FUNCTION], clocks: &[] },
        "vmxnet3" => LeftOut { not_played: VMXNET3_INDICES, ..LeftOut::default() },
        "pcnet" => LeftOut { traffic: &[PCNET], ..LeftOut::default() },
        "rtl8139" => LeftOut { traffic: &[RTL8139], ..LeftOut::default() },
        "ne2000" => LeftOut { traffic: &[NE2000], ..LeftOut::default() },
        // A kick has no index: the available ring in memory has it, and is empty here.
        _ => LeftOut::default(),
    }
}

/// Tails of the descriptor rings (317453, 13.4.30 and 13.4.41; 82574, 10.2.5 and 10.2.6; 82576, 8.10.8 and 8.12.13).
const INTEL_TAILS: &[Word] = &[Named("TDT"), Named("RDT")];
/// Pending causes, cleared by reading (317453, 13.4.17), and the number of interrupts (82574, 10.2.7; 82576, 8.18).
const INTEL_CAUSES: &[Word] = &[Named("ICR"), Named("IAC")];
/// Counters of good frames, and of frames without a buffer (317453, 13.7). Counters of errors are compared.
const INTEL_FRAMES: &[Word] = &[
    Named("TPR"),
    Named("TPT"),
    Named("TOTL"),
    Named("TOTH"),
    Named("TORL"),
    Named("TORH"),
    Named("GPRC"),
    Named("GPTC"),
    Named("GORCL"),
    Named("GORCH"),
    Named("GOTCL"),
    Named("GOTCH"),
    Named("BPRC"),
    Named("BPTC"),
    Named("MPRC"),
    Named("MPTC"),
    Named("PRC64"),
    Named("PRC127"),
    Named("PRC255"),
    Named("PRC511"),
    Named("PRC1023"),
    Named("PRC1522"),
    Named("PTC64"),
    Named("PTC127"),
    Named("PTC255"),
    Named("PTC511"),
    Named("PTC1023"),
    Named("PTC1522"),
    Named("TSCTC"),
    Named("RNBC"),
    Named("MPC"),
];
/// The adapter's time (82574, 10.2.9; 82576, 8.16.4).
const INTEL_CLOCK: &[Word] = &[Named("SYSTIML"), Named("SYSTIMH")];
/// The 82576's causes by vector (8.8.1), and its counters of frames between host and device (8.18).
const IGB: &[Word] = &[
    Named("EICR"),
    Named("RPTHC"),
    Named("HGPTC"),
    Named("HGORCL"),
    Named("HGORCH"),
    Named("HGOTCL"),
    Named("HGOTCH"),
];

/// A virtual function's causes by vector (82576, 8.8.1), its counters of frames, which are never cleared, and the
/// head and tail that Linux's ixgbevf reads to see whether a queue hangs (ixgbevf_get_tx_pending).
const VIRTUAL_FUNCTION: &[Word] = &[
    Named("EICR"),
    Named("TDH"),
    Named("TDT"),
    Named("VFGPRC"),
    Named("VFGPTC"),
    Named("VFGORC"),
    Named("VFGORCH"),
    Named("VFGOTC"),
    Named("VFGOTCH"),
    Named("VFMPRC"),
];

/// Producer indices (vmxnet3_defs.h).
const VMXNET3_INDICES: &[Word] = &[Named("TXPROD"), Named("RXPROD"), Named("RXPROD2")];

/// Causes of interrupts.
const PCNET: &[Word] = &[Csr(0)];

/// Causes of interrupts; whether the receive buffer is empty; where the next frame will be written; whether a frame has been sent
/// (RTL8139C, register descriptions).
const RTL8139: &[Word] = &[Named("ISR"), Named("CR"), Named("CBR"), Named("TSD")];

/// An NE2000's frames pass through a register. After the first traffic its reads give what a peer sent.
pub(super) const DATA_PORT: Word = Named("DATA");
/// Causes of interrupts, status of the last frame received, the page where the next received frame will be (DP8390D, 10.3).
const NE2000: &[Word] = &[Paged(0, 0x7), Paged(0, 0xc), Paged(1, 0x7)];
