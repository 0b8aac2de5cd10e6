//! A user-mode guest whose files are its host's own (`crates/guests/host-root`): the host's root by hostfs, read-only, under a memory that
//! takes what is written. Its first serial console is a socket that the owner holds, and so are further lines.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::io::{FdFlags, fcntl_setfd};

use super::{
    error::Error,
    guest::{Guest, Launch},
    namespace::quoted,
    root::Root,
    uml::{KERNEL_WORDS, UmlConfig, ends_with_us, folder_for_memory},
};
use crate::folder::Folder;

/// The guest's first process, after the lines that [`Hosted::settings`] writes.
const INIT: &str = concat!(include_str!("../control"), include_str!("../host-root"));
/// What it runs. A host that has all of it needs no private root.
const NEEDED: &[&str] =
    &["sh", "mount", "mkdir", "rm", "chmod", "chroot", "ip", "stty", "setsid", "timeout", "sleep", "uname"];

/// Where such a guest has its programs from, beside the host's own.
#[derive(Debug, Clone)]
pub struct Programs(Option<Root>);

impl Programs {
    /// The private root's for what the host lacks, if it is laid; it is laid if the host lacks what a guest must have.
    ///
    /// # Errors
    /// Those of [`Root::lay`].
    pub fn find(progress: &mut dyn FnMut(&str)) -> Result<Programs, Error> {
        if let Some(root) = Root::laid()? {
            return Ok(Programs(Some(root)));
        }
        let folders: Vec<PathBuf> = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from).into();
        let lacks = |program: &&str| !folders.iter().any(|folder| folder.join(program).exists());
        match NEEDED.iter().find(|program| lacks(program)) {
            None => Ok(Programs(None)),
            Some(program) => {
                progress(&format!("this machine has no `{program}`: laying the private root"));
                Root::lay(progress).map(|root| Programs(Some(root)))
            }
        }
    }
}

/// What such a guest is made of.
#[derive(Debug)]
pub struct Hosted {
    /// Kernel, memory and adapters. Its addresses are left out.
    pub machine: UmlConfig,
    /// Its host name.
    pub name: String,
    /// The address of eth0 with its prefix's length, if it gets one.
    pub address: Option<String>,
    /// Addresses and names that it knows.
    pub hosts: Vec<(String, String)>,
    /// Files in a folder of its own, which goes with it.
    pub files: Vec<(&'static str, Vec<u8>)>,
    /// The other ends of its lines: the first is `/dev/tty0`, the second `/dev/ttyS2`, and so on.
    pub lines: Vec<OwnedFd>,
}

impl Hosted {
    /// Starts it; [`Guest::wait_ready`] must come next, and ends when eth0 has carrier. Commands find the folder of its files in
    /// `$FILES`.
    ///
    /// # Errors
    /// [`Error`] with what is missing on this host for it.
    pub fn start(self, programs: &Programs) -> Result<Guest, Error> {
        let folder = Folder::new()?;
        let init = folder.write("init", self.init(programs, folder.path()))?;
        for (name, content) in &self.files {
            folder.write(name, content)?;
        }
        let mut command = ends_with_us();
        command.arg(self.machine.kernel.program()).args(KERNEL_WORDS);
        command.arg(format!("mem={}M", self.machine.memory_mib)).args(&self.machine.devices).args(&self.machine.append);
        // Its root user cannot mount the host's files anew to change them (`crates/guests/uml/apply`).
        command.args(["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "hostfs=,ro"]);
        command.arg(format!("uml_dir={}/", folder.path().display()));
        command.env("TMPDIR", folder_for_memory(self.machine.memory_mib)?);
        let title = format!("kernel {} in user mode", self.machine.kernel.release());
        let mut lines = self.lines.into_iter();
        let input = lines.next();
        command.args(input.as_ref().map(|_| "con0=fd:0,fd:0"));
        command.arg(if input.is_some() { "ssl1=fd:1,fd:1" } else { "ssl1=fd:0,fd:1" });
        let lines: Vec<OwnedFd> = lines.collect();
        for (number, line) in (2..).zip(&lines) {
            let failed =
                |error: rustix::io::Errno| Error::Run { doing: "passing a line".into(), said: error.to_string() };
            fcntl_setfd(line, FdFlags::empty()).map_err(failed)?;
            command.arg(format!("ssl{number}=fd:{0},fd:{0}", line.as_raw_fd()));
        }
        // Not the script itself: its folder may be mounted noexec. What stands behind -- is for the first process.
        let (shell, applet) = match &programs.0 {
            Some(root) => (root.busybox(), Some("sh")),
            None => ("/bin/sh".into(), None),
        };
        command.arg(format!("init={}", shell.display())).arg("--").args(applet).arg(&init);
        let boot_limit = self.machine.boot_limit;
        Guest::launch(Launch { command, title, boot_limit, input, companion: None, folder: Some(folder) })
    }

    /// Its first process: the settings, and what is done with them.
    fn init(&self, programs: &Programs, folder: &Path) -> String {
        let (busybox, tree) = match &programs.0 {
            Some(root) => (root.busybox().display().to_string(), root.tree().display().to_string()),
            None => (String::new(), String::new()),
        };
        let here = folder.join("init").display().to_string();
        let files = folder.display().to_string();
        let hosts: Vec<String> = self.hosts.iter().map(|(address, name)| format!("{address} {name}")).collect();
        let settings = [
            ("here", here.as_str()),
            ("busybox", &busybox),
            ("tree", &tree),
            ("name", &self.name),
            ("address", self.address.as_deref().unwrap_or_default()),
            ("hosts", &hosts.join("\n")),
            ("FILES", &files),
        ];
        let settings = settings.map(|(name, value)| format!("{name}={}\n", quoted(value)));
        format!("{}export FILES\n{INIT}", settings.concat())
    }
}
