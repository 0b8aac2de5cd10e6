//! Intel 82576, the "igb": a gigabit Ethernet controller of 2008 with sixteen queues each way and MSI-X, whose driver Linux, Windows,
//! FreeBSD and DPDK have. One port of it, as a plain PCI function.
//!
//! ```text
//!              BAR 0: registers, 128 KiB    BAR 2: the same through IOADDR, IODATA    BAR 3: MSI-X, 25 vectors
//!
//!   transmit queue n (0xe000 + 0x40 n)           receive queue n (0xc000 + 0x40 n)
//!   TDH ►┌─────────────────────────┐             RDH ►┌─────────────────────────┐
//!        │ context: lengths, MSS   │                  │ buffer (and headers')   │◄─ hash, type, status, length, tag
//!        │ data: buffer, EOP, RS   │─► frame, DD      │ buffer                  │◄─ its rest, EOP
//!   TDT ►├─────────────────────────┤             RDT ►├─────────────────────────┤
//!        │ the driver's            │                  │ the driver's            │
//!        └─────────────────────────┘                  └─────────────────────────┘
//! ```
//! A write to TDT is the transmit doorbell; a write to RDT posts buffers. A queue interrupts by its vector in IVAR. EIAC clears the
//! vector's bit of EICR and EIAM masks it when the message is sent, so no register is read. The model follows Intel's *82576EB
//! Gigabit Ethernet Controller Datasheet*; numbers in brackets are its sections. For drivers' requirements: Linux's
//! drivers/net/ethernet/intel/igb.
//!
//! # Features
//! - Sixteen queues each way (Linux uses up to eight). RSS with key and table, filters by EtherType and by flow.
//! - On transmit: checksums and segmentation (TCP and UDP, IPv4 and IPv6). On receive: checksums, split headers.
//! - VLAN tags inserted, stripped and filtered. Frames of up to 9.5 KiB. 24 exact addresses and the multicast hash.
//! - MSI-X, MSI and INTx, with a throttle for each vector.
//! - Loopback in MAC and PHY, flow control, the chip's statistics, head write-back, NVM and PHY.
//! - The clock of IEEE 1588, with departure and arrival times.
//!
//! # Messages
//! A burst of sent frames: one write (TDT). One interrupt with MSI-X: one write (EIMS), and one (RDT) for each 16 buffers that
//! Linux posts; no read.
//!
//! # Not implemented
//! - Virtual functions: the SR-IOV capability (0x160) is readable and writable as the chip's, and creates none, because a socket
//!   serves one function. QEMU hides it from its guest. The registers of pools, mailboxes and virtual functions only store values.
//! - VMDq: MRQC's modes other than RSS send all frames to their default queue.
//! - SCTP's checksum on transmit: a packet that requests it is dropped as `bad-offload` (`ethtool -K eth0 tx-checksum-sctp off`);
//!   and segmentation of packets in a tunnel (`ethtool -K eth0 tx-gso-partial off`).
//! - Writes to the NVM: it accepts no command over EECD's wires, and reports busy.
//! - IPsec, MACsec, wake-up, manageability, flash, DCA, SerDes, low-latency interrupts (IMIR's), the TCP timer: their registers
//!   only store values.
//! - EICR without GPIE.Multiple_MSIX: it shows causes and does not interrupt; ICR does.
//! - The packet checksum of a receive descriptor (RXCSUM.PCSD clear) is 0. The four bytes of check sequence that RCTL.SECRC keeps
//!   are counted in the length but not written.
//! - FCRTL and FCRTH; RXO. Collisions, half duplex. SRRCTL.Drop_En: frames without a buffer wait in the port, and are dropped there
//!   if it is full.
//!
//! # Quirks
//! - Frames wait while the receiver is enabled and the ring has no length, for drivers that set RCTL.EN before RDLEN (Linux's
//!   e1000e/netdev.c).
//! - All bits of ICR except the highest can be set through ICS, reserved ones too: igb_intr_test in Linux's igb_ethtool.c. It also
//!   leaves GPIE in reset state, and expects MSI-X's vector 0.
//! - RDT, TDT, RDH and TDH store any sixteen bits, also beyond the ring: igb_reg_test. A ring with its head or tail outside is not
//!   used.
//! - Negotiation completes at once, with LSC. So frames may arrive before a driver has routed its queues (igb_open): a queue with
//!   earlier frames interrupts when it gets its vector.
//! - Untagged frames are dropped from 12 bytes below RLPML on: RLPML's count includes two tags and the check sequence, and Linux's
//!   buffers have no room for more (igb_set_rx_mode).
//! - The device serial number is at 0x100, where the chip has error reporting, which is not implemented.
//! - Reserved registers read as 0, as in the chip; offsets beyond the window as ones.

mod access;
mod interrupts;
pub mod models;
pub(super) mod queues;
mod receive;
pub mod registers;
mod saved;
pub(super) mod transmit;
pub(super) mod virtual_functions;

use nicety_adapter::Adapter;
use nicety_adapter::interrupts::Interrupts;
use nicety_pci::{Bar, Capability, Express, Msi, MsixCapability, Power};

use self::registers as r;
use super::clock::Clock;
use super::mac::model::Model;
use super::mac::{MSIX_BAR, Mac};
use crate::microwire::Microwire;
use crate::settings::{CreateError, Settings};

/// An adapter of this family.
type Igb = Mac<I82576, { r::QUEUES }>;

/// State of this chip only.
#[derive(Debug)]
struct I82576 {
    /// Offered MSI-X vectors.
    vectors: u16,
    /// Words of the NVM.
    words: usize,
    eeprom: Microwire,
    /// EICR, EIMS, EITR.
    extended: Interrupts,
    /// Causes of ICR that EICR has signalled.
    other: u32,
    clock: Clock<16>,
}

/// Creates an adapter.
pub fn create(model: &'static Model, settings: &Settings) -> Result<Box<dyn Adapter>, CreateError> {
    // A driver uses as many queues as it gets vectors, in addition to the one for other causes.
    let vectors =
        settings.queues.filter(|queues| *queues < model.about.queues).map_or(model.vectors, |queues| queues + 1);
    // PCI PM 1.2 with D0 and D3hot, device-specific initialization; D3hot loses all state (9.4.1).
    let power = Power { capabilities: 0x0023, control: 0, data: 0 };
    let msix =
        MsixCapability { vectors, table_bar: MSIX_BAR, table_offset: 0, pba_bar: MSIX_BAR, pba_offset: r::PENDING };
    let [a, b, c, d, e, f] = settings.mac.0;
    let function = model.function(settings, |builder| {
        let builder = builder
            .bar(2, Bar::io(r::IO_BYTES.into()))
            .bar(3, Bar::memory(r::MSIX_BYTES.into()))
            // The chip's offsets (9.5).
            .capability_at(0x40, Capability::Power(power))
            .capability_at(0x50, Capability::Msi(Msi { vectors: 1, maskable: true }))
            .capability_at(0x70, Capability::Msix(msix))
            .capability_at(0xa0, Capability::Express(Express::default()))
            // Device serial number: the address with ff:ff in its middle (9.6.2).
            .extended(3, 1, vec![f, e, d, 0xff, 0xff, c, b, a]);
        virtual_functions::describe(builder)
    })?;
    let own = I82576 {
        vectors,
        words: model.nvm.size,
        eeprom: Microwire::new(model.nvm.contents(settings.mac, None)),
        extended: interrupts::extended(),
        other: 0,
        clock: Clock::default(),
    };
    Ok(Box::new(Igb::new(model, settings, function, interrupts::causes(), own)))
}
