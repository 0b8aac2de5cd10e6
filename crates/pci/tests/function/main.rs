//! The crate seen from outside: by an operating system's enumeration, a hostile guest, and a table of known values.

mod devices;
mod enumeration;
mod hostile;
mod message_signalled;
mod pending;
mod registers_agree;
mod rom;
mod saved;
mod sizing;
