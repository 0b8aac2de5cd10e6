//! A protection on its way from a daemon to the next one.

use std::io;

use nicety_protect::Kept;

use super::carrier::Still;

/// The state that a VM's thread gives to the next daemon's.
#[derive(Debug)]
pub(crate) struct Left {
    /// The VM's name.
    pub vm: String,
    /// The run of its QEMU.
    pub run: u64,
    /// Its part of the protection.
    pub kept: Kept,
    /// Its stream.
    pub still: Still,
}

impl Left {
    /// The same, with another descriptor of QEMU's end.
    pub fn another(&self) -> io::Result<Self> {
        let Self { vm, run, kept, still: Still { qemu, rest, carried, traffic } } = self;
        let still = Still { qemu: qemu.try_clone()?, rest: rest.clone(), carried: *carried, traffic: *traffic };
        Ok(Self { vm: vm.clone(), run: *run, kept: *kept, still })
    }
}
