//! What a machine boots from the network with beside QEMU's own BIOS, and who answers it there: UEFI (OVMF), U-Boot, iPXE as a
//! program, and dnsmasq, which speaks DHCP and TFTP. Debian's packages, laid beside the root.

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

/// Neither needs what it merely recommends.
const PACKAGES: &[&str] = &["ovmf", "u-boot-qemu", "ipxe", "dnsmasq-base"];

/// The packages, laid.
#[derive(Debug, Clone)]
pub struct Firmware(Layer);

impl Firmware {
    /// Lays the packages if they are not there yet; `progress` gets a line for each step.
    ///
    /// # Errors
    /// Those of [`Layer::lay`].
    pub fn lay(progress: &mut dyn FnMut(&str)) -> Result<Firmware, Error> {
        Layer::lay("firmware", PACKAGES, progress).map(Firmware)
    }

    /// The machine with UEFI, whose variables are kept in a file of this folder. It asks no IPv6 network to boot from.
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
        // Its network asks for good random numbers since edk2-stable202405, which a translated processor does not have.
        config.devices.extend(["-device", "virtio-rng-pci"].map(str::to_owned));
        Ok(config)
    }

    /// The machine with U-Boot. Its image is for QEMU's `pc`: on `q35` it finds no adapter, QEMU's own neither.
    #[must_use]
    pub fn u_boot(&self, config: GuestConfig) -> GuestConfig {
        with_u_boot(config, &self.0.path("usr/lib/u-boot/qemu-x86/u-boot.rom"))
    }

    /// The same with the drivers that Debian's U-Boot leaves out, pcnet and rtl8139. It is built if it is not there yet.
    ///
    /// # Errors
    /// See [`Error`]; each says what to do.
    pub fn more_of_u_boot(config: GuestConfig, progress: &mut dyn FnMut(&str)) -> Result<GuestConfig, Error> {
        Ok(with_u_boot(config, &u_boot::lay(progress)?))
    }

    /// iPXE as a program of UEFI, which reaches the network by the firmware's own driver of the adapter that it came from.
    pub fn ipxe_for_uefi(&self) -> PathBuf {
        self.0.path("usr/lib/ipxe/snponly.efi")
    }

    /// dnsmasq in the foreground, with no settings but the ones that follow, as the user who starts it.
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
