//! The 82574L under its drivers: offsets and bits are those of Linux's drivers/net/ethernet/intel/e1000e (regs.h, defines.h, hw.h),
//! sequences those of its 82571.c, netdev.c and ethtool.c. Rings, wire and memory are the e1000 tests' bench.

#[path = "../e1000/bench.rs"]
#[allow(dead_code, reason = "the e1000's tests use all of it")]
mod bench;
mod clock;
#[path = "../e1000/ethtool.rs"]
mod ethtool;
mod frames;
mod guest;
mod hostile;
mod probe;
mod queues;
mod saved;
mod selftest;
#[path = "../e1000/storm.rs"]
mod storm;
mod table;
mod vectors;
