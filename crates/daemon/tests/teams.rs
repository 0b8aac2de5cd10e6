//! Two daemons joined by two pairs, with a team at each end. One of them is changed while it serves.

mod upgrade;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nicety_daemon::daemon::Daemon;
use nicety_daemon::live::state::Begin;
use nicety_daemon::live::{Consent, Live};
use nicety_daemon::report::{Condition, PortReport, QueueReport};
use nicety_daemon::serve;
use nicety_host::{Host, List};
use upgrade::replaced;

/// LACP waits two seconds before it uses links.
const PATIENCE: Duration = Duration::from_secs(30);

/// A host file with these uplinks.
fn text(role: &str, uplinks: &[&str], team: &str) -> String {
    let uplink = |name: &&str| {
        format!("[[uplink]]\nname = \"{name}\"\nkind = \"pair\"\nsocket = \"{name}\"\nrole = \"{role}\"\n")
    };
    uplinks.iter().map(uplink).chain([team.to_owned()]).collect()
}

/// A team of these uplinks.
fn team(members: &str, more: &str) -> String {
    format!("[[team]]\nname = \"up\"\nmembers = \"{members}\"\n{more}\n")
}

/// Each daemon has a host file of its own.
fn path(dir: &Path, role: &str) -> PathBuf {
    dir.join(format!("{role}.toml"))
}

fn daemon(dir: &Path, role: &str, more: &str) -> Daemon {
    let host = Host::parse(&text(role, &["a", "b"], &team("a,b", more)), &path(dir, role)).unwrap();
    serve::start(serve::prepare(&host, None).unwrap()).unwrap()
}

/// Begins like `nicety serve`.
fn live(dir: &Path, text: &str) -> Live {
    live_and_daemon(dir, text).0
}

fn live_and_daemon(dir: &Path, text: &str) -> (Live, Arc<Daemon>) {
    let path = path(dir, "listen");
    std::fs::write(&path, text).unwrap();
    let Begin { host, file, state, found: _ } = Begin::new(Host::read(&path).unwrap());
    nicety_sandbox::begin_for_tests();
    let daemon = Arc::new(serve::start(serve::prepare(&host, None).unwrap()).unwrap());
    (Live::new(Arc::clone(&daemon), host, file, state), daemon)
}

/// Applies a host file as a person has changed it, and returns the lines of the plan.
fn apply(live: &Live, text: &str) -> String {
    let new = Host::parse(text, live.path()).unwrap();
    live.apply(&new, &Consent::Nothing).unwrap().plan.to_string()
}

fn report(daemon: &Daemon) -> PortReport {
    let views = daemon.views();
    PortReport::of(views.iter().find(|view| view.name == "up").unwrap())
}

/// Waits until the team distributes by these members.
fn wait(daemon: &Daemon, wanted: &[&str]) -> PortReport {
    let end = Instant::now() + PATIENCE;
    loop {
        let report = report(daemon);
        let members = report.members.iter().flatten().filter(|member| member.distributes && member.collects);
        let used: Vec<&str> = members.map(|member| member.uplink.as_str()).collect();
        if used == wanted {
            return report;
        }
        assert!(Instant::now() < end, "{report:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn two_daemons_agree_on_both_links_and_go_on_with_one() {
    let dir = tempfile::tempdir().unwrap();
    let lacp = "mode = \"802.3ad\"\nlacp_rate = \"fast\"";
    let daemons = ["listen", "connect"].map(|role| daemon(dir.path(), role, lacp));
    for daemon in &daemons {
        let report = wait(daemon, &["a", "b"]);
        assert_eq!(report.condition, Condition::Up);
        assert!(report.sentence.starts_with("a way out of the switch by 2 of 2 uplinks: a: active, partner 02:4e:"));
    }
    daemons[1].close_uplink("a");
    let cut = Instant::now();
    let report = wait(&daemons[0], &["b"]);
    println!("left {:?} after the link", cut.elapsed());
    assert_eq!(report.members.unwrap()[0].state, "no carrier");
    wait(&daemons[1], &["b"]);
}

#[test]
fn of_an_active_standby_team_one_link_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let standby = "mode = \"active-standby\"\nprimary = \"b\"";
    let ours = daemon(dir.path(), "listen", standby);
    assert_eq!(report(&ours).condition, Condition::Waiting);
    let other = daemon(dir.path(), "connect", standby);
    let report = wait(&ours, &["b"]);
    assert_eq!(report.sentence, "a way out of the switch by 1 of 2 uplinks: a: stands by; b: active");
    other.close_uplink("b");
    wait(&ours, &["a"]);
}

const FAST: &str = "mode = \"802.3ad\"\nlacp_rate = \"fast\"";

#[test]
fn members_come_and_go_while_the_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let both = text("listen", &["a", "b"], &team("a,b", FAST));
    let live = live(dir.path(), &both);
    let other = daemon(dir.path(), "connect", FAST);
    wait(&other, &["a", "b"]);
    let one = text("listen", &["b"], &team("b", FAST));
    assert_eq!(apply(&live, &one), "~ team up: members a,b → b\n- uplink a\n");
    assert_eq!(wait(live.daemon(), &["b"]).members.unwrap().len(), 1);
    let report = wait(&other, &["b"]);
    assert_eq!(report.members.unwrap()[0].state, "no carrier");
    // It is the same link to the partner again, whatever its place in the list.
    let turned = text("listen", &["a", "b"], &team("b,a", FAST));
    assert_eq!(apply(&live, &turned), "+ uplink a\n~ team up: members b → b,a\n");
    wait(live.daemon(), &["b", "a"]);
    let report = wait(&other, &["a", "b"]);
    assert!(report.members.unwrap()[0].state.contains("port 1 key 1"));
}

#[test]
fn settings_change_while_links_go_on_and_another_mode_uses_them_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let of = |more: &str| text("listen", &["a", "b"], &team("a,b", more));
    let live = live(dir.path(), &of(FAST));
    let other = daemon(dir.path(), "connect", FAST);
    wait(live.daemon(), &["a", "b"]);
    wait(&other, &["a", "b"]);
    for more in ["hash = \"layer2\"", "hash = \"layer2+3\"\nmin_links = 2", "lacp = \"passive\""] {
        apply(&live, &of(&format!("{FAST}\n{more}")));
        for daemon in [live.daemon(), &other] {
            let members = report(daemon).members.unwrap();
            assert!(members.iter().all(|member| member.distributes && member.collects), "{more}: {members:?}");
        }
    }
    // The partner must agree on another key first.
    apply(&live, &of(&format!("{FAST}\nkey = 5")));
    assert!(report(live.daemon()).members.unwrap().iter().all(|member| !member.distributes));
    wait(live.daemon(), &["a", "b"]);
    assert!(wait(&other, &["a", "b"]).sentence.contains("key 5"));
    let line = "~ team up: lacp_rate fast → (not set), mode 802.3ad → active-standby, primary (not set) → b, key 5 → (not set)";
    let standby = apply(&live, &of("mode = \"active-standby\"\nprimary = \"b\""));
    assert!(line.split(", ").all(|part| standby.contains(part.trim_start_matches("~ team up: "))), "{standby}");
    wait(live.daemon(), &["b"]);
    let sentence = report(live.daemon()).sentence;
    assert_eq!(sentence, "a way out of the switch by 1 of 2 uplinks: a: stands by; b: active");
    apply(&live, &of("mode = \"active-standby\"\nprimary = \"a\""));
    wait(live.daemon(), &["a"]);
}

#[test]
fn a_team_is_added_and_removed_with_its_uplinks() {
    let dir = tempfile::tempdir().unwrap();
    let live = live(dir.path(), &text("listen", &["a", "b"], ""));
    let other = daemon(dir.path(), "connect", FAST);
    let entry = |text: &str| text.parse().unwrap();
    let added = entry("name = \"up\"\nmembers = \"a,b\"\nmode = \"802.3ad\"\nlacp_rate = \"fast\"\n");
    let added = live.add(List::Teams, added, &Consent::Nothing).unwrap();
    let lines = "+ team up\n~ uplink a: team (not set) → up\n~ uplink b: team (not set) → up\n";
    assert_eq!((added.plan.to_string().as_str(), added.after_restart.len()), (lines, 0));
    wait(live.daemon(), &["a", "b"]);
    wait(&other, &["a", "b"]);
    let removed = live.remove(List::Teams, "up", &Consent::Nothing).unwrap();
    assert_eq!(removed.plan.to_string(), "- team up\n- uplink a\n- uplink b\n");
    assert!(live.daemon().views().is_empty());
    wait(&other, &[]);
}

#[test]
fn a_teams_lacp_system_is_the_same_after_a_restart_or_the_one_that_is_set() {
    let partner = |dir: &Path, more: &str| {
        let ours = daemon(dir, "listen", &format!("{FAST}\n{more}"));
        let other = daemon(dir, "connect", FAST);
        let sentence = wait(&other, &["a", "b"]).sentence;
        ours.stop();
        let (_, partner) = sentence.split_once("partner ").unwrap();
        partner[..17].to_owned()
    };
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(partner(dir.path(), "system = \"02:00:00:00:00:0a\""), "02:00:00:00:00:0a");
    if Path::new("/etc/machine-id").exists() {
        assert_eq!(partner(dir.path(), ""), partner(dir.path(), ""));
    } else {
        println!("skipped: this machine has no identity (machine-id(5))");
    }
}

#[test]
fn by_port_address_or_load_all_links_are_used_and_the_neighbour_knows_nothing_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let of = |more: &str| {
        let uplinks = text("listen", &["a", "b"], &team("a,b", more));
        uplinks.replace("role = ", "rate = \"1Gbit/s\"\nrole = ")
    };
    let live = live(dir.path(), &of("mode = \"originating-port\""));
    let other = daemon(dir.path(), "connect", "mode = \"active-standby\"");
    wait(live.daemon(), &["a", "b"]);
    wait(&other, &["a"]);
    let line = "~ team up: mode originating-port → source-address\n";
    assert_eq!(apply(&live, &of("mode = \"source-address\"")), line);
    wait(live.daemon(), &["a", "b"]);
    apply(&live, &of("mode = \"load\""));
    let report = wait(live.daemon(), &["a", "b"]);
    assert_eq!(report.members.unwrap()[0].state, "active, 0 % used");
}

/// A broadcast of IPv4 from this host of 10.0.0.0/8 or of another network, behind QEMU's prefix of a stream: its length.
fn broadcast(first: u8) -> Vec<u8> {
    let mut frame = vec![0, 0, 0, 60, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 7, 8, 0];
    frame.extend([0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, first, 0, 0, 1, 255, 255, 255, 255]);
    frame.resize(4 + 60, 0);
    frame
}

/// A host file with a team of these uplinks, of which the first carries, a class of the team's, and an uplink apart.
fn with_class(members: &[&str]) -> String {
    let stream = "[[uplink]]\nname = \"c\"\nkind = \"stream\"\nsocket = \"c\"\n";
    let class = "[[io_class]]\nuplink = \"up\"\nname = \"ten\"\nnetwork = \"10.0.0.0/8\"\n";
    let standby = format!("mode = \"active-standby\"\nprimary = \"{}\"", members[0]);
    text("listen", members, &team(&members.join(","), &standby)) + stream + class
}

#[test]
fn a_teams_classes_are_counted_as_a_whole_and_with_what_left_by_uplinks_that_are_gone() {
    use std::io::Write;
    let dir = tempfile::tempdir().unwrap();
    let live = live(dir.path(), &with_class(&["a", "b"]));
    let other = daemon(dir.path(), "connect", "mode = \"active-standby\"");
    wait(live.daemon(), &["a"]);
    // Frames that the team and its members were offered: of the team as many as of its members, and of one that has left.
    let left = std::cell::Cell::new(0);
    let carried = |daemon: &Daemon, names: &[&str]| -> u64 {
        let views = daemon.views();
        let of = views.iter().filter(|view| names.contains(&view.name.as_str()));
        of.map(|view| PortReport::of(view).receive.iter().map(|queue| queue.frames).sum::<u64>()).sum()
    };
    let mut outside = std::os::unix::net::UnixStream::connect(dir.path().join("c")).unwrap();
    let mut sent = [0; 2];
    let mut send = |first: &[u8]| {
        for first in first {
            outside.write_all(&broadcast(*first)).unwrap();
            sent[usize::from(*first == 10)] += 1;
        }
        let end = Instant::now() + PATIENCE;
        loop {
            let classes = report(live.daemon()).io_classes;
            let counts: Vec<_> =
                classes.iter().map(|class| (class.name.as_str(), class.packets, class.bytes)).collect();
            // Announcements belong to no class.
            let [team, members] = [&["up"][..], &["a", "b"]].map(|names| carried(live.daemon(), names));
            let is_sum = team == members + left.get() && team >= sent[0] + sent[1];
            if is_sum && counts == [("vm", sent[0], 60 * sent[0]), ("ten", sent[1], 60 * sent[1])] {
                return;
            }
            assert!(
                Instant::now() < end,
                "{classes:?}, {sent:?} were sent, {team} of the team, {members} of its members"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    send(&[10, 10, 192, 10]);
    other.close_uplink("a");
    wait(live.daemon(), &["b"]);
    send(&[10, 192]);
    left.set(carried(live.daemon(), &["a"]));
    apply(&live, &with_class(&["b"]));
    wait(live.daemon(), &["b"]);
    send(&[192]);
}

#[test]
fn a_teams_sums_and_classes_go_on_in_the_next_daemon_with_what_left_by_uplinks_that_are_gone() {
    use std::io::Write;
    let dir = tempfile::tempdir().unwrap();
    let (live, old) = live_and_daemon(dir.path(), &with_class(&["a", "b"]));
    let _other = daemon(dir.path(), "connect", "mode = \"active-standby\"");
    wait(&old, &["a"]);
    let mut outside = std::os::unix::net::UnixStream::connect(dir.path().join("c")).unwrap();
    let mut send = |daemon: &Daemon, first: u8, sent: u64| {
        outside.write_all(&broadcast(first)).unwrap();
        let end = Instant::now() + PATIENCE;
        while report(daemon).io_classes.iter().map(|class| class.packets).sum::<u64>() < sent {
            assert!(Instant::now() < end, "{:?}", report(daemon));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    for (sent, first) in (1..).zip([10, 10, 192]) {
        send(&old, first, sent);
    }
    apply(&live, &with_class(&["b"]));
    wait(&old, &["b"]);
    send(&old, 192, 4);
    let counts = |daemon: &Daemon| {
        let PortReport { receive, transmit, io_classes, .. } = report(daemon);
        let classes: Vec<_> =
            io_classes.into_iter().map(|class| (class.name, class.packets, class.bytes, class.dropped)).collect();
        (receive, transmit, classes)
    };
    let before = counts(&old);
    assert_eq!(before.2, [("vm".to_owned(), 2, 120, 0), ("ten".to_owned(), 2, 120, 0)]);
    let host = Host::parse(&with_class(&["b"]), live.path()).unwrap();
    let (new, _upgraded) = replaced(old, &host);
    assert_eq!(counts(&new), before);
    let mut carried = BTreeMap::new();
    new.carried(&mut |name, class, bytes| _ = carried.insert((name.to_owned(), class.map(str::to_owned)), bytes));
    let of = |name: &str, class: Option<&str>| carried[&(name.to_owned(), class.map(str::to_owned))];
    assert_eq!([of("up", Some("vm")), of("up", Some("ten"))], [[120, 0]; 2], "a look for the page's charts");
    let bytes = |queues: &[QueueReport]| queues.iter().map(|queue| queue.bytes).sum::<u64>();
    for report in new.views().iter().map(PortReport::of).filter(|report| report.name != "c") {
        assert_eq!(of(&report.name, None), [bytes(&report.transmit), bytes(&report.receive)], "{}", report.name);
    }
    send(&new, 10, 5);
    assert_eq!(counts(&new).2[1], ("ten".to_owned(), 3, 180, 0));
}
