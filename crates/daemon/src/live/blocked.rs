//! Uplinks that leave a team. By itself such an uplink would be a second way into the network of its team, and frames would go round: so it
//! is blocked until a person says otherwise, or a team takes it.

use std::path::Path;

use nicety_host::{Document, Host, HostErrors, List, UplinkConfig};
use toml::Value;
use tracing::warn;

/// The key of uplinks and teams that carry nothing.
const BLOCKED: &str = "blocked";

/// Blocks, in a host that follows another one, uplinks that leave a team, unless its text says whether they are blocked. Those that are
/// blocked stay so. Of a team that is there no more, the first uplink goes on as its way out.
pub(super) fn keep(old: &Host, new: Host) -> Result<Host, HostErrors> {
    let says = |list, name: &str| new.document.entry(list, name).contains_key(BLOCKED);
    let silent = |uplink: &&UplinkConfig| uplink.team.is_none() && !says(List::Uplinks, &uplink.name);
    let uplinks = new.uplinks.iter().filter(silent).filter(|uplink| {
        let before = old.uplink(&uplink.name);
        before.is_some_and(|before| before.blocked || leaves_others(old, &new, before))
    });
    let teams = new.teams.iter().filter(|team| !says(List::Teams, &team.name));
    let teams = teams.filter(|team| old.team(&team.name).is_some_and(|before| before.blocked));
    let names: Vec<(List, String)> = uplinks
        .map(|uplink| (List::Uplinks, uplink.name.clone()))
        .chain(teams.map(|team| (List::Teams, team.name.clone())))
        .collect();
    // An uplink that a team takes is blocked no more.
    let taken = new.uplinks.iter().filter(|uplink| uplink.team.is_some() && says(List::Uplinks, &uplink.name));
    let taken: Vec<(List, String)> = taken.map(|uplink| (List::Uplinks, uplink.name.clone())).collect();
    with(with(new, &names, Some(true))?, &taken, None)
}

/// A host in which these entries have this value.
fn with(host: Host, names: &[(List, String)], blocked: Option<bool>) -> Result<Host, HostErrors> {
    if names.is_empty() {
        return Ok(host);
    }
    let value = [(BLOCKED.to_owned(), blocked.map(Value::Boolean))];
    let dir = host.path.parent().unwrap_or(Path::new(""));
    let with = |document: Document, (list, name): &(List, String)| document.with_values(*list, name, &value, dir);
    let document = names.iter().fold(host.document.clone(), with);
    Host::parse_change(&document.text(), &host.path)
}

/// A host in which the uplinks and teams of these names are blocked. `None`: in this one they are.
pub(super) fn with_loops(host: &Host, names: &[String]) -> Option<Host> {
    let uplinks = host.uplinks.iter().filter(|uplink| !uplink.blocked && names.contains(&uplink.name));
    let teams = host.teams.iter().filter(|team| !team.blocked && names.contains(&team.name));
    let all: Vec<(List, String)> = uplinks
        .map(|uplink| (List::Uplinks, uplink.name.clone()))
        .chain(teams.map(|team| (List::Teams, team.name.clone())))
        .collect();
    if all.is_empty() { None } else { with(host.clone(), &all, Some(true)).ok() }
}

/// Whether an uplink leaves a team by which, or by another of whose uplinks, frames go on.
fn leaves_others(old: &Host, new: &Host, before: &UplinkConfig) -> bool {
    let Some(team) = before.team.as_ref() else { return false };
    let Some(team) = old.team(team).filter(|team| new.team(&team.name).is_none()) else { return true };
    let first = team.members.iter().find(|member| new.uplink(member).is_some_and(|uplink| uplink.team.is_none()));
    first != Some(&before.name)
}

/// Values of a change of one entry. Without a value the key means false: a change that takes it away unblocks.
pub(super) fn said(list: List, values: &[(String, Option<Value>)]) -> Vec<(String, Option<Value>)> {
    let is_said = |key: &str, value: &Option<Value>| {
        matches!(list, List::Uplinks | List::Teams) && key == BLOCKED && value.is_none()
    };
    let one = |(key, value): &(String, Option<Value>)| {
        let value = if is_said(key, value) { Some(Value::Boolean(false)) } else { value.clone() };
        (key.clone(), value)
    };
    values.iter().map(one).collect()
}

/// Logs the uplinks that a change has blocked.
pub(super) fn log(old: &Host, new: &Host) {
    for uplink in new.uplinks.iter().filter(|uplink| uplink.blocked) {
        let name = &uplink.name;
        let Some(before) = old.uplink(name).filter(|before| !before.blocked) else { continue };
        let why = before.team.as_ref().map_or_else(String::new, |team| format!(", for it has left team {team}"));
        warn!(
            uplink = name,
            "blocked{why}: it carries nothing until `nicety uplink set {name} blocked=false`, or a team takes it"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAN: &str = "[[team]]\nname = \"lan\"\nmode = \"active-standby\"\n";

    fn host(taps: &[&str], rest: &str) -> Host {
        let tap = |name: &&str| format!("[[uplink]]\nkind = \"tap\"\nname = \"{name}\"\n");
        let text = taps.iter().map(tap).collect::<String>() + rest;
        Host::parse(&text, Path::new("/etc/host.toml")).unwrap()
    }

    /// The uplinks and teams that are blocked.
    fn names(host: &Host) -> Vec<&str> {
        let uplinks = host.uplinks.iter().filter(|uplink| uplink.blocked).map(|uplink| uplink.name.as_str());
        uplinks.chain(host.teams.iter().filter(|team| team.blocked).map(|team| team.name.as_str())).collect()
    }

    fn kept(old: &Host, taps: &[&str], rest: &str) -> Host {
        keep(old, host(taps, rest)).unwrap()
    }

    #[test]
    fn who_leaves_a_team_is_blocked_until_a_text_says_otherwise_or_a_team_takes_it() {
        let three = ["l0", "l1", "l2"];
        let whole = host(&three, &format!("{LAN}members = \"l0,l1,l2\"\n"));
        let one = kept(&whole, &three, &format!("{LAN}members = \"l0\"\n"));
        assert_eq!(names(&one), ["l1", "l2"]);
        let again = kept(&one, &three, &format!("{LAN}members = \"l0\"\n"));
        assert_eq!(names(&again), ["l1", "l2"], "a text that says nothing about it");
        let told = LAN.replace("[[team]]", "blocked = false\n[[team]]");
        assert_eq!(names(&kept(&one, &three, &format!("{told}members = \"l0\"\n"))), ["l1"], "l2's table says so");
        let back = kept(&one, &three, &format!("{LAN}members = \"l0,l1\"\n"));
        assert_eq!(names(&back), ["l2"]);
        // Of a team that goes, one uplink goes on: the first that stays.
        assert_eq!(names(&kept(&whole, &three, "")), ["l1", "l2"]);
        assert_eq!(names(&kept(&whole, &["l1", "l2"], "")), ["l2"]);
        // Another team takes them.
        let other = LAN.replace("lan", "wan");
        assert_eq!(
            names(&kept(&whole, &three, &format!("{LAN}members = \"l0\"\n{other}members = \"l1,l2\"\n"))),
            [""; 0]
        );
    }

    #[test]
    fn a_team_that_is_blocked_stays_so_and_a_loop_blocks_by_name() {
        let old = host(&["l0"], &format!("{LAN}members = \"l0\"\nblocked = true\n"));
        assert_eq!(names(&kept(&old, &["l0", "l1"], &format!("{LAN}members = \"l0,l1\"\n"))), ["lan"]);
        let free = host(&["l0", "l1"], &format!("{LAN}members = \"l0\"\n"));
        let looped = with_loops(&free, &["l1".to_owned()]).unwrap();
        assert_eq!(names(&looped), ["l1"]);
        assert!(with_loops(&looped, &["l1".to_owned()]).is_none());
    }

    #[test]
    fn a_change_without_a_value_takes_the_block_away() {
        let values = [(BLOCKED.to_owned(), None), ("rate".to_owned(), None)];
        let [blocked, rate] = &said(List::Uplinks, &values)[..] else { panic!() };
        assert_eq!((blocked.1.clone(), rate.1.clone()), (Some(Value::Boolean(false)), None));
    }
}
