//! A report's folder: what is written into it, and what is left in it after an error.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use crate::folder::{ReportError, create, write, write_by};
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
        if path.ends_with(part("index.html")) { OpenOptions::new().write(true).open("/dev/full") } else { create(path) }
    };
    let error = write_by(&scratch.0, &[("results.json", "{}"), ("index.html", "after")], full).unwrap_err();
    assert!(matches!(error, ReportError::NoSpace(_)), "{error}");
    assert!(error.to_string().contains("no disk space left"), "{error}");
    assert_eq!(fs::read_to_string(scratch.0.join("index.html")).unwrap(), BEFORE);
    assert_eq!(scratch.names(), ["index.html"]);
}

#[test]
fn a_file_that_no_report_wrote_is_left_alone_and_nothing_is_written_beside_it() {
    let page = "<!doctype html>\n<html lang=\"en\">\n<title>Nicety: my own notes</title>\n";
    for text in ["", "mine", page, "{\"format\": \"nicety-resultsx\"}", "{\"mine\": {\"format\": \"nicety-results\"}}"]
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
    assert!(matches!(write_by(&dir, &[("results.json", "{}")], full), Err(ReportError::NoSpace(_))));
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
            assert!(checked.contains(&format!("{} is a folder, where a file", dir.join(name).display())), "{checked}");
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
        assert!(write_by(&scratch.0, &files, gone).is_err());
        let is = |name: &str| fs::read_to_string(scratch.0.join(name)).ok();
        assert_eq!((is("results.json").as_ref(), is("index.html").as_ref()), (first, second));
        assert_eq!(scratch.names().len(), usize::from(first.is_some()) + usize::from(second.is_some()));
        write(&scratch.0, &files).unwrap();
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
        let (checked, written) = (report::check(dir).unwrap_err(), report::write(&sample::quick(), dir).unwrap_err());
        assert_eq!(checked.to_string(), written.to_string());
    }
}

fn part(name: &str) -> String {
    format!(".{name}.{}.part", std::process::id())
}
