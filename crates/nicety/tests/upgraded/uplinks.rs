//! Uplinks, teams of them, and cards, in a daemon that is replaced: partners and peers notice nothing.

use std::cell::Cell;
use std::path::Path;

use super::*;
use crate::station::Process;

/// The daemon at the other end, with a guest. It is not replaced.
struct Partner {
    dir: TempDir,
    guest: Station,
    _daemon: Process,
}

impl Partner {
    fn start(dir: TempDir, host: &str) -> Partner {
        std::fs::write(dir.path().join("host.toml"), format!("{CONTROL}{host}{}", port("e1000", 2, ""))).unwrap();
        let mut serve = Command::new(env!("CARGO_BIN_EXE_nicety"));
        serve.arg("serve").current_dir(dir.path()).env_remove("XDG_RUNTIME_DIR");
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let daemon = Process(serve.stderr(log).spawn().unwrap());
        let guest = Station::start(&attach(dir.path(), "e1000", 2), 2);
        Partner { dir, guest, _daemon: daemon }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }
}

const CONTROL: &str = "[daemon]\ncontrol = \"control.sock\"\nworkers = 2\n";

fn port(adapter: &str, number: u8, more: &str) -> String {
    format!(
        "[[port]]\nname = \"vm{number}\"\nadapter = \"{adapter}\"\nmac = \"52:54:00:12:34:0{number}\"\n\
         socket = \"vm{number}.sock\"\n{more}"
    )
}

fn attach(dir: &Path, driver: &str, number: u8) -> Value {
    json!({ "vfio-user": { "driver": driver, "socket": dir.join(format!("vm{number}.sock")) } })
}

/// The members of the team `up` that take and send frames.
fn used(control: &Path) -> Option<usize> {
    let mut ports = Command::new(env!("CARGO_BIN_EXE_nicety"));
    let output = ports.args(["ports", "up", "--json", "--control"]).arg(control).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).ok()?;
    let members = report["ports"][0]["members"].as_array()?;
    let is_used = |member: &&Value| member["collects"] == true && member["distributes"] == true;
    Some(members.iter().filter(is_used).count())
}

/// Requests of the kept daemon's guest to the partner's while the daemon is replaced so often; `look` is called after each time.
fn transacts(kept: &mut Kept, partner: &Partner, upgrades: usize, seconds: f64, look: impl Fn(&Kept)) {
    let to = partner.guest.address;
    kept.begins_to_ask(0, to, seconds);
    for _ in 0..upgrades {
        let pause = kept.upgrade();
        look(kept);
        println!("{pause:.1} ms");
    }
    let done = kept.guests[0].answer();
    let each = answered(&done, &partner.log(), kept);
    println!("{} requests, the slowest {} ms", each.len(), each.iter().max().unwrap() / 1_000_000);
}

/// Time between two looks at a partner, an upgrade among them, on a machine that keeps up.
const HURRIED: Duration = Duration::from_millis(1000);
/// After so much silence LACP misses a partner at its fast rate (802.1AX, Short_Timeout_Time: 3 s), and a little more.
const SILENT: Duration = Duration::from_secs(4);

/// Waits until it is so.
fn wait(what: &str, kept: &Kept, is_so: impl Fn() -> bool) {
    let end = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < end, "{what}\n{}", kept.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_lacp_partner_notices_nothing_when_the_daemon_is_replaced() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let sockets = [here.path().join("link0.sock"), there.path().join("link1.sock")];
    let host = |roles: [&str; 2]| {
        let link = |(number, (socket, role)): (usize, (&PathBuf, &str))| {
            format!(
                "[[uplink]]\nkind = \"pair\"\nname = \"link{number}\"\nsocket = \"{}\"\nrole = \"{role}\"\n",
                socket.display()
            )
        };
        let links: String = sockets.iter().zip(roles).enumerate().map(link).collect();
        format!(
            "{links}[[team]]\nname = \"up\"\nmembers = \"link0,link1\"\nmode = \"802.3ad\"\nlacp_rate = \"fast\"\n\
             hash = \"layer3+4\"\n"
        )
    };
    let host_here = format!("{CONTROL}{}{}", host(["listen", "connect"]), port("vmxnet3", 1, ""));
    let host_there = host(["connect", "listen"]);
    let mut kept = Kept::start_on(here, &host_here);
    let partner = Partner::start(there, &host_there);
    let attach = attach(kept.dir.path(), "vmxnet3", 1);
    kept.guests.push(Station::start(&attach, 1));
    let controls = [kept.path("control.sock"), partner.dir.path().join("control.sock")];
    wait("both links in use", &kept, || controls.iter().all(|control| used(control) == Some(2)));
    // A partner that is silent for 3 s is missed: the last upgrades come after that. On a machine that stands still so long the links
    // fall out rightly, and come back.
    let (looked, late) = (Cell::new(Instant::now()), Cell::new(None::<Instant>));
    transacts(&mut kept, &partner, 6, 6.0, |kept| {
        for _ in 0..10 {
            let now = controls.each_ref().map(|control| used(control));
            if looked.replace(Instant::now()).elapsed() > HURRIED {
                late.set(Some(Instant::now()));
            }
            if late.get().is_some_and(|late| late.elapsed() < SILENT) {
                wait("both links in use again", kept, || controls.iter().all(|control| used(control) == Some(2)));
            } else {
                assert_eq!(now, [Some(2); 2], "{}\n{}", kept.log(), partner.log());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let joined = partner.log().matches("its peer has joined").count();
    assert_eq!(joined, 2, "no pair was closed: {}", partner.log());
}

/// Bytes that a connection carries at least, under four upgrades.
const MANY_BYTES: u64 = 100_000;

/// Bytes in both directions by an uplink of this kind.
fn carries(kind: &str) {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let socket = here.path().join("up.sock");
    let host =
        |role: &str| format!("[[uplink]]\nkind = \"{kind}\"\nsocket = \"{}\"\nrole = \"{role}\"\n", socket.display());
    let mut kept = Kept::start_on(here, &format!("{CONTROL}{}{}", host("listen"), port("vmxnet3", 1, "")));
    let mut partner = Partner::start(there, &host("connect"));
    let attach = attach(kept.dir.path(), "vmxnet3", 1);
    kept.guests.push(Station::start(&attach, 1));
    transacts(&mut kept, &partner, 5, 2.0, |_| {});
    // Full sockets, and half-sent frames.
    for out in [true, false] {
        let to = if out { partner.guest.address } else { kept.guests[0].address };
        let (mut seconds, mut bytes) = (1.5, 0);
        // A slow machine needs longer: it stands still for most of the time.
        while bytes <= MANY_BYTES {
            assert!(seconds < SOON.as_secs_f64(), "{bytes}\n{}\n{}", kept.log(), partner.log());
            let from = if out { &mut kept.guests[0] } else { &mut partner.guest };
            from.order(&json!({ "send": { "to": to, "seconds": seconds } }));
            (0..4).for_each(|_| _ = kept.upgrade());
            let from = if out { &mut kept.guests[0] } else { &mut partner.guest };
            let sent = from.answer();
            assert!(sent.get("failed").is_none(), "{sent}\n{}\n{}", kept.log(), partner.log());
            let to = if out { &mut partner.guest } else { &mut kept.guests[0] };
            bytes = to.asked(&json!("report"))["counts"]["discarded_bytes"].as_u64().unwrap();
            println!("{kind}, out {out}, {seconds} s: {bytes} bytes");
            seconds *= 2.0;
        }
    }
    transacts(&mut kept, &partner, 1, 1.0, |_| {});
    let log = partner.log();
    assert_eq!(log.matches("its peer has joined").count(), 1, "{log}\n{}", kept.log());
    assert_eq!(kept.log().matches("its peer has joined").count(), 1, "{}", kept.log());
}

#[test]
fn a_pair_s_peer_notices_nothing_when_the_daemon_is_replaced() {
    carries("pair");
}

#[test]
fn a_stream_s_peer_notices_nothing_when_the_daemon_is_replaced() {
    carries("stream");
}

#[test]
fn functions_of_a_card_keep_what_they_were_granted_when_the_daemon_is_replaced() {
    for (chip, adapter) in [("82599", "ixgbevf"), ("82576", "igbvf")] {
        let dir = tempfile::tempdir().unwrap();
        let function = |number: u8| {
            let rule = if number == 1 { "accept" } else { "reject" };
            let place = format!("card = \"nic0\"\nfunction = {}\nmac_changes = \"{rule}\"\ntrust = true\n", number - 1);
            port(adapter, number, &place)
        };
        let host = format!(
            "{CONTROL}[[uplink]]\nkind = \"null\"\nname = \"up0\"\n[[card]]\nname = \"nic0\"\nchip = \"{chip}\"\n\
             uplink = \"up0\"\n{}{}",
            function(1),
            function(2)
        );
        let mut kept = Kept::start_on(dir, &host);
        kept.attach(&[adapter, adapter]);
        let set = kept.asked(&["vf", "set", "nic0/0", "rate", "500"]);
        assert!(set.status.success(), "{set:?}");
        kept_goes_on(kept, &[adapter, adapter], 3);
    }
}

#[test]
fn what_a_port_gets_inside_a_class_by_a_live_change_goes_on_when_the_daemon_is_replaced() {
    let host = format!(
        "{CONTROL}[[uplink]]\nkind = \"null\"\nname = \"up\"\nrate = \"10Gbit/s\"\n{}{}",
        port("vmxnet3", 1, ""),
        port("vmxnet3", 2, "")
    );
    let kept = Kept::start_on(tempfile::tempdir().unwrap(), &host);
    let ask = |words: &[&str]| {
        let done = kept.asked(words);
        assert!(done.status.success(), "{done:?}\n{}", kept.log());
        String::from_utf8(done.stdout).unwrap()
    };
    ask(&["class", "add", "up/vm", "reservation=3Gbit/s"]);
    ask(&["class", "port", "up/vm", "vm1", "shares=80", "reservation=1Gbit/s", "limit=2Gbit/s"]);
    let classes = |text: &str| text.split_once("[[io_class]]").map(|(_, rest)| rest.to_owned());
    let before = classes(&ask(&["export"])).unwrap();
    assert!(before.contains("shares_of = \"vm1=80\""), "{before}");
    kept.upgrade();
    assert_eq!(classes(&ask(&["export"])), Some(before));
    let changed = ask(&["class", "port", "up/vm", "vm1", "shares=", "reservation=", "limit="]);
    let line = "~ io_class.up.vm: limit_of vm1=2Gbit/s → (not set), reservation_of vm1=1Gbit/s → (not set), \
                shares_of vm1=80 → (not set)\n";
    assert_eq!(changed, line);
    let ports = kept.json(&["ports", "--json"]);
    let names: Vec<&str> =
        ports["ports"][0]["io_classes"].as_array().unwrap().iter().filter_map(|class| class["name"].as_str()).collect();
    assert_eq!(names, ["vm"], "its uplink is controlled");
}
