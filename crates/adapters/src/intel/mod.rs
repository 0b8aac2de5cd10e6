//! Intel's network controllers: a folder for each kind of chip, and beside them what the chips share: the names of their
//! registers, the EEPROM, the PHY, the receive filters, the statistics, one transmit ring and one receive ring.

mod clock;
pub mod e1000;
pub mod e1000e;
mod eeprom;
mod filter;
mod flow;
pub mod igb;
mod nvm;
mod pages;
mod phy;
mod ptp;
mod receive;
pub mod registers;
mod rss;
mod statistics;
mod transmit;

/// Bytes of a descriptor, of either ring; of those that are longer, the unit.
const DESCRIPTOR: usize = 16;

/// A ring that lies in no memory.
const NOWHERE: &str = "the ring lies where no memory is";
