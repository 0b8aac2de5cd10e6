//! Writes files whole or not at all, and explains errors to a person.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

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
pub(super) fn check(dir: &Path, names: &[&str]) -> Result<(), ReportError> {
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
    let ours = matches!(read, Some(Ok(_))) && super::is_ours(&begin);
    if ours { Ok(()) } else { Err(ReportError::NotOurs(place.to_owned())) }
}

/// Creates the file at `path`, which must not exist.
pub(super) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Writes `files` (name, text) into `dir`. First all are written beside their places; when all are on the disk, each moves to its
/// place. After an error none of our files is left, and the earlier ones are still there.
pub(super) fn write(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report;
    use crate::results::{Results, sample};

    /// Content of an earlier report's file.
    const BEFORE: &str = "{\"format\": \"nicety-results\", \"before\": true";

    /// A folder of this test alone, removed at its end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("nicety-lab-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }

        fn names(&self) -> Vec<String> {
            Scratch::names_in(&self.0)
        }

        fn names_in(dir: &Path) -> Vec<String> {
            let mut names: Vec<String> =
                fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
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
    fn a_report_is_a_page_a_table_and_results_that_can_be_read_again_and_replaces_the_one_before() {
        let scratch = Scratch::new("whole");
        let dir = scratch.0.join("deep/report");
        report::write(&sample::quick(), &dir).unwrap();
        report::write(&sample::embedded(), &dir).unwrap();
        let json = fs::read_to_string(dir.join("results.json")).unwrap();
        assert_eq!(Results::from_json(&json).unwrap(), sample::embedded());
        assert_eq!(fs::read_to_string(dir.join("index.html")).unwrap(), report::page(&sample::embedded()));
        assert_eq!(fs::read_dir(dir).unwrap().count(), 3);
    }

    #[test]
    fn a_full_disk_leaves_the_report_before_as_it_was_and_nothing_else() {
        let scratch = Scratch::new("full");
        fs::write(scratch.0.join("index.html"), BEFORE).unwrap();
        // /dev/full answers each write with ENOSPC: full(4). The second file does not fit.
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
        assert_eq!(fs::read_to_string(scratch.0.join("index.html")).unwrap(), BEFORE);
        assert_eq!(scratch.names(), ["index.html"]);
    }

    #[test]
    fn a_file_that_no_report_wrote_is_left_alone_and_nothing_is_written_beside_it() {
        let page = "<!doctype html>\n<html lang=\"en\">\n<title>Nicety: my own notes</title>\n";
        for text in
            ["", "mine", page, "{\"format\": \"nicety-resultsx\"}", "{\"mine\": {\"format\": \"nicety-results\"}}"]
        {
            for name in report::FILES {
                let scratch = Scratch::new("other");
                let place = scratch.0.join(name);
                fs::write(&place, text).unwrap();
                let checked = report::check(&scratch.0).unwrap_err();
                assert!(matches!(&checked, ReportError::NotOurs(path) if *path == place), "{text}: {checked}");
                assert!(checked.to_string().contains("move it, or name another folder"), "{checked}");
                assert_eq!(report::write(&sample::quick(), &scratch.0).unwrap_err().to_string(), checked.to_string());
                assert_eq!(
                    (fs::read_to_string(&place).unwrap(), scratch.names()),
                    (text.to_owned(), vec![name.to_owned()])
                );
            }
        }
    }

    #[test]
    fn a_link_or_a_pipe_where_a_file_of_the_report_belongs_is_not_waited_for_and_stays() {
        let scratch = Scratch::new("pipe");
        let place = scratch.0.join("index.html");
        rustix::fs::mknodat(rustix::fs::CWD, &place, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(matches!(report::check(&scratch.0), Err(ReportError::NotOurs(_))));
        fs::remove_file(&place).unwrap();
        std::os::unix::fs::symlink("nowhere", &place).unwrap();
        assert!(matches!(report::check(&scratch.0), Err(ReportError::NotOurs(_))));
        assert_eq!(scratch.names(), ["index.html"]);
    }

    #[test]
    fn results_of_another_version_and_indentation_are_still_a_reports() {
        let scratch = Scratch::new("indented");
        fs::write(scratch.0.join("results.json"), " {\n\t\"format\" : \"nicety-results\",\"version\":7}").unwrap();
        report::write(&sample::quick(), &scratch.0).unwrap();
        let json = fs::read_to_string(scratch.0.join("results.json")).unwrap();
        assert_eq!(Results::from_json(&json).unwrap(), sample::quick());
    }

    #[test]
    fn a_table_from_before_there_was_a_column_for_the_driver_is_still_a_reports() {
        let scratch = Scratch::new("columns");
        let (place, head) = (scratch.0.join("results.csv"), "adapter,test,server,unit,direction,round,value");
        fs::write(&place, format!("{head}\ne1000,bulk-transmit,nicety,Mbit/s,higher,0,1500\n")).unwrap();
        report::write(&sample::quick(), &scratch.0).unwrap();
        assert!(fs::read_to_string(&place).unwrap().starts_with(&format!("{head},driver\n")));
        fs::write(&place, "adapter,test,by whom\n").unwrap();
        report::write(&sample::quick(), &scratch.0).unwrap_err();
    }

    #[test]
    fn a_full_disk_takes_away_the_folder_that_was_made_for_the_report() {
        let scratch = Scratch::new("new");
        let dir = scratch.0.join("deep/report");
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
        // sysfs does not let even root make a folder; a permission bit would not stop root.
        let error = report::write(&sample::quick(), Path::new("/sys/nicety-report")).unwrap_err();
        assert!(matches!(error, ReportError::NotWritable(_)), "{error}");
    }

    #[test]
    fn a_folder_where_a_file_of_the_report_belongs_is_said_to_be_one_and_leaves_what_was_there() {
        for name in report::FILES {
            for before in [&[][..], &["results.json"], &["index.html"]] {
                let scratch = Scratch::new("folder");
                let dir = scratch.0.join("report");
                fs::create_dir_all(dir.join(name)).unwrap();
                let before: Vec<&str> = before.iter().copied().filter(|file| *file != name).collect();
                before.iter().for_each(|file| fs::write(dir.join(file), BEFORE).unwrap());
                let checked = report::check(&dir).unwrap_err().to_string();
                assert!(
                    checked.contains(&format!("{} is a folder, where a file", dir.join(name).display())),
                    "{checked}"
                );
                assert_eq!(report::write(&sample::quick(), &dir).unwrap_err().to_string(), checked);
                let mut left = vec![name];
                left.extend(&before);
                left.sort_unstable();
                assert_eq!(Scratch::names_in(&dir), left, "{name} is a folder");
                before.iter().for_each(|file| assert_eq!(fs::read_to_string(dir.join(file)).unwrap(), BEFORE));
            }
        }
    }

    #[test]
    fn a_file_that_cannot_take_its_place_leaves_the_older_ones_as_they_were() {
        let (one, two) = (&format!("{BEFORE}, the first"), &format!("{BEFORE}, the second"));
        for (first, second) in [(None, None), (Some(one), None), (Some(one), Some(two))] {
            let scratch = Scratch::new("places");
            for (name, text) in [("results.json", first), ("index.html", second)] {
                text.iter().for_each(|text| fs::write(scratch.0.join(name), text).unwrap());
            }
            // The second file is written, but is gone when it is to be moved.
            let gone = |path: &Path| {
                let file = create(path)?;
                if path.ends_with(part("index.html")) {
                    fs::remove_file(path)?;
                }
                Ok(file)
            };
            let files = [("results.json", "new"), ("index.html", "new")];
            assert!(write(&scratch.0, &files, gone).is_err());
            let is = |name: &str| fs::read_to_string(scratch.0.join(name)).ok();
            assert_eq!((is("results.json").as_ref(), is("index.html").as_ref()), (first, second));
            assert_eq!(scratch.names().len(), usize::from(first.is_some()) + usize::from(second.is_some()));
            write(&scratch.0, &files, create).unwrap();
            assert_eq!((is("results.json").as_deref(), is("index.html").as_deref()), (Some("new"), Some("new")));
            assert_eq!(scratch.names(), ["index.html", "results.json"]);
        }
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
