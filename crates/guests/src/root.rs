//! The private root: the programs and kernels of real guests, installed once under `$XDG_CACHE_HOME/nicety` and shared by every clone.
//!
//! Packages come from the mirror in the machine's own apt sources, so that no host name is written here. QEMU and its
//! firmware are those of trixie-backports. Everything runs through the root's own dynamic loader, so that it neither needs
//! nor touches what the machine has installed. The root is built beside its final place, under a lock, and then renamed.

mod lay_kernel;

use std::{
    fs,
    fs::File,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use serde::{Deserialize, Serialize};

use super::{
    apt::{Apt, Deb, mirrors},
    cache_folder,
    command::run,
    error::{Error, file},
    kernel::Kernel,
};

/// Raise this when the content or the place changes in another way than by the lists below.
const LAYOUT: u32 = 2;
const SUITES: &[&str] = &["trixie", "trixie-backports", "bookworm"];
const PREFERENCES: &str = "Package: *\nPin: release n=bookworm\nPin-Priority: 1\n\n\
    Package: src:qemu src:seabios src:ipxe\nPin: release n=trixie-backports\nPin-Priority: 900\n";
/// QEMU with its firmware and option ROMs, programs that unpack kernels, and the content of a guest's image.
const PACKAGES: &[&str] = &[
    "libc6",
    "qemu-system-x86",
    "seabios",
    "ipxe-qemu",
    "xz-utils",
    "zstd",
    "busybox-static",
    "netperf",
    "iperf3",
    "ethtool",
    "iputils-ping",
];
/// Folders that take space and are not needed here.
const NOT_NEEDED: &[&str] =
    &["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/lintian", "var"];

/// An installed package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its Debian version.
    pub version: String,
    /// Size of its package file in bytes.
    pub bytes: u64,
}

impl From<&Deb> for Package {
    fn from(deb: &Deb) -> Package {
        Package { name: deb.name().to_owned(), version: deb.version(), bytes: deb.bytes }
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Stamp {
    packages: Vec<Package>,
    seconds: f64,
}

/// An installed private root.
#[derive(Debug, Clone)]
pub struct Root {
    folder: PathBuf,
    stamp: Stamp,
}

impl Root {
    /// Room that an installed root takes, in bytes: measured, and rounded up. While it is laid its packages take 220 MB more.
    pub const DISK_BYTES: u64 = 340_000_000;

    /// Installs the root if it is missing. `progress` gets a line for each step. Takes a minute and 220 MB from the mirror.
    ///
    /// # Errors
    /// See [`Error`]; each names its remedy. The next attempt uses the files that were already downloaded.
    pub fn lay(progress: &mut dyn FnMut(&str)) -> Result<Root, Error> {
        let cache = cache()?;
        if let Some(root) = Root::find(&cache) {
            return Ok(root);
        }
        let _lock = Lock::take(&cache, progress)?;
        if let Some(root) = Root::find(&cache) {
            return Ok(root);
        }
        lay_into(&cache, progress)
    }

    /// The root, if it is installed.
    ///
    /// # Errors
    /// [`Error::NoCache`].
    pub fn laid() -> Result<Option<Root>, Error> {
        cache().map(|cache| Root::find(&cache))
    }

    /// Removes the root, so that the next [`Root::lay`] downloads the current packages.
    ///
    /// # Errors
    /// [`Error::NoCache`], or [`Error::File`] if something cannot be removed.
    pub fn remove(progress: &mut dyn FnMut(&str)) -> Result<(), Error> {
        let cache = cache()?;
        let _lock = Lock::take(&cache, progress)?;
        remove_folder(&cache.join(name()))
    }

    fn find(cache: &Path) -> Option<Root> {
        let folder = cache.join(name());
        let stamp = serde_json::from_slice(&fs::read(folder.join("stamp.json")).ok()?).ok()?;
        Some(Root { folder, stamp })
    }

    /// Path of the root.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its packages, including kernels.
    pub fn packages(&self) -> &[Package] {
        &self.stamp.packages
    }

    /// The version of one of its packages.
    pub fn version(&self, package: &str) -> Option<&str> {
        self.stamp.packages.iter().find(|have| have.name == package).map(|have| have.version.as_str())
    }

    /// Time taken to install it, in seconds.
    pub fn seconds(&self) -> f64 {
        self.stamp.seconds
    }

    /// Its size on disk in bytes.
    pub fn size(&self) -> u64 {
        let (mut sum, mut folders) = (0u64, vec![self.folder.clone()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                match entry.metadata() {
                    Ok(meta) if meta.is_dir() => folders.push(entry.path()),
                    Ok(meta) => sum = sum.saturating_add(meta.len()),
                    Err(_) => {}
                }
            }
        }
        sum
    }

    /// QEMU, with the paths of its firmware and option ROMs (`romfile=pxe-e1000.rom` and the like).
    pub fn qemu_command(&self) -> Command {
        let mut command = self.program("usr/bin/qemu-system-x86_64");
        for firmware in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(self.tree().join(firmware));
        }
        command
    }

    /// busybox. It is static, so it runs anywhere without a loader.
    pub fn busybox(&self) -> PathBuf {
        self.tree().join("usr/bin/busybox")
    }

    /// One of QEMU's own option ROMs (`pxe-e1000.rom`); they contain iPXE.
    pub fn option_rom(&self, name: &str) -> PathBuf {
        self.tree().join("usr/share/qemu").join(name)
    }

    /// A program of the root (`usr/bin/xz`), run by the root's own loader with the root's own libraries.
    pub fn program(&self, path: &str) -> Command {
        let mut command = Command::new(self.tree().join("usr/lib64/ld-linux-x86-64.so.2"));
        command.env_remove("LD_PRELOAD").env_remove("LD_LIBRARY_PATH");
        command.arg("--library-path").arg(self.tree().join(LIBRARIES)).arg(self.tree().join(path));
        command
    }

    /// The unpacked packages.
    pub(super) fn tree(&self) -> PathBuf {
        self.folder.join("tree")
    }

    /// Folder of a kernel's image, uncompressed and compressed, with its release and modules.
    pub(super) fn kernel(&self, kernel: Kernel) -> PathBuf {
        self.folder.join("kernels").join(kernel.version())
    }

    /// A lock against other processes that want to change this root.
    pub(super) fn lock(&self) -> Result<Lock, Error> {
        Lock::take(self.folder.parent().unwrap_or(&self.folder), &mut |_| {})
    }
}

/// Folder of the root's libraries.
pub(super) const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The folder that clones share: `$XDG_CACHE_HOME/nicety`, or `$HOME/.cache/nicety`. Makes it if needed.
///
/// # Errors
/// Neither variable names an absolute path, or the folder cannot be made.
pub fn cache() -> Result<PathBuf, Error> {
    let folder = cache_folder::path().ok_or(Error::NoCache)?;
    fs::create_dir_all(&folder).map_err(file("make the folder", &folder))?;
    Ok(folder)
}

/// The root's folder name. It depends on the recipe, so that clones at different commits have different roots.
fn name() -> String {
    let drivers = Kernel::ALL.map(Kernel::drivers);
    let recipe = format!("{LAYOUT} {SUITES:?} {PREFERENCES} {PACKAGES:?} {drivers:?}");
    format!("guests-{:016x}", fingerprint(recipe.as_bytes()))
}

/// FNV-1a, 64 bits: the same on every machine and with every compiler.
pub(super) fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// A lock held while something under the cache is installed. It is released when dropped, or when the process ends.
pub(super) struct Lock(#[expect(dead_code, reason = "held for its lock")] File);

impl Lock {
    pub(super) fn take(cache: &Path, progress: &mut dyn FnMut(&str)) -> Result<Lock, Error> {
        let path = cache.join("lock");
        let lock = File::options().create(true).append(true).open(&path).map_err(file("open", &path))?;
        if lock.try_lock().is_err() {
            progress("another process is laying guests; waiting for it");
            lock.lock().map_err(file("lock", &path))?;
        }
        Ok(Lock(lock))
    }
}

fn lay_into(cache: &Path, progress: &mut dyn FnMut(&str)) -> Result<Root, Error> {
    let begin = Instant::now();
    for (program, package) in [("apt-get", "apt"), ("dpkg-deb", "dpkg"), ("tar", "tar"), ("gpgv", "gpgv")] {
        if Command::new(program).arg("--version").output().is_err() && !(program == "gpgv" && has_sqv()) {
            return Err(Error::Program { program, package });
        }
    }
    let laying = cache.join(format!("{}.laying", name()));
    remove_folder(&laying)?;
    let mut root = Root { folder: laying.clone(), stamp: Stamp::default() };
    fs::create_dir_all(root.tree()).map_err(file("make the folder", root.tree()))?;

    let downloads = cache.join("apt");
    let apt = open_mirror(&downloads, progress)?;
    lay_tree(&mut root, &apt, progress)?;
    lay_kernels(&mut root, &apt, progress)?;

    root.stamp.packages.sort_by(|a, b| a.name.cmp(&b.name));
    root.stamp.seconds = begin.elapsed().as_secs_f64();
    let stamp = serde_json::to_vec_pretty(&root.stamp)
        .map_err(|e| Error::Run { doing: "writing the stamp".into(), said: e.to_string() })?;
    fs::write(laying.join("stamp.json"), stamp).map_err(file("write", laying.join("stamp.json")))?;
    let place = cache.join(name());
    remove_folder(&place)?;
    fs::rename(&laying, &place).map_err(file("rename to its final name", &place))?;
    remove_folder(&downloads)?;
    progress(&format!("laid in {:.0} s: {}", root.stamp.seconds, place.display()));
    root.folder = place;
    Ok(root)
}

/// Whether sqv is there: Debian 13's apt verifies signatures with sqv instead of gpgv.
fn has_sqv() -> bool {
    Command::new("sqv").arg("--version").output().is_ok()
}

/// The first mirror of the machine's own sources that has our suites.
pub(super) fn open_mirror(folder: &Path, progress: &mut dyn FnMut(&str)) -> Result<Apt, Error> {
    open_mirror_of(folder, SUITES, PREFERENCES, progress)
}

/// The first mirror of the machine's own sources that has these suites.
pub(super) fn open_mirror_of(
    folder: &Path,
    suites: &[&str],
    preferences: &str,
    progress: &mut dyn FnMut(&str),
) -> Result<Apt, Error> {
    let sources = Path::new("/etc/apt");
    let mut last = Error::NoMirror { folder: sources.to_owned() };
    for mirror in mirrors(sources) {
        let apt = Apt::new(folder, &mirror, suites, preferences)?;
        progress(&format!("reading the package lists of {} ({})", apt.mirror(), suites.join(", ")));
        match apt.update() {
            Ok(()) => return Ok(apt),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn lay_tree(root: &mut Root, apt: &Apt, progress: &mut dyn FnMut(&str)) -> Result<(), Error> {
    let debs = apt.closure(PACKAGES)?;
    let bytes: u64 = debs.iter().map(|deb| deb.bytes).sum();
    progress(&format!("bringing {} packages, {} MB", debs.len(), bytes / 1_000_000));
    apt.bring_closure(PACKAGES)?;
    progress(&format!("unpacking {} packages", debs.len()));
    for deb in &debs {
        unpack(&apt.archives().join(&deb.file), &root.tree())?;
        root.stamp.packages.push(deb.into());
    }
    NOT_NEEDED.iter().try_for_each(|path| remove_folder(&root.tree().join(path)))
}

fn lay_kernels(root: &mut Root, apt: &Apt, progress: &mut dyn FnMut(&str)) -> Result<(), Error> {
    for kernel in Kernel::ALL {
        // The metapackage names the newest image. The image's own dependencies are left out: they make a system bootable, and a guest needs
        // none of them.
        let closure = apt.closure(&[&format!("linux-image-amd64/{}", kernel.suite())])?;
        let image = closure.iter().find(|deb| deb.name().starts_with(&format!("linux-image-{}.", kernel.version())));
        let image = image.ok_or_else(|| Error::Unexpected {
            what: format!("{} has no kernel {kernel}", kernel.suite()),
            path: root.folder.clone(),
        })?;
        progress(&format!("bringing kernel {} ({}, {} MB)", kernel, image.version(), image.bytes / 1_000_000));
        apt.bring_alone(&[image.name()])?;
        progress(&format!("unpacking kernel {kernel}"));
        let unpacked = root.folder.join("unpacked");
        unpack(&apt.archives().join(&image.file), &unpacked)?;
        lay_kernel::lay(root, kernel, &unpacked, &root.kernel(kernel))?;
        remove_folder(&unpacked)?;
        root.stamp.packages.push(image.into());
    }
    Ok(())
}

pub(super) fn unpack(deb: &Path, to: &Path) -> Result<(), Error> {
    run(Command::new("dpkg-deb").arg("-x").arg(deb).arg(to), || format!("unpacking {}", deb.display()))
}

pub(super) fn remove_folder(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(file("remove the folder", path)(error)),
        _ => Ok(()),
    }
}
