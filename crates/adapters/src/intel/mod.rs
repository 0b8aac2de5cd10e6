//! Intel's network controllers: a folder for each kind of chip, and the parts that the chips share: register names, EEPROM, PHY,
//! receive filters, statistics, one transmit ring and one receive ring. `mac` puts them together; a chip is a `Mac` with its own facts.

mod clock;
pub mod e1000;
pub mod e1000e;
mod eeprom;
mod fault;
mod filter;
mod flow;
pub mod igb;
mod lost;
mod mac;
mod nvm;
mod pages;
mod phy;
mod ptp;
mod receive;
pub mod registers;
mod rss;
mod statistics;
mod transmit;
pub mod vf;

/// Bytes of a descriptor of either ring; the unit of longer descriptors.
const DESCRIPTOR: usize = 16;

/// A ring outside guest memory.
const NOWHERE: &str = "the ring lies where no memory is";
/// Expectations of a ring's registers.
const TRANSMIT_RING_EXPECTED: &str = "a ring in guest memory (TDBAL, TDBAH; TDLEN bytes)";
const RECEIVE_RING_EXPECTED: &str = "a ring in guest memory (RDBAL, RDBAH; RDLEN bytes)";
