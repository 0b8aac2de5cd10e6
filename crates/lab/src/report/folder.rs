//! Files that appear whole or not at all, and what to tell a person where they cannot.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why there is no report: what happened, and what to do.
#[derive(Debug, Error)]
pub enum ReportError {
    /// The path of the folder, or a part of it, is a file.
    #[error("the report cannot be written: {0} is a file, not a folder; name another folder with --report DIR")]
    NotAFolder(PathBuf),
    /// No space, or no quota, left.
    #[error(
        "the report cannot be written: there is no disk space left for {0}; free some, or name a folder on another disk with --report DIR"
    )]
    NoSpace(PathBuf),
    /// Not ours to write, or mounted read-only.
    #[error(
        "the report cannot be written: {0} may not be written by this user, or is read-only; name another folder with --report DIR"
    )]
    NotWritable(PathBuf),
    /// Something else.
    #[error("the report cannot be written: {path}: {error}; name another folder with --report DIR")]
    Other {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The results cannot be said in JSON.
    #[error("the report cannot be written: the results cannot be said in JSON: {0}")]
    Unsaid(String),
}

impl ReportError {
    fn of(path: &Path, error: io::Error) -> ReportError {
        let path = path.to_owned();
        match error.kind() {
            ErrorKind::NotADirectory | ErrorKind::AlreadyExists | ErrorKind::IsADirectory => {
                ReportError::NotAFolder(path)
            }
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => ReportError::NoSpace(path),
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => ReportError::NotWritable(path),
            _ => ReportError::Other { path, error },
        }
    }
}

/// Finds out whether a report can be written into `dir`: makes what is missing and a file in it, and takes away what it made.
pub(super) fn check(dir: &Path) -> Result<(), ReportError> {
    let missing: Vec<&Path> = dir.ancestors().take_while(|path| *path != Path::new("") && !path.exists()).collect();
    let probe = dir.join(format!(".nicety.{}.part", std::process::id()));
    let made = fs::create_dir_all(dir)
        .map_err(|error| ReportError::of(dir, error))
        .and_then(|()| write_one(&probe, "probe", create).map_err(|error| ReportError::of(dir, error)));
    // What was not made cannot be removed, and what cannot be removed harms nobody.
    let _ = fs::remove_file(&probe);
    for path in missing {
        let _ = fs::remove_dir(path);
    }
    made
}

/// Makes the file at `path`, which must not exist.
pub(super) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Writes `files` (name, text) into `dir`: all of them beside their places first, and only when all are on the disk, each to
/// its place. After an error nothing of ours is left, and what was there before still is.
pub(super) fn write(
    dir: &Path,
    files: &[(&str, &str)],
    create: impl Fn(&Path) -> io::Result<File>,
) -> Result<(), ReportError> {
    let new = !dir.exists();
    fs::create_dir_all(dir).map_err(|error| ReportError::of(dir, error))?;
    let places: Vec<(PathBuf, PathBuf, &str)> = files
        .iter()
        .map(|(name, text)| (dir.join(format!(".{name}.{}.part", std::process::id())), dir.join(name), *text))
        .collect();
    let written = places
        .iter()
        .try_for_each(|(part, place, text)| {
            write_one(part, text, &create).map_err(|error| ReportError::of(place, error))
        })
        .and_then(|()| {
            places
                .iter()
                .try_for_each(|(part, place, _)| fs::rename(part, place).map_err(|error| ReportError::of(place, error)))
        });
    if written.is_err() {
        // The first error is the one to tell; what cannot be removed was not made.
        for (part, _, _) in &places {
            let _ = fs::remove_file(part);
        }
        if new {
            let _ = fs::remove_dir(dir);
        }
    }
    written
}

fn write_one(part: &Path, text: &str, create: impl Fn(&Path) -> io::Result<File>) -> io::Result<()> {
    // Left by a process of the same number that was killed.
    if part.exists() {
        fs::remove_file(part)?;
    }
    let mut file = create(part)?;
    file.write_all(text.as_bytes())?;
    // A disk's lack of space may show only here. What is no disk (a pipe, a device) has nothing to sync.
    match file.sync_all() {
        Err(error) if error.kind() != ErrorKind::InvalidInput => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report;
    use crate::results::{Results, sample};

    /// A folder of this test alone, gone at its end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("nicety-lab-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }

        fn names(&self) -> Vec<String> {
            let mut names: Vec<String> =
                fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_report_is_a_page_and_results_that_can_be_read_again_and_replaces_the_one_before() {
        let scratch = Scratch::new("whole");
        let dir = scratch.0.join("deep/report");
        report::write(&sample::quick(), &dir).unwrap();
        report::write(&sample::embedded(), &dir).unwrap();
        let json = fs::read_to_string(dir.join("results.json")).unwrap();
        assert_eq!(Results::from_json(&json).unwrap(), sample::embedded());
        assert_eq!(fs::read_to_string(dir.join("index.html")).unwrap(), report::page(&sample::embedded()));
        assert_eq!(fs::read_dir(dir).unwrap().count(), 2);
    }

    #[test]
    fn a_full_disk_leaves_the_report_before_as_it_was_and_nothing_else() {
        let scratch = Scratch::new("full");
        fs::write(scratch.0.join("index.html"), "before").unwrap();
        // /dev/full answers each write with ENOSPC: full(4). The second file is the one that no longer fits.
        let full = |path: &Path| {
            if path.ends_with(part("index.html")) {
                OpenOptions::new().write(true).open("/dev/full")
            } else {
                create(path)
            }
        };
        let error = write(&scratch.0, &[("results.json", "{}"), ("index.html", "after")], full).unwrap_err();
        assert!(matches!(error, ReportError::NoSpace(_)), "{error}");
        assert!(error.to_string().contains("no disk space left"), "{error}");
        assert_eq!(fs::read_to_string(scratch.0.join("index.html")).unwrap(), "before");
        assert_eq!(scratch.names(), ["index.html"]);
    }

    #[test]
    fn a_full_disk_takes_away_the_folder_that_was_made_for_the_report() {
        let scratch = Scratch::new("new");
        let dir = scratch.0.join("report");
        let full = |_: &Path| OpenOptions::new().write(true).open("/dev/full");
        assert!(matches!(write(&dir, &[("results.json", "{}")], full), Err(ReportError::NoSpace(_))));
        assert!(scratch.names().is_empty());
    }

    #[test]
    fn a_file_in_place_of_the_folder_or_above_it_is_said_to_be_one() {
        let scratch = Scratch::new("file");
        let file = scratch.0.join("file");
        fs::write(&file, "mine").unwrap();
        for dir in [file.clone(), file.join("below")] {
            let error = report::write(&sample::quick(), &dir).unwrap_err();
            assert!(matches!(error, ReportError::NotAFolder(_)), "{error}");
            assert!(error.to_string().contains("--report DIR"), "{error}");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    }

    #[test]
    fn a_folder_that_nobody_may_write_is_said_to_be_one() {
        // sysfs lets not even root make a folder; a permission bit would not stop root.
        let error = report::write(&sample::quick(), Path::new("/sys/nicety-report")).unwrap_err();
        assert!(matches!(error, ReportError::NotWritable(_)), "{error}");
    }

    #[test]
    fn a_folder_where_a_file_of_the_report_should_be_is_an_error_and_leaves_no_parts() {
        let scratch = Scratch::new("folder");
        fs::create_dir(scratch.0.join("index.html")).unwrap();
        assert!(report::write(&sample::quick(), &scratch.0).is_err());
        assert!(scratch.names().iter().all(|name| !name.ends_with(".part")), "{:?}", scratch.names());
    }

    #[test]
    fn a_check_leaves_nothing_and_says_what_writing_would_say() {
        let scratch = Scratch::new("check");
        report::check(&scratch.0.join("deep/report")).unwrap();
        report::check(&scratch.0).unwrap();
        assert!(scratch.names().is_empty(), "{:?}", scratch.names());
        let file = scratch.0.join("file");
        fs::write(&file, "mine").unwrap();
        for dir in [file.as_path(), Path::new("/sys/nicety-report")] {
            let (checked, written) =
                (report::check(dir).unwrap_err(), report::write(&sample::quick(), dir).unwrap_err());
            assert_eq!(checked.to_string(), written.to_string());
        }
    }

    fn part(name: &str) -> String {
        format!(".{name}.{}.part", std::process::id())
    }
}
