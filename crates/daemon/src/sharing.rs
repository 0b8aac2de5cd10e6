//! Whether a VM shares its memory, as far as its port can tell.

use nicety_adapters::About;
use nicety_plane::State;

/// The remedy for a VM that does not share its memory.
pub const SHARE_MEMORY: &str = "the VM does not share its memory: start QEMU with \
     -object memory-backend-memfd,id=mem,size=SIZE,share=on -machine …,memory-backend=mem";

/// The way in which a port learns of its VM's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Its adapter reads and writes none.
    Unused,
    /// The VMM announces all that the adapter may reach, shared or not (vfio-user). Behind an IOMMU that is what the guest's driver has
    /// mapped: at first nothing.
    Announced,
    /// QEMU's vhost-user front end does not announce memory that it cannot share.
    SharedAlone,
}

impl Memory {
    /// The way of a port with this adapter.
    pub fn of(about: &About) -> Self {
        match about.transports.contains(&"vfio-user") {
            _ if !about.dma => Self::Unused,
            true => Self::Announced,
            false => Self::SharedAlone,
        }
    }

    /// Whether a VM does not share its memory: then none of its rings can be read, whatever its driver does.
    pub fn is_unshared(self, state: &State) -> bool {
        // A VM's ROMs and frame buffer have no file, but its RAM is larger than all of them.
        let absent = state.absent_bytes > state.shared_bytes;
        match self {
            Self::Unused => false,
            Self::Announced => absent,
            // Then a driver is up without memory.
            Self::SharedAlone => absent || state.shared_bytes == 0 && !state.features.is_empty(),
        }
    }

    /// Whether a driver is up for whose adapter nothing is mapped.
    pub fn is_empty(self, state: &State) -> bool {
        self == Self::Announced && state.driven && state.shared_bytes == 0
    }
}
