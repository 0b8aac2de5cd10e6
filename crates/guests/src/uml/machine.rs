//! A guest in user mode: its configuration, and the command line derived from it (Documentation/virt/uml).

use std::{
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::Stdio,
    time::Duration,
};

use super::{
    super::{
        command::{ends_with_us, entered},
        companion::Companion,
        error::Error,
        guest::{Launch, Machine},
        image::initramfs,
        root::Root,
    },
    kernel::UmlKernel,
    memory::folder_for_memory,
};
use crate::folder::Folder;

/// For every kernel: messages go where we read them, the control line is the second serial port as in QEMU, and a panic ends the guest
/// instead of hanging it. `seccomp=on`: its processes make their system calls by a signal rather than under ptrace(2), which is faster.
/// It does not protect the guest's own memory from its programs. That does not matter, because they run as the guest's root.
pub(in super::super) const KERNEL_WORDS: &[&str] = &[
    "seccomp=on",
    "con=null",
    "ssl=null",
    "ssl0=null,fd:2",
    "console=ttyS0",
    "quiet",
    "panic=-1",
    "noreboot",
    "nicety.modules=none",
];

/// One of QEMU's own adapters, served by a QEMU to another process (its machine `x-remote`).
#[derive(Debug, Clone)]
pub struct Model {
    /// The adapter with its options, `e1000,mac=52:54:00:00:00:01`.
    pub device: String,
    /// The back end, `tap,ifname=q1,script=no,downscript=no`.
    pub netdev: String,
    /// Command prefix of QEMU, for example to enter a [`Namespace`](super::super::Namespace).
    pub entrance: Vec<String>,
}

impl Model {
    /// Starts QEMU. It ends when the other end of `socket` closes.
    fn start(&self, root: &Root, before: &[String], socket: UnixStream) -> Result<Companion, Error> {
        let (kind, options) = self.netdev.split_once(',').unwrap_or((&self.netdev, ""));
        let comma = if options.is_empty() { "" } else { "," };
        let mut command = entered(&self.entrance, entered(before, root.qemu_command()));
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none"]);
        command.args(["-run-with", "exit-with-parent=on", "-machine", "x-remote"]);
        command.args(["-netdev", &format!("{kind},id=h{comma}{options}")]);
        command.args(["-device", &format!("{},id=n0,netdev=h", self.device)]);
        command.args(["-object", "x-remote-object,id=r0,devid=n0,fd=0"]);
        command.stdin(Stdio::from(OwnedFd::from(socket))).stdout(Stdio::null());
        let failed = |error: std::io::Error| Error::Run { doing: "starting QEMU".into(), said: error.to_string() };
        Companion::start(command).map_err(failed)
    }
}

/// Configuration of a user-mode guest.
#[derive(Debug, Clone)]
pub struct UmlConfig {
    /// Its kernel.
    pub kernel: UmlKernel,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Number of processors.
    pub cpus: u32,
    /// Interfaces to bring up, `eth0:10.0.0.2/24`. Booting ends when each of them has carrier.
    pub addresses: Vec<String>,
    /// Adapters, as words of the kernel's command line.
    pub devices: Vec<String>,
    /// The first adapter, if QEMU has to serve it.
    pub model: Option<Model>,
    /// Additional words for the kernel's command line.
    pub append: Vec<String>,
    /// Command prefix of the guest and of a QEMU that serves it, to bind both to a processor.
    pub before: Vec<String>,
    /// Time limit until the guest answers.
    pub boot_limit: Duration,
}

impl UmlConfig {
    /// A guest with one processor, 256 MiB and no adapter.
    pub fn new(kernel: &UmlKernel) -> UmlConfig {
        UmlConfig {
            kernel: kernel.clone(),
            memory_mib: 256,
            cpus: 1,
            addresses: Vec::new(),
            devices: Vec::new(),
            model: None,
            append: Vec::new(),
            before: Vec::new(),
            boot_limit: Duration::from_secs(30),
        }
    }

    /// Words of its command line that do not depend on the host.
    fn words(&self) -> Vec<String> {
        let mut words: Vec<String> = KERNEL_WORDS.iter().map(|word| (*word).to_owned()).collect();
        words.push(format!("mem={}M", self.memory_mib));
        if self.cpus > 1 {
            words.push(format!("ncpus={}", self.cpus));
        }
        if !self.addresses.is_empty() {
            words.push(format!("nicety.ip={}", self.addresses.join(",")));
        }
        words.push(if self.model.is_some() { "ssl1=fd:1,fd:1" } else { "ssl1=fd:0,fd:1" }.to_owned());
        words.extend(self.model.iter().map(|_| "x_remote.device=fd:0".to_owned()));
        words.extend(self.devices.iter().chain(&self.append).cloned());
        words
    }
}

impl Machine for UmlConfig {
    fn vfio_user(mut self, socket: &str) -> UmlConfig {
        self.devices.push(format!("vfio_user.device={socket}"));
        self
    }

    // 1 is virtio's device ID of a network adapter. The server sets its address.
    fn vhost_user(mut self, socket: &str, _mac: &str) -> UmlConfig {
        self.devices.push(format!("virtio_uml.device={socket}:1"));
        self
    }

    fn address(mut self, interface: &str, address: &str) -> UmlConfig {
        self.addresses.push(format!("{interface}:{address}"));
        self
    }

    /// The kernel becomes a session of its own. Its programs are processes that end with it, by their own PR_SET_PDEATHSIG.
    fn launch(&self, root: &Root) -> Result<Launch, Error> {
        let folder = Folder::new()?;
        let mut command = ends_with_us();
        command.args(&self.before).arg(self.kernel.program()).args(self.words());
        command.arg(format!("initrd={}", initramfs(root, "user-mode", None)?.display()));
        // Folder for the file with its process ID.
        command.arg(format!("uml_dir={}/", folder.path().display()));
        command.env("TMPDIR", folder_for_memory(self.memory_mib)?);
        let title = format!("kernel {} in user mode", self.kernel.release());
        let served = self.model.as_ref().map(|model| {
            let failed =
                |error: std::io::Error| Error::Run { doing: "making a socket".into(), said: error.to_string() };
            let (own, its) = UnixStream::pair().map_err(failed)?;
            Ok::<_, Error>((model.start(root, &self.before, its)?, OwnedFd::from(own)))
        });
        let (companion, input) = served.transpose()?.unzip();
        Ok(Launch {
            command,
            title,
            boot_limit: self.boot_limit,
            input,
            companion,
            folder: Some(folder),
            settings: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_program_whose_parent_has_gone_before_it_asked_to_end_with_it_does_not_begin() {
        let mut own = ends_with_us();
        let begun = own.args(["echo", "it's begun"]).output().unwrap();
        assert_eq!(begun.stdout, b"it's begun\n");
        // The parent is another process than ours.
        let mut other = Command::new("sh");
        other.args(["-c", "\"$@\"; echo ended", "sh"]).arg(own.get_program()).args(own.get_args());
        assert_eq!(other.output().unwrap().stdout, b"ended\n");
    }
}
