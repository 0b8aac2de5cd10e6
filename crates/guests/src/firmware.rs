//! Firmware with which a machine boots from the network, beside QEMU's own BIOS: UEFI (OVMF), U-Boot, and iPXE as a program. The server
//! is dnsmasq, which speaks DHCP and TFTP. All are Debian's packages, installed beside the root.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    error::{Error, file},
    layer::Layer,
    qemu::GuestConfig,
    u_boot,
};

/// None of them needs its recommended packages.
const PACKAGES: &[&str] = &["ovmf", "u-boot-qemu", "ipxe", "dnsmasq-base"];

/// The installed packages.
#[derive(Debug, Clone)]
pub struct Firmware(Layer);

impl Firmware {
    /// Installs the packages if they are missing. `progress` gets a line for each step.
    ///
    /// # Errors
    /// Those of [`Layer::lay`].
    pub fn lay(progress: &mut dyn FnMut(&str)) -> Result<Firmware, Error> {
        Layer::lay("firmware", PACKAGES, progress).map(Firmware)
    }

    /// The machine with UEFI. A file in this folder holds its variables. It does not try to boot over IPv6.
    ///
    /// # Errors
    /// [`Error::File`] if the folder cannot be written.
    pub fn uefi(&self, mut config: GuestConfig, folder: &Path) -> Result<GuestConfig, Error> {
        let variables = folder.join("variables.fd");
        let fresh = self.0.path("usr/share/OVMF/OVMF_VARS_4M.fd");
        std::fs::copy(&fresh, &variables).map_err(file("copy", &fresh))?;
        let code = self.0.path("usr/share/OVMF/OVMF_CODE_4M.fd");
        let flash = |unit: u8, path: &Path, more: &str| {
            ["-drive".to_owned(), format!("if=pflash,format=raw,unit={unit},file={}{more}", path.display())]
        };
        config.devices.extend(flash(0, &code, ",readonly=on"));
        config.devices.extend(flash(1, &variables, ""));
        config.devices.extend(["-fw_cfg", "name=opt/org.tianocore/IPv6PXESupport,string=n"].map(str::to_owned));
        // Since edk2-stable202405 its network stack wants good random numbers. The processor's instruction gives them; its driver of
        // virtio-rng (VirtioFlush waits until the used index equals its own) hangs for ever when a timer of the network asks meanwhile.
        config.devices.extend(["-cpu", "qemu64,+rdrand"].map(str::to_owned));
        Ok(config)
    }

    /// The machine with U-Boot. The image is for QEMU's `pc`: on `q35` it finds no adapter, not even QEMU's own.
    #[must_use]
    pub fn u_boot(&self, config: GuestConfig) -> GuestConfig {
        with_u_boot(config, &self.0.path("usr/lib/u-boot/qemu-x86/u-boot.rom"))
    }

    /// The same with the drivers that Debian's U-Boot leaves out, pcnet and rtl8139. Builds it if it is missing.
    ///
    /// # Errors
    /// See [`Error`]; each names its remedy.
    pub fn more_of_u_boot(config: GuestConfig, progress: &mut dyn FnMut(&str)) -> Result<GuestConfig, Error> {
        Ok(with_u_boot(config, &u_boot::lay(progress)?))
    }

    /// iPXE as a UEFI program. It reaches the network through the firmware's own driver of the adapter from which it was loaded.
    pub fn ipxe_for_uefi(&self) -> PathBuf {
        self.0.path("usr/lib/ipxe/snponly.efi")
    }

    /// dnsmasq in the foreground, as the current user, with no settings but the arguments that the caller adds.
    pub fn dnsmasq(&self) -> Command {
        let mut command = self.0.program("usr/sbin/dnsmasq");
        command.args([
            "--no-daemon",
            "--conf-file=/dev/null",
            "--no-hosts",
            "--no-resolv",
            "--port=0",
            "--leasefile-ro",
        ]);
        command
    }
}

fn with_u_boot(mut config: GuestConfig, image: &Path) -> GuestConfig {
    config.machine = "pc".into();
    config.devices.extend(["-bios".to_owned(), image.display().to_string()]);
    config
}
