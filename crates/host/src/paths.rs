//! The paths of a host file. Each path has one use: two sockets cannot share a path, and a capture or a trace would overwrite
//! another file.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nicety_socket::MAX_PATH;

use super::errors::HostError;
use super::walk::{Found, Section, Walk};

/// The use of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    HostFile,
    Socket,
    Capture,
    Rom,
    State,
    Lease,
}

/// A path and its use.
#[derive(Clone, Debug)]
struct Claim {
    path: PathBuf,
    what: Use,
    /// The key that sets it. Empty for the host file itself.
    key: String,
    line: usize,
}

/// All used paths, with links resolved.
#[derive(Clone, Debug, Default)]
pub(super) struct Paths {
    claims: HashMap<PathBuf, Claim>,
}

/// The real path, with existing links resolved. The part that does not exist stays as written, without `.` and doubled slashes.
fn real(path: &Path) -> PathBuf {
    let mut plain: PathBuf = path.components().collect();
    // A link to a missing file: that file will be made. Linux follows at most forty links.
    for _ in 0..40 {
        let Some(to) = plain.read_link().ok().filter(|_| plain.canonicalize().is_err()) else { break };
        plain = plain.parent().unwrap_or(Path::new("")).join(to);
    }
    let known = plain.ancestors().find_map(|there| {
        let rest = plain.strip_prefix(there).ok()?;
        Some(there.canonicalize().ok()?.join(rest))
    });
    known.unwrap_or(plain)
}

impl Paths {
    /// The paths of a host file at `path`, including its own.
    pub(super) fn new(path: &Path) -> Self {
        let host = Claim { path: path.to_owned(), what: Use::HostFile, key: String::new(), line: 1 };
        Self { claims: HashMap::from([(real(path), host)]) }
    }

    /// Reads the path of an option ROM. Ports may share one.
    pub(super) fn rom(&mut self, walk: &mut Walk, section: Section<'_>, dir: &Path) -> Option<PathBuf> {
        let path = file(walk, section, "rom", dir)?;
        self.claim(walk, section, "rom", path, Use::Rom)
    }

    /// Reads the path of a capture file.
    pub(super) fn capture(&mut self, walk: &mut Walk, section: Section<'_>, dir: &Path) -> Option<PathBuf> {
        let path = file(walk, section, "file", dir)?;
        self.claim(walk, section, "file", path, Use::Capture)
    }

    /// Reads the path of the state file.
    pub(super) fn state(&mut self, walk: &mut Walk, section: Section<'_>, dir: &Path) -> Option<PathBuf> {
        let path = file(walk, section, "state", dir)?;
        self.claim(walk, section, "state", path, Use::State)
    }

    /// Reads the path of a socket. It must be short enough for the system.
    pub(super) fn socket(&mut self, walk: &mut Walk, section: Section<'_>, key: &str, dir: &Path) -> Option<PathBuf> {
        let path = file(walk, section, key, dir)?;
        let length = path.as_os_str().as_bytes().len();
        if length > MAX_PATH {
            let what = format!(
                "{} has {length} bytes, and the system's limit is {MAX_PATH}: choose a shorter folder",
                path.display()
            );
            let line = walk.string(section, key)?.line;
            walk.wrong(section, key, line, what);
            return None;
        }
        self.claim(walk, section, key, path, Use::Socket)
    }

    /// Takes the path of a VM's lease, which follows from its name on this line.
    pub(super) fn lease(&mut self, walk: &mut Walk, section: Section<'_>, line: usize, path: &Path) {
        self.claim_at(walk, section, ("name", line), path, Use::Lease);
    }

    fn claim(&mut self, walk: &mut Walk, section: Section<'_>, key: &str, path: PathBuf, what: Use) -> Option<PathBuf> {
        let line = walk.string(section, key)?.line;
        self.claim_at(walk, section, (key, line), &path, what).then_some(path)
    }

    /// Whether the path was free.
    fn claim_at(
        &mut self,
        walk: &mut Walk,
        section: Section<'_>,
        (key, line): (&str, usize),
        path: &Path,
        what: Use,
    ) -> bool {
        let place = real(path);
        match self.claims.get(&place) {
            Some(earlier) if (earlier.what, what) != (Use::Rom, Use::Rom) => {
                let whose = match earlier.what {
                    Use::HostFile => "this host file itself".to_owned(),
                    Use::Socket => format!("the socket of {} already", walk.at(earlier.line)),
                    Use::Capture => format!("the capture's file of {} already", walk.at(earlier.line)),
                    Use::Rom => format!("the option ROM of {} already", walk.at(earlier.line)),
                    Use::State => format!("the state file of {} already", walk.at(earlier.line)),
                    Use::Lease => format!("the lease of {} already", walk.at(earlier.line)),
                };
                let path = path.display();
                let what = match what {
                    Use::Lease => format!("{path} would be this vm's lease, and is {whose}: choose another name"),
                    _ => format!("{path} is {whose}: choose another path"),
                };
                walk.wrong(section, key, line, what);
                false
            }
            _ => {
                let key = format!("{}.{key}", section.kind.name);
                self.claims.insert(place, Claim { path: path.to_owned(), what, key, line });
                true
            }
        }
    }

    /// The mistake if the daemon used a path as `ours` that the file names already. `other`: what to do if it is the host file itself.
    pub(super) fn clash(&self, path: &Path, ours: &str, other: &str) -> Option<HostError> {
        let claim = self.claims.get(&real(path))?;
        let what = match claim.what {
            Use::HostFile => format!("this host file would be {ours} too: {other}"),
            _ => format!("{} would be {ours} too: choose another path", claim.path.display()),
        };
        Some(HostError { line: claim.line, of: String::new(), key: claim.key.clone(), what, allowed: String::new() })
    }
}

/// A port's traces in the folder of --record, in the order of writing. After the last one the second follows again.
pub fn trace_files(folder: &Path, port: &str) -> [PathBuf; 3] {
    ["", ".1", ".2"].map(|part| folder.join(format!("{port}.trace{part}")))
}

/// Reads the folders that live changes may use.
pub(super) fn folders(walk: &mut Walk, section: Section<'_>, dir: &Path, most: usize) -> Vec<PathBuf> {
    let all = walk.list::<String>(section, "folders", most);
    all.iter().filter_map(|Found { value, line }| path(walk, section, "folders", value, *line, dir)).collect()
}

/// Reads a path, relative to the host file's folder. Refuses control characters, which could control the terminal that shows
/// them, and a leading `~`, which only a shell expands.
pub(super) fn file(walk: &mut Walk, section: Section<'_>, key: &str, dir: &Path) -> Option<PathBuf> {
    let Found { value, line } = walk.string(section, key)?;
    path(walk, section, key, value, line, dir)
}

fn path(walk: &mut Walk, section: Section<'_>, key: &str, path: &str, line: usize, dir: &Path) -> Option<PathBuf> {
    if path.is_empty() || path.contains(char::is_control) {
        let why = if path.is_empty() { "is no path" } else { "has control characters, which no path may have here" };
        walk.wrong(section, key, line, format!("{path:?} {why}"));
        return None;
    }
    if path.starts_with('~') {
        let home = std::env::home_dir().filter(|_| path == "~" || path.starts_with("~/"));
        let meant = home.map(|home| home.join(path.trim_start_matches(['~', '/'])).display().to_string());
        let meant = meant.unwrap_or_else(|| format!("./{path}"));
        let what = format!(
            "{path:?}: no shell reads this file, and ~ is a name like any other here: write {meant:?}{}",
            if meant.starts_with('.') { ", or the folder that is meant" } else { "" }
        );
        walk.wrong(section, key, line, what);
        return None;
    }
    Some(dir.join(path))
}

#[cfg(test)]
#[path = "paths_test.rs"]
mod tests;
