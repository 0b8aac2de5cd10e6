//! Guests in user mode: a Linux kernel built as a program (`ARCH=um`, Documentation/virt/uml). Its unmodified drivers run at the host's
//! own speed, without KVM, without translation and without root rights. It answers within a second.
//!
//! [`UmlKernel::lay`] builds the kernel once, from Debian's source package and the PCI host driver in `crates/guests/uml/`, which speaks
//! vfio-user. [`UmlConfig`] is a [`Machine`](super::Machine) that [`Guest`](super::Guest) boots like any other. [`Endurance`] starts and
//! ends many of them, one after another.

mod build;
mod endurance;
mod held;
mod kernel;
mod machine;
mod memory;
mod source;
mod tools;

pub(super) use build::missing;
pub use endurance::{End, Endurance, Life};
pub use kernel::UmlKernel;
pub(super) use machine::KERNEL_WORDS;
pub use machine::{Model, UmlConfig};
pub(super) use memory::folder_for_memory;
pub use tools::Tools;
