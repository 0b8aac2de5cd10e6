//! PCI configuration space, capabilities, base addresses, MSI and MSI-X of one function: pure state, no clock, no file descriptor.
//!
//! A [`Function`] is built once ([`Function::builder`]) and then answers configuration accesses of any width and alignment. A write returns
//! its [`Changes`]. The behaviour of every bit is data: a [`Byte`] per byte of the space contains the reset value, the bits that software
//! may write, those that it clears by writing one, and those that the device owns.
//!
//! Follows PCI Local Bus 3.0 §6, PCI Bus Power Management 1.2 §3, PCI Express Base 4.0 §7, PCI Firmware 3.0 §5.1.
//!
//! Not implemented: bridges, 32-bit-only MSI, SR-IOV control (a card's virtual function is a function of its own here), VPD.
#![forbid(unsafe_code)]

pub mod bar;
pub mod builder;
pub mod capability;
mod cells;
pub mod function;
mod interrupts;
pub mod layout;
pub mod msix;
pub mod pending;
pub mod registers;
pub mod rom;
pub mod saved;

pub use bar::{Bar, BarKind, Hit, ROM_BAR, Space};
pub use builder::{BuildError, Builder, Identity, Pin};
pub use capability::{Capability, Express, ExpressKind, Msi, MsixCapability, Power};
pub use cells::Byte;
pub use function::{Changes, Function, PowerState};
pub use interrupts::{Mode, MsiState, Window};
pub use msix::{Message, Msix};
pub use pending::Pending;
pub use rom::{Rom, RomError};
pub use saved::{Saved, SavedError};
