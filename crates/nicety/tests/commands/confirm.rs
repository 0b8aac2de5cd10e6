//! A change that takes itself back: `--confirm`, `--check-reach`, `nicety confirm`.

#[path = "../../../daemon/tests/namespace/mod.rs"]
mod namespace;

use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use namespace::{inside, ip};
use rustix::process::Signal;

use crate::scratch::{Ended, HOST, Scratch, Served};

const MORE: &str = "
[[port]]
name = \"vm3\"
adapter = \"vmxnet3\"
mac = \"52:54:00:12:34:03\"
socket = \"vm3.sock\"
";

/// The sockets of [`HOST`].
const SOCKETS: [&str; 3] = ["nicety-lan.sock", "vm1.sock", "vm2.sock"];

fn write(scratch: &Scratch, text: &str) {
    std::fs::write(scratch.path().join("host.toml"), text).unwrap();
}

/// A host file with a port more, one less, and another buffer.
fn other() -> String {
    let vm1 = "[[port]]\nname = \"vm1\"\nadapter = \"e1000\"\nmac = \"52:54:00:12:34:01\"\nsocket = \"vm1.sock\"\n";
    let without = HOST.replace(vm1, "");
    assert_ne!(without, HOST);
    format!("{}{MORE}", without.replace("queues = 2", "buffer = \"2MiB\""))
}

fn done(scratch: &Scratch, args: &[&str]) -> Ended {
    let done = scratch.run(args);
    assert_eq!(done.code, Some(0), "{args:?}: {done:?}");
    done
}

fn refused(scratch: &Scratch, args: &[&str], code: i32, message: &str) {
    let ended = scratch.run(args);
    assert!(ended.code == Some(code) && ended.err.contains(message), "{args:?}: {ended:?}");
}

#[test]
fn a_change_that_is_confirmed_stays_and_while_it_waits_nobody_makes_another_one() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let state = scratch.path().join("host.toml.state");
    let set = done(&scratch, &["port", "set", "vm1", "buffer=4MiB", "--confirm", "600s"]);
    let line = "~ port vm1: buffer (not set) → 4MiB";
    assert_eq!(set.out, format!("{line}\n"));
    assert!(set.err.contains("note: it is undone in 600 s: `nicety confirm` keeps it"), "{set:?}");
    served.line(&format!("changed: {line}; undone in 600 s unless it is confirmed"));
    assert!(done(&scratch, &["export"]).out.contains("4MiB"), "it is in force");
    let kept = std::fs::read_to_string(&state).unwrap();
    assert!(kept.contains("\"unconfirmed\"") && !kept.contains("buffer = "), "what was confirmed is kept: {kept}");

    let who = format!("a change by user {} (process ", rustix::process::getuid().as_raw());
    let waits = format!(") waits to be confirmed ({line}), and is undone in ");
    let told = done(&scratch, &["ports"]).err;
    assert!(told.contains(&who) && told.contains(&waits), "{told}");
    assert!(scratch.get("/metrics").1.contains("nicety_change_waiting 1\n"));
    write(&scratch, &other());
    for args in [
        &["port", "set", "vm2", "buffer=4MiB"][..],
        &["port", "set", "vm2", "buffer=4MiB", "--confirm", "60s"],
        &["port", "remove", "vm2"],
        &["port", "add", "vm3", "adapter=e1000", "mac=52:54:00:12:34:03", "socket=vm3.sock"],
        &["apply"],
        &["save"],
    ] {
        refused(&scratch, args, 1, &waits);
    }
    served.signal(Signal::HUP);
    let logged = served.line("was not applied: nothing was done: ");
    assert!(logged.contains(&waits), "{logged}");
    write(&scratch, HOST);

    let confirmed = done(&scratch, &["confirm"]).out;
    assert!(confirmed.starts_with(&format!("confirmed: {line}, by user ")), "{confirmed}");
    served.line(&format!(": {line}, by user "));
    let kept = std::fs::read_to_string(&state).unwrap();
    assert!(kept.contains("buffer = \\\"4MiB") && !kept.contains("\"unconfirmed\""), "{kept}");
    let twice = format!("no change waits to be confirmed; the last one ({line}, by user ");
    refused(&scratch, &["confirm"], 1, &twice);
    refused(&scratch, &["confirm", "--undo"], 1, ") was confirmed by user ");
    done(&scratch, &["port", "set", "vm2", "buffer=4MiB"]);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_host_file_that_nobody_confirms_is_undone_in_one_step_and_no_start_serves_it() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    write(&scratch, &other());
    let plan = "+ port vm3\n~ port vm2: buffer (not set) → 2MiB, queues 2 → (not set)\n- port vm1\n";
    let applied = done(&scratch, &["apply", "--confirm", "1s"]);
    assert_eq!(applied.out, plan);
    served.line("undone, for nobody had confirmed it within 1 s: + port vm3; ");
    assert_eq!(scratch.sockets(), SOCKETS);
    refused(&scratch, &["confirm"], 1, ") was undone, for nobody had confirmed it within 1 s, ");
    // What runs is what ran: nothing but the file differs.
    assert_eq!(scratch.run(&["apply", "--dry-run"]).out, plan);
    done(&scratch, &["port", "set", "vm1", "buffer=4MiB"]);
    assert_eq!(served.end(Signal::TERM), Some(0));

    // The file on the disk still says it: neither the next start serves it, nor the one after that.
    for _ in 0..2 {
        let check = done(&scratch, &["serve", "--check"]);
        assert!(
            check.err.contains("note: the host file has a change that nobody has confirmed: + port vm3; "),
            "{check:?}"
        );
        let served = Served::start(&scratch);
        let said =
            served.before.iter().filter(|line| line.contains("has a change that nobody has confirmed: + port vm3; "));
        assert_eq!(said.count(), 1, "{:?}", served.before);
        assert_eq!(scratch.sockets(), SOCKETS);
        assert!(done(&scratch, &["export"]).out.contains("4MiB"), "with its live changes");
        assert_eq!(served.end(Signal::TERM), Some(0));
    }
    // Who applies it means it.
    let served = Served::start(&scratch);
    done(&scratch, &["apply", "--yes"]);
    assert_eq!(served.end(Signal::TERM), Some(0));
    assert!(!scratch.path().join("host.toml.state").exists(), "the host file says what ran");
    let served = Served::start(&scratch);
    assert_eq!(scratch.sockets(), ["nicety-lan.sock", "vm2.sock", "vm3.sock"]);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_start_meanwhile_serves_what_was_confirmed_and_says_once_what_it_undoes() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    done(&scratch, &["port", "set", "vm2", "buffer=4MiB"]);
    done(&scratch, &["port", "remove", "vm1", "--confirm", "600s"]);
    assert_eq!(scratch.sockets(), ["nicety-lan.sock", "vm2.sock"]);
    // Killed.
    drop(served);
    let check = done(&scratch, &["serve", "--check"]);
    assert!(
        check.err.contains("note: nobody has confirmed this, and a start undoes it: - port vm1, by user "),
        "{check:?}"
    );
    let served = Served::start(&scratch);
    let said = served
        .before
        .iter()
        .any(|line| line.contains("undone by this start, for nobody had confirmed it: - port vm1, by user "));
    assert!(said, "{:?}", served.before);
    assert_eq!(scratch.sockets(), SOCKETS);
    assert!(done(&scratch, &["export"]).out.contains("4MiB"), "what was changed before is there");
    refused(&scratch, &["confirm"], 1, "no change waits to be confirmed\n");
    assert_eq!(served.end(Signal::TERM), Some(0));
    let served = Served::start(&scratch);
    assert!(!served.before.iter().any(|line| line.contains("undone")), "{:?}", served.before);
    // The same of a host file. A host file that was edited once more counts.
    write(&scratch, &other());
    done(&scratch, &["apply", "--confirm", "600s"]);
    drop(served);
    let served = Served::start(&scratch);
    assert!(
        served.before.iter().any(|line| line.contains("has a change that nobody has confirmed: ")),
        "{:?}",
        served.before
    );
    // The socket's file of the killed one is left, and nobody is at it.
    assert_eq!(["vm1", "vm2", "vm3"].map(|name| scratch.run(&["ports", name]).code), [Some(0), Some(0), Some(2)]);
    assert_eq!(served.end(Signal::TERM), Some(0));
    write(&scratch, &format!("{HOST}{MORE}"));
    let served = Served::start(&scratch);
    assert_eq!(scratch.sockets(), ["nicety-lan.sock", "vm1.sock", "vm2.sock", "vm3.sock"]);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn an_undo_that_is_refused_says_why_and_what_stands() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    done(&scratch, &["port", "remove", "vm1", "--confirm", "2s"]);
    // Somebody else takes the socket.
    let path = scratch.path().join("vm1.sock");
    let taken = UnixListener::bind(&path).unwrap();
    let why = format!("{} is served by another process: choose another path", path.display());
    let logged = served.line("not undone: - port vm1, by user ");
    assert!(
        logged.contains(&why) && logged.contains("; it stands, and a start of the daemon does not serve it"),
        "{logged}"
    );
    let told = done(&scratch, &["ports"]).err;
    assert!(
        told.contains(&format!("; it could not be undone, and stands: {why}; `nicety confirm` keeps it")),
        "{told}"
    );
    let metrics = scratch.get("/metrics").1;
    assert!(
        metrics.contains("nicety_change_waiting 1\n") && metrics.contains("nicety_change_not_undone 1\n"),
        "{metrics}"
    );
    refused(&scratch, &["port", "set", "vm2", "buffer=4MiB"], 1, &format!("it could not be undone, and stands: {why}"));
    let stands = format!("the change was not undone, and stands: {why}; `nicety confirm` keeps it");
    refused(&scratch, &["confirm", "--undo"], 1, &stands);
    assert_eq!(scratch.run(&["ports", "vm1"]).code, Some(2), "it stands");
    drop(taken);
    std::fs::remove_file(&path).unwrap();
    let undone = done(&scratch, &["confirm", "--undo"]).out;
    assert!(undone.starts_with("undone: - port vm1, by user "), "{undone}");
    assert_eq!(scratch.sockets(), SOCKETS);
    assert!(scratch.get("/metrics").1.contains("nicety_change_not_undone 0\n"));
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn what_cannot_be_kept_for_the_next_start_is_not_changed_and_a_time_is_one() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    // Not even root can write to a folder as to a file.
    let new = scratch.path().join("host.toml.state.new");
    std::fs::create_dir(&new).unwrap();
    let what = "nothing was done: what was confirmed cannot be kept for the next start: ";
    refused(&scratch, &["port", "remove", "vm1", "--confirm", "60s"], 1, what);
    assert_eq!(scratch.sockets(), SOCKETS);
    std::fs::remove_dir(&new).unwrap();
    let range = "a change waits to be confirmed for 1s to 86400s";
    for (args, message) in [
        (&["--confirm", "0s"][..], range),
        (&["--confirm", "86401s"], range),
        (&["--confirm", "60"], range),
        (&["--confirm", "soon"], range),
        (&["--confirm", "60s", "--save"], "cannot be used with"),
        (&["--check-reach", "gateway"], "invalid IP address syntax"),
        (&["--check-reach", "fe80::1"], "write its interface too, such as fe80::1%eth0"),
        (&["--check-reach", "192.0.2.1", "--confirm", "9s"], "write --confirm 10s or more"),
    ] {
        refused(&scratch, &[&["port", "remove", "vm1"], args].concat(), 2, message);
    }
    refused(&scratch, &["apply", "--dry-run", "--confirm", "60s"], 2, "cannot be used with");
    // A change of nothing waits for nobody.
    let nothing = done(&scratch, &["apply", "--confirm", "60s"]);
    assert_eq!((nothing.out.as_str(), nothing.err.as_str()), ("nothing to change\n", ""));
    refused(&scratch, &["confirm"], 1, "no change waits to be confirmed\n");
    assert_eq!(served.end(Signal::TERM), Some(0));
}

/// Another network namespace. It ends with this.
struct Far(Child);

impl Far {
    /// It has 10.0.0.2 and fe80::2, behind the bridge `br0` of this one.
    fn behind_bridge() -> Far {
        let mut child = Command::new("unshare");
        // The bridge's other end comes when this process has its own namespace.
        let script = "until ip link set far0 up 2>/dev/null; do sleep 0.01; done; ip address add 10.0.0.2/24 dev far0; \
                      ip address add fe80::2/64 dev far0 nodad; cat";
        child.args(["-n", "sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::null());
        let far = Far(child.spawn().unwrap());
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        while std::fs::read_link(format!("/proc/{}/ns/net", far.0.id())).unwrap() == own {
            std::thread::yield_now();
        }
        ip(&format!(
            "link add near0 type veth peer name far0 netns {}\nlink add br0 type bridge\nlink set near0 master br0\n\
             link set near0 up\nlink set br0 up",
            far.0.id()
        ));
        far
    }
}

impl Far {
    /// Runs `ip` in its namespace.
    fn ip(&self, words: &str) {
        let net = format!("--net=/proc/{}/ns/net", self.0.id());
        let ended = Command::new("nsenter").arg(net).arg("ip").args(words.split(' ')).status().unwrap();
        assert!(ended.success(), "ip {words}: {ended}");
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ended = self.0.wait();
    }
}

/// Between this namespace and the far one are two taps: tap0 is this one's, and tap1 is on the bridge.
fn between_taps() -> (Far, Scratch, Served) {
    let far = Far::behind_bridge();
    ip(
        "tuntap add dev tap0 mode tap\ntuntap add dev tap1 mode tap\naddress add 10.0.0.1/24 dev tap0\nlink set tap0 up\n\
        link set tap1 master br0\nlink set tap1 up\nlink set lo up",
    );
    let taps = "[[uplink]]\nkind = \"tap\"\nname = \"tap0\"\n[[uplink]]\nkind = \"tap\"\nname = \"tap1\"\n";
    let scratch = Scratch::with(&format!("{HOST}{taps}"));
    let served = Served::start(&scratch);
    (far, scratch, served)
}

fn set(scratch: &Scratch, value: &str, guard: &[&str]) -> Ended {
    scratch.run(&[&["uplink", "set", "tap1", value, "--yes"], guard].concat())
}

#[test]
fn a_change_that_cuts_an_address_off_is_undone_at_once_and_one_that_does_not_is_confirmed() {
    if !inside("confirm::a_change_that_cuts_an_address_off_is_undone_at_once_and_one_that_does_not_is_confirmed") {
        return;
    }
    let (far, scratch, served) = between_taps();
    let set = |value: &str, guard: &[&str]| set(&scratch, value, guard);
    let reach = ["--check-reach", "10.0.0.2"];
    // The bridge may still be learning where its ports lead.
    let first = set("rate=5Gbit/s", &reach);
    assert_eq!(first.code, Some(0), "{first:?}");
    assert!(first.err.contains("note: 10.0.0.2 answers: the change is confirmed"), "{first:?}");

    let cut = set("vlan=20", &reach);
    assert!(cut.code == Some(1) && cut.err.contains("10.0.0.2 does not answer: the change was undone"), "{cut:?}");
    served.line("undone by user ");
    assert!(!done(&scratch, &["export"]).out.contains("vlan = 20"));
    // An answer is not enough if a person is to confirm it.
    let both = set("rate=6Gbit/s", &[&reach[..], &["--confirm", "600s"]].concat());
    let still = "note: 10.0.0.2 answers; the change is undone unless `nicety confirm` keeps it";
    assert!(both.code == Some(0) && both.err.contains(still), "{both:?}");
    done(&scratch, &["confirm", "--undo"]);
    let exported = done(&scratch, &["export"]).out;
    assert!(exported.contains("5Gbit/s") && !exported.contains("6Gbit/s"), "{exported}");
    // Nothing is learned from an address that never answers.
    let never = set("rate=7Gbit/s", &["--check-reach", "10.0.0.9"]);
    let message = "10.0.0.9 does not answer echo requests from here now: nothing was done";
    assert!(never.code == Some(1) && never.err.contains(message), "{never:?}");
    refused(&scratch, &["confirm"], 1, ") was undone by user ");
    assert_eq!(served.end(Signal::TERM), Some(0));
    drop(far);
}

#[test]
fn an_address_must_go_on_to_answer_and_may_be_asked_by_one_interface() {
    if !inside("confirm::an_address_must_go_on_to_answer_and_may_be_asked_by_one_interface") {
        return;
    }
    let (far, scratch, served) = between_taps();
    let set = |value: &str, address: &str| set(&scratch, value, &["--check-reach", address]);
    // The address of a link has no other way than an interface.
    for (value, address) in [("rate=8Gbit/s", "10.0.0.2%tap0"), ("rate=9Gbit/s", "fe80::2%tap0")] {
        let by = set(value, address);
        let said = format!("note: {address} answers: the change is confirmed");
        assert!(by.code == Some(0) && by.err.contains(&said), "{by:?}");
    }
    std::thread::scope(|scope| {
        let late = scope.spawn(|| set("rate=7Gbit/s", "10.0.0.2"));
        served.line("rate 9Gbit/s → 7Gbit/s; undone in 60 s unless it is confirmed");
        std::thread::sleep(Duration::from_secs(2));
        far.ip("address del 10.0.0.2/24 dev far0");
        let late = late.join().unwrap();
        assert!(
            late.code == Some(1) && late.err.contains("10.0.0.2 does not answer: the change was undone"),
            "{late:?}"
        );
    });
    for (address, code, message) in [
        ("10.0.0.2%lo", 1, "10.0.0.2%lo does not answer echo requests from here now: nothing was done"),
        ("10.0.0.2%tap9", 2, "10.0.0.2%tap9 cannot be asked by interface tap9: "),
    ] {
        let refused = set("rate=7Gbit/s", address);
        assert!(refused.code == Some(code) && refused.err.contains(message), "{refused:?}");
    }
    assert_eq!(served.end(Signal::TERM), Some(0));
    drop(far);
}
