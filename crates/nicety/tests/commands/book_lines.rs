//! The book's command lines run as printed: each page from its first `$` line to its last, in a folder, a network and a `/run` of its own.
//!
//! Only the exit code is checked: the printed answers are examples.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nicety_guests::Tool;

use crate::book::root;
use crate::openapi_client;
use crate::python::{programs, skipped};
use crate::scratch::{Ended, Scratch};

/// Pages whose lines run. Each line of another page begins as one of [`NOT_RUN`].
const PAGES: [&str; 13] = [
    "README.md",
    "docs/ten-minutes.md",
    "docs/host-file.md",
    "docs/uplinks.md",
    "docs/live-control.md",
    "docs/seeing.md",
    "docs/page.md",
    "docs/operating.md",
    "docs/traces.md",
    "docs/production.md",
    "docs/driver-developers.md",
    "docs/virtual-functions.md",
    "docs/lab.md",
];

/// Beginnings of lines that do not run here, and the reason.
const NOT_RUN: [(&str, &str); 36] = [
    ("cargo ", "builds, or is the run of tests itself"),
    ("nicety compare", "the tests of `compare` run it"),
    ("nicety lab run", "boots guests for minutes"),
    ("nicety try", "boots a guest: the step `guests` does"),
    ("nicety upgrade /opt", "needs a newer program"),
    ("make ", "builds a kernel"),
    ("crates/guests/uml/apply", "needs a kernel's source"),
    ("scripts/config", "needs a kernel's source"),
    ("cd ~/linux", "needs a kernel's source"),
    ("C=", "sets variables for building a kernel"),
    ("export PATH=\"$C", "sets variables for building a kernel"),
    ("export BISON", "sets variables for building a kernel"),
    ("$EDITOR", "a person edits"),
    ("qemu-system", "boots a guest: the step `guests` does"),
    ("nicety capture web", "opens a window"),
    ("tshark -i nicety-vm1", "runs until a person ends it; the tests of extcap run it"),
    ("sudo apt install", "a guest with systemd runs it: the step `guests`"),
    ("sudo editor", "a person edits"),
    ("sudo systemctl", "a guest with systemd runs it: the step `guests`"),
    ("sudo adduser", "changes the machine's users"),
    ("nicety serve --check /etc", "needs the package"),
    ("sudo sh -c 'umask", "writes a key into the machine's /etc"),
    ("nicety ft status", "needs a VM on two hosts; the tests of `ft` run it"),
    ("sudo usermod", "changes the machine's users"),
    ("sudo nicety hook", "writes into libvirt's folder; the tests of `hook` and of the package run it"),
    ("nicety attach web1", "needs a port of the administrator's; the tests of `hook` run it"),
    ("sudo -u nicety-reader", "needs a user that the administrator has made"),
    ("nicety completions bash > /etc", "writes to the machine's /etc"),
    ("ls /usr/lib/ipxe", "one of the two files is there, where QEMU is installed"),
    ("etcdctl", "needs the administrator's etcd; the tests of `real_etcd` and `real_fabric` run it"),
    ("export ETCDCTL", "sets variables for `etcdctl`"),
    ("nicety fabric", "needs the administrator's etcd; the tests of `real_etcd` run them"),
    ("sudo ip link add vx10", "needs the administrator's interface; the tests of `vxlan` do it"),
    ("sudo ip link set vx10", "as `sudo ip link add vx10`"),
    ("sudo bridge fdb append", "as `sudo ip link add vx10`"),
    ("sudo ip link set tap0 master br0", "needs a bridge that the administrator has made"),
];

/// `line` runs one line and prints its exit code. A daemon in the foreground gets the background, and the next line waits until it answers.
/// A capture is interrupted after two seconds.
const SHELL: &str = r#"
mount -t tmpfs none /run && mount -t tmpfs none /usr/local && mount -t tmpfs none /var/lib || exit 1
mkdir -p bin /usr/local/share/man/man1 /var/lib/prometheus/node-exporter www target/release
printf '#!/bin/sh\nexec "$@"\n' >bin/sudo && chmod +x bin/sudo
ln -s "$0" bin/nicety
ip link set lo up
# As root of this network alone it may not become another user.
printf '#!/bin/sh\nexec %s -Z root "$@"\n' "$TOOLS/tcpdump" >bin/tcpdump && chmod +x bin/tcpdump
export PATH=$PWD/bin:$TOOLS:$PYTHON:$PATH HOME=$PWD USER=root XDG_RUNTIME_DIR=/run
export -n NICETY_LOG
served() {
    pkill -x -P $$ nicety; wait
    "$@" 2>>log &
    for _ in $(seq 200); do nicety ports >/dev/null 2>&1 && return; sleep 0.05; done
    echo 'the daemon does not answer:'; tail -5 log; return 1
}
line() {
    echo "\$ $1"
    case $1 in
        'nicety serve --check'*) eval "$1" ;;
        'nicety serve'*) eval "served ${1%&}" ;;
        'nicety capture'*) timeout -s INT 2 bash -c "$1"; [ $? = 0 -o $? = 124 ] ;;
        *) eval "$1" ;;
    esac </dev/null
    printf '\n= %s\n' $?
}
"#;

/// The `$` lines of a page, without their comments; continued lines are whole.
fn lines(page: &str) -> Vec<String> {
    let (mut found, mut continues) = (Vec::<String>::new(), false);
    for text in page.lines() {
        let begins = text.strip_prefix("$ ");
        if let (true, Some(last)) = (continues, found.last_mut()) {
            last.push('\n');
            last.push_str(text);
        } else if let Some(line) = begins {
            found.push(line.to_owned());
        }
        continues = (continues || begins.is_some()) && text.ends_with('\\');
    }
    found
}

/// The first block with this language that has these words.
fn block(page: &str, language: &str, words: &str) -> Option<String> {
    let blocks = page.split("\n```").skip(1).step_by(2);
    let texts = blocks.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n'));
    texts.map(|text| format!("{text}\n")).find(|text| text.contains(words))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn reason(line: &str) -> Option<&'static str> {
    NOT_RUN.iter().find(|(begins, _)| line.starts_with(begins)).map(|(_, reason)| *reason)
}

/// Runs a page's lines, and returns those that failed with what they said.
fn failures(page: &str, text: &str, [tools, python]: &[PathBuf; 2]) -> Vec<String> {
    let scratch = Scratch::new();
    let own = block(text, "toml", "[[port]]");
    let host = own.unwrap_or_else(|| block(&read(&root().join("docs/ten-minutes.md")), "toml", "[[port]]").unwrap());
    fs::write(scratch.path().join("host.toml"), host).unwrap();
    if let Some(text) = block(text, "", "lease_file") {
        fs::write(scratch.path().join("udhcpd.conf"), text).unwrap();
    }
    let (lines, mut script) = (lines(text), SHELL.to_owned());
    let serves = |line: &String| line.starts_with("nicety serve") && !line.contains("--check");
    if !lines.iter().any(serves) {
        script += "served nicety serve host.toml\n";
    }
    for line in &lines {
        match reason(line) {
            Some(reason) => println!("{page}: not run, {reason}: {line}"),
            None => script += &format!("line '{}'\n", line.replace('\'', r"'\''")),
        }
    }
    script += "kill $(jobs -p) 2>/dev/null; wait\necho ended\n";
    let mut command = Command::new("unshare");
    command.args(["-Urnm", "bash", "-c", &script, env!("CARGO_BIN_EXE_nicety")]).current_dir(scratch.path());
    command.env("TOOLS", tools).env("PYTHON", python);
    let ended = Ended::soon(command);
    let log = fs::read_to_string(scratch.path().join("log")).unwrap_or_default();
    assert!(ended.out.ends_with("ended\n"), "{page}: {}{}{log}", ended.out, ended.err);
    let ran = ended.out.split("\n$ ").skip(1);
    let failed = ran.filter(|ran| !ran.lines().any(|line| line == "= 0"));
    failed.map(|ran| format!("{page}: $ {ran}\n{}{log}", ended.err)).collect()
}

#[test]
fn the_lines_of_the_book_run_as_printed() {
    const NAME: &str = "book_lines::the_lines_of_the_book_run_as_printed";
    let tun = fs::File::options().read(true).write(true).open("/dev/net/tun").map(drop);
    let mounts = Command::new("unshare").args(["-Urnm", "mount", "-t", "tmpfs", "none", "/run"]).output();
    let reason = match (tun, mounts) {
        (Err(error), _) => Some(format!("/dev/net/tun: {error}")),
        (_, Err(error)) => Some(format!("unshare: {error}")),
        (_, Ok(output)) if !output.status.success() => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
        _ => None,
    };
    if let Some(reason) = reason {
        // Writes past the harness, which captures the output of tests that pass.
        let _stdout_closed = writeln!(std::io::stdout(), "\nSKIPPED {NAME}: {}", reason.trim());
        return;
    }
    let tools = match Tool::tcpdump(&mut |_| {}) {
        Ok(tcpdump) => tcpdump.folder(),
        Err(error) => return skipped(NAME, &error.to_string()),
    };
    let Some(python) = programs(openapi_client::PACKAGE, openapi_client::VERSION) else { return };
    let programs = [tools, python];
    let failed: Vec<String> =
        PAGES.iter().flat_map(|page| failures(page, &read(&root().join(page)), &programs)).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn each_line_of_the_book_runs_or_is_named_with_a_reason() {
    let (mut unnamed, mut used) = (Vec::new(), BTreeSet::new());
    for path in crate::pages::pages(&root().join("docs")).into_iter().chain([root().join("README.md")]) {
        let page = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        for line in lines(&read(&path)) {
            match NOT_RUN.iter().find(|(begins, _)| line.starts_with(begins)) {
                Some((begins, _)) => _ = used.insert(*begins),
                None if PAGES.contains(&page.as_str()) => {}
                None => unnamed.push(format!("{page}: {line}")),
            }
        }
    }
    assert!(unnamed.is_empty(), "{unnamed:#?}");
    let unused: Vec<&str> = NOT_RUN.iter().map(|(begins, _)| *begins).filter(|begins| !used.contains(begins)).collect();
    assert!(unused.is_empty(), "no line begins so: {unused:?}");
}
