//! A comparison that completes, one that is stopped, and one that cannot start.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::scratch::{Ended, Scratch};

/// Embedded guests whose temporary folder is this one: other tests have some of their own.
fn guests(folder: &Path) -> Vec<String> {
    let program = std::fs::canonicalize(env!("CARGO_BIN_EXE_nicety")).unwrap();
    let folder = format!("TMPDIR={}", folder.display());
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    let ours = processes.filter(|process| std::fs::read_link(process.join("exe")).is_ok_and(|exe| exe == program));
    let has = |process: &PathBuf| {
        let environment = std::fs::read(process.join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).split('\0').any(|variable| variable == folder)
    };
    let words = ours.filter(has).filter_map(|process| std::fs::read_to_string(process.join("cmdline")).ok());
    words.filter(|words| words.split('\0').nth(1) == Some("guest")).collect()
}

#[test]
fn compare_writes_its_report_and_ctrl_c_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let compare = |args: &[&str]| {
        let mut command = scratch.command(&[&["compare"][..], args].concat());
        command.env("TMPDIR", scratch.path()).env_remove("RUST_BACKTRACE");
        command
    };
    let args = ["--adapters", "e1000", "--seconds", "0.1", "--repeat", "1"];
    let unmapped = compare(&[&args[..], &["--doorbells", "mapped", "--report", "unmapped"]].concat()).output().unwrap();
    let unmapped = Ended::of(&unmapped);
    assert!(
        unmapped.code == Some(1) && unmapped.err.contains("e1000 cannot have its doorbells mapped"),
        "{unmapped:?}"
    );
    let args = [&args[..], &["--doorbells", "trapped", "--report", "done"]].concat();
    let done = Ended::of(&compare(&args).output().unwrap());
    assert_eq!(done.code, Some(0), "{done:?}");
    let index = scratch.path().join("done/index.html");
    assert!(
        done.out.contains("e1000") && done.out.ends_with(&format!("Report: {}\n", index.display())),
        "{}",
        done.out
    );
    assert!(done.err.contains("note: 1 round: fewer than 7 runs give no 95 % interval"), "{}", done.err);
    // Four loads, each with 60 ms beside it.
    let plan = "4 runs of 0.1 s, which take about 1 s once the guests have started\n";
    let (before, _) = done.err.split_once("starting e1000").unwrap_or_else(|| panic!("{}", done.err));
    assert!(before.contains(plan), "said before anything starts: {}", done.err);
    assert!(index.exists() && scratch.path().join("done/results.csv").exists());
    // Without measuring: the same report from the stored results, and an error for files that are not ours.
    let from = |file: &str| Ended::of(&compare(&["--from", file, "--report", "again"]).output().unwrap());
    let again = from("done/results.json");
    assert_eq!((again.code, again.out.lines().next()), (Some(0), done.out.lines().next()), "{again:?}");
    let read = |path: &str| std::fs::read_to_string(scratch.path().join(path)).unwrap();
    for name in ["index.html", "results.json", "results.csv"] {
        assert_eq!(read(&format!("done/{name}")), read(&format!("again/{name}")), "{name}");
    }
    assert!(read("done/results.json").contains("--repeat 1 --doorbells trapped --seed 1"));
    for (file, message) in [("done/index.html", "these are no results of nicety"), ("nowhere", "No such file")] {
        let refused = from(file);
        assert!(refused.code == Some(1) && refused.err.contains(&format!("--from {file}: {message}")), "{refused:?}");
    }

    // Standard output is on a full disk, so nothing can be printed: the results are kept.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let args = ["--adapters", "e1000", "--seconds", "0.1", "--repeat", "1", "--report", "untold"];
    assert_eq!(compare(&args).stdout(full).stderr(Stdio::null()).status().unwrap().code(), Some(1));
    assert!(scratch.path().join("untold/index.html").exists() && scratch.path().join("untold/results.json").exists());

    let mut long = compare(&["--adapters", "e1000", "--seconds", "60", "--report", "stopped"]);
    let mut child = long.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    // The first progress line comes after the signal handlers are set.
    assert!(lines.any(|line| line.contains("e1000")));
    let started = Instant::now();
    while guests(scratch.path()).is_empty() {
        assert!(started.elapsed() < Duration::from_secs(30), "no guest has started");
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let rest: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    assert_eq!(rest.last().map(String::as_str), Some("nicety: stopped; nothing was written"), "{rest:?}");
    assert_eq!(guests(scratch.path()), [""; 0]);
    let mut names: Vec<_> =
        std::fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["again", "done", "lab.lock", "untold"], "no folder, no socket");
}

/// In its own mount namespace the report's folder is a disk of one page (tmpfs(5), `size`): enough for the test whether it is
/// writable, and too small for a report.
#[test]
fn compare_prints_what_it_measured_though_its_disk_is_full() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path().join("disk")).unwrap();
    let mount = "mount -t tmpfs -o size=4k none disk";
    let within = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-Urm", "sh", "-c", script, env!("CARGO_BIN_EXE_nicety")]).current_dir(scratch.path());
        command.env("NICETY_LAB_LOCK", scratch.lab_lock());
        command.env("TMPDIR", scratch.path()).env_remove("RUST_BACKTRACE").output()
    };
    let reason = match within(mount) {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    };
    if let Some(reason) = reason {
        // Writes past the harness, which captures the output of tests that pass.
        let name = "compare::compare_prints_what_it_measured_though_its_disk_is_full";
        let _stdout_closed = writeln!(std::io::stdout(), "\nSKIPPED {name}: {}", reason.trim());
        return;
    }
    let compare = "exec \"$0\" compare --adapters e1000 --seconds 0.1 --repeat 1 --report disk/report";
    let ended = Ended::of(&within(&format!("{mount} && {compare}")).unwrap());
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.out.contains("e1000") && !ended.out.contains("Report: "), "{}", ended.out);
    let message =
        "nicety: the report cannot be written: there is no disk space left for disk/report/results.json; free some, ";
    assert!(ended.err.lines().last().is_some_and(|line| line.starts_with(message)), "{}", ended.err);
}

#[test]
fn compare_measures_nothing_for_a_report_that_has_no_place() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.path().join("bad/index.html")).unwrap();
    let args = ["compare", "--adapters", "e1000", "--seconds", "0.1", "--repeat", "1", "--report", "bad"];
    let ended = scratch.run(&args);
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{ended:?}");
    let message = "nicety: the report cannot be written: bad/index.html is a folder, where a file of that name belongs";
    assert!(ended.err.starts_with(message) && ended.err.lines().count() == 1, "{}", ended.err);
    assert_eq!(std::fs::read_dir(scratch.path().join("bad")).unwrap().count(), 1);
    let page = scratch.path().join("mine/index.html");
    std::fs::create_dir(scratch.path().join("mine")).unwrap();
    std::fs::write(&page, "<h1>my page</h1>").unwrap();
    let ended = scratch.run(&[&args[..args.len() - 1], &["mine"]].concat());
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{ended:?}");
    let message = "nicety: the report cannot be written: mine/index.html is there and is none of Nicety's, which would be lost; move it";
    assert!(ended.err.starts_with(message) && ended.err.lines().count() == 1, "{}", ended.err);
    assert_eq!(std::fs::read_to_string(&page).unwrap(), "<h1>my page</h1>");
    assert_eq!(std::fs::read_dir(scratch.path().join("mine")).unwrap().count(), 1);
}

#[test]
fn compare_says_what_it_cannot_compare() {
    let scratch = Scratch::new();
    let ended = scratch.run(&["compare", "--adapters", "e1001"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.contains("there is no adapter \"e1001\" here; did you mean \"e1000\"?"), "{}", ended.err);
    assert_eq!(scratch.run(&["compare", "--seconds", "0"]).code, Some(2));
    // The check comes before guests are prepared: there is no folder for them here.
    for wrong in [["--adapters", "e1001"], ["--seconds", "0"], ["--repeat", "0"]] {
        let mut command = scratch.command(&[&["compare", "--guests", "qemu"], &wrong[..]].concat());
        let ended = Ended::of(&command.env_remove("HOME").env_remove("XDG_CACHE_HOME").output().unwrap());
        assert!(ended.code == Some(2) && ended.err.starts_with(&format!("nicety: {}", wrong[0])), "{ended:?}");
    }
    for (words, message) in [
        (["--repeat", "0"], "--repeat: from 1 to 1000 rounds are possible"),
        (["--repeat", "-1"], "--repeat: from 1 to 1000 rounds are possible"),
        (["--repeat", "5000000000"], "--repeat: from 1 to 1000 rounds are possible"),
        (["--seconds", "-1"], "--seconds: a run may last from 0.1 to 3600 seconds"),
        (
            ["--seed", "-1"],
            "invalid value '-1' for '--seed <N>': a seed is a whole number from 0 to 18446744073709551615",
        ),
    ] {
        let ended = scratch.run(&[&["compare"], &words[..]].concat());
        assert!(ended.code == Some(2) && ended.err.starts_with(&format!("nicety: {message}")), "{words:?}: {ended:?}");
    }
    for guests in ["qemu", "uml"] {
        let mut command = scratch.command(&["compare", "--guests", guests]);
        let ended = Ended::of(&command.env("XDG_CACHE_HOME", "/proc/nope").output().unwrap());
        let message = format!(
            "nicety: --guests {guests}: cannot make the folder /proc/nope/nicety: No such file or directory (os error 2); set \
             XDG_CACHE_HOME to another folder, with 1 GB of room\n"
        );
        assert_eq!((ended.code, ended.err), (Some(3), message));
    }
    let hidden = scratch.run(&["guest"]);
    assert_eq!(hidden.code, Some(2));
    assert!(hidden.err.contains("this command is for `nicety compare` itself"), "{}", hidden.err);
    // A full device stands for a closed terminal.
    let nowhere = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut unheard = scratch.command(&["guest"]);
    assert_eq!(unheard.stderr(nowhere).status().unwrap().code(), Some(2));
}
