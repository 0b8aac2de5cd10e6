//! Virtual functions under their drivers; the 82599's in `ixgbe.rs`. Of the 82576's offsets and bits are those of Linux's drivers/net/ethernet/intel/igbvf (regs.h,
//! defines.h, mbx.h), sequences those of its vf.c, mbx.c and netdev.c, and answers those of igb_main.c.

#[allow(dead_code, reason = "what wires and frames are is the same for all of Intel's")]
#[path = "../e1000/bench.rs"]
mod bench;
mod frames;
mod guest;
mod interrupts;
mod ixgbe;
mod killed;
mod mailbox;
mod table;
