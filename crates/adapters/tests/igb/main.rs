//! The 82576 under its drivers: offsets and bits are those of Linux's drivers/net/ethernet/intel/igb (e1000_regs.h,
//! e1000_defines.h, e1000_82575.h), sequences those of its igb_main.c, igb_ethtool.c and igb_ptp.c.

#[allow(dead_code, reason = "what wires and frames are is the same for all of Intel's")]
#[path = "../e1000/bench.rs"]
mod bench;
mod frames;
mod guest;
#[path = "../e1000/held.rs"]
mod held;
mod hostile;
mod interrupts;
mod offloads;
mod queues;
mod selftest;
mod stamps;
mod table;
mod virtual_functions;
