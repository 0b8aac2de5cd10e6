//! The crate seen from outside: as an operating system's enumeration, a hostile guest and a table of truth see it.

mod devices;
mod enumeration;
mod hostile;
mod message_signalled;
mod registers_agree;
mod rom;
mod saved;
mod sizing;
