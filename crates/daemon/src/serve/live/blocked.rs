//! Uplinks that leave a team. By itself such an uplink would be a second way into the network of its team, and frames would go round: so it
//! is blocked until a person says otherwise, or a team takes it.

use std::path::Path;

use nicety_host::{Document, Host, HostErrors, List, UplinkConfig};
use nicety_plane::Loop;
use toml::Value;
use tracing::{info, warn};

/// The key of uplinks and teams that carry nothing.
const BLOCKED: &str = "blocked";
/// The key that says with which other one it made a loop.
const LOOP_WITH: &str = "loop_with";

/// An uplink or a team, and whether it is blocked: for a loop, with which other one. `None`: the key is taken away.
type Block<'a> = ((List, &'a str), Option<(bool, Option<String>)>);

/// Blocks, in a host that follows another one, uplinks that leave a team, unless its text says whether they are blocked. Those that are
/// blocked stay so. Of a team that is there no more, the first uplink goes on as its way out. A block for a loop ends when the other one of
/// the loop is there no more: if there is another loop, it is found.
pub(super) fn keep(old: &Host, new: Host) -> Result<Host, HostErrors> {
    let says = |list, name: &str| new.document.entry(list, name).contains_key(BLOCKED);
    let silent = |uplink: &&UplinkConfig| uplink.team.is_none() && !says(List::Uplinks, &uplink.name);
    let uplinks = new.uplinks.iter().filter(silent).filter_map(|uplink| {
        let before = old.uplink(&uplink.name)?;
        let was_blocked = before.blocked && !is_over(&new, before.in_loop.as_ref());
        let other = if was_blocked { before.in_loop.clone() } else { None };
        let is_blocked = was_blocked || leaves_others(old, &new, before);
        is_blocked.then_some(((List::Uplinks, uplink.name.as_str()), Some((true, other))))
    });
    let teams = new.teams.iter().filter(|team| !says(List::Teams, &team.name)).filter_map(|team| {
        let before = old.team(&team.name).filter(|before| before.blocked)?;
        (!is_over(&new, before.in_loop.as_ref())).then_some(())?;
        Some(((List::Teams, team.name.as_str()), Some((true, before.in_loop.clone()))))
    });
    // An uplink that a team takes is blocked no more.
    let taken = new.uplinks.iter().filter(|uplink| uplink.team.is_some() && says(List::Uplinks, &uplink.name));
    let taken = taken.map(|uplink| ((List::Uplinks, uplink.name.as_str()), None));
    let over = ways(&new).filter(|(_, is_blocked, other)| *is_blocked && is_over(&new, *other));
    let over = over.map(|(entry, ..)| (entry, None));
    let all: Vec<Block<'_>> = uplinks.chain(teams).chain(taken).chain(over).collect();
    if all.is_empty() {
        return Ok(new);
    }
    with(&new, &all)
}

/// Whether the other one of a loop is not in a host.
fn is_over(host: &Host, other: Option<&String>) -> bool {
    other.is_some_and(|other| host.uplink(other).is_none() && host.team(other).is_none())
}

/// A host in which these entries are blocked so.
fn with(host: &Host, all: &[Block<'_>]) -> Result<Host, HostErrors> {
    let dir = host.path.parent().unwrap_or(Path::new(""));
    let with = |document: Document, ((list, name), block): &Block<'_>| {
        let (blocked, other) = block.clone().unzip();
        let values = [
            (BLOCKED.to_owned(), blocked.map(Value::Boolean)),
            (LOOP_WITH.to_owned(), other.flatten().map(Value::String)),
        ];
        document.with_values(*list, name, &values, dir)
    };
    let document = all.iter().fold(host.document.clone(), with);
    host.changed(&document)
}

/// The uplinks and teams of a host, whether they are blocked, and with which other one they made a loop.
fn ways(host: &Host) -> impl Iterator<Item = ((List, &str), bool, Option<&String>)> {
    let uplinks = host.uplinks.iter();
    let uplinks = uplinks.map(|one| ((List::Uplinks, one.name.as_str()), one.blocked, one.in_loop.as_ref()));
    let teams = host.teams.iter();
    uplinks.chain(teams.map(|one| ((List::Teams, one.name.as_str()), one.blocked, one.in_loop.as_ref())))
}

/// A host in which uplinks and teams are blocked for these loops. `None`: in this one they are.
pub(super) fn with_loops(host: &Host, loops: &[Loop]) -> Option<Host> {
    let all: Vec<Block<'_>> = ways(host)
        .filter_map(|((list, name), is_blocked, other)| {
            let found = loops.iter().find(|found| found.name == name)?;
            let is_known = is_blocked && other == Some(&found.other);
            (!is_known).then(|| ((list, name), Some((true, Some(found.other.clone())))))
        })
        .collect();
    if all.is_empty() { None } else { with(host, &all).ok() }
}

/// The same for a host that does not run, with those loops only whose other one it has.
pub(super) fn with_own_loops(host: &Host, mut loops: Vec<Loop>) -> Option<Host> {
    loops.retain(|found| !is_over(host, Some(&found.other)));
    with_loops(host, &loops)
}

/// Whether an uplink leaves a team by which, or by another of whose uplinks, frames go on.
fn leaves_others(old: &Host, new: &Host, before: &UplinkConfig) -> bool {
    let Some(team) = before.team.as_ref() else { return false };
    let Some(team) = old.team(team).filter(|team| new.team(&team.name).is_none()) else { return true };
    let first = team.members.iter().find(|member| new.uplink(member).is_some_and(|uplink| uplink.team.is_none()));
    first != Some(&before.name)
}

/// Values of a change of one entry. Without a value the key means false: a change that takes it away unblocks. One that unblocks takes the
/// reason away, too.
pub(super) fn said(list: List, values: &[(String, Option<Value>)]) -> Vec<(String, Option<Value>)> {
    if !matches!(list, List::Uplinks | List::Teams) {
        return values.to_vec();
    }
    let one = |(key, value): &(String, Option<Value>)| match value {
        None if key == BLOCKED => (key.clone(), Some(Value::Boolean(false))),
        value => (key.clone(), value.clone()),
    };
    let mut values: Vec<(String, Option<Value>)> = values.iter().map(one).collect();
    let unblocks = values.iter().any(|(key, value)| key == BLOCKED && *value == Some(Value::Boolean(false)));
    if unblocks && !values.iter().any(|(key, _)| key == LOOP_WITH) {
        values.push((LOOP_WITH.to_owned(), None));
    }
    values
}

/// Logs the uplinks that a change has blocked, and those and the teams that carry frames again because a loop is over.
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
    for ((list, name), was_blocked, other) in ways(old) {
        let stays = ways(new).find(|(entry, ..)| *entry == (list, name));
        if let (true, Some(other), Some((_, false, _))) = (was_blocked, other, stays)
            && is_over(new, Some(other))
        {
            info!("{list} {name} carries frames again: {other}, with which it made a loop, is there no more");
        }
    }
}

#[cfg(test)]
mod tests {
    use nicety_adapter::PortId;

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
        // One comes and another one goes, in one change; and two teams change members.
        assert_eq!(names(&kept(&one, &three, &format!("{LAN}members = \"l1\"\n"))), ["l0", "l2"]);
        let two = format!("{LAN}members = \"l0,l1\"\n{}members = \"l2\"\n", LAN.replace("lan", "wan"));
        let swapped = two.replace("l0,l1", "l0,l2").replace("\"l2\"", "\"l1\"");
        assert_eq!(names(&kept(&host(&three, &two), &three, &swapped)), [""; 0]);
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
        let found = [Loop { blocked: PortId(3), name: "l1".to_owned(), other: "lan".to_owned(), spared: None }];
        let looped = with_loops(&free, &found).unwrap();
        assert_eq!(names(&looped), ["l1"]);
        assert_eq!(looped.uplink("l1").unwrap().in_loop.as_deref(), Some("lan"));
        assert!(with_loops(&looped, &found).is_none());
        // A text that says nothing about it keeps both; a team that takes it, neither.
        let again = kept(&looped, &["l0", "l1"], &format!("{LAN}members = \"l0\"\n"));
        assert_eq!(again.uplink("l1").unwrap().in_loop.as_deref(), Some("lan"));
        let text = looped.document.text().replace("members = \"l0\"", "members = \"l0,l1\"");
        let taken = keep(&looped, Host::parse(&text, &looped.path).unwrap()).unwrap().document.text();
        assert!(!taken.contains("blocked") && !taken.contains("loop_with"), "{taken}");
    }

    #[test]
    fn who_was_blocked_for_a_loop_carries_again_when_the_other_one_is_there_no_more() {
        let looped = |with: &str| format!("blocked = true\nloop_with = \"{with}\"\n");
        let tap = |name: &str, more: &str| format!("[[uplink]]\nkind = \"tap\"\nname = \"{name}\"\n{more}");
        let team = |more: &str| format!("{}{LAN}members = \"l0\"\n{more}", tap("l0", ""));
        // Blocked for the first one, for the second one, by a person, and a team for the first one.
        let rest = |first: &str| {
            let taps = [tap("a1", first), tap("a2", &looped("a1")), tap("a3", "blocked = true\n")];
            taps.concat() + &team(&looped("a0"))
        };
        let old = host(&["a0"], &rest(&looped("a0")));
        assert_eq!(names(&old), ["a1", "a2", "a3", "lan"]);
        let left = kept(&old, &[], &rest(&looped("a0")));
        assert_eq!(names(&left), ["a2", "a3"]);
        assert!(!left.document.text().contains("loop_with = \"a0\""), "{}", left.document.text());
        // A text that says nothing about it.
        assert_eq!(names(&kept(&old, &[], &rest(""))), ["a2", "a3"]);
        assert_eq!(names(&kept(&old, &["a0"], &rest(""))), ["a1", "a2", "a3", "lan"]);
        // The other one may be a team, too.
        let old = host(&[], &(tap("a1", &looped("lan")) + &team("")));
        assert_eq!(names(&kept(&old, &[], &tap("a1", &looped("lan")))), [""; 0]);
        // One that a team takes is still there.
        let old = host(&["a0"], &(tap("a1", &looped("a0")) + &team("")));
        let taken = (tap("a1", &looped("a0")) + &team("")).replace("members = \"l0\"", "members = \"l0,a0\"");
        assert_eq!(names(&kept(&old, &["a0"], &taken)), ["a1"]);
    }

    #[test]
    fn a_change_without_a_value_takes_the_block_away() {
        let values = [(BLOCKED.to_owned(), None), ("rate".to_owned(), None)];
        let [blocked, rate, other] = &said(List::Uplinks, &values)[..] else { panic!() };
        assert_eq!((blocked.1.clone(), rate.1.clone()), (Some(Value::Boolean(false)), None));
        assert_eq!(*other, (LOOP_WITH.to_owned(), None));
    }
}
