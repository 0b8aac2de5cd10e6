//! The lines of docs/fabric.md about etcd, run as printed with Debian's `etcdctl` and this program: only names of servers and of folders
//! are others.

use std::path::Path;
use std::process::{Command, Output};

use nicety_guests::Etcd;

/// The lines of the page's console block whose first line begins so, without the `$`. Continued lines are whole.
pub fn block(begins: &str) -> Vec<String> {
    let page = include_str!("../../../../docs/fabric.md");
    let blocks = page.split("\n```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("console\n"));
    let lines = |block: &str| {
        let mut lines = Vec::<String>::new();
        for line in block.lines() {
            match (line.strip_prefix("$ "), lines.last_mut()) {
                (Some(line), _) => lines.push(line.to_owned()),
                (None, Some(last)) if last.ends_with('\\') => *last += &format!("\n{line}"),
                // An answer.
                (None, _) => {}
            }
        }
        lines
    };
    let found = blocks.map(lines).find(|lines| lines.first().is_some_and(|first| first.starts_with(begins)));
    found.unwrap_or_else(|| panic!("docs/fabric.md has no console block that begins with {begins:?}"))
}

/// Runs lines in a folder in one shell, each only if the one before has succeeded. `replace`: names of the page, and what they are here.
/// `before`: lines of a block before, which are part of the same session.
pub fn run(folder: &Path, etcd: &Etcd, before: &[String], lines: &[String], replace: &[(&str, &str)]) -> Output {
    let bin = folder.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    script(&bin.join("etcdctl"), &etcd.control());
    script(&bin.join("nicety"), &Command::new(env!("CARGO_BIN_EXE_nicety")));
    let mut text = String::from("set -e\n");
    for line in before.iter().chain(lines) {
        text += &replace.iter().fold(line.clone(), |line, (from, to)| line.replace(from, to));
        text.push('\n');
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("bash");
    shell.args(["-xc", &text]).current_dir(folder).env("PATH", path).env_remove("XDG_RUNTIME_DIR");
    shell.output().unwrap()
}

/// The same, which must succeed. Returns what it said to stdout.
#[track_caller]
pub fn runs(folder: &Path, etcd: &Etcd, before: &[String], lines: &[String], replace: &[(&str, &str)]) -> String {
    let output = run(folder, etcd, before, lines, replace);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// A script that runs a program with its arguments before those that it gets.
fn script(file: &Path, program: &Command) {
    let words = std::iter::once(program.get_program()).chain(program.get_args());
    let words: Vec<String> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let text = format!("#!/bin/sh\nunset LD_PRELOAD LD_LIBRARY_PATH\nexec {} \"$@\"\n", words.join(" "));
    std::fs::write(file, text).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(file, mode).unwrap();
}
