//! A guest of a person's own disk image, in QEMU: it boots by itself, and nothing of it is known but what it does on the network.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    command::entered,
    error::{Error, file},
    guest::{Launch, Machine},
    qemu::Accel,
    root::Root,
};

/// Bytes of a disk's boot sector.
const SECTOR_BYTES: u64 = 512;

/// The format of a disk image by its first bytes: `qcow2` (docs/interop/qcow2.rst in QEMU), or `raw` with the boot sector's mark at its end
/// (BIOS Boot Specification 1.01, 6.5.1). None: a BIOS boots nothing from it.
///
/// # Errors
/// It cannot be read.
pub fn disk_format(image: &Path) -> io::Result<Option<&'static str>> {
    let mut sector = Vec::new();
    File::open(image)?.take(SECTOR_BYTES).read_to_end(&mut sector)?;
    let format = if sector.starts_with(b"QFI\xfb") { "qcow2" } else { "raw" };
    Ok((format == "qcow2" || sector.get(510..) == Some(&[0x55, 0xaa])).then_some(format))
}

/// Configuration of such a guest.
#[derive(Debug, Clone)]
pub struct DiskConfig {
    /// The image: raw or qcow2. What the guest writes is dropped at its end (qemu-system(1), `-snapshot`).
    pub image: PathBuf,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// The accelerator that runs its instructions.
    pub accel: Accel,
    /// Command prefix of QEMU, for example to enter a [`Namespace`](super::Namespace).
    pub entrance: Vec<String>,
    /// Arguments for QEMU: the adapters and their back ends.
    pub devices: Vec<String>,
}

impl DiskConfig {
    /// Adds one of QEMU's own adapters (`e1000`), with a `-netdev` of this type and options (`tap,ifname=q0`).
    #[must_use]
    pub fn adapter(mut self, model: &str, netdev: &str) -> DiskConfig {
        let (kind, options) = netdev.split_once(',').unwrap_or((netdev, ""));
        let comma = if options.is_empty() { "" } else { "," };
        let netdev = format!("{kind},id=n0{comma}{options}");
        self.devices.extend([
            "-netdev".to_owned(),
            netdev,
            "-device".to_owned(),
            format!("{model},netdev=n0,romfile="),
        ]);
        self
    }
}

impl Machine for DiskConfig {
    fn vfio_user(mut self, socket: &str) -> DiskConfig {
        let device = serde_json::json!({"driver": "vfio-user-pci", "socket": {"type": "unix", "path": socket}});
        self.devices.extend(["-device".to_owned(), device.to_string()]);
        self
    }

    fn vhost_user(mut self, socket: &str, mac: &str) -> DiskConfig {
        self.devices.extend([
            "-chardev".to_owned(),
            format!("socket,id=c0,path={socket},reconnect-ms=1000"),
            "-netdev".to_owned(),
            "vhost-user,id=n0,chardev=c0".to_owned(),
            "-device".to_owned(),
            format!("virtio-net-pci,netdev=n0,romfile=,mac={mac}"),
        ]);
        self
    }

    /// Its system asks for its addresses by DHCP.
    fn address(self, _interface: &str, _address: &str) -> DiskConfig {
        self
    }

    fn launch(&self, root: &Root) -> Result<Launch, Error> {
        let memory = self.memory_mib;
        let mut command = entered(&self.entrance, root.qemu_command());
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-vga", "std"]);
        command.args(["-run-with", "exit-with-parent=on"]);
        command.args(["-object", &format!("memory-backend-memfd,id=m,size={memory}M,share=on")]);
        // IDE of the PIIX3: the disk that every system since the nineties has a driver for.
        command.args(["-machine", "pc,memory-backend=m", "-m", &memory.to_string()]);
        let accel = self.accel.resolve(root)?;
        command.args(["-accel", accel.argument()]);
        if accel == Accel::Kvm {
            command.args(["-cpu", "host"]);
        }
        let format = disk_format(&self.image).map_err(file("read", &self.image))?.unwrap_or("raw");
        let path = self.image.display().to_string().replace(',', ",,");
        command.args(["-drive", &format!("file={path},format={format},if=ide,snapshot=on")]);
        command.args(["-chardev", "file,id=console,path=/proc/self/fd/2", "-serial", "chardev:console"]);
        command.args(&self.devices);
        Ok(Launch {
            command,
            title: format!("{} in QEMU", self.image.display()),
            boot_limit: Duration::ZERO,
            input: None,
            companion: None,
            folder: None,
            settings: None,
        })
    }
}
