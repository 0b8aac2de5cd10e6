//! A user-mode guest that uses its host's own files (`crates/guests/host-root`): the host's root by hostfs, read-only, under an overlay
//! in memory for writes. Its first serial console is a socket that the owner holds, and so are further lines.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::io::{FdFlags, fcntl_setfd};

use super::{
    command::ends_with_us,
    error::Error,
    guest::{Guest, Launch},
    namespace::quoted,
    root::Root,
    uml::{KERNEL_WORDS, UmlConfig, folder_for_memory},
};
use crate::folder::Folder;

/// The guest's first process. [`Hosted::init`] puts the settings before it.
const INIT: &str = concat!(include_str!("../control"), include_str!("../host-root"));
/// Programs that it runs. A host that has all of them needs no private root.
const NEEDED: &[&str] =
    &["sh", "mount", "mkdir", "rm", "chmod", "chroot", "ip", "stty", "setsid", "timeout", "sleep", "uname"];

/// Source of such a guest's programs, beside the host's own.
#[derive(Debug, Clone)]
pub struct Programs(Option<Root>);

impl Programs {
    /// Uses the private root, if it is installed, for programs that the host lacks. If a needed program is missing, installs the private
    /// root.
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

/// Configuration of such a guest.
#[derive(Debug)]
pub struct Hosted {
    /// Kernel, memory and adapters. Its addresses are ignored.
    pub machine: UmlConfig,
    /// Its host name.
    pub name: String,
    /// The address of eth0 with its prefix's length, if it gets one.
    pub address: Option<String>,
    /// Entries of its hosts file: address and name.
    pub hosts: Vec<(String, String)>,
    /// Files in a folder of its own, which is removed with it.
    pub files: Vec<(&'static str, Vec<u8>)>,
    /// The other ends of its lines: the first is `/dev/tty0`, the second `/dev/ttyS2`, and so on.
    pub lines: Vec<OwnedFd>,
}

impl Hosted {
    /// Starts it. [`Guest::wait_ready`] must come next; it returns when eth0 has carrier. In commands, `$FILES` is the folder of its
    /// files.
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
        command.args(&self.machine.before).arg(self.machine.kernel.program()).args(KERNEL_WORDS);
        command.arg(format!("mem={}M", self.machine.memory_mib)).args(&self.machine.devices).args(&self.machine.append);
        // The guest's root user cannot remount the host's files writable (`crates/guests/uml/apply`).
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
        // A shell runs the script, because the script's folder may be mounted noexec. Arguments after `--` are for the first process.
        let (shell, applet) = match &programs.0 {
            Some(root) => (root.busybox(), Some("sh")),
            None => ("/bin/sh".into(), None),
        };
        command.arg(format!("init={}", shell.display())).arg("--").args(applet).arg(&init);
        let boot_limit = self.machine.boot_limit;
        Guest::launch(Launch {
            command,
            title,
            boot_limit,
            input,
            companion: None,
            folder: Some(folder),
            settings: None,
        })
    }

    /// Text of its first process: the settings, then the script that uses them.
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
