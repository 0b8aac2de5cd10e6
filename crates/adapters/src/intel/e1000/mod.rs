//! Intel 82540EM, the "e1000": a gigabit Ethernet controller of 2002 with a driver in every operating system. Its relatives, the
//! 82545EM and the 82544GC, are the same with other data: `models.rs`.
//!
//! ```text
//!              BAR 0: registers, 128 KiB         BAR 1: the same through IOADDR, IODATA
//!
//!   transmit ring (TDBAL, TDLEN)                 receive ring (RDBAL, RDLEN)
//!   TDH ►┌────────────────────┐                  RDH ►┌────────────────────┐
//!        │ context: offsets   │                       │ buffer             │◄─ frame, DD
//!        │ data: buffer, EOP  │─► frame, DD           │ buffer             │◄─ its rest, DD, EOP
//!   TDT ►├────────────────────┤                  RDT ►├────────────────────┤
//!        │ the driver's       │                       │ the driver's       │
//!        └────────────────────┘                       └────────────────────┘
//! ```
//! A write to TDT is the transmit doorbell; a write to RDT posts buffers. ICR has the interrupt causes and clears on reading; ITR
//! throttles. The model follows Intel's *PCI/PCI-X Family of Gigabit Ethernet Controllers Software Developer's Manual* (317453);
//! numbers in brackets are its sections.
//!
//! # Features
//! - On transmit: checksums and segmentation (TCP and UDP, IPv4 and IPv6). On receive: checksums.
//! - VLAN tags inserted, stripped and filtered. Frames of up to 16 KiB, in as many buffers as they need.
//! - Sixteen exact addresses and the multicast hash. Loopback in MAC and PHY, flow control (`flow.rs`).
//! - Interrupt throttle and receive delay. The chip's statistics, EEPROM (writable) and PHY.
//!
//! # Not implemented
//! - Wake-up, manageability, flash: their registers only store values. MSI and PCI-X: drivers for this chip use INTx.
//! - The packet checksum of a receive descriptor (PCSS) is 0. The four bytes of check sequence that RCTL.SECRC keeps are counted in
//!   the length but not written.
//! - TIDV is ignored and TADV is a lower bound: completions that request a delay wait for an interrupt that is due anyway
//!   (`CompletionDelay`).
//! - FCRTL and FCRTH; RXO except for a lone descriptor. Collisions, half duplex, early receive.
//!
//! # Quirks
//! - ICS reads as ICR without clearing it, as VxWorks' driver expects (according to QEMU's e1000.c).
//! - All bits of ICR can be set through ICS, reserved ones too: e1000_intr_test in Linux's e1000_ethtool.c sets each of the ten
//!   lowest and waits for it.
//! - RDH and TDH store any sixteen bits, also beyond the ring: e1000_reg_test in Linux's e1000_ethtool.c. A ring with its head
//!   outside is not used, nor is a transmit ring with its tail outside.
//! - A receive ring with its tail outside has every descriptor without DD: e1000_enable in NuttX's drivers/net/e1000.c writes the
//!   ring's length to RDT, and receives in QEMU.
//! - Negotiation completes at once, with LSC: Linux polls, other drivers wait for the interrupt.
//! - A frame without IFCS is still sent with a good check sequence: small drivers omit the bit, which QEMU tolerates.
//! - SWSM.SWESMBI, which only later chips have, stores its value: e1000_get_hw_eeprom_semaphore in U-Boot's drivers/net/e1000.c
//!   takes the semaphore on every chip before it reads the EEPROM.
//! - A ring without a length (RDLEN or TDLEN is 0; 16 reads as 0) is a lone descriptor while its tail is 1 and its head 0: each
//!   write of 1 to TDT sends it, and each frame that arrives in it sets RXO. Zephyr's eth_e1000.c drives QEMU's e1000.c in this
//!   way. The next frame is delivered 200 µs after a read of ICR, or a write to it, that clears RXO.
//! - Frames wait while the receiver is enabled and its ring has no length, for drivers that set RCTL.EN first.
//! - Reserved registers read as 0, as in the chip; offsets beyond the window as ones.

mod access;
mod interrupts;
pub mod models;
mod receive;
pub mod registers;
mod saved;

use nicety_adapter::interrupts::Delay;
use nicety_adapter::{Adapter, Time};
use nicety_pci::{Bar, Capability, Power};

use self::registers as r;
use super::mac::Mac;
use super::mac::model::Model;
use crate::microwire::Microwire;
use crate::settings::{CreateError, Settings};

/// An adapter of this family.
type E1000 = Mac<I8254x, 1>;

/// State of these chips only.
#[derive(Debug)]
struct I8254x {
    /// Words of the EEPROM.
    words: usize,
    eeprom: Microwire,
    /// Packet buffer memory, allocated at its first write.
    buffer: Option<Vec<u32>>,
    /// Time by which the driver will have read the frame in its only receive descriptor.
    lone_read_by: Option<Time>,
    /// RDTR and RADV.
    receive_delay: Delay,
}

/// Creates an adapter of a model.
pub fn create(model: &'static Model, settings: &Settings) -> Result<Box<dyn Adapter>, CreateError> {
    // PCI PM 1.1 with D0 and D3hot, device-specific initialization; D3hot loses all state.
    let power = Power { capabilities: 0x0022, control: 0, data: 0 };
    let function = model.function(settings, |builder| {
        builder
            .bar(1, Bar::io(r::IO_BYTES.into()))
            .status(0x0220)
            .timing(0xff, 0)
            .capability_at(0xdc, Capability::Power(power))
    })?;
    let own = I8254x {
        words: model.nvm.size,
        eeprom: Microwire::new(model.nvm.contents(settings.mac, settings.subsystem)),
        buffer: None,
        lone_read_by: None,
        receive_delay: Delay::default(),
    };
    Ok(Box::new(E1000::new(model, settings, function, interrupts::interrupts(), own)))
}
