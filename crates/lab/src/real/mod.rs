//! Measurements between real guests (`nicety-guests`): ping and netperf between a [`pair`], and the benches of `nicety compare
//! --guests qemu` and `uml`.

mod bench;
pub mod bonded;
pub mod iperf;
pub mod joined;
pub mod native;
pub mod netperf;
pub mod network_boot;
pub mod outside;
pub mod own;
pub mod pair;
pub mod twins;
pub mod veth;
mod wait;

use bench::subjects_outside;
pub use bench::{Pairs, RealBench, Standing, subjects};
pub use wait::Watch;
pub(crate) use wait::quoted;
