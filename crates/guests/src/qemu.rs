//! A guest in QEMU: its configuration, and the command line derived from it.

mod accel;
mod snapshot;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    command::entered,
    error::{Error, file},
    guest::{Launch, Machine},
    image::Image,
    kernel::Kernel,
    root::Root,
};
use crate::folder::Folder;

pub use accel::Accel;

/// For every kernel: messages go to the console that we read, a panic ends the guest instead of hanging it, and work that a short-lived
/// guest does not need is left out. `no_timer_check`: on a busy host a translated guest may get no timer tick while the kernel counts
/// them (arch/x86/kernel/apic/io_apic.c, timer_irq_works), which is a panic. `tsc=nowatchdog`: for the same reason the watchdog would
/// declare the clock unstable and fall back to one whose every reading leaves the translated code. This happened in one guest of two.
/// `initcall_blacklist`: work at boot that no adapter needs, a fifth of the kernel's instructions before its first process: a self-test of a
/// source of randomness, probes for tracing, and the kernel's own certificates.
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
    "initcall_blacklist=jent_mod_init,init_kprobe_trace,load_system_certificate_list",
];

/// Source of a guest's kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Start {
    /// QEMU loads the kernel.
    #[default]
    Direct,
    /// None boots: the guest goes on where one with this kernel was saved, without adapters, and finds its own by a rescan of its PCI bus.
    /// A reboot loads the kernel as `Direct` does. A guest that cannot be one of several like it (KVM, several processors, a terminal, an
    /// archive of its own, words for the kernel) boots instead.
    Saved,
    /// The firmware loads the kernel over an adapter. The boot server must pass the words of [`GuestConfig::command_line`].
    Network,
}

/// The kind of a guest's memory, as seen by a server outside QEMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Memory {
    /// A file that both share. vfio-user and vhost-user need it.
    #[default]
    Shared,
    /// A file that QEMU passes on, while the guest's writes stay in QEMU's own copies: `share=off`.
    Private,
    /// No file; QEMU's default.
    Anonymous,
}

/// Configuration of a guest.
#[derive(Debug, Clone)]
pub struct GuestConfig {
    /// Its kernel.
    pub kernel: Kernel,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Number of processors.
    pub cpus: u32,
    /// The accelerator that runs its instructions.
    pub accel: Accel,
    /// QEMU's machine type with its options, `q35` or `pc`.
    pub machine: String,
    /// Interfaces to bring up, `eth0:10.0.0.2/24`. Booting ends when each of them has carrier.
    pub addresses: Vec<String>,
    /// Drivers to load, in order. Empty: those of the PCI devices. `none`: no driver.
    pub drivers: Vec<String>,
    /// Source of the kernel.
    pub start: Start,
    /// A socket by which a [`Terminal`](super::Terminal) types into the console. QEMU waits for its connection before it starts.
    pub terminal: Option<PathBuf>,
    /// The kind of memory, as seen by a server outside QEMU.
    pub memory: Memory,
    /// Command prefix of QEMU, for example to enter a [`Namespace`](super::Namespace).
    pub entrance: Vec<String>,
    /// An initramfs archive to unpack after the guest's own, if QEMU loads them.
    pub archive: Option<PathBuf>,
    /// Additional words for the kernel's command line.
    pub append: Vec<String>,
    /// Arguments for QEMU: the adapters and their back ends.
    pub devices: Vec<String>,
    /// Time limit until the guest answers.
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

    /// Adds one of QEMU's own adapters (`e1000`), with a `-netdev` of this type and options (`user`, `stream,...`).
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
        words.extend(self.words());
        words.extend(self.append.iter().cloned());
        words.join(" ")
    }

    /// Words for the guest's first process.
    fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if !self.addresses.is_empty() {
            words.push(format!("nicety.ip={}", self.addresses.join(",")));
        }
        if !self.drivers.is_empty() {
            words.push(format!("nicety.modules={}", self.drivers.join(",")));
        }
        words
    }

    /// QEMU's arguments. The console goes to standard error, the control line to standard input and output; neither needs a file or socket.
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
        if self.start != Start::Network {
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

    // Everything else is QEMU's default.
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
        let mut launch = self.direct(root)?;
        let can_be_saved =
            self.cpus == 1 && self.terminal.is_none() && self.archive.is_none() && self.append.is_empty();
        if self.start == Start::Saved && can_be_saved && self.accel.resolve(root)? == Accel::Tcg {
            let saved = snapshot::of(root, self, |base| base.direct(root))?;
            launch.command.arg("-incoming").arg(format!("file:{}", saved.display()));
            launch.settings = Some(snapshot::settings(&self.words()));
        }
        Ok(launch)
    }
}

impl GuestConfig {
    /// The command that boots the guest.
    fn direct(&self, root: &Root) -> Result<Launch, Error> {
        let image = Image::of(root, self.kernel)?;
        let mut command = entered(&self.entrance, root.qemu_command());
        let folder = self.archive.as_ref().map(|_| Folder::new()).transpose()?;
        let initramfs = match (&self.archive, &folder) {
            (Some(archive), Some(folder)) => join(image.initramfs(), archive, folder)?,
            _ => image.initramfs().to_owned(),
        };
        command.args(self.arguments(&image, &initramfs, self.accel.resolve(root)?));
        let title = format!("kernel {} in QEMU", self.kernel);
        Ok(Launch { command, title, boot_limit: self.boot_limit, input: None, companion: None, folder, settings: None })
    }
}

/// Joins two archives. The kernel unpacks the second one after the first.
fn join(first: &Path, second: &Path, folder: &Folder) -> Result<PathBuf, Error> {
    let mut both = fs::read(first).map_err(file("read", first))?;
    both.extend(fs::read(second).map_err(file("read", second))?);
    Ok(folder.write("initramfs.cpio", both)?)
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
