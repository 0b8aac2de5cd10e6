//! What is measured between real guests (`nicety-guests`): ping and netperf between a [`pair`], and the benches that `nicety compare
//! --guests qemu` and `uml` stand on.

mod bench;
pub mod netperf;
pub mod pair;

pub use bench::RealBench;
