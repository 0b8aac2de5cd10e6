//! Description of an adapter, for a person who must choose one. Each fact has its source.

/// Origin of a device model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Imitates a chip: most systems have a driver, but every frame costs emulation work.
    Emulated,
    /// Designed for virtual machines: fast, but needs its own driver.
    Paravirtual,
}

/// First version of an operating system that includes the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    /// The driver's name in that system.
    pub driver: &'static str,
    /// The first version, as text.
    pub version: &'static str,
    /// Source of this fact.
    pub source: &'static str,
}

/// Source of each fact of an [`About`], or the reason why Nicety chose the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sources {
    /// The specification that the code follows.
    pub chip: &'static str,
    /// Source of [`About::pci`].
    pub pci: &'static str,
    /// Source of [`About::link_mbps`].
    pub link: &'static str,
    /// Source of [`About::offloads`].
    pub offloads: &'static str,
    /// Source of [`About::queues`].
    pub queues: &'static str,
    /// Source of [`About::mtu_max`].
    pub mtu: &'static str,
}

/// Third-party firmware that boots a guest from the network through an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boot {
    /// Its usual option ROM, built by iPXE and shipped by QEMU and Debian (`ipxe-qemu`): `pxe-NAME.rom` for a BIOS, `efi-NAME.rom`
    /// for UEFI.
    pub rom: Option<&'static str>,
    /// U-Boot's driver, if it has one.
    pub u_boot: Option<UBoot>,
}

/// U-Boot's driver of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UBoot {
    /// U-Boot's name for the first such device.
    pub device: &'static str,
    /// Whether Debian's build for QEMU's PC (`u-boot-qemu`) has the driver.
    pub in_debians: bool,
}

/// Description of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// Name in host files and on command lines.
    pub name: &'static str,
    /// The chip, or the specification.
    pub chip: &'static str,
    /// Emulated or paravirtual.
    pub kind: Kind,
    /// PCI vendor and device.
    pub pci: (u16, u16),
    /// Whether it can announce to its driver that it is a standby for another adapter.
    pub stands_by: bool,
    /// VMware's PCI subsystem vendor and device, if a port can have those instead of the chip's.
    pub vmware_subsystem: Option<(u16, u16)>,
    /// Link speed that the guest sees, in Mbit/s. It never limits traffic.
    pub link_mbps: u32,
    /// Guests that see another speed or none, as text.
    pub link_unless: Option<&'static str>,
    /// Offloads of the device, as text.
    pub offloads: &'static [&'static str],
    /// Maximum number of queue pairs.
    pub queues: u16,
    /// Largest MTU in bytes.
    pub mtu_max: u32,
    /// Whether it tells its driver the port's MTU, so that the guest needs no setting of its own.
    pub announces_mtu: bool,
    /// Whether its driver can have it receive frames for other stations, as a bridge in the guest needs.
    pub promiscuous: bool,
    /// Whether it accesses guest memory by DMA. An adapter without DMA works in a VM that does not share its memory.
    pub dma: bool,
    /// Network boot of a guest through it.
    pub boot: Boot,
    /// Linux's driver.
    pub linux: Since,
    /// Windows's driver.
    pub windows: Since,
    /// Sources of the other facts.
    pub sources: Sources,
    /// Name of QEMU's own model of it (`-device`), if it has one.
    pub qemu: Option<&'static str>,
    /// Transports that serve it: "vfio-user", "vhost-user".
    pub transports: &'static [&'static str],
}

impl About {
    /// Whether Linux itself includes the driver, with a version; otherwise the driver came from elsewhere.
    pub fn in_linux(&self) -> bool {
        self.linux.version.starts_with(|first: char| first.is_ascii_digit())
    }
}
