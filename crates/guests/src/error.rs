//! What can go wrong with a real guest, each with what to do about it.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use super::root::cache_folder;
use crate::folder::FolderError;

/// Why a real guest could not be laid, booted or asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither `XDG_CACHE_HOME` nor `HOME` says where a cache may live.
    #[error(
        "no folder for real guests: neither XDG_CACHE_HOME nor HOME is set; set XDG_CACHE_HOME to a folder with 1 GB of room"
    )]
    NoCache,
    /// No folder can hold a user-mode guest's memory.
    #[error(
        "no folder for a guest's memory of {mib} MiB: {tried}; set TMPDIR to a folder with room, best on a tmpfs, that is not mounted noexec"
    )]
    NoMemoryFolder {
        /// What was needed.
        mib: u64,
        /// Each folder that was tried, and why it will not do.
        tried: String,
    },
    /// No program that drives an adapter from a guest's user space.
    #[error(
        "{program} is not there, which drives adapters that Linux has no driver for: `cargo build -p nicety` makes it beside `nicety`"
    )]
    NoUio {
        /// Where it was looked for.
        program: PathBuf,
    },
    /// No folder can be made for sockets.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A program of the host is missing.
    #[error(
        "the program `{program}` is missing: install the package `{package}` (real guests are laid on Debian 12 or 13)"
    )]
    Program {
        /// Its name.
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// The machine's apt sources name no Debian mirror.
    #[error(
        "no Debian mirror in {folder}: real guests are brought from the mirror that the machine's own apt sources name; add one with component main"
    )]
    NoMirror {
        /// The folder that was read.
        folder: PathBuf,
    },
    /// apt or dpkg refused.
    #[error("{doing} failed; is the network up, and does the mirror {mirror} answer? {program} said:\n{said}")]
    Apt {
        /// What was being done.
        doing: &'static str,
        /// The program that was run.
        program: &'static str,
        /// The mirror in use.
        mirror: String,
        /// The last lines of its complaint.
        said: String,
    },
    /// A program that was run on the host failed.
    #[error("{doing} failed: {said}")]
    Run {
        /// What was being done.
        doing: String,
        /// The last lines of its complaint, or the exit status.
        said: String,
    },
    /// No private network.
    #[error(
        "this host does not let you make a network of your own, without which guests reach no peer outside the switch: user \
         namespaces must be allowed (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces > 0; on Ubuntu \
         kernel.apparmor_restrict_unprivileged_userns=0). What was tried said: {said}"
    )]
    Namespace {
        /// The complaint.
        said: String,
    },
    /// Nicety's own daemon did not serve.
    #[error("the daemon did not serve: {why}; it said\n{said}")]
    Daemon {
        /// Why.
        why: String,
        /// The last lines of its log.
        said: String,
    },
    /// The person stopped it.
    #[error("stopped")]
    Stopped,
    /// A file of the host could not be read or written.
    #[error("cannot {doing} {path}: {source}{}", elsewhere(path))]
    File {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        path: PathBuf,
        /// The host's reason.
        source: io::Error,
    },
    /// A package does not have what this code expects of it.
    #[error(
        "{what}; remove {path}, and the next `nicety compare` with these guests lays it again; if that changes nothing, the recipe needs a look"
    )]
    Unexpected {
        /// What was expected.
        what: String,
        /// Where.
        path: PathBuf,
    },
    /// The guest did not come up.
    #[error("the guest ({guest}) did not come up: {why}; its console ended with\n{console}")]
    Boot {
        /// What it is.
        guest: String,
        /// Why.
        why: String,
        /// The last lines of its console and of its own complaints.
        console: String,
    },
    /// The guest ended while a command ran.
    #[error("the guest ended while it ran `{command}`; its console ended with\n{console}")]
    Gone {
        /// The command.
        command: String,
        /// The last lines of its console and of its own complaints.
        console: String,
    },
    /// A command did not end in time.
    #[error("the guest did not answer `{command}` within {limit:?}; its console ended with\n{console}")]
    Late {
        /// The command.
        command: String,
        /// The time that it had.
        limit: Duration,
        /// The last lines of its console and of its own complaints.
        console: String,
    },
    /// A command ended with a code other than 0 where its result was needed.
    #[error("`{command}` in the guest ended with code {code}:\n{said}")]
    Command {
        /// The command.
        command: String,
        /// Its exit code.
        code: i32,
        /// Its output.
        said: String,
    },
}

/// What to do about a file of the cache. Of another one the reason says all that there is to say.
fn elsewhere(path: &Path) -> &'static str {
    let cached = cache_folder().is_ok_and(|cache| path.starts_with(cache));
    if cached { "; set XDG_CACHE_HOME to another folder, with 1 GB of room" } else { "" }
}

/// The last `lines` lines of a text, for an error message.
pub(super) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let start = all.len().saturating_sub(lines);
    all.get(start..).unwrap_or_default().join("\n")
}

/// Turns an I/O error into [`Error::File`].
pub(super) fn file(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
    let path = path.into();
    move |source| Error::File { doing, path, source }
}
