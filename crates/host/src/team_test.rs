use std::path::Path;

use nicety_frame::Mac;
use nicety_switch::Vlan;

use super::{LacpConfig, TeamMode, TransmitHash};
use crate::{Host, Seconds};

pub(crate) const FOUR: &str = "\
[[uplink]]\nkind = \"tap\"\nname = \"tap0\"\n[[uplink]]\nkind = \"pair\"\nname = \"a\"\nsocket = \"a.sock\"\n\
[[uplink]]\nkind = \"stream\"\nname = \"b\"\nsocket = \"b.sock\"\n[[uplink]]\nkind = \"null\"\n";

#[test]
fn a_team_has_its_members_and_their_rule() {
    let lacp = "[[team]]\nname = \"up\"\nmembers = \"b, tap0\"\nmode = \"802.3ad\"\nlacp_rate = \"fast\"\nmin_links = 2\nsystem = \"02:00:00:00:00:0a\"\ntrunk = \"all\"\n";
    let standby = "[[team]]\nname = \"spare\"\nmembers = \"a\"\nmode = \"active-standby\"\nprimary = \"a\"\nfail_back = \"30s\"\n";
    let host = Host::parse(&format!("{FOUR}{lacp}{standby}"), Path::new("/etc/host.toml")).unwrap();
    let [up, spare] = &host.teams[..] else { panic!("{:?}", host.teams) };
    assert_eq!((up.name.as_str(), &up.members[..]), ("up", &["b".to_owned(), "tap0".to_owned()][..]));
    let wanted = LacpConfig {
        is_active: true,
        is_fast: true,
        min_links: 2,
        system_priority: 32_768,
        key: 1,
        hash: TransmitHash::Layer34,
        system: Some(Mac([2, 0, 0, 0, 0, 10])),
    };
    assert_eq!(up.mode, TeamMode::Lacp(wanted));
    assert!(matches!(up.vlan, Vlan::Trunk { .. }));
    assert_eq!(spare.mode, TeamMode::Standby { primary: 0, fail_back: Seconds(30) });
    let teams: Vec<Option<&str>> = host.uplinks.iter().map(|uplink| uplink.team.as_deref()).collect();
    assert_eq!(teams, [Some("up"), Some("spare"), Some("up"), None]);
}

#[test]
fn a_team_that_cannot_work_is_refused_with_the_reason() {
    let of = |team: &str| {
        let text = format!("{FOUR}[[team]]\nname = \"up\"\nmembers = \"a\"\nmode = \"802.3ad\"\n{team}");
        let errors = Host::parse(&text, Path::new("/etc/host.toml")).unwrap_err();
        errors.list.into_iter().map(|error| format!("{}: {}", error.key, error.what)).collect::<Vec<_>>().join("\n")
    };
    let second =
        |members: &str| format!("[[team]]\nname = \"two\"\nmode = \"active-standby\"\nmembers = \"{members}\"\n");
    assert_eq!(of(&second("b,a")), "team.members: uplink a is in team up already, and can be in one");
    assert_eq!(of(&second("b,b")), "team.members: uplink b is named twice");
    assert_eq!(of(&second("")), "team.members: it has no member: name one or more uplinks");
    assert_eq!(of(&second("tap1")), "team.members: there is no uplink \"tap1\"; did you mean \"tap0\"?");
    assert_eq!(of(&second("null")), "team.members: uplink null is no link to a neighbour: its kind is \"null\"");
    let load = FOUR.replace("name = \"a\"", "name = \"a\"\nrate = \"1Gbit/s\"");
    let load = format!("{load}[[team]]\nname = \"up\"\nmembers = \"a\"\nmode = \"load\"\n");
    let host = Host::parse(&load, Path::new("/etc/host.toml")).unwrap();
    assert_eq!(host.teams[0].mode, TeamMode::Load(vec!["1Gbit/s".parse().unwrap()]));
    let errors = Host::parse(&load.replace("\"a\"\nmode", "\"a,b\"\nmode"), Path::new("/etc/host.toml")).unwrap_err();
    let wanted = "uplink b has no rate, and nobody knows when it is full: give each member its rate";
    assert_eq!(errors.list[0].what, wanted);
    assert_eq!(of("min_links = 2"), "team.min_links: the team has 1 members, and would never use one");
    assert_eq!(of("system = \"01:80:c2:00:00:02\""), "team.system: 01:80:c2:00:00:02 is no station's address");
    assert_eq!(of("primary = \"a\""), "team.primary: it does not belong to this mode");
    assert_eq!(of(&(second("b") + "primary = \"a\"")), "team.primary: \"a\" is no member; did you mean \"b\"?");
    assert_eq!(of(&(second("b") + "hash = \"layer2\"")), "team.hash: it does not belong to this mode");
    assert_eq!(
        of(&second("b").replace("two", "tap0")),
        "team.name: \"tap0\" is the uplink of line 3 already: choose another name"
    );
    assert_eq!(
        of(&second("b").replace("two", "up")),
        "team.name: \"up\" is the team of line 15 already: choose another name"
    );
    let text = format!("{FOUR}vlan = 7\n[[team]]\nname = \"up\"\nmembers = \"b\"\nmode = \"802.3ad\"\n")
        .replace("socket = \"b.sock\"", "socket = \"b.sock\"\nvlan = 7");
    let errors = Host::parse(&text, Path::new("/etc/host.toml")).unwrap_err();
    assert_eq!(errors.list[0].what, "this uplink is a member of team up: say it there");
}
