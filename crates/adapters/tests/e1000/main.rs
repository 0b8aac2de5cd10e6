//! The 82540EM and its family under their drivers: offsets and bits are those of Linux's e1000_hw.h, sequences those of its
//! e1000_main.c, e1000_hw.c and e1000_ethtool.c.

mod bench;
mod ethtool;
mod filter;
mod frames;
mod held;
mod hostile;
mod interrupts;
mod models;
mod nuttx;
mod offloads;
mod probe;
mod saved;
mod selftest;
mod storm;
mod table;
mod zephyr;
