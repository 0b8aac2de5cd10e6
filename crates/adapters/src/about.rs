//! What an adapter is, for a person who must choose one. Each fact has its source.

/// How it came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It imitates a chip: drivers for it are everywhere, and it costs work for every frame.
    Emulated,
    /// It was designed for virtual machines: fast, and needs its own driver.
    Paravirtual,
}

/// Since when an operating system carries its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    /// The driver's name there.
    pub driver: &'static str,
    /// The first version, in words.
    pub version: &'static str,
    /// Where this was read.
    pub source: &'static str,
}

/// Where each fact of an [`About`] was read; or that Nicety chose it, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sources {
    /// The specification that the code follows.
    pub chip: &'static str,
    /// Of [`About::pci`].
    pub pci: &'static str,
    /// Of [`About::link_mbps`].
    pub link: &'static str,
    /// Of [`About::offloads`].
    pub offloads: &'static str,
    /// Of [`About::queues`].
    pub queues: &'static str,
    /// Of [`About::mtu_max`].
    pub mtu: &'static str,
}

/// How other people's firmware boots a guest from the network by an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boot {
    /// Its usual option ROM, which iPXE makes and QEMU and Debian (`ipxe-qemu`) bring: `pxe-NAME.rom` for a BIOS, `efi-NAME.rom` for
    /// UEFI.
    pub rom: Option<&'static str>,
    /// U-Boot's driver, if it has one.
    pub u_boot: Option<UBoot>,
}

/// U-Boot's driver of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UBoot {
    /// What it calls the first one.
    pub device: &'static str,
    /// Whether Debian's build for QEMU's PC (`u-boot-qemu`) has the driver.
    pub in_debians: bool,
}

/// An adapter, described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// Its name in host files and on command lines.
    pub name: &'static str,
    /// The chip, or the specification.
    pub chip: &'static str,
    /// Emulated or paravirtual.
    pub kind: Kind,
    /// PCI vendor and device.
    pub pci: (u16, u16),
    /// Whether it can tell its driver that it stands by for another adapter.
    pub stands_by: bool,
    /// PCI subsystem vendor and device of VMware's, if a port can have those instead of the chip's.
    pub vmware_subsystem: Option<(u16, u16)>,
    /// The link speed that it shows, in Mbit/s. Never a limit.
    pub link_mbps: u32,
    /// Where a guest is shown another speed, or none.
    pub link_unless: Option<&'static str>,
    /// Offloads of the device, in words.
    pub offloads: &'static [&'static str],
    /// Queue pairs at most.
    pub queues: u16,
    /// Largest MTU in bytes.
    pub mtu_max: u32,
    /// Whether it tells its driver the port's MTU, so that the guest needs no setting of its own.
    pub announces_mtu: bool,
    /// Whether it reads and writes the guest's memory by itself. One that does not works in a VM that does not share it.
    pub dma: bool,
    /// How a guest boots from the network by it.
    pub boot: Boot,
    /// Linux's driver.
    pub linux: Since,
    /// Windows's driver.
    pub windows: Since,
    /// Where the other facts were read.
    pub sources: Sources,
    /// The name of QEMU's own model of it (`-device`), if it has one.
    pub qemu: Option<&'static str>,
    /// The transports that serve it: "vfio-user", "vhost-user".
    pub transports: &'static [&'static str],
}

impl About {
    /// Whether Linux itself has the driver, and since when is said by a version; else it came with something else.
    pub fn in_linux(&self) -> bool {
        self.linux.version.starts_with(|first: char| first.is_ascii_digit())
    }
}
