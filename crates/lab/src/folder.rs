//! The folder of a report or a study: writes its files whole or not at all, replaces none but our own, and explains errors to a person.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::results::FORMAT;

/// Start of every page. A later report recognises its own page by it before it replaces the page. A change here must still recognise
/// earlier pages.
pub(crate) const PAGE: &str = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
     <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Nicety: ";

/// Start of every `results.csv`. A later report recognises its own file by it before it replaces the file.
pub(crate) const TABLE: &str = "adapter,test,server,unit,direction,round,value";
/// The name of the format of a study's head.
pub(crate) const STUDY: &str = "nicety-lab";
/// Number of bytes at the start of a file that show whether it is ours.
const BEGIN: u64 = 4096;

/// The reason why there is no report, and the remedy.
#[derive(Debug, Error)]
pub enum ReportError {
    /// The path of the folder, or a part of it, is a file.
    #[error("the report cannot be written: {0} is a file, not a folder; name another folder with --report DIR")]
    NotAFolder(PathBuf),
    /// A folder is in the place of a file of the report.
    #[error(
        "the report cannot be written: {0} is a folder, where a file of that name belongs; remove it, or name another folder with --report DIR"
    )]
    NotAFile(PathBuf),
    /// Another file is in the place of a file of the report.
    #[error(
        "the report cannot be written: {0} is there and is none of Nicety's, which would be lost; move it, or name another folder with --report DIR"
    )]
    NotOurs(PathBuf),
    /// No disk space or quota is left.
    #[error(
        "the report cannot be written: there is no disk space left for {0}; free some, or name a folder on another disk with --report DIR"
    )]
    NoSpace(PathBuf),
    /// This user may not write here, or the file system is read-only.
    #[error(
        "the report cannot be written: {0} may not be written by this user, or is read-only; name another folder with --report DIR"
    )]
    NotWritable(PathBuf),
    /// Any other error.
    #[error("the report cannot be written: {path}: {error}; name another folder with --report DIR")]
    Other {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The results cannot be written as JSON.
    #[error("the report cannot be written: the results cannot be said in JSON: {0}")]
    Unsaid(String),
}

impl ReportError {
    fn of(path: &Path, error: io::Error) -> ReportError {
        let path = path.to_owned();
        match error.kind() {
            ErrorKind::NotADirectory | ErrorKind::AlreadyExists => ReportError::NotAFolder(path),
            ErrorKind::IsADirectory => ReportError::NotAFile(path),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => ReportError::NoSpace(path),
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => ReportError::NotWritable(path),
            _ => ReportError::Other { path, error },
        }
    }
}

/// Checks whether a report of these files can be written into `dir`. Makes the missing folders and a file in them, and removes all of
/// these again.
pub(crate) fn check(dir: &Path, names: &[&str]) -> Result<(), ReportError> {
    let missing = missing(dir);
    let probe = dir.join(format!(".nicety.{}.part", std::process::id()));
    let made = fs::create_dir_all(dir)
        .and_then(|()| write_one(&probe, "probe", create))
        .map_err(|error| ReportError::of(dir, error))
        .and_then(|()| names.iter().try_for_each(|name| fits(&dir.join(name))));
    // If the probe was not made there is nothing to remove, and a probe that stays does no harm.
    let _ = fs::remove_file(&probe);
    remove(&missing);
    made
}

/// Folders to make for `dir`, the deepest first.
fn missing(dir: &Path) -> Vec<&Path> {
    dir.ancestors().take_while(|path| *path != Path::new("") && !path.exists()).collect()
}

fn remove(folders: &[&Path]) {
    for path in folders {
        let _ = fs::remove_dir(path);
    }
}

/// Whether a file may be written here: the place is empty, or holds a file of an older report. A symbolic link to one is replaced.
fn fits(place: &Path) -> Result<(), ReportError> {
    let Ok(there) = fs::symlink_metadata(place) else { return Ok(()) };
    if there.is_dir() {
        return Err(ReportError::NotAFile(place.to_owned()));
    }
    // Only a regular file is opened: opening a pipe would wait for its writer.
    let file = fs::metadata(place).ok().filter(fs::Metadata::is_file).and_then(|_| File::open(place).ok());
    let mut begin = Vec::new();
    let read = file.map(|file| file.take(BEGIN).read_to_end(&mut begin));
    let ours = matches!(read, Some(Ok(_))) && is_ours(&begin);
    if ours { Ok(()) } else { Err(ReportError::NotOurs(place.to_owned())) }
}

/// Whether a file with this beginning belongs to a report, of any version and with any indentation of its JSON.
fn is_ours(begin: &[u8]) -> bool {
    let names = [FORMAT, STUDY].map(|format| format!("{{\"format\":\"{format}\""));
    let packed: Vec<u8> = begin.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let known = [PAGE, TABLE].iter().any(|head| begin.starts_with(head.as_bytes()));
    known || names.iter().any(|name| packed.starts_with(name.as_bytes()))
}

/// Creates the file at `path`, which must not exist.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Writes `files` (name, text) into `dir`. First all are written beside their places; when all are on the disk, each moves to its
/// place. After an error none of our files is left, and the earlier ones are still there.
pub(crate) fn write(dir: &Path, files: &[(&str, &str)]) -> Result<(), ReportError> {
    write_by(dir, files, create)
}

/// As [`write`], by files that `create` makes.
pub(crate) fn write_by(
    dir: &Path,
    files: &[(&str, &str)],
    create: impl Fn(&Path) -> io::Result<File>,
) -> Result<(), ReportError> {
    let missing = missing(dir);
    let made = fs::create_dir_all(dir).map_err(|error| ReportError::of(dir, error));
    let places: Vec<Place> = files.iter().map(|(name, _)| Place::new(dir, name)).collect();
    let mut taken = 0;
    let written = made.and_then(|()| {
        files.iter().zip(&places).try_for_each(|((_, text), Place { place, part, .. })| {
            write_one(part, text, &create).map_err(|error| ReportError::of(place, error))
        })?;
        places.iter().try_for_each(|place| place.take().map(|()| taken += 1))
    });
    // The first error is reported. A file that cannot be removed here was never made.
    if written.is_err() {
        places[..taken].iter().for_each(Place::leave);
        for Place { part, .. } in &places {
            let _ = fs::remove_file(part);
        }
        remove(&missing);
    }
    for Place { older, .. } in &places[..taken] {
        let _ = fs::remove_file(older);
    }
    written
}

/// A file's place, and the temporary files beside it.
struct Place {
    place: PathBuf,
    /// The new file.
    part: PathBuf,
    /// The earlier file, kept until all new files are in their places.
    older: PathBuf,
}

impl Place {
    fn new(dir: &Path, name: &str) -> Place {
        let beside = |what: &str| dir.join(format!(".{name}.{}.{what}", std::process::id()));
        Place { place: dir.join(name), part: beside("part"), older: beside("older") }
    }

    /// Moves the new file into its place. The earlier file keeps another name from then on.
    fn take(&self) -> Result<(), ReportError> {
        let Place { place, part, older } = self;
        fits(place)?;
        // A killed process with the same ID may have left this file.
        let _ = fs::remove_file(older);
        // Some file systems have no hard links. Then a rename leaves the place empty for a moment.
        let kept = match fs::hard_link(place, older).or_else(|_| fs::rename(place, older)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            kept => kept,
        };
        let taken = kept.and_then(|()| fs::rename(part, place));
        if taken.is_err() {
            // Renaming one of two links to the other does nothing, so `older` is removed as well.
            let _ = fs::rename(older, place);
            let _ = fs::remove_file(older);
        }
        taken.map_err(|error| ReportError::of(place, error))
    }

    /// Restores the earlier file, or removes the new one if there was none.
    fn leave(&self) {
        if fs::rename(&self.older, &self.place).is_err() {
            let _ = fs::remove_file(&self.place);
        }
    }
}

fn write_one(part: &Path, text: &str, create: impl Fn(&Path) -> io::Result<File>) -> io::Result<()> {
    // A killed process with the same ID may have left this file.
    if part.exists() {
        fs::remove_file(part)?;
    }
    let mut file = create(part)?;
    file.write_all(text.as_bytes())?;
    // A lack of disk space may show only here. A pipe or a device has nothing to sync.
    match file.sync_all() {
        Err(error) if error.kind() != ErrorKind::InvalidInput => Err(error),
        _ => Ok(()),
    }
}
