//! A whole Debian, laid as a normal user: its packages are unpacked, and dpkg's status says that they are installed, without their
//! maintainer scripts. [`Debian::guest`] boots it in a user-mode guest with systemd as its first process; packages can be installed in it.
//! [`Debian::command`] runs one of its programs in a root of its own on this host.
//!
//! ```text
//! $XDG_CACHE_HOME/nicety/debian-NAME-FINGERPRINT/   tree/      the files
//!                                                   root.tar   the same, owned by root
//! ```

use std::{
    ffi::OsStr,
    fmt, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    command::{ends_with_us, run},
    error::{Error, file},
    guest::{Guest, Launch},
    namespace::quoted,
    root::{Lock, Root, cache, fingerprint, open_mirror_of, remove_folder},
    uml::{KERNEL_WORDS, UmlConfig, folder_for_memory},
};
use crate::folder::Folder;

/// Raise this when a laid Debian changes in another way than by its packages.
const LAYOUT: u32 = 1;
/// Packages that every Debian has (Policy 3.8, essential packages), as far as packages can be installed with them.
const ESSENTIAL: &[&str] = &[
    "base-files",
    "base-passwd",
    "bash",
    "coreutils",
    "dash",
    "debianutils",
    "diffutils",
    "dpkg",
    "findutils",
    "grep",
    "gzip",
    "init-system-helpers",
    "libc-bin",
    "perl-base",
    "sed",
    "tar",
    "util-linux",
];
/// A system with systemd and its module for accounts (of priority standard), apt, and what a test looks with.
pub const SYSTEM: &[&str] =
    &["systemd", "systemd-sysv", "libnss-systemd", "apt", "mount", "procps", "iproute2", "passwd"];
/// Folders that take space and that nothing here needs.
const NOT_NEEDED: &[&str] =
    &["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/i18n", "usr/lib/udev/hwdb.d"];
/// Folders of the merged `/usr` (Debian 12's packages still name the old ones).
const MERGED: &[&str] = &["bin", "sbin", "lib", "lib64"];
/// The first process of a guest, until it is systemd.
const INIT: &str = include_str!("../debian-root");
/// The commands' other end, which runs as a service.
const CONTROL: &str = concat!(include_str!("../control"), "open_control\nsay \"ready $(uname -r)\"\nrun_commands sh\n");
const CONTROL_UNIT: &str = "\
[Unit]
Description=Commands of the test
After=basic.target systemd-user-sessions.service

[Service]
ExecStart=/bin/sh /usr/lib/guest/control
StandardOutput=null
Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
WorkingDirectory=/root
";

/// A release of Debian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// Debian 12.
    Bookworm,
    /// Debian 13.
    Trixie,
}

impl Suite {
    /// Both, the older one first.
    pub const ALL: [Suite; 2] = [Suite::Bookworm, Suite::Trixie];
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Suite::Bookworm => "bookworm",
            Suite::Trixie => "trixie",
        })
    }
}

/// Packages that are of `SUITE-backports`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backports {
    /// All are of the release.
    None,
    /// QEMU with its firmware: the release's own knows no vfio-user.
    Qemu,
}

impl Backports {
    fn suites(self) -> usize {
        match self {
            Backports::None => 1,
            Backports::Qemu => 2,
        }
    }

    fn preferences(self, suite: Suite) -> String {
        match self {
            Backports::None => String::new(),
            Backports::Qemu => {
                format!("Package: src:qemu src:seabios src:ipxe\nPin: release n={suite}-backports\nPin-Priority: 900\n")
            }
        }
    }

    fn recipe(self) -> &'static str {
        match self {
            Backports::None => "",
            Backports::Qemu => " QEMU of backports",
        }
    }
}

/// A laid Debian.
#[derive(Debug, Clone)]
pub struct Debian {
    folder: PathBuf,
    suite: Suite,
}

/// A guest that boots it.
#[derive(Debug)]
pub struct DebianGuest {
    /// Kernel, memory, adapters and further words of the command line. Its addresses are ignored.
    pub machine: UmlConfig,
    /// Files for its folder `/root`.
    pub files: Vec<(String, Vec<u8>)>,
}

impl Debian {
    /// Lays a Debian with systemd and apt.
    ///
    /// # Errors
    /// See [`Error`]; each names its remedy.
    pub fn system(suite: Suite, progress: &mut dyn FnMut(&str)) -> Result<Debian, Error> {
        Debian::lay("system", suite, SYSTEM, progress)
    }

    /// Lays a Debian with these packages and all that they depend on, if it is missing. `progress` gets a line for each step.
    ///
    /// # Errors
    /// See [`Error`]; each names its remedy.
    pub fn lay(name: &str, suite: Suite, packages: &[&str], progress: &mut dyn FnMut(&str)) -> Result<Debian, Error> {
        Debian::lay_with(name, suite, packages, Backports::None, progress)
    }

    /// Like [`Debian::lay`], with a few packages of a newer version.
    ///
    /// # Errors
    /// See [`Error`]; each names its remedy.
    pub fn lay_with(
        name: &str,
        suite: Suite,
        packages: &[&str],
        backports: Backports,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Debian, Error> {
        let cache = cache()?;
        let recipe = format!("{LAYOUT} {suite} {ESSENTIAL:?} {packages:?} {NOT_NEEDED:?} {CONTROL} {CONTROL_UNIT}");
        let recipe = recipe + backports.recipe();
        let place = cache.join(format!("debian-{name}-{:016x}", fingerprint(recipe.as_bytes())));
        if place.is_dir() {
            return Ok(Debian { folder: place, suite });
        }
        let _lock = Lock::take(&cache, progress)?;
        if place.is_dir() {
            return Ok(Debian { folder: place, suite });
        }
        let laying = Debian { folder: place.with_extension("laying"), suite };
        remove_folder(&laying.folder)?;
        let downloads = cache.join(format!("apt-debian-{name}"));
        laying.fill(&downloads, packages, backports, progress)?;
        fs::rename(&laying.folder, &place).map_err(file("rename to its final name", &place))?;
        remove_folder(&downloads)?;
        Ok(Debian { folder: place, suite })
    }

    /// Its release.
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Its files.
    pub fn tree(&self) -> PathBuf {
        self.folder.join("tree")
    }

    fn fill(
        &self,
        downloads: &Path,
        packages: &[&str],
        backports: Backports,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), Error> {
        let tree = self.tree();
        for (name, target) in MERGED.iter().map(|name| (name, format!("usr/{name}"))) {
            let folder = tree.join(&target);
            fs::create_dir_all(&folder).map_err(file("make the folder", &folder))?;
            symlink(target, tree.join(name)).map_err(file("make the link", tree.join(name)))?;
        }
        let suites = [self.suite.to_string(), format!("{}-backports", self.suite)];
        let suites: Vec<&str> = suites.iter().take(backports.suites()).map(String::as_str).collect();
        let apt = open_mirror_of(downloads, &suites, &backports.preferences(self.suite), progress)?;
        let all: Vec<&str> = ESSENTIAL.iter().chain(packages).copied().collect();
        let debs = apt.closure(&all)?;
        let bytes: u64 = debs.iter().map(|deb| deb.bytes).sum();
        progress(&format!("bringing {} packages of {}, {} MB", debs.len(), self.suite, bytes / 1_000_000));
        apt.bring_closure(&all)?;
        progress(&format!("unpacking {} packages", debs.len()));
        let mut status = String::new();
        let info = tree.join("var/lib/dpkg/info");
        fs::create_dir_all(&info).map_err(file("make the folder", &info))?;
        for deb in &debs {
            let path = apt.archives().join(&deb.file);
            let list = unpacked(&path, &tree)?;
            let fields = control(&path)?;
            let (name, qualified) = installed(&fields, deb.name());
            status.push_str(&name);
            fs::write(info.join(format!("{qualified}.list")), list).map_err(file("write", info.join(&qualified)))?;
        }
        NOT_NEEDED.iter().try_for_each(|path| remove_folder(&tree.join(path)))?;
        self.configure(&status)?;
        progress("packing it, owned by root");
        let mut tar = Command::new("tar");
        tar.args(["--owner=0", "--group=0", "--numeric-owner", "-cf"]).arg(self.folder.join("root.tar"));
        run(tar.arg("-C").arg(&tree).arg("."), || format!("packing {}", tree.display()))
    }

    /// Files that maintainer scripts would have made, if a guest needs them.
    fn configure(&self, status: &str) -> Result<(), Error> {
        let write = |path: &str, text: &str| {
            let path = self.tree().join(path);
            let folder = path.parent().unwrap_or(&path);
            fs::create_dir_all(folder).map_err(file("make the folder", folder))?;
            fs::write(&path, text).map_err(file("write", &path))
        };
        write("var/lib/dpkg/status", status)?;
        write("var/lib/dpkg/info/format", "1\n")?;
        for folder in [
            "var/lib/dpkg/updates",
            "var/lib/dpkg/triggers",
            "var/lib/apt/lists/partial",
            "var/cache/apt/archives/partial",
        ] {
            let folder = self.tree().join(folder);
            fs::create_dir_all(&folder).map_err(file("make the folder", folder))?;
        }
        for name in ["passwd", "group"] {
            let from = self.tree().join(format!("usr/share/base-passwd/{name}.master"));
            let text = fs::read_to_string(&from).map_err(file("read", &from))?;
            write(&format!("etc/{name}"), &text)?;
        }
        write("etc/shadow", "root:*:1::::::\n")?;
        write("etc/hostname", "debian\n")?;
        write("etc/hosts", "127.0.0.1 localhost debian\n")?;
        write("etc/fstab", "")?;
        write("etc/machine-id", "")?;
        // As its maintainer script does.
        let accounts = if status.contains("Package: libnss-systemd\n") { "files systemd" } else { "files" };
        let databases = ["passwd", "group", "shadow"].map(|name| format!("{name}: {accounts}\n")).concat();
        write("etc/nsswitch.conf", &format!("{databases}hosts: files\n"))?;
        let link = |target: &str, path: &str| {
            let path = self.tree().join(path);
            let folder = path.parent().unwrap_or(&path);
            fs::create_dir_all(folder).map_err(file("make the folder", folder))?;
            symlink(target, &path).map_err(file("make the link", &path))
        };
        // dpkg-vendor(1), which lintian reads.
        link("debian", "etc/dpkg/origins/default")?;
        write("usr/lib/guest/control", CONTROL)?;
        write("etc/systemd/system/guest-control.service", CONTROL_UNIT)?;
        link("../guest-control.service", "etc/systemd/system/multi-user.target.wants/guest-control.service")
    }

    /// Starts a guest. [`Guest::wait_ready`] must come next; it returns when services run. Its commands run as root, in `/root`.
    ///
    /// # Errors
    /// [`Error`] with what is missing on this host for it.
    pub fn guest(&self, root: &Root, guest: DebianGuest) -> Result<Guest, Error> {
        let DebianGuest { machine, files } = guest;
        let folder = Folder::new()?;
        let inner = folder.path().join("files");
        fs::create_dir(&inner).map_err(file("make the folder", &inner))?;
        for (name, content) in &files {
            fs::write(inner.join(name), content).map_err(file("write", inner.join(name)))?;
        }
        let settings = [("busybox", root.busybox()), ("tar", self.folder.join("root.tar")), ("files", inner)];
        let settings = settings.map(|(name, path)| format!("{name}={}\n", quoted(&path.display().to_string())));
        let init = folder.write("init", format!("{}{INIT}", settings.concat()))?;
        let mut command = ends_with_us();
        command.arg(machine.kernel.program()).args(KERNEL_WORDS);
        command.arg(format!("mem={}M", machine.memory_mib)).args(&machine.devices).args(&machine.append);
        command.args(["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "hostfs=,ro"]);
        command.args(["systemd.getty_auto=no", "systemd.show_status=no", "ssl1=fd:0,fd:1"]);
        command.arg(format!("uml_dir={}/", folder.path().display()));
        command.env("TMPDIR", folder_for_memory(machine.memory_mib)?);
        command.arg(format!("init={}", root.busybox().display())).arg("--").arg("sh").arg(&init);
        let title = format!("Debian {} with kernel {} in user mode", self.suite, machine.kernel.release());
        let boot_limit = machine.boot_limit;
        Guest::launch(Launch {
            command,
            title,
            boot_limit,
            input: None,
            companion: None,
            folder: Some(folder),
            settings: None,
        })
    }

    /// A program of it in a root of its own (user_namespaces(7)), with this host's devices. `file` is `/tmp/package` there, read-only.
    pub fn command(&self, file: &Path, program: impl AsRef<OsStr>) -> Command {
        let words = "mount --rbind /dev \"$0/dev\" && mount -t proc proc \"$0/proc\" && mount -t tmpfs tmp \"$0/tmp\" \
                     && cp \"$1\" \"$0/tmp/\" && tree=$0 && shift && exec chroot \"$tree\" \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "--pid", "--fork", "sh", "-c", words]);
        command
            .arg(self.tree())
            .arg(file)
            .arg(program)
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LC_ALL", "C.UTF-8");
        command.env("SYSTEMD_COLORS", "0").env("SYSTEMD_URLIFY", "0");
        command
    }
}

/// The control fields of a package file.
fn control(deb: &Path) -> Result<String, Error> {
    output(Command::new("dpkg-deb").arg("-f").arg(deb), || format!("reading {}", deb.display()))
}

/// Unpacks a package file. Returns the list of its files as dpkg keeps it, without which dpkg would take another package's folders away.
fn unpacked(deb: &Path, tree: &Path) -> Result<String, Error> {
    // dpkg-deb -x would replace the links of the merged /usr by folders.
    let words = "dpkg-deb --fsys-tarfile \"$0\" | tar -xv --keep-directory-symlink --no-same-owner -C \"$1\"";
    let names =
        output(Command::new("sh").args(["-c", words]).args([deb, tree]), || format!("unpacking {}", deb.display()))?;
    let paths = names.lines().filter_map(|name| name.strip_prefix('.')).map(|path| path.trim_end_matches('/'));
    Ok(paths.map(|path| if path.is_empty() { "/.\n".to_owned() } else { format!("{path}\n") }).collect())
}

fn output(command: &mut Command, doing: impl Fn() -> String) -> Result<String, Error> {
    let failed = |said| Error::Run { doing: doing(), said };
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The paragraph of dpkg's status file for a package with these fields, and its name in `info`.
fn installed(fields: &str, name: &str) -> (String, String) {
    let fields = fields.trim_end();
    let (first, rest) = fields.split_once('\n').unwrap_or((fields, ""));
    let value = |key: &str| fields.lines().find_map(|line| line.strip_prefix(key));
    let is_shared = value("Multi-Arch: ") == Some("same");
    let architecture = value("Architecture: ").unwrap_or("amd64");
    let qualified = if is_shared { format!("{name}:{architecture}") } else { name.to_owned() };
    (format!("{first}\nStatus: install ok installed\n{rest}\n\n"), qualified)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dpkg_is_told_that_a_package_is_installed() {
        let fields = "Package: libc6\nVersion: 2.36\nArchitecture: amd64\nMulti-Arch: same\nDescription: it\n all\n";
        let (paragraph, name) = installed(fields, "libc6");
        assert_eq!(name, "libc6:amd64");
        assert!(paragraph.starts_with("Package: libc6\nStatus: install ok installed\nVersion: 2.36\n"), "{paragraph}");
        assert!(paragraph.ends_with(" all\n\n"), "{paragraph}");
        assert_eq!(installed("Package: tar\nArchitecture: amd64\n", "tar").1, "tar");
    }
}
