//! The RTL8029AS under its drivers: numbers are those of Linux's 8390.h, sequences those of its ne2k-pci.c and lib8390.c, and of
//! iPXE's ns8390.c.

mod bench;
mod driver;
mod frames;
mod hostile;
mod interrupts;
mod killed;
mod polled;
mod ports;
mod races;
