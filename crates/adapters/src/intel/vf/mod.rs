//! Virtual functions of network cards: of an Intel 82576, the "igbvf", and of an 82599, the "ixgbevf". Their drivers have no EEPROM,
//! PHY or filters to program: for an address, a VLAN or a longer frame they ask their family, which stands for the physical
//! function's driver.
//!
//! ```text
//!              BAR 0: registers, 16 KiB                     BAR 3: MSI-X, 3 vectors
//!
//!   transmit queue n                             receive queue n
//!   (0x3800 + 0x100 n; 82599: 0x2000 + 0x40 n)   (0x2800 + 0x100 n; 82599: 0x1000 + 0x40 n)
//!   TDH ►┌─────────────────────────┐             RDH ►┌─────────────────────────┐
//!        │ context: lengths, MSS   │                  │ buffer (and headers')   │◄─ hash, type, status, length, tag
//!        │ data: buffer, EOP, RS   │─► frame, DD      │ buffer                  │◄─ its rest, EOP
//!   TDT ►├─────────────────────────┤             RDT ►├─────────────────────────┤
//!        │ the driver's            │                  │ the driver's            │
//!        └─────────────────────────┘                  └─────────────────────────┘
//!   mailbox: words ── REQ in V2PMAILBOX ──► family ── words, PFSTS ──► vector of IVAR_MISC
//! ```
//! The models follow Intel's *82576EB Gigabit Ethernet Controller Datasheet* and *82599 10 GbE Controller Datasheet*; numbers in
//! brackets are sections of the first. For drivers' requirements: Linux's drivers/net/ethernet/intel/igbvf and ixgbevf, and for the
//! answers of the families its igb and ixgbe.
//!
//! # Features
//! - All messages of Linux's and DPDK's drivers.
//! - On transmit: checksums and segmentation (TCP and UDP, IPv4 and IPv6). On receive: checksums.
//! - 82576: split headers. 82599: two receive queues by the hash.
//! - VLAN tags inserted, stripped and filtered, long frames, four exact addresses, the multicast hash.
//! - A throttle for each vector, counters that never clear, head write-back.
//!
//! # Messages
//! Linux's drivers write TDT once for each packet (igbvf) or burst (ixgbevf), RDT once for 16 buffers, and EIMS at the end of each
//! poll; ixgbevf reads TDH and TDT when sent packets are done. Every two seconds they read the mailbox and the counters.
//!
//! # Not implemented
//! - Receive queue 1 of the 82576: its physical function sorts by address alone. Receive queues above 1 of the 82599.
//! - Versions 1.4 to 1.6 of the 82599's messages: IPsec, and a mailbox with other rules. Unicast promiscuous modes. RSC. Split
//!   headers of the 82599: frames go into the packet's buffers.
//! - SCTP's checksum, and segmentation in a tunnel, as the igb's.
//! - Counters of frames between functions (VFGPRLBC and the like) stay 0: other functions are reached by the switch.
//! - RXDCTL's and TXDCTL's thresholds; DCA; SRRCTL.Drop_En: frames without a buffer wait in the port.
//!
//! # Quirks
//! - The reply to RESET has no CTS, all others have: e1000_reset_hw_vf, ixgbevf_reset_hw_vf in Linux's vf.c.
//! - Frames are dropped from one byte above SET_LPE's length on, tags included, although SRRCTL names longer buffers: those of
//!   Linux's igbvf have 1522 bytes (igbvf_change_mtu). The 82599's length does not count one tag.
//! - The mailbox keeps the last reply, whose CTS is the sign of a link: e1000_check_for_link_vf, ixgbevf_check_mac_link_vf.
//! - Of an 82576 tags are stripped since the driver has added a VLAN: igb_set_vf_vlan_msg in Linux's igb_main.c.

mod access;
pub mod family;
mod interrupts;
mod mailbox;
pub mod models;
mod receive;
pub mod registers;
mod saved;

use nicety_adapter::{Adapter, Time};
use nicety_pci::{Bar, BuildError, Capability, Express, Function, Identity, MsixCapability};

use self::family::FunctionPolicy;
use self::mailbox::Mailbox;
use self::models::Model;
use self::registers::{self as r, QUEUES_MAX};
use super::mac::model::CLASS;
use super::mac::{MSIX_BAR, Mac};
use crate::settings::{CreateError, Settings};

/// A virtual function.
type VirtualFunction = Mac<Virtual, QUEUES_MAX>;

/// State of virtual functions only.
#[derive(Debug)]
struct Virtual {
    model: &'static Model,
    /// The policy of a family of one.
    policy: FunctionPolicy,
    mailbox: Mailbox,
    /// The time of the last ask.
    asked_at: Time,
    /// Its family has not seen yet what it was restored with.
    is_restored: bool,
    /// The host's: frames with the tag of a VLAN that was not granted are dropped.
    checks_tags: bool,
}

/// Creates a function of this model.
pub fn create(model: &'static Model, settings: &Settings) -> Result<Box<dyn Adapter>, CreateError> {
    settings.check(&model.about)?;
    if settings.rom.is_some() {
        return Err(CreateError::Rom(format!("an {} has none", model.about.name)));
    }
    let function = describe(model)
        .map_err(|error| CreateError::Description { adapter: model.about.name, why: error.to_string() })?;
    let own = Virtual {
        model,
        // The port's own policy limits a function that belongs to no card, as it limits every adapter.
        policy: FunctionPolicy::free(settings.mac),
        mailbox: Mailbox::default(),
        asked_at: Time::ZERO,
        is_restored: false,
        checks_tags: false,
    };
    let bare = VirtualFunction::bare(&model.about, function, model.registers, interrupts::causes(), own);
    let mut this = VirtualFunction { queues: model.queues, pages: Some(model.pages), ..bare };
    this.clear_function();
    Ok(Box::new(this))
}

fn describe(model: &Model) -> Result<Function, BuildError> {
    let identity = Identity {
        vendor: model.about.pci.0,
        device: model.about.pci.1,
        revision: 1,
        class: CLASS,
        subsystem_vendor: model.about.pci.0,
        subsystem: model.subsystem,
    };
    let msix = MsixCapability {
        vectors: r::VECTORS,
        table_bar: MSIX_BAR,
        table_offset: 0,
        pba_bar: MSIX_BAR,
        pba_offset: r::PENDING,
    };
    Function::builder(identity)
        .bar(0, Bar::memory(r::WINDOW_BYTES.into()))
        .bar(3, Bar::memory(r::MSIX_BYTES.into()))
        // The chip's offsets (9.7).
        .capability_at(0x70, Capability::Msix(msix))
        .capability_at(0xa0, Capability::Express(Express::default()))
        .build()
}
