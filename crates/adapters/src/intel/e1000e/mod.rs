//! Intel 82574L, the "e1000e": a gigabit Ethernet controller of 2008 on PCI Express, whose driver has MSI-X, two queues and
//! receive-side scaling. It has the rings of the e1000 (`intel/transmit.rs`, `intel/receive.rs`), with extensions.
//!
//! ```text
//! BAR 0  registers, 128 KiB    BAR 1  flash, empty    BAR 2  the registers through IOADDR, IODATA    BAR 3  MSI-X table
//!
//!   transmit rings 0, 1 (TDBAL…)                 receive rings 0, 1 (RDBAL…)
//!   TDH ►┌────────────────────┐                  RDH ►┌────────────────────┐
//!        │ context: offsets   │                       │ buffer             │◄─ frame, hash, DD
//!        │ data: buffer, EOP  │─► frame, DD           │ buffer             │◄─ its rest, DD, EOP
//!   TDT ►├────────────────────┤                  RDT ►├────────────────────┤
//!        │ the driver's       │                       │ the driver's       │
//!        └────────────────────┘                       └────────────────────┘
//!
//!   RXQ0 RXQ1 TXQ0 TXQ1 OTHER ─► IVAR ─► EITR ─► vectors 0 to 4          (INTx, MSI: every cause ─► ITR)
//! ```
//! The model follows Intel's *82574 GbE Controller Family Datasheet* (317694); numbers in brackets are its sections.
//!
//! # Features
//! - On transmit: checksums and segmentation (TCP and UDP, IPv4 and IPv6). On receive: checksums, split headers, legacy and extended
//!   descriptors.
//! - Two queues each way with the Toeplitz hash.
//! - VLAN tags inserted, stripped and filtered. Frames of up to 16 KiB. Sixteen exact addresses and the multicast hash.
//! - INTx, MSI, and MSI-X with auto-clear and auto-mask.
//! - Loopback in MAC and PHY, flow control, the chip's statistics, flash with its shadow RAM, PHY, the clock and its time stamps.
//!
//! # Few messages
//! With MSI-X and EIAC an interrupt needs no register read. A poll writes IMS once, and each tail once per burst.
//!
//! # Not implemented
//! - Wake-up, manageability, the flash's own interface: their registers only store values. BAR 1 is an empty flash.
//! - The packet checksum and the IP identification of a receive descriptor are 0 (RXCSUM.PCSD clear). The four bytes of check
//!   sequence that RCTL.SECRC keeps are counted in the length but not written. The hash skips IPv6 extension headers.
//! - Pages of the PHY other than the first read as zeros. FCRTL and FCRTH; RXO. Collisions, half duplex.
//! - TARC's shares between the transmit queues: they are served in turn. Thresholds of RXDCTL and TXDCTL: descriptors are written
//!   back at once.
//! - TIDV is ignored and TADV is a lower bound: see `interrupts.rs`. RDTR and RADV apply only without a throttle.
//! - Packet buffer memory (PBM) reads as zeros.
//!
//! # Quirks
//! - Frames wait while the receiver is enabled and the ring has no length, for drivers that set RCTL.EN before RDLEN (Linux's
//!   e1000e/netdev.c).
//! - TXCW, which a copper chip does not use, stores its value: e1000_reg_test in Linux's e1000e/ethtool.c.
//! - All bits of ICR can be set through ICS: e1000_intr_test there.
//! - RDH and TDH store any sixteen bits: e1000_reg_test. A ring with its head or tail outside is not used.
//! - EXTCNF_CTRL.MDIO_SW_OWNERSHIP reads as written: there is no firmware that could own the PHY (e1000_get_hw_semaphore_82574 in
//!   Linux's e1000e/82571.c).
//! - A write that clears ICR.OTHER clears its underlying causes, for Windows' driver, according to QEMU's e1000e_core.c.
//! - Negotiation completes at once, with LSC. A frame without IFCS is still sent with a good check sequence.
//! - RDH and RDT count units of 16 bytes even with descriptors of 32: Linux's e1000e/netdev.c, e1000_alloc_rx_buffers_ps.

mod access;
mod interrupts;
pub mod models;
mod receive;
pub mod registers;
mod saved;

use nicety_adapter::Adapter;
use nicety_adapter::interrupts::Delay;
use nicety_pci::{Bar, Capability, Express, Msi, MsixCapability, Power};

use self::registers as r;
use super::clock::Clock;
use super::mac::model::Model;
use super::mac::{MSIX_BAR, Mac};
use super::nvm::Nvm;
use crate::settings::{CreateError, Settings};

/// An adapter of this family.
type E1000e = Mac<I82574, { r::QUEUES }>;

/// State of this chip only.
#[derive(Debug)]
struct I82574 {
    nvm: Nvm,
    /// RDTR and RADV, and the causes that wait for them.
    receive_delay: Delay,
    delayed: u32,
    clock: Clock<40>,
}

/// Creates an adapter.
pub fn create(model: &'static Model, settings: &Settings) -> Result<Box<dyn Adapter>, CreateError> {
    let msix = MsixCapability {
        vectors: model.vectors,
        table_bar: MSIX_BAR,
        table_offset: 0,
        pba_bar: MSIX_BAR,
        pba_offset: r::PBA_OFFSET,
    };
    // PCI PM 1.1 with D0 and D3hot, device-specific initialization; D3hot loses all state.
    let power = Power { capabilities: 0x0022, control: 0, data: 0 };
    let function = model.function(settings, |builder| {
        builder
            .bar(1, Bar::memory(r::WINDOW_BYTES.into()))
            .bar(2, Bar::io(r::IO_BYTES.into()))
            .bar(3, Bar::memory(r::MSIX_BYTES))
            .capability_at(0xc8, Capability::Power(power))
            .capability_at(0xd0, Capability::Msi(Msi { vectors: 1, maskable: false }))
            .capability_at(0xe0, Capability::Express(Express { version: 1, ..Express::default() }))
            .capability_at(0xa0, Capability::Msix(msix))
    })?;
    let own = I82574 {
        nvm: Nvm::new(model.nvm.contents(settings.mac, settings.subsystem)),
        receive_delay: Delay::default(),
        delayed: 0,
        clock: Clock::default(),
    };
    Ok(Box::new(E1000e::new(model, settings, function, interrupts::interrupts(), own)))
}
