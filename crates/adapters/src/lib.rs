//! Virtual network adapters, a folder per family, and the registry through which all else finds them: the program, the conformance
//! suite, the hostile guest, the fuzzer, the lab and the documentation.
//!
//! A new adapter needs a folder here and a line in [`REGISTRY`].
//!
//! To put an adapter into a VMM of your own, begin with `crates/plane/examples/vmm.rs`: two guests, a switch, a frame. `messages.rs` beside
//! it delivers MSI-X messages. The book's page "Using the crates in a program of your own" explains both.
#![forbid(unsafe_code)]

pub mod about;
mod block;
mod charge;
pub mod intel;
pub mod lance;
mod microwire;
mod msix;
pub mod ne2000;
mod pieces;
mod registry;
pub mod rtl8139;
mod settings;
pub mod virtio_net;
pub mod vmxnet;
pub mod vmxnet3;

pub use about::{About, Boot, Kind, Since, Sources, UBoot};
pub use registry::{Card, Entry, REGISTRY, find};
pub use settings::{CreateError, Settings};
