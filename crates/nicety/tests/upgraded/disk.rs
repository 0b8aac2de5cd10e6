//! Upgraded and killed while the disk is full.

use super::*;

/// The state file's folder is a disk of one page that is full (tmpfs(5), `size`), in a mount namespace of the keeper's own.
const FULL: &str = "mount -t tmpfs -o size=4k none disk && head -c 4096 /dev/zero >disk/full";

/// An adapter that a killed daemon's guest goes on with although its driver does nothing (docs/adr/0022): these guests' drivers do not look
/// for one that stands still, as Linux's do.
const ADAPTER: &str = "virtio-net-pci";

#[test]
fn a_full_disk_stops_neither_an_upgrade_nor_the_daemon_that_follows_a_killed_one() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("disk")).unwrap();
    let within = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-Urm", "sh", "-c", script, env!("CARGO_BIN_EXE_nicety")]).current_dir(dir.path());
        command.env_remove("XDG_RUNTIME_DIR");
        command
    };
    let reason = match within(FULL).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    };
    if let Some(reason) = reason {
        // Writes past the harness, which captures the output of tests that pass.
        let name = "disk::a_full_disk_stops_neither_an_upgrade_nor_the_daemon_that_follows_a_killed_one";
        let _stdout_closed = writeln!(std::io::stdout(), "\nSKIPPED {name}: {}", reason.trim());
        return;
    }
    let mut host = "[daemon]\ncontrol = \"control.sock\"\nstate = \"disk/state\"\n".to_owned();
    for number in [1, 2] {
        host += &format!(
            "[[port]]\nname = \"vm{number}\"\nadapter = \"{ADAPTER}\"\nmac = \"52:54:00:12:34:0{number}\"\n\
             socket = \"vm{number}.sock\"\n"
        );
    }
    std::fs::write(dir.path().join("host.toml"), host).unwrap();
    let mut serve = within(&format!("{FULL}; exec \"$0\" serve --keeper"));
    serve.stderr(std::fs::File::create(dir.path().join("log")).unwrap());
    let mut kept = Kept { guests: Vec::new(), keeper: Process(serve.spawn().unwrap()), dir };
    let end = Instant::now() + SOON;
    while kept.asked(&["ports"]).status.code() != Some(0) {
        assert!(Instant::now() < end, "{}", kept.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    kept.attach(&[ADAPTER; 2]);
    kept.answers("before");
    let changed = kept.asked(&["port", "set", "vm2", "send_average=10Mbit/s"]);
    let said = String::from_utf8_lossy(&changed.stderr);
    assert!(said.contains("No space left"), "{changed:?}\n{}", kept.log());
    kept.upgrade();
    kept.answers("upgraded");
    let ports = kept.json(&["ports", "--json"]);
    assert!(ports.to_string().contains("10Mbit/s"), "the live change stays: {ports}");
    kept.kill();
    kept.answers("killed");
    let ports = kept.json(&["ports", "--json"]);
    assert!(ports.to_string().contains("10Mbit/s"), "the keeper has the live change that no file has: {ports}");
    let log = kept.log();
    assert_eq!(log.matches(" has connected").count(), 2, "no connection was closed: {log}");
}
