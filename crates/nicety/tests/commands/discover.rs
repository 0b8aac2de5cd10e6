//! Commands find daemons from another folder, or with another environment.

use std::process::Command;

use rustix::process::Signal;

use crate::scratch::{Ended, HOST, Scratch, Served};

#[test]
fn a_daemon_is_found_from_another_folder_by_its_port_and_among_all() {
    // No other test's daemon has such a port.
    let name = format!("found-{}", std::process::id());
    let scratch = Scratch::with(&HOST.replace("vm1", &name));
    let served = Served::start(&scratch);
    let (elsewhere, dir, pid) = (Scratch::new(), scratch.path().display(), served.pid());
    let ports = elsewhere.run(&["ports", &name]);
    assert!(ports.code == Some(0) && ports.out.contains(&format!("{name}: waits for a VM")), "{ports:?}");
    let attach = elsewhere.run(&["attach", &name]);
    assert!(attach.code == Some(0) && attach.out.contains(&format!("{dir}/{name}.sock")), "{attach:?}");
    assert!(attach.err.ends_with(&format!("note: the daemon runs, and {name} is free\n")), "{}", attach.err);
    let all = elsewhere.run(&["ports", "--all"]);
    let line = format!("process {pid} serves {dir}/host.toml (control {dir}/nicety-lan.sock)\nPORT ");
    assert!(all.code == Some(0) && all.out.contains(&line), "{all:?}");
    let json: serde_json::Value = serde_json::from_str(&elsewhere.run(&["ports", "--all", "--json"]).out).unwrap();
    let ours = json["daemons"].as_array().unwrap().iter().find(|daemon| daemon["pid"] == pid).unwrap();
    assert_eq!(ours["ports"][0]["name"], name.as_str());
    let absent = elsewhere.run(&["ports", &format!("{name}-not")]);
    assert!(matches!(absent.code, Some(2 | 3)) && absent.err.starts_with("nicety: "), "{absent:?}");
    assert_eq!(served.end(Signal::TERM), Some(0));
    assert!(!elsewhere.run(&["ports", "--all"]).out.contains(&format!("process {pid} ")));
}

#[test]
fn a_daemon_is_found_whatever_runtime_folder_it_was_started_with() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let runtime = scratch.path().join("runtime");
    std::fs::create_dir(&runtime).unwrap();
    for args in [&["ports"][..], &["ports", "vm1"], &["attach", "vm1"]] {
        let mut command = scratch.command(args);
        command.env("XDG_RUNTIME_DIR", &runtime);
        let ended = Ended::soon(command);
        assert!(ended.code == Some(0) && !ended.err.contains("does not run"), "{args:?}: {ended:?}");
    }
    assert_eq!(served.end(Signal::TERM), Some(0));
}

/// Script in a mount namespace without other daemons. `$0` is the program; `say` prints how it ended.
const ALONE: &str = r#"
mount -t tmpfs none /run || exit 77
say() { echo "== $*"; "$NICETY" "$@"; echo "= $?"; }
serve() {
    : >"$1/log"
    (cd "$1" && exec "$NICETY" serve 2>log) &
    until grep -q "all sockets are ready" "$1/log"; do kill -0 $! || exit 1; sleep 0.05; done
}
NICETY=$0; mkdir empty; cd empty
say ports
serve ../one; one=$!
say ports vm1
serve ../two; two=$!
say ports
say ports vm3
say ports restart vm3
kill -9 $one; { wait $one; } 2>/dev/null
say ports vm4
kill -9 $two; wait
say ports
say ports --all
say ports --host ../one/host.toml
"#;

#[test]
fn no_daemon_one_several_and_killed_ones_are_each_told_with_where_was_looked() {
    let scratch = Scratch::new();
    for (folder, host) in [("one", HOST.to_owned()), ("two", HOST.replace("vm1", "vm3").replace("vm2", "vm4"))] {
        std::fs::create_dir(scratch.path().join(folder)).unwrap();
        std::fs::write(scratch.path().join(folder).join("host.toml"), host).unwrap();
    }
    let mut command = Command::new("unshare");
    command.args(["-Urm", "sh", "-c", &format!("exec 2>&1{ALONE}"), env!("CARGO_BIN_EXE_nicety")]);
    command.current_dir(scratch.path()).env_remove("XDG_RUNTIME_DIR").env_remove("NICETY_LOG");
    let ended = Ended::soon(command);
    if ended.code == Some(77) || !ended.err.is_empty() {
        // Writes past the harness, which captures the output of tests that pass.
        let name = "discover::no_daemon_one_several_and_killed_ones_are_each_told_with_where_was_looked";
        let why = format!("{}{}", ended.err, ended.out);
        let _stdout_closed =
            std::io::Write::write_all(&mut std::io::stdout(), format!("\nSKIPPED {name}: {}\n", why.trim()).as_bytes());
        return;
    }
    let answers: Vec<(&str, &str)> =
        ended.out.split("== ").skip(1).map(|part| part.split_once('\n').unwrap()).collect();
    let dir = scratch.path().canonicalize().unwrap();
    let dir = dir.display();
    let looked = "looked in /run/nicety, /run/user/0/nicety, /tmp/nicety-0";
    let start = "start one with `nicety serve FILE`, or name the socket of one that runs: --control SOCKET\n= 3\n";
    let expect = |at: usize, words: &str, begins: &str, ends: &str| {
        let (asked, answer) = answers.get(at).unwrap_or_else(|| panic!("{}", ended.out));
        assert!(*asked == words && answer.starts_with(begins) && answer.ends_with(ends), "{asked}: {answer}");
    };
    expect(0, "ports", &format!("nicety: there is no host.toml here, and no daemon was found: {looked}; "), start);
    expect(1, "ports vm1", "PORT  ADAPTER  STATE    TX  RX", "= 0\n");
    expect(
        2,
        "ports",
        "nicety: several daemons run; name one's file with --host FILE, or see `nicety ports --all`:\n",
        "= 2\n",
    );
    assert!(
        ["one", "two"]
            .iter()
            .all(|folder| answers[2].1.contains(&format!(" serves {dir}/{folder}/host.toml (control ")))
    );
    expect(3, "ports vm3", "PORT  ADAPTER  STATE    TX  RX", "= 0\n");
    let working =
        "nicety: port vm3 has not failed: a restart would take its adapter away from its VM; nothing was done\n= 2\n";
    expect(4, "ports restart vm3", working, working);
    expect(
        5,
        "ports vm4",
        &format!("note: a daemon that answered at {dir}/one/nicety-lan.sock has ended without a word; "),
        "= 0\n",
    );
    let stale = |folder| format!("; nobody serves {dir}/{folder}/nicety-lan.sock any more");
    expect(6, "ports", "nicety: there is no host.toml here, and no daemon was found: ", start);
    assert!(answers[6].1.contains(&stale("one")) && answers[6].1.contains(&stale("two")), "{}", answers[6].1);
    expect(7, "ports --all", &format!("nicety: no daemon was found: {looked}; nobody serves "), "= 3\n");
    expect(8, "ports --host ../one/host.toml", &format!("nicety: no daemon serves {dir}/"), "= 3\n");
    assert!(
        answers[8].1.contains("start one with `nicety serve`") && answers[8].1.contains(looked),
        "{}",
        answers[8].1
    );
}
