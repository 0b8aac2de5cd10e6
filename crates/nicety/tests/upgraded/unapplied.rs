//! Killed while the host file says something else than what runs: what ran goes on, with its live changes.

use super::bad::signal;
use super::*;

impl Kept {
    /// Kills the daemon, and waits for the next one.
    pub(super) fn kill(&self) {
        let pid = self.pid();
        signal(pid, "KILL");
        let end = Instant::now() + SOON;
        while self.asked(&["ports"]).status.code() != Some(0) || self.pid() == pid {
            assert!(Instant::now() < end, "{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What runs, as a host file.
    fn exported(&self) -> String {
        let exported = self.asked(&["export"]);
        assert!(exported.status.success(), "{exported:?}\n{}", self.log());
        String::from_utf8(exported.stdout).unwrap()
    }

    /// The VMM is served by its adapter.
    pub(super) fn serves(&self, vmm: &mut Vmm, when: &str) {
        let mut identity = [0; 4];
        if let Err(error) = vmm.client.region_read(7, 0, &mut identity) {
            panic!("{when}: {error}\n{}", self.log());
        }
        assert_eq!(identity, [0x86, 0x80, 0x0e, 0x10], "{when}");
    }
}

#[test]
fn what_ran_goes_on_after_a_kill_whatever_the_host_file_says_by_then() {
    let kept = Kept::start_empty_with(&["e1000", "e1000"]);
    let mut vmm = Vmm::connect(&kept.path("vm1.sock")).unwrap();
    let (file, state) = (kept.path("host.toml"), kept.path("host.toml.state"));
    let read = std::fs::read_to_string(&file).unwrap();
    let changed = kept.asked(&["port", "set", "vm2", "send_average=10Mbit/s"]);
    assert!(changed.status.success() && state.exists(), "{changed:?}");
    // The live change is in no file.
    std::fs::remove_file(&state).unwrap();
    let runs = kept.exported();
    assert!(runs.contains("10Mbit/s"), "{runs}");
    let without_vm1 = read.replace("name = \"vm1\"", "name = \"other\"");
    let edits = [
        ("a mistake", "[[port\n", "the host file was changed, and is not served: "),
        ("another port's name", without_vm1.as_str(), "the host file was changed, and nobody has applied it: "),
    ];
    for (what, edit, said) in edits {
        std::fs::write(&file, edit).unwrap();
        kept.kill();
        kept.serves(&mut vmm, what);
        assert_eq!(kept.exported(), runs, "{what}");
        assert_eq!(kept.log().matches(said).count(), 1, "{what}: {}", kept.log());
    }
    // One that says what was last read, in other words, is no other one.
    let before = kept.log().len();
    std::fs::write(&file, format!("# A comment.\n{read}")).unwrap();
    kept.kill();
    kept.serves(&mut vmm, "a comment");
    assert!(!kept.log()[before..].contains("the host file was changed"), "{}", kept.log());
    // A file that was applied is what runs, with a kill right after the answer.
    std::fs::write(&file, read.replace("name = \"vm2\"", "name = \"vm3\"")).unwrap();
    let applied = kept.asked(&["apply", "--yes", file.to_str().unwrap()]);
    assert!(applied.status.success(), "{applied:?}");
    let runs = kept.exported();
    std::fs::write(&file, &read).unwrap();
    kept.kill();
    kept.serves(&mut vmm, "applied");
    assert_eq!(kept.exported(), runs);
    assert!(runs.contains("\"vm3\"") && !runs.contains("\"vm2\""), "{runs}");
    let log = kept.log();
    assert!(!log.contains("loses its adapter") && !log.contains("disconnected"), "{log}");
}

#[test]
fn a_live_change_that_was_answered_survives_a_kill_right_after() {
    let kept = Kept::start_empty_with(&["e1000", "e1000"]);
    let mut vmm = Vmm::connect(&kept.path("vm1.sock")).unwrap();
    for number in 3..8 {
        let name = format!("vm{number}");
        let words = ["adapter=e1000", &format!("mac=52:54:00:12:34:0{number}"), &format!("socket={name}.sock")];
        let added = kept.asked(&[&["port", "add", &name][..], &words].concat());
        assert!(added.status.success(), "{added:?}\n{}", kept.log());
        let mut its = Vmm::connect(&kept.path(&format!("{name}.sock"))).unwrap();
        kept.kill();
        kept.serves(&mut vmm, &name);
        kept.serves(&mut its, &name);
    }
}

#[test]
fn a_change_that_waits_to_be_confirmed_survives_neither_a_kill_nor_an_upgrade_and_vms_go_on() {
    let kept = Kept::start_empty_with(&["e1000", "e1000"]);
    let mut vmm = Vmm::connect(&kept.path("vm1.sock")).unwrap();
    let file = kept.path("host.toml");
    let read = std::fs::read_to_string(&file).unwrap();
    let runs = kept.exported();
    // Another port's name, and another setting of a port with a VM.
    let other = read.replace("name = \"vm2\"", "name = \"vm3\"").replace("vm2.sock", "vm3.sock");
    let other = other.replacen("socket = \"vm1.sock\"", "socket = \"vm1.sock\"\nsend_average = \"10Mbit/s\"", 1);
    std::fs::write(&file, other).unwrap();
    let apply = |time: &str| {
        let applied = kept.asked(&["apply", "--yes", "--confirm", time, file.to_str().unwrap()]);
        assert!(applied.status.success(), "{applied:?}\n{}", kept.log());
        assert!(kept.path("vm3.sock").exists() && !kept.path("vm2.sock").exists(), "{}", kept.log());
    };
    let is_back = |when: &str| {
        assert_eq!(kept.exported(), runs, "{when}\n{}", kept.log());
        let [gone, back] = ["vm3.sock", "vm2.sock"].map(|name| UnixStream::connect(kept.path(name)).is_ok());
        assert!(!gone && back, "{when}: {gone}, {back}\n{}", kept.log());
    };
    apply("600s");
    kept.kill();
    kept.serves(&mut vmm, "killed");
    is_back("killed");
    assert!(kept.log().contains("the host file was changed, and nobody has applied it: "), "{}", kept.log());

    apply("600s");
    let upgraded = kept.asked(&["upgrade"]);
    assert!(upgraded.status.success(), "{upgraded:?}\n{}", kept.log());
    kept.serves(&mut vmm, "upgraded");
    is_back("upgraded");
    assert!(kept.log().contains("undone, for the daemon was about to be replaced: + port vm3; "), "{}", kept.log());
    let confirmed = kept.asked(&["confirm"]);
    let words = String::from_utf8_lossy(&confirmed.stderr).into_owned();
    assert!(!confirmed.status.success() && words.contains("no change waits to be confirmed"), "{words}");

    // The keeper opens again what the host file names no more.
    apply("1s");
    let end = Instant::now() + SOON;
    while !kept.log().contains("undone, for nobody had confirmed it within 1 s: + port vm3; ") {
        assert!(Instant::now() < end, "{}", kept.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    is_back("late");
    kept.serves(&mut vmm, "late");
    let state = std::fs::read_to_string(kept.path("host.toml.state")).unwrap();
    assert!(state.contains("\"unconfirmed\""), "no later start serves that file: {state}");
    // One that is confirmed survives both.
    apply("600s");
    assert!(kept.asked(&["confirm"]).status.success());
    let runs = kept.exported();
    kept.kill();
    assert_eq!(kept.exported(), runs);
    kept.serves(&mut vmm, "confirmed");
    // Without the undo there is no upgrade: the next daemon would serve what nobody has confirmed.
    assert!(kept.asked(&["port", "remove", "vm3", "--confirm", "600s"]).status.success());
    let taken = UnixListener::bind(kept.path("vm3.sock")).unwrap();
    let upgraded = kept.asked(&["upgrade"]);
    let words = String::from_utf8_lossy(&upgraded.stderr).into_owned();
    let why = format!(
        "the change was not undone, and stands: {} is served by another process",
        kept.path("vm3.sock").display()
    );
    assert!(upgraded.status.code() == Some(1) && words.contains(&why), "{words}");
    drop(taken);
    std::fs::remove_file(kept.path("vm3.sock")).unwrap();
    let upgraded = kept.asked(&["upgrade"]);
    assert!(upgraded.status.success(), "{upgraded:?}\n{}", kept.log());
    assert_eq!(kept.exported(), runs);
    kept.serves(&mut vmm, "undone and upgraded");
    let log = kept.log();
    let is_lost = |line: &str| line.contains("vm1") && (line.contains("loses") || line.contains("disconnected"));
    assert!(!log.lines().any(is_lost), "{log}");
}
