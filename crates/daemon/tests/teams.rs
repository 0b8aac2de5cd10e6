//! Two daemons joined by two pairs, with a team at each end.

use std::path::Path;
use std::time::{Duration, Instant};

use nicety_daemon::daemon::Daemon;
use nicety_daemon::report::{Condition, PortReport};
use nicety_daemon::serve;
use nicety_host::Host;

/// LACP waits two seconds before it uses links.
const PATIENCE: Duration = Duration::from_secs(30);

fn daemon(dir: &Path, role: &str, team: &str) -> Daemon {
    let uplink = |name: &str| {
        let socket = dir.join(name);
        format!(
            "[[uplink]]\nname = \"{name}\"\nkind = \"pair\"\nsocket = \"{}\"\nrole = \"{role}\"\n",
            socket.display()
        )
    };
    let text = format!("{}{}[[team]]\nname = \"up\"\nmembers = \"a,b\"\n{team}\n", uplink("a"), uplink("b"));
    let host = Host::parse(&text, &dir.join("host.toml")).unwrap();
    serve::start(serve::prepare(&host, None).unwrap()).unwrap()
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
