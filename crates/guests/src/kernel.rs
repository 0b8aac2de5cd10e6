//! The kernels of real guests, and their network drivers.

use std::{fmt, str::FromStr};

/// A kernel that a real guest can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// Debian 12's kernel, 6.1.
    V6_1,
    /// Debian 13's kernel, 6.12.
    V6_12,
}

impl Kernel {
    /// All kernels, oldest first.
    pub const ALL: [Kernel; 2] = [Kernel::V6_1, Kernel::V6_12];

    /// The short version, `6.1` or `6.12`.
    pub fn version(self) -> &'static str {
        match self {
            Kernel::V6_1 => "6.1",
            Kernel::V6_12 => "6.12",
        }
    }

    /// The drivers that are laid of it.
    pub(super) fn drivers(self) -> Vec<&'static str> {
        let later = if self == Kernel::V6_12 { LATER_DRIVERS } else { &[] };
        [DRIVERS, later].concat()
    }

    /// The Debian suite of its package.
    pub(super) fn suite(self) -> &'static str {
        match self {
            Kernel::V6_1 => "bookworm",
            Kernel::V6_12 => "trixie",
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.version())
    }
}

impl FromStr for Kernel {
    type Err = String;

    fn from_str(text: &str) -> Result<Kernel, String> {
        Kernel::ALL
            .into_iter()
            .find(|kernel| kernel.version() == text)
            .ok_or_else(|| format!("`{text}` is no kernel of ours: 6.1 or 6.12"))
    }
}

/// The drivers that a guest needs: one per adapter family, those of the measurements, and those that hand an adapter to a program.
pub(super) const DRIVERS: &[&str] = &[
    "virtio_pci",
    "virtio_net",
    "e1000",
    "e1000e",
    "igb",
    "igbvf",
    "ixgbevf",
    "vmxnet3",
    "pcnet32",
    "ne2k-pci",
    "8139cp",
    "8139too",
    "8021q",
    "vxlan",
    "geneve",
    "bonding",
    "pktgen",
    "failover",
    "net_failover",
    "uio_pci_generic",
    "vfio-pci",
    "vfio_iommu_type1",
    "tun",
];

/// Drivers that only the newer kernel has: `# CONFIG_VIRTIO_IOMMU is not set` in 6.1, in all of its flavours.
pub(super) const LATER_DRIVERS: &[&str] = &["virtio_iommu"];
