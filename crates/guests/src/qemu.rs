//! A guest in QEMU: its configuration, and the command line that follows from it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use super::{
    accel::Accel,
    error::{Error, file},
    guest::{Launch, Machine},
    image::Image,
    kernel::Kernel,
    root::Root,
};
use crate::folder::Folder;

/// For every kernel: messages where we read them, an end instead of a hang after a panic, and no work that a short-lived guest
/// does not need. `no_timer_check`: on a busy host a translated guest may get no timer tick while the kernel counts them
/// (arch/x86/kernel/apic/io_apic.c, timer_irq_works), which is a panic. `tsc=nowatchdog`: for the same reason its watchdog would
/// take the clock for unstable, and fall back to one whose every reading leaves the translated code: in one guest of two.
const KERNEL_WORDS: &[&str] = &[
    "console=ttyS0",
    "quiet",
    "panic=-1",
    "mitigations=off",
    "nokaslr",
    "audit=0",
    "cryptomgr.notests",
    "no_timer_check",
    "tsc=nowatchdog",
];

/// Where a guest's kernel comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Start {
    /// QEMU loads it.
    #[default]
    Direct,
    /// The firmware finds it, over an adapter. It must bring the words of [`GuestConfig::command_line`].
    Network,
}

/// What a guest's memory is to a server outside QEMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Memory {
    /// A file that both see, as vfio-user and vhost-user need it.
    #[default]
    Shared,
    /// A file that QEMU passes on, while what the guest writes stays in copies of QEMU's own: `share=off`.
    Private,
    /// No file: QEMU's default.
    Anonymous,
}

/// What a guest is made of.
#[derive(Debug, Clone)]
pub struct GuestConfig {
    /// Its kernel.
    pub kernel: Kernel,
    /// Its memory in MiB.
    pub memory_mib: u32,
    /// Its processors.
    pub cpus: u32,
    /// What runs its instructions.
    pub accel: Accel,
    /// QEMU's machine with its options, `q35` or `pc`.
    pub machine: String,
    /// Interfaces to bring up, `eth0:10.0.0.2/24`; booting ends when each of them has carrier.
    pub addresses: Vec<String>,
    /// Drivers to load, in order; when empty, whatever the PCI devices ask for; `none` for none.
    pub drivers: Vec<String>,
    /// Where its kernel comes from.
    pub start: Start,
    /// A socket by which a [`Terminal`](super::Terminal) types into its console. QEMU waits for one there before it starts.
    pub terminal: Option<PathBuf>,
    /// What its memory is to a server outside QEMU.
    pub memory: Memory,
    /// Words before QEMU's own command line: how it enters a [`Namespace`](super::Namespace).
    pub entrance: Vec<String>,
    /// An initramfs archive that is unpacked after the guest's own, if QEMU loads them.
    pub archive: Option<PathBuf>,
    /// More words for the kernel's command line.
    pub append: Vec<String>,
    /// Arguments for QEMU: the adapters and what they are connected to.
    pub devices: Vec<String>,
    /// How long it may take until it answers.
    pub boot_limit: Duration,
}

impl GuestConfig {
    /// A guest with one processor, 256 MiB and no adapter.
    pub fn new(kernel: Kernel) -> GuestConfig {
        GuestConfig {
            kernel,
            memory_mib: 256,
            cpus: 1,
            accel: Accel::Auto,
            machine: "q35".into(),
            addresses: Vec::new(),
            drivers: Vec::new(),
            start: Start::Direct,
            terminal: None,
            memory: Memory::Shared,
            entrance: Vec::new(),
            archive: None,
            append: Vec::new(),
            devices: Vec::new(),
            boot_limit: Duration::from_secs(120),
        }
    }

    /// Adds one of QEMU's own adapters (`e1000`), connected to a `-netdev` of type and options (`user`, `stream,...`).
    #[must_use]
    pub fn adapter(mut self, model: &str, netdev: &str) -> GuestConfig {
        let name = format!("n{}", self.devices.len());
        let (kind, options) = netdev.split_once(',').unwrap_or((netdev, ""));
        let comma = if options.is_empty() { "" } else { "," };
        self.devices.extend([
            "-netdev".to_owned(),
            format!("{kind},id={name}{comma}{options}"),
            "-device".to_owned(),
            format!("{model},netdev={name},romfile="),
        ]);
        self
    }

    /// The kernel's command line.
    pub fn command_line(&self) -> String {
        let mut words: Vec<String> = KERNEL_WORDS.iter().map(|word| (*word).to_owned()).collect();
        if !self.addresses.is_empty() {
            words.push(format!("nicety.ip={}", self.addresses.join(",")));
        }
        if !self.drivers.is_empty() {
            words.push(format!("nicety.modules={}", self.drivers.join(",")));
        }
        words.extend(self.append.iter().cloned());
        words.join(" ")
    }

    /// QEMU's arguments. The console goes to its standard error, the control line to its standard input and output: no file, no socket.
    fn arguments(&self, image: &Image, initramfs: &Path, accel: Accel) -> Vec<String> {
        let memory = self.memory_mib;
        let backend = match self.memory {
            Memory::Shared => format!("memory-backend-memfd,id=m,size={memory}M,share=on"),
            Memory::Private => format!("memory-backend-memfd,id=m,size={memory}M,share=off"),
            Memory::Anonymous => format!("memory-backend-ram,id=m,size={memory}M"),
        };
        let mut arguments: Vec<String> =
            ["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"].map(str::to_owned).into();
        let mut pair = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        pair("-run-with", "exit-with-parent=on".into());
        pair("-object", backend);
        pair("-machine", format!("{},memory-backend=m,graphics=off,usb=off,vmport=off", self.machine));
        pair("-m", memory.to_string());
        pair("-accel", accel.argument().into());
        pair("-smp", self.cpus.to_string());
        if self.start == Start::Direct {
            pair("-kernel", image.kernel().display().to_string());
            pair("-initrd", initramfs.display().to_string());
            pair("-append", self.command_line());
        }
        let errors = "/proc/self/fd/2";
        let console = match &self.terminal {
            Some(socket) => format!("socket,id=console,path={},server=on,logfile={errors}", socket.display()),
            None => format!("file,id=console,path={errors}"),
        };
        pair("-chardev", console);
        pair("-serial", "chardev:console".into());
        pair("-chardev", "stdio,id=control,signal=off".into());
        pair("-serial", "chardev:control".into());
        match accel {
            Accel::Kvm => pair("-cpu", "host".into()),
            Accel::Counted => pair("-icount", "shift=0".into()),
            Accel::Auto | Accel::Tcg => {}
        }
        arguments.extend(self.devices.iter().cloned());
        arguments
    }
}

impl Machine for GuestConfig {
    fn vfio_user(mut self, socket: &str) -> GuestConfig {
        let device = serde_json::json!({"driver": "vfio-user-pci", "socket": {"type": "unix", "path": socket}});
        self.devices.extend(["-device".to_owned(), device.to_string()]);
        self
    }

    // With QEMU's defaults otherwise.
    fn vhost_user(mut self, socket: &str, mac: &str) -> GuestConfig {
        let name = format!("n{}", self.devices.len());
        self.devices.extend([
            "-chardev".to_owned(),
            format!("socket,id=c{name},path={socket},reconnect-ms=1000"),
            "-netdev".to_owned(),
            format!("vhost-user,id={name},chardev=c{name}"),
            "-device".to_owned(),
            format!("virtio-net-pci,netdev={name},romfile=,mac={mac}"),
        ]);
        self
    }

    fn address(mut self, interface: &str, address: &str) -> GuestConfig {
        self.addresses.push(format!("{interface}:{address}"));
        self
    }

    fn launch(&self, root: &Root) -> Result<Launch, Error> {
        let image = Image::of(root, self.kernel)?;
        let mut command = entered(&self.entrance, root.qemu_command());
        let folder = self.archive.as_ref().map(|_| Folder::new()).transpose()?;
        let initramfs = match (&self.archive, &folder) {
            (Some(archive), Some(folder)) => join(image.initramfs(), archive, folder)?,
            _ => image.initramfs().to_owned(),
        };
        command.args(self.arguments(&image, &initramfs, self.accel.resolve(root)?));
        let title = format!("kernel {} in QEMU", self.kernel);
        Ok(Launch { command, title, boot_limit: self.boot_limit, input: None, companion: None, folder })
    }
}

/// Two archives, one after the other: the kernel unpacks what follows the first one, too.
fn join(first: &Path, second: &Path, folder: &Folder) -> Result<PathBuf, Error> {
    let mut both = fs::read(first).map_err(file("read", first))?;
    both.extend(fs::read(second).map_err(file("read", second))?);
    Ok(folder.write("initramfs.cpio", both)?)
}

/// `command`, with what it is to be started by before it.
pub(super) fn entered(entrance: &[String], command: Command) -> Command {
    let Some((program, arguments)) = entrance.split_first() else { return command };
    let mut entering = Command::new(program);
    entering.args(arguments).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => entering.env(name, value),
            None => entering.env_remove(name),
        };
    }
    entering
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_of_a_vfio_user_server_is_described_in_qemus_json_form() {
        let config = GuestConfig::new(Kernel::V6_12).vfio_user("/run/n/vm1.sock");
        assert_eq!(config.devices[0], "-device");
        let device: serde_json::Value = serde_json::from_str(&config.devices[1]).expect("it is JSON");
        assert_eq!(device["driver"], "vfio-user-pci");
        assert_eq!(device["socket"]["path"], "/run/n/vm1.sock");
    }

    #[test]
    fn two_adapters_of_qemus_own_get_network_names_of_their_own() {
        let config = GuestConfig::new(Kernel::V6_1).adapter("e1000", "user").adapter("vmxnet3", "stream,server=on");
        let joined = config.devices.join(" ");
        assert_eq!(
            joined,
            "-netdev user,id=n0 -device e1000,netdev=n0,romfile= -netdev stream,id=n4,server=on -device vmxnet3,netdev=n4,romfile="
        );
    }
}
