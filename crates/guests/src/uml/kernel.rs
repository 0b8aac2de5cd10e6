//! The user-mode kernel in the cache: built once for each version of `crates/guests/uml/`, and shared by every clone that has the same.
//!
//! ```text
//! $XDG_CACHE_HOME/nicety/uml-FINGERPRINT/   linux, stamp.json    run by guests; the two used last stay, and those that run
//!                                            linux-smp            the same for several processors, built on request
//!                                            linux-time           the same for boots that can be repeated, built on request
//!                        uml-source/        the package's archive, 166 MB: a changed driver needs no download
//!                        uml-build/         tree, objects: a changed driver is rebuilt in seconds
//! ```

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Instant, SystemTime},
};

use serde::{Deserialize, Serialize};

use super::{
    super::{
        command::STARTER,
        error::{Error, file},
        root::{Lock, cache, remove_folder},
    },
    build::{Kind, apply, build, changes_fingerprint, files_fingerprint},
    source::{PACKAGE, Reverted, Source, origin},
    tools::Tools,
};

/// Raise this when the result changes in another way than by `crates/guests/uml/`.
const LAYOUT: u32 = 1;
/// Number of unused kernels that stay in the cache.
const KERNELS_KEPT: usize = 2;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Stamp {
    source: String,
    release: String,
    seconds: f64,
    /// Size of the program. 0 in stamps older than this field.
    #[serde(default)]
    bytes: u64,
}

/// A user-mode kernel.
#[derive(Debug, Clone)]
pub struct UmlKernel {
    program: PathBuf,
    stamp: Stamp,
}

/// The program that starts guests, which is the host's own: without it each boot would fail.
fn starter(path: &OsStr) -> Result<(), Error> {
    let is_there = env::split_paths(path).any(|folder| folder.join(STARTER).is_file());
    if is_there { Ok(()) } else { Err(Error::Program { program: STARTER, package: "util-linux" }) }
}

impl UmlKernel {
    /// Room for the kernel with its source, its compiled files and the tools that make it, in bytes: measured, and rounded up.
    pub const DISK_BYTES: u64 = 1_300_000_000;

    /// Builds the kernel if it is missing. `progress` gets a line for each step. The first time takes some minutes, 166 MB
    /// from the mirror and 1.3 GB of disk.
    ///
    /// # Errors
    /// See [`Error`]; each names its remedy. The next attempt uses what was already downloaded and compiled.
    pub fn lay(progress: &mut dyn FnMut(&str)) -> Result<UmlKernel, Error> {
        starter(&env::var_os("PATH").unwrap_or_default())?;
        let cache = cache()?;
        if let Some(kernel) = UmlKernel::find(&cache) {
            return Ok(kernel);
        }
        // Installing the tools takes the same lock, so this comes first.
        let path = env::var_os("PATH").unwrap_or_default();
        let tools = Tools::lay(&path, &cache.join("uml-tools"), progress)?;
        tools.check_headers()?;
        let _lock = Lock::take(&cache, progress)?;
        if let Some(kernel) = UmlKernel::find(&cache) {
            return Ok(kernel);
        }
        lay_into(&cache, &tools, progress)
    }

    /// The same kernel for guests with several processors. It is a program of its own, because with one processor it takes an eighth to a
    /// quarter more of the host's time for the same traffic. It is built at the first request.
    ///
    /// # Errors
    /// Those of [`UmlKernel::lay`].
    pub fn lay_smp(progress: &mut dyn FnMut(&str)) -> Result<UmlKernel, Error> {
        UmlKernel::lay_beside("linux-smp", Kind::SeveralProcessors, progress)
    }

    /// The same kernel for guests in virtual time (`time-travel=ext:SOCKET`), whose boots can be repeated (`random_seed=NUMBER`): docs/adr/0017.
    /// It has one processor. It is built at the first request.
    ///
    /// # Errors
    /// Those of [`UmlKernel::lay`].
    pub fn lay_virtual_time(progress: &mut dyn FnMut(&str)) -> Result<UmlKernel, Error> {
        UmlKernel::lay_beside("linux-time", Kind::VirtualTime, progress)
    }

    fn lay_beside(name: &str, kind: Kind, progress: &mut dyn FnMut(&str)) -> Result<UmlKernel, Error> {
        let UmlKernel { program, stamp } = UmlKernel::lay(progress)?;
        let other = UmlKernel { program: program.with_file_name(name), stamp };
        if other.program.is_file() {
            return Ok(other);
        }
        let cache = cache()?;
        let path = env::var_os("PATH").unwrap_or_default();
        let tools = Tools::lay(&path, &cache.join("uml-tools"), progress)?;
        let _lock = Lock::take(&cache, progress)?;
        let (_, work) = prepare(&cache, &tools, progress)?;
        let built = build(&work, kind, &tools, progress)?;
        let laying = other.program.with_extension("laying");
        copy(&built, &laying)?;
        fs::rename(&laying, &other.program).map_err(file("rename to its final name", &other.program))?;
        Ok(other)
    }

    /// Removes the kernel, its source and its build, so that the next [`UmlKernel::lay`] starts anew.
    ///
    /// # Errors
    /// [`Error::NoCache`], or [`Error::File`] if something cannot be removed.
    pub fn remove(progress: &mut dyn FnMut(&str)) -> Result<(), Error> {
        let cache = cache()?;
        let _lock = Lock::take(&cache, progress)?;
        let own = [name(), "uml-source".into(), "uml-build".into(), "uml-tools".into()];
        own.iter().try_for_each(|name| remove_folder(&cache.join(name)))
    }

    fn find(cache: &Path) -> Option<UmlKernel> {
        let folder = cache.join(name());
        let path = folder.join("stamp.json");
        let stamp: Stamp = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
        let program = folder.join("linux");
        // A truncated or missing program is built again.
        let bytes = fs::metadata(&program).ok()?.len();
        if bytes == 0 || (stamp.bytes != 0 && bytes != stamp.bytes) {
            return None;
        }
        // The stamp's time records the last use. If it cannot be set, the kernel may have to be built again one day.
        let _ = fs::File::options().write(true).open(path).and_then(|stamp| stamp.set_modified(SystemTime::now()));
        Some(UmlKernel { program, stamp })
    }

    /// A kernel built elsewhere.
    ///
    /// # Errors
    /// [`Error::Run`] if it does not report its version.
    pub fn at(program: &Path) -> Result<UmlKernel, Error> {
        let doing = || format!("asking {} for its version", program.display());
        let failed = |said: String| Error::Run { doing: doing(), said };
        if is_boot_image(program) {
            return Err(failed(format!("it is a kernel that a machine boots (bzImage); {NEEDED}")));
        }
        let output = Command::new(program).arg("--version").output().map_err(|error| failed(error.to_string()))?;
        let release = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let is_release = release.starts_with(|c: char| c.is_ascii_digit()) && !release.contains(char::is_whitespace);
        if !is_release || !output.status.success() {
            return Err(failed(format!("it is no user-mode kernel; {NEEDED}")));
        }
        let stamp = Stamp { source: "somebody's own".into(), release, seconds: 0.0, bytes: 0 };
        Ok(UmlKernel { program: program.to_owned(), stamp })
    }

    /// The kernel's program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Its release, as `uname -r` prints it.
    pub fn release(&self) -> &str {
        &self.stamp.release
    }

    /// The package and version of its source.
    pub fn source(&self) -> &str {
        &self.stamp.source
    }

    /// Build time in seconds.
    pub fn seconds(&self) -> f64 {
        self.stamp.seconds
    }
}

/// The kind of kernel that a guest in user mode needs.
const NEEDED: &str = "give the program `linux`, which `make ARCH=um linux` makes (docs/driver-developers.md)";

/// Whether a file is a bzImage, by its setup header (Documentation/arch/x86/boot.rst: `HdrS` at 0x202).
fn is_boot_image(file: &Path) -> bool {
    let mut header = [0; 0x206];
    let read = std::fs::File::open(file).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut header));
    read.is_ok() && header.ends_with(b"HdrS")
}

/// The kernel's folder name. It depends on driver, configuration and source, so that different clones have different kernels.
fn name() -> String {
    let recipe = format!("{LAYOUT} {PACKAGE} {:016x}", files_fingerprint());
    format!("uml-{:016x}", super::super::root::fingerprint(recipe.as_bytes()))
}

/// Removes older kernels, of other drivers or configurations. The two that were used last and the running ones stay. A removed one
/// can be built again, and one that cannot be removed stays.
fn prune(cache: &Path, running: &[PathBuf], progress: &mut dyn FnMut(&str)) {
    let digits = |name: &String| {
        name.strip_prefix("uml-").is_some_and(|rest| rest.len() == 16 && rest.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    let used = |folder: &PathBuf| fs::metadata(folder.join("stamp.json")).and_then(|meta| meta.modified()).ok();
    let mut kernels: Vec<(Option<SystemTime>, PathBuf)> = names_in(cache)
        .into_iter()
        .filter(digits)
        .map(|name| cache.join(name))
        .map(|folder| (used(&folder), folder))
        .collect();
    kernels.sort();
    kernels.truncate(kernels.len().saturating_sub(KERNELS_KEPT));
    for (_, folder) in kernels {
        let busy = running.iter().any(|program| program.starts_with(&folder));
        if !busy && remove_folder(&folder).is_ok() {
            progress(&format!("removed an older kernel: {}", folder.display()));
        }
    }
}

/// The programs that run on this machine, as far as we may see them.
fn running() -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|process| fs::read_link(process.path().join("exe")).ok()).collect()
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Prepares the build folder: the source with `crates/guests/uml/` added.
fn prepare(cache: &Path, tools: &Tools, progress: &mut dyn FnMut(&str)) -> Result<(Source, PathBuf), Error> {
    let source = Source::bring(&cache.join("uml-source"), progress)?;
    let work = cache.join("uml-build");
    let tree = work.join("tree");
    let files = work.join("files");
    // The tree keeps earlier changes. Different ones, and ones that failed half-way, are reverted first.
    let (unpacked, applied) = (work.join("unpacked"), work.join("applied"));
    let same = |path: &Path, text: &str| fs::read_to_string(path).is_ok_and(|have| have == text);
    let origin = origin(LAYOUT, &source.version);
    let changes = format!("{:016x}", changes_fingerprint());
    let (origin_fits, changes_fit) = (same(&unpacked, &origin), same(&applied, &changes));
    let mut reverted = None;
    if origin_fits && !changes_fit {
        // If this is interrupted, the next attempt does not trust the tree.
        let _ = fs::remove_file(&unpacked);
        reverted = source.restore(&tree, &names_in(&files), tools).unwrap_or(None);
    }
    if !origin_fits || (!changes_fit && reverted.is_none()) {
        remove_folder(&work)?;
        fs::create_dir_all(&work).map_err(file("make the folder", &work))?;
        source.unpack(&tree, tools, progress)?;
    }
    fs::write(&unpacked, &origin).map_err(file("write", &unpacked))?;
    let _ = fs::remove_file(&applied);
    apply(&tree, &files, tools)?;
    reverted.into_iter().for_each(Reverted::restore_times);
    fs::write(&applied, &changes).map_err(file("write", &applied))?;
    Ok((source, work))
}

/// Copies a program and syncs it, so that the file is complete before it gets its final name, even if the machine stops. Returns its size.
fn copy(from: &Path, to: &Path) -> Result<u64, Error> {
    let bytes = fs::copy(from, to).map_err(file("copy", from))?;
    fs::File::open(to).and_then(|copied| copied.sync_all()).map_err(file("write", to))?;
    Ok(bytes)
}

fn lay_into(cache: &Path, tools: &Tools, progress: &mut dyn FnMut(&str)) -> Result<UmlKernel, Error> {
    let begin = Instant::now();
    let (source, work) = prepare(cache, tools, progress)?;
    let linux = build(&work, Kind::OneProcessor, tools, progress)?;
    let release = linux.with_file_name("include/config/kernel.release");
    let release = fs::read_to_string(&release).map_err(file("read", release))?.trim().to_owned();

    let (laying, place) = (cache.join(format!("{}.laying", name())), cache.join(name()));
    remove_folder(&laying)?;
    fs::create_dir_all(&laying).map_err(file("make the folder", &laying))?;
    let bytes = copy(&linux, &laying.join("linux"))?;
    let stamp = Stamp { source: source.version, release, seconds: begin.elapsed().as_secs_f64(), bytes };
    let text = serde_json::to_vec_pretty(&stamp)
        .map_err(|error| Error::Run { doing: "writing the stamp".into(), said: error.to_string() })?;
    fs::write(laying.join("stamp.json"), text).map_err(file("write", laying.join("stamp.json")))?;
    remove_folder(&place)?;
    fs::rename(&laying, &place).map_err(file("rename to its final name", &place))?;
    progress(&format!("built in {:.0} s: {}", stamp.seconds, place.display()));
    prune(cache, &running(), progress);
    Ok(UmlKernel { program: place.join("linux"), stamp })
}

#[cfg(test)]
mod tests {
    use std::{fs::File, time::Duration};

    use super::*;
    use crate::folder::Folder;

    #[test]
    fn a_host_without_the_program_that_starts_guests_is_told_its_package() {
        let folder = Folder::new().unwrap();
        assert!(
            starter(folder.path().as_os_str()).unwrap_err().to_string().contains("install the package `util-linux`")
        );
        File::create(folder.path().join("setpriv")).unwrap();
        starter(folder.path().as_os_str()).unwrap();
    }

    #[test]
    fn of_many_kernels_the_two_used_last_stay_and_those_that_run() {
        let cache = Folder::new().unwrap();
        let ages = [("uml-00000000000000aa", 9), ("uml-00000000000000bb", 1), ("uml-00000000000000cc", 2)];
        let ages = ages.iter().chain(&[("uml-00000000000000dd", 8), ("uml-00000000000000ee", 7)]);
        for (name, hours) in ages {
            let folder = cache.path().join(name);
            fs::create_dir(&folder).unwrap();
            let stamp = File::create(folder.join("stamp.json")).unwrap();
            stamp.set_modified(SystemTime::now() - Duration::from_secs(hours * 3600)).unwrap();
        }
        // A kernel whose build was interrupted, and folders that are no kernels.
        for name in ["uml-00000000000000ff", "uml-source", "uml-build", "guests-0123456789abcdef"] {
            fs::create_dir(cache.path().join(name)).unwrap();
        }
        let runs = cache.path().join("uml-00000000000000dd/linux");
        let mut said = Vec::new();
        prune(cache.path(), &[runs, "/bin/sh".into()], &mut |line| said.push(line.to_owned()));
        let mut left = names_in(cache.path());
        left.sort();
        let kept = ["guests-0123456789abcdef", "uml-00000000000000bb", "uml-00000000000000cc", "uml-00000000000000dd"];
        assert_eq!(left, [&kept[..], &["uml-build", "uml-source"]].concat());
        assert_eq!(said.len(), 3, "{said:?}");
    }

    #[test]
    fn a_kernel_that_is_not_all_there_is_not_found() {
        let cache = Folder::new().unwrap();
        let folder = cache.path().join(name());
        fs::create_dir(&folder).unwrap();
        let stamp = Stamp { bytes: 4, ..Stamp::default() };
        fs::write(folder.join("stamp.json"), serde_json::to_vec(&stamp).unwrap()).unwrap();
        assert!(UmlKernel::find(cache.path()).is_none(), "removed");
        for (program, whole) in [("", false), ("cut", false), ("linux", false), ("good", true)] {
            fs::write(folder.join("linux"), program).unwrap();
            assert_eq!(UmlKernel::find(cache.path()).is_some(), whole, "{program:?}");
        }
        let before = br#"{ "source": "", "release": "", "seconds": 1.0 }"#;
        fs::write(folder.join("stamp.json"), before).unwrap();
        assert!(UmlKernel::find(cache.path()).is_some(), "of before sizes were noted");
    }

    #[test]
    fn the_programs_that_run_are_known() {
        assert!(running().contains(&env::current_exe().unwrap()));
    }
}
