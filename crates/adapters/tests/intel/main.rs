//! Rules for every chip of Intel's family: faults of other models, and interrupts that must not be lost.

#[path = "../e1000/bench.rs"]
#[allow(dead_code, reason = "the e1000's tests use all of it")]
mod bench;
mod chip;
mod cve;
mod cve_transmit;
mod driver;
mod flow;
mod races;
mod tails;
