//! Real machines: an unmodified Debian kernel in an unmodified QEMU, installed and booted without root rights and without KVM
//! (ARCHITECTURE.md, floor 5).
//!
//! [`Root::lay`] downloads QEMU, its firmware, two kernels and the measurement programs from the machine's own Debian mirror and
//! installs them into a private folder that every clone shares. [`Image`] makes an initramfs of them. [`Guest`] boots it and runs
//! command lines in it. [`Namespace`] is a network of their own, [`Served`] a daemon of ours in it. [`uml`] has guests that need no
//! QEMU: a kernel built as a program. `cargo xtask guests`, `nicety try` and the lab's real guests use this crate.
//!
//! ```no_run
//! # fn main() -> Result<(), nicety_guests::Error> {
//! use std::time::Duration;
//! use nicety_guests::{Guest, GuestConfig, Kernel, Root};
//!
//! let root = Root::lay(&mut |line| eprintln!("{line}"))?;
//! let mut guest = Guest::boot(&root, GuestConfig {
//!     addresses: vec!["eth0:10.0.0.2/24".into()],
//!     devices: vec!["-netdev".into(), "user,id=n".into(), "-device".into(), "e1000,netdev=n,romfile=".into()],
//!     ..GuestConfig::new(Kernel::V6_12)
//! })?;
//! print!("{}", guest.run("ethtool -i eth0", Duration::from_secs(10))?.text);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
// These macros panic when the terminal is gone. The caller decides where a line for a person goes.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod apt;
mod cache_folder;
mod children;
mod command;
mod companion;
mod console;
mod control;
mod cpio;
mod debian;
mod disk;
mod error;
mod etcd;
mod firmware;
mod folder;
mod guest;
mod hosted;
mod image;
mod kernel;
mod layer;
mod namespace;
mod processor;
mod qemu;
mod root;
mod served;
mod spawn;
mod terminal;
mod tool;
mod u_boot;
mod uio;
pub mod uml;
mod valgrind;

pub use children::end_children;
pub use companion::Companion;
pub use cpio::Archive;
pub use debian::{Backports, Debian, DebianGuest, Suite};
pub use disk::{DiskConfig, disk_format};
pub use error::Error;
pub use etcd::Etcd;
pub use firmware::Firmware;
pub use folder::{Folder, FolderError};
pub use guest::{Guest, Launch, Machine, Output};
pub use hosted::{Hosted, Programs};
pub use image::Image;
pub use kernel::Kernel;
pub use layer::Layer;
pub use namespace::{Namespace, Process};
pub use processor::processes_of_group;
pub use qemu::{Accel, GuestConfig, Memory, Start};
pub use root::{Package, Root, cache};
pub use served::{Counts, Link, Port, Served, Setup};
pub use terminal::Terminal;
pub use tool::Tool;
pub use uio::{Tap, Uio};
pub use valgrind::Valgrind;
