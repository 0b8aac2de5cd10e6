//! Errors of real guests, each with its remedy.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use super::cache_folder;
use crate::folder::FolderError;

/// The reason why a real guest could not be installed, booted or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither `XDG_CACHE_HOME` nor `HOME` names a folder for the cache.
    #[error(
        "no folder for real guests: neither XDG_CACHE_HOME nor HOME is set; set XDG_CACHE_HOME to a folder with 1 GB of room"
    )]
    NoCache,
    /// No folder can hold a user-mode guest's memory.
    #[error(
        "no folder for a guest's memory of {mib} MiB: {tried}; set TMPDIR to a folder with room, best on a tmpfs, that is not mounted noexec"
    )]
    NoMemoryFolder {
        /// Size of the guest's memory in MiB.
        mib: u64,
        /// Each folder that was tried, with the reason why it is unsuitable.
        tried: String,
    },
    /// The program that drives an adapter from a guest's user space is missing.
    #[error(
        "{program} is not there, which drives adapters that Linux has no driver for: `cargo build -p nicety` makes it beside `nicety`"
    )]
    NoUio {
        /// The path at which it was expected.
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
        /// The program's name.
        program: &'static str,
        /// The Debian package that contains it.
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
        /// The failed activity.
        doing: &'static str,
        /// The failed program.
        program: &'static str,
        /// The mirror in use.
        mirror: String,
        /// The last lines of its error output.
        said: String,
    },
    /// A program that was run on the host failed.
    #[error("{doing} failed: {said}")]
    Run {
        /// The failed activity.
        doing: String,
        /// The last lines of its error output, or the exit status.
        said: String,
    },
    /// A private network cannot be made.
    #[error(
        "this host does not let you make a network of your own, without which guests reach no peer outside the switch: user \
         namespaces must be allowed (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces > 0; on Ubuntu \
         kernel.apparmor_restrict_unprivileged_userns=0). What was tried said: {said}"
    )]
    Namespace {
        /// The error output.
        said: String,
    },
    /// Nicety's own daemon failed to serve.
    #[error("the daemon did not serve: {why}; it said\n{said}")]
    Daemon {
        /// The cause.
        why: String,
        /// The last lines of its log.
        said: String,
    },
    /// The person stopped it.
    #[error("stopped")]
    Stopped,
    /// A file of the host could not be read or written.
    #[error("cannot {doing} {path}: {source}{}", cache_hint(path))]
    File {
        /// The failed activity.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A package lacks something that this code expects of it.
    #[error(
        "{what}; remove {path}, and the next `nicety compare` with these guests lays it again; if that changes nothing, the recipe needs a look"
    )]
    Unexpected {
        /// The violated expectation.
        what: String,
        /// The file or folder.
        path: PathBuf,
    },
    /// The guest did not come up.
    #[error("the guest ({guest}) did not come up: {why}; its console ended with\n{console}")]
    Boot {
        /// The guest's title.
        guest: String,
        /// The cause.
        why: String,
        /// The last lines of its console and of its error output.
        console: String,
    },
    /// The guest ended while a command ran.
    #[error("the guest ended while it ran `{command}`; its console ended with\n{console}")]
    Gone {
        /// The command.
        command: String,
        /// The last lines of its console and of its error output.
        console: String,
    },
    /// A command did not end in time.
    #[error("the guest did not answer `{command}` within {limit:?}; its console ended with\n{console}")]
    Late {
        /// The command.
        command: String,
        /// The command's time limit.
        limit: Duration,
        /// The last lines of its console and of its error output.
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

/// The remedy for a file of the cache. For other files the system's error is enough.
fn cache_hint(path: &Path) -> &'static str {
    let cached = cache_folder::path().is_some_and(|cache| path.starts_with(cache));
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
