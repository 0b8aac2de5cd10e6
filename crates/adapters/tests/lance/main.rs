//! The PCnet-PCI II under its drivers: numbers are those of AMD's datasheet (19436) and of Linux's pcnet32.c, sequences those of
//! pcnet32.c.

mod bench;
mod eeprom;
mod frames;
mod hostile;
mod interrupts;
mod polling;
mod probe;
mod saved;
mod styles;
