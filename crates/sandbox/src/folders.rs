//! Folders that a daemon may use, by Landlock (landlock(7)).

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError,
};
use rustix::fs::{Access as Asked, CWD, FileType, Mode, OFlags, Stat, access, fstat, openat, stat};
use rustix::io::Errno;

use crate::{REMEDY, makes_sockets};

/// The highest version that is used: later ones restrict what is not used here, or what seccomp refuses already.
pub(crate) const NEWEST: u8 = 6;

/// The rights in a folder and all below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Files are read.
    Read,
    /// Files, sockets and links are also made, written and removed. No sockets, if [another process](crate::sockets_are_made_elsewhere)
    /// makes them.
    Write,
    /// A device is used.
    Device,
}

/// Folders for threads that may open files. A folder that does not exist when the rules are made is out of reach.
#[derive(Clone, Debug, Default)]
pub struct Folders {
    all: Vec<(PathBuf, Grant)>,
}

/// A folder that threads may not use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotGranted {
    folder: PathBuf,
    /// Whether the host file names it: then another folder was at its path when the rules were made, or none.
    is_named: bool,
}

impl fmt::Display for NotGranted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // With this one all others would be granted.
        if self.folder == Path::new("/") {
            return f
                .write_str("the sandbox keeps this daemon out of the root folder: choose a path in another folder");
        }
        let folder = self.folder.display();
        if self.is_named {
            return write!(
                f,
                "the sandbox keeps this daemon out of {folder}, which was made, replaced or mounted after the daemon's start: restart the daemon"
            );
        }
        write!(
            f,
            "the sandbox keeps this daemon out of {folder}: name it in [daemon] folders in the host file, and restart the daemon"
        )
    }
}

impl std::error::Error for NotGranted {}

/// The needs of the daemon itself: accounts (nsswitch.conf(5), whose modules are libraries), zones of time, its host's name and
/// identity (machine-id(5)), a terminal, taps, the names of its functions for a panic's report.
const OWN: [(&str, Grant); 17] = [
    ("/etc/passwd", Grant::Read),
    ("/etc/group", Grant::Read),
    ("/etc/nsswitch.conf", Grant::Read),
    ("/etc/ld.so.cache", Grant::Read),
    ("/etc/localtime", Grant::Read),
    ("/etc/machine-id", Grant::Read),
    ("/lib", Grant::Read),
    ("/lib64", Grant::Read),
    ("/usr/lib", Grant::Read),
    ("/usr/share/zoneinfo", Grant::Read),
    ("/run/systemd/userdb", Grant::Read),
    ("/proc", Grant::Read),
    ("/sys", Grant::Read),
    ("/proc/self/exe", Grant::Read),
    ("/dev/null", Grant::Device),
    ("/dev/tty", Grant::Device),
    ("/dev/net/tun", Grant::Device),
];

impl Folders {
    /// The daemon's own needs.
    pub fn new() -> Self {
        Self { all: OWN.iter().map(|(path, grant)| (PathBuf::from(path), *grant)).collect() }
    }

    /// One folder, and nothing of the daemon's own needs.
    pub(crate) fn only(path: &Path, grant: Grant) -> Self {
        Self { all: vec![(path.to_owned(), grant)] }
    }

    /// Grants a folder with all below it, or a file.
    pub fn grant(&mut self, path: impl Into<PathBuf>, grant: Grant) {
        self.all.push((path.into(), grant));
    }

    /// Grants a folder that need not exist.
    pub fn grant_if_there(&mut self, path: impl Into<PathBuf>, grant: Grant) {
        let path = path.into();
        if path.exists() {
            self.grant(path, grant);
        }
    }

    /// Folders that do not exist, and so cannot be granted.
    pub fn missing(&self) -> impl Iterator<Item = &Path> {
        let own = OWN.len().min(self.all.len());
        self.all[own..].iter().map(|(path, _)| path.as_path()).filter(|path| !path.exists())
    }

    /// The rules for the folders that exist. One is open at a time: a process may have few descriptors, and an open one keeps a mount
    /// busy. `abi` is the highest version of Landlock to use.
    ///
    /// # Errors
    /// The kernel refused a rule although it has Landlock.
    pub(crate) fn rules(&self, abi: u8) -> io::Result<Rules> {
        let abi = ABI::from(i32::from(abi.min(NEWEST)));
        let mut ids = Vec::new();
        let created = if abi == ABI::Unsupported {
            let id = |(path, grant): &(PathBuf, Grant)| Some((FileId::of(&stat(path).ok()?), *grant));
            ids.extend(self.all.iter().filter_map(id));
            None
        } else {
            Some(self.add_rules(abi, &mut ids).map_err(refused)?)
        };
        Ok(Rules { created, ids, abi })
    }

    fn add_rules(&self, abi: ABI, ids: &mut Vec<(FileId, Grant)>) -> Result<RulesetCreated, RulesetError> {
        let files = AccessFs::from_all(abi);
        let mut rules = Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(files)?;
        let net = AccessNet::from_all(abi);
        if !net.is_empty() {
            // Nobody may: there is no rule for a port.
            rules = rules.handle_access(net)?;
        }
        let mut rules = rules.create()?;
        for (path, grant) in &self.all {
            let Ok(fd) = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else { continue };
            let Ok(stat) = fstat(&fd) else { continue };
            rules = rules.add_rule(PathBeneath::new(&fd, rights(*grant, abi, is_folder(&stat))))?;
            ids.push((FileId::of(&stat), *grant));
        }
        Ok(rules)
    }
}

fn refused(why: impl fmt::Display) -> io::Error {
    io::Error::other(format!("threads cannot be confined to their folders (Landlock): {why}; {REMEDY}"))
}

/// Device and inode: what a rule names, whatever its path is later. The rule keeps the inode, so no new file gets its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId(u64, u64);

impl FileId {
    fn of(stat: &Stat) -> Self {
        Self(stat.st_dev, stat.st_ino)
    }
}

fn is_folder(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Rules for folders, of which each thread takes a copy.
#[derive(Debug)]
pub(crate) struct Rules {
    /// `None`: Landlock is not to be used.
    created: Option<RulesetCreated>,
    ids: Vec<(FileId, Grant)>,
    abi: ABI,
}

impl Rules {
    /// Confines this thread, and those that it starts. Returns what the kernel cannot confine.
    pub(crate) fn confine_this_thread(&self) -> io::Result<Option<String>> {
        let Some(created) = &self.created else { return Ok(kernel_lacks(0)) };
        let status = created.try_clone().map_err(refused)?.restrict_self().map_err(refused)?;
        let found = match status.landlock {
            LandlockStatus::Available { effective_abi, .. } => (effective_abi as i32).min(self.abi as i32),
            LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => 0,
        };
        Ok(kernel_lacks(found as u8))
    }
}

/// The kernel's rights for a grant.
fn rights(grant: Grant, abi: ABI, is_folder: bool) -> BitFlags<AccessFs> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let devices = AccessFs::MakeChar | AccessFs::MakeBlock;
    let never = if makes_sockets() { devices } else { devices | AccessFs::MakeSock };
    let rights = match grant {
        Grant::Read => read,
        Grant::Write => (read | AccessFs::from_write(abi)) & !never & !BitFlags::from(AccessFs::IoctlDev),
        Grant::Device => read | AccessFs::WriteFile | AccessFs::IoctlDev,
    };
    let rights = rights & AccessFs::from_all(abi);
    if is_folder { rights } else { rights & AccessFs::from_file(abi) }
}

/// The path with its links resolved, as far as it exists.
fn real(path: &Path) -> PathBuf {
    let path = &std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let known = path.ancestors().find_map(|there| {
        let rest = path.strip_prefix(there).ok()?;
        Some(there.canonicalize().ok()?.join(rest))
    });
    known.unwrap_or_else(|| path.to_owned())
}

/// The gaps of a kernel with this version of Landlock (0: none), in one line; `None` if it can confine all that is used here.
pub fn kernel_lacks(abi: u8) -> Option<String> {
    if abi == 0 {
        return Some(
            "this kernel has no Landlock: threads that make changes may open every file that the daemon's user may"
                .into(),
        );
    }
    let lacks: Vec<&str> = [
        (2, "cannot let files move between folders"),
        (3, "cannot refuse that files are cut (truncate(2))"),
        (4, "cannot refuse TCP"),
        (5, "cannot refuse ioctl(2) on devices"),
    ]
    .into_iter()
    .filter_map(|(since, what)| (abi < since).then_some(what))
    .collect();
    if lacks.is_empty() {
        return None;
    }
    Some(format!("this kernel's Landlock, version {abi}, {}", lacks.join(", and ")))
}

/// The folders that a process is confined to.
#[derive(Debug)]
pub struct Granted {
    named: Folders,
    ids: Vec<(FileId, Grant)>,
}

impl Granted {
    /// Whether a file in this folder may be made.
    ///
    /// # Errors
    /// The folder, if it is not granted.
    pub fn allows(&self, folder: &Path) -> Result<(), NotGranted> {
        self.find(folder, |grant| grant == Grant::Write)
    }

    /// Whether a file in this folder may be read.
    ///
    /// # Errors
    /// The folder, if it is not granted.
    pub fn allows_reading(&self, folder: &Path) -> Result<(), NotGranted> {
        self.find(folder, |_| true)
    }

    /// As the kernel does (security/landlock/fs.c, `is_access_to_paths_allowed`): up from the folder, across mounts. A folder that is
    /// hidden below a mount does not count.
    fn find(&self, folder: &Path, is_enough: impl Fn(Grant) -> bool) -> Result<(), NotGranted> {
        let real = real(folder);
        let has = |id| self.ids.iter().any(|(granted, grant)| *granted == id && is_enough(*grant));
        let is_within = real.ancestors().filter_map(|folder| stat(folder).ok()).any(|stat| has(FileId::of(&stat)));
        if is_within && !is_out_of_reach(&real) {
            return Ok(());
        }
        let is_below = |(path, grant): &(PathBuf, Grant)| is_enough(*grant) && real.starts_with(self::real(path));
        Err(NotGranted { folder: folder.to_owned(), is_named: self.named.all.iter().any(is_below) })
    }
}

/// Whether Landlock keeps this thread out, although the folder's mode does not: access(2) knows only the mode. A filesystem that was
/// mounted again may have its old numbers, but has no rule.
fn is_out_of_reach(folder: &Path) -> bool {
    let opened = openat(CWD, folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    opened.is_err_and(|error| error == Errno::ACCESS) && access(folder, Asked::READ_OK).is_ok()
}

static GRANTED: OnceLock<Granted> = OnceLock::new();

pub(crate) fn note(folders: &Folders, rules: &Rules) {
    let _the_first_holds = GRANTED.set(Granted { named: folders.clone(), ids: rules.ids.clone() });
}

/// The folders that this process is confined to, if it is.
pub fn granted() -> Option<&'static Granted> {
    GRANTED.get()
}
