//! A daemon that stands still.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;

use super::bad::signal;
use super::*;

/// Reads what the service manager is told until a daemon says that it serves. Returns how often it was told that the unit lives.
fn ready(manager: &UnixDatagram) -> usize {
    let mut fed = 0;
    loop {
        let mut bytes = [0; 4096];
        let count = match manager.recv(&mut bytes) {
            // signal(7): with a timeout any signal ends the call.
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            count => count.expect("a message in time"),
        };
        match &bytes[..count] {
            b"WATCHDOG=1\n" => fed += 1,
            text if text.starts_with(b"READY=1\n") => return fed,
            _ => {}
        }
    }
}

/// sd_notify(3): the manager ends the unit, and with it the keeper, if it hears nothing for this time.
const WATCHDOG: Duration = Duration::from_secs(4);

#[test]
fn a_daemon_that_stands_still_is_replaced_under_its_vmm_and_its_keeper_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let host = "[daemon]\ncontrol = \"control.sock\"\n[[port]]\nname = \"vm1\"\nadapter = \"e1000\"\n\
                mac = \"52:54:00:12:34:01\"\nsocket = \"vm1.sock\"\n";
    std::fs::write(dir.path().join("host.toml"), host).unwrap();
    let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(SOON)).unwrap();
    let mut shell = Command::new("sh");
    let words = format!(
        "NOTIFY_SOCKET=$PWD/notify WATCHDOG_USEC={} WATCHDOG_PID=$$ exec \"$0\" serve --keeper",
        WATCHDOG.as_micros()
    );
    shell.args(["-c", &words, env!("CARGO_BIN_EXE_nicety")]).current_dir(dir.path()).env_remove("XDG_RUNTIME_DIR");
    shell.stderr(std::fs::File::create(dir.path().join("log")).unwrap());
    let mut kept = Kept { guests: Vec::new(), keeper: Process(shell.spawn().unwrap()), dir };
    ready(&manager);
    let mut vmm = Vmm::connect(&kept.path("vm1.sock")).unwrap();
    let pid = kept.pid();
    signal(pid, "STOP");
    // It waits for the next daemon.
    kept.serves(&mut vmm, "after the stop");
    let fed = ready(&manager);
    assert!(fed >= 2, "{fed}: the manager hears of the keeper while the daemon stands still");
    assert_ne!(kept.pid(), pid);
    let log = kept.log();
    assert!(log.contains("WARN keeper: the daemon's workers stand still, for 4s: it is killed"), "{log}");
    assert!(kept.keeper.0.try_wait().unwrap().is_none() && !log.contains("disconnected"), "{log}");
}
