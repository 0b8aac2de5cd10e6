//! A plan: the changes from the running host file to another one, found by comparing them key by key.

use std::collections::BTreeSet;
use std::fmt;

use nicety_host::{DaemonConfig, FunctionConfig, Host, List, PortConfig, TeamConfig, UplinkConfig};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use utoipa::ToSchema;

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The entry is opened.
    Add,
    /// The entry is changed while it works.
    Set,
    /// The entry is closed and opened as new, because the change is impossible while it works.
    Reopen,
    /// The change takes effect when the daemon is restarted.
    Restart,
    /// The entry is closed.
    Remove,
}

/// A key whose value changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyChange {
    /// Name of the key.
    pub key: String,
    /// Current value, as in the host file. `null`: the default.
    pub from: Option<String>,
    /// New value, as in the host file. `null`: the default.
    pub to: Option<String>,
}

/// A change of one entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Change {
    /// Kind of the change.
    pub kind: Kind,
    /// Kind of the entry: `port`, `uplink`, `team`, or another table of the host file.
    pub object: String,
    /// Name of the port, of the team, or of one of several uplinks. `null`: another table, or the only uplink.
    pub port: Option<String>,
    /// Changed keys. Empty if the entry is opened or closed.
    pub keys: Vec<KeyChange>,
    /// Whether an attached VM loses its adapter, or its way out of the switch.
    pub cuts_off: bool,
}

/// Prints a line of a plan.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.kind {
            Kind::Add => '+',
            Kind::Set | Kind::Reopen => '~',
            Kind::Restart => '!',
            Kind::Remove => '-',
        };
        write!(f, "{sign} {}", self.object)?;
        if let Some(port) = &self.port {
            write!(f, " {port}")?;
        }
        for (index, KeyChange { key, from, to }) in self.keys.iter().enumerate() {
            let [from, to] = [from, to].map(|value| value.as_deref().unwrap_or("(not set)"));
            write!(f, "{} {key} {from} → {to}", if index == 0 { ":" } else { "," })?;
        }
        if self.object == "mirror" {
            return f.write_str(if self.cuts_off { " (its port loses its networks)" } else { "" });
        }
        match (self.kind, self.cuts_off, self.object == "port") {
            (Kind::Remove, true, true) => f.write_str(" (a VM is attached)"),
            (Kind::Set, true, true) => {
                f.write_str(" (a VM is attached: it loses its way out, as no uplink carries that VLAN)")
            }
            (_, true, true) => f.write_str(" (a VM is attached: it loses its adapter)"),
            (Kind::Remove, true, false) => f.write_str(" (VMs lose their way out)"),
            (_, true, false) => f.write_str(" (VMs lose their way out for a moment)"),
            (Kind::Restart, ..) => f.write_str(" (takes a restart of the daemon)"),
            _ => Ok(()),
        }
    }
}

/// A list of changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Plan {
    /// Changes in this order: opened, changed, after a restart of the daemon, closed.
    pub changes: Vec<Change>,
}

impl Plan {
    /// The changes from `old` to `new`. `is_attached` tells whether a port has a VM.
    pub fn new(old: &Host, new: &Host, is_attached: impl Fn(&str) -> bool) -> Self {
        let mut changes: Vec<Change> =
            new.ports.iter().filter_map(|port| of_port(old, new, port, &is_attached)).collect();
        let gone = old.ports.iter().filter(|port| new.port(&port.name).is_none());
        changes.extend(gone.map(|port| Change {
            kind: Kind::Remove,
            object: "port".to_owned(),
            port: Some(port.name.clone()),
            keys: Vec::new(),
            cuts_off: is_attached(&port.name),
        }));
        let anybody = old.ports.iter().any(|port| is_attached(&port.name));
        let names: BTreeSet<String> = [old, new].iter().flat_map(|host| host.tables()).map(|(name, _)| name).collect();
        let is_link =
            |name: &str| name == "uplink" || ["uplink.", "team.", "mirror."].iter().any(|list| name.starts_with(list));
        changes.extend(names.iter().filter(|name| !is_link(name)).filter_map(|name| of_table(old, new, name)));
        changes.extend(of_teams(old, new, anybody));
        changes.extend(of_uplinks(old, new, anybody));
        changes.extend(of_mirrors(old, new, anybody, &is_attached));
        changes.sort_by_key(|change| match change.kind {
            Kind::Add => 0,
            Kind::Set | Kind::Reopen => 1,
            Kind::Restart => 2,
            Kind::Remove => 3,
        });
        Self { changes }
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The changes that cut off attached VMs.
    pub fn cuts_off(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|change| change.cuts_off)
    }

    /// The keys that need a restart, such as `daemon.workers`.
    pub fn after_restart(&self) -> impl Iterator<Item = String> {
        let restart = self.changes.iter().filter(|change| change.kind == Kind::Restart);
        restart.flat_map(|change| change.keys.iter().map(|key| format!("{}.{}", change.object, key.key)))
    }
}

/// Prints a line for each change.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.changes.iter().try_for_each(|change| writeln!(f, "{change}"))
    }
}

/// Whether two values are equal in meaning. Their spelling may differ.
fn means_the_same(one: &impl fmt::Debug, other: &impl fmt::Debug) -> bool {
    format!("{one:?}") == format!("{other:?}")
}

fn of_port(old: &Host, new: &Host, port: &PortConfig, is_attached: &impl Fn(&str) -> bool) -> Option<Change> {
    let change = |kind, keys, cuts_off| {
        Some(Change { kind, object: "port".to_owned(), port: Some(port.name.clone()), keys, cuts_off })
    };
    let Some(before) = old.port(&port.name) else { return change(Kind::Add, Vec::new(), false) };
    if means_the_same(before, port) {
        return None;
    }
    let table = |host: &Host| host.port_table(&port.name);
    let mut keys = keys(&table(old), &table(new));
    // A function's policy has parts from its card.
    if let Some(FunctionConfig { card, .. }) = &port.function {
        let [was, is] = [old, new].map(|host| host.document.entry(List::Cards, card));
        keys.extend(
            self::keys(&was, &is).into_iter().map(|change| KeyChange { key: format!("card.{}", change.key), ..change }),
        );
    }
    if port.is_same_adapter(before) {
        let loses_way_out = old.has_way_out(&before.policy.vlan) && !new.has_way_out(&port.policy.vlan);
        let is_its_own = before.policy.vlan != port.policy.vlan;
        change(Kind::Set, keys, is_its_own && loses_way_out && is_attached(&port.name))
    } else {
        change(Kind::Reopen, keys, is_attached(&port.name))
    }
}

/// The changes of uplinks. An uplink that is the only one before and after is the same one, whatever its name.
fn of_uplinks(old: &Host, new: &Host, anybody: bool) -> Vec<Change> {
    let alone = old.uplinks.len() <= 1 && new.uplinks.len() <= 1;
    let change = |kind, name: &str, keys| Change {
        kind,
        object: "uplink".to_owned(),
        port: (!alone).then(|| name.to_owned()),
        keys,
        cuts_off: anybody && matches!(kind, Kind::Reopen | Kind::Remove) && !is_spared(old, new, name),
    };
    let mut changes = Vec::new();
    for uplink in &new.uplinks {
        let before = if alone { old.uplinks.first() } else { old.uplink(&uplink.name) };
        match before {
            None => changes.push(change(Kind::Add, &uplink.name, Vec::new())),
            Some(before) if before == uplink => {}
            Some(before) => {
                let [was, is] = [(old, before), (new, uplink)].map(|(host, uplink)| host.document.uplink(&uplink.name));
                let kind = if before.is_same_link(uplink) { Kind::Set } else { Kind::Reopen };
                let mut keys = keys(&was, &is);
                if before.team != uplink.team {
                    let [from, to] = [before, uplink].map(|uplink| uplink.team.clone());
                    keys.push(KeyChange { key: "team".to_owned(), from, to });
                }
                changes.push(change(kind, &uplink.name, keys));
            }
        }
    }
    let stays =
        |uplink: &&UplinkConfig| if alone { !new.uplinks.is_empty() } else { new.uplink(&uplink.name).is_some() };
    let gone = old.uplinks.iter().filter(|uplink| !stays(uplink));
    changes.extend(gone.map(|uplink| change(Kind::Remove, &uplink.name, Vec::new())));
    changes
}

/// Whether the team that an uplink was in goes on by other uplinks.
fn is_spared(old: &Host, new: &Host, uplink: &str) -> bool {
    let is_open = |member: &String| {
        let both = old.uplink(member).zip(new.uplink(member));
        member != uplink && both.is_some_and(|(before, after)| before.is_same_link(after))
    };
    let team = old.uplink(uplink).and_then(|before| before.team.as_ref());
    let both = team.and_then(|team| old.team(team).zip(new.team(team)));
    both.is_some_and(|(before, after)| before.mode.is_same_way(&after.mode) && before.members.iter().any(is_open))
}

fn of_teams(old: &Host, new: &Host, anybody: bool) -> Vec<Change> {
    let change = |kind, team: &TeamConfig, keys, cuts_off| Change {
        kind,
        object: "team".to_owned(),
        port: Some(team.name.clone()),
        keys,
        cuts_off: cuts_off && anybody,
    };
    let stays = new.teams.iter().filter_map(|team| {
        let Some(before) = old.team(&team.name) else { return Some(change(Kind::Add, team, Vec::new(), false)) };
        let [was, is] = [old, new].map(|host| host.document.team(&team.name));
        (before != team).then(|| change(Kind::Set, team, keys(&was, &is), !before.mode.is_same_way(&team.mode)))
    });
    let gone = old.teams.iter().filter(|team| new.team(&team.name).is_none());
    stays.chain(gone.map(|team| change(Kind::Remove, team, Vec::new(), true))).collect()
}

/// The changes of mirrors. The port that a mirror begins to use loses its networks.
fn of_mirrors(old: &Host, new: &Host, anybody: bool, is_attached: &impl Fn(&str) -> bool) -> Vec<Change> {
    let of = |host: &Host, name: &str| host.mirrors.iter().find(|mirror| mirror.name == name).cloned();
    let is_opened = |name: &str| old.port(name).is_none() && old.uplink(name).is_none();
    let takes = |to: &str| {
        let is_used = if new.port(to).is_some() { is_attached(to) } else { anybody };
        is_used && !is_opened(to) && !old.mirrors.iter().any(|mirror| mirror.to == to)
    };
    let change = |kind, name: &str, keys, cuts_off| {
        let (object, port) = ("mirror".to_owned(), Some(name.to_owned()));
        Change { kind, object, port, keys, cuts_off }
    };
    let stays = new.mirrors.iter().filter_map(|mirror| {
        let Some(before) = of(old, &mirror.name) else {
            return Some(change(Kind::Add, &mirror.name, Vec::new(), takes(&mirror.to)));
        };
        let [was, is] = [old, new].map(|host| host.document.entry(List::Mirrors, &mirror.name));
        (before != *mirror).then(|| change(Kind::Set, &mirror.name, keys(&was, &is), takes(&mirror.to)))
    });
    let gone = old.mirrors.iter().filter(|mirror| of(new, &mirror.name).is_none());
    stays.chain(gone.map(|mirror| change(Kind::Remove, &mirror.name, Vec::new(), false))).collect()
}

fn of_table(old: &Host, new: &Host, name: &str) -> Option<Change> {
    let table = |host: &Host| host.tables().into_iter().find(|(found, _)| found == name).map(|(_, table)| table);
    let (before, after) = (table(old), table(new));
    let vm = name.strip_prefix("vm.").map(|vm| (old.vm(vm), new.vm(vm)));
    let (kind, cuts_off) = match name {
        _ if vm.is_some_and(|(one, other)| one == other) => return None,
        _ if vm.is_some() => (Kind::Restart, false),
        "switch" if old.switch == new.switch => return None,
        "daemon" if old.daemon == new.daemon => return None,
        "daemon" if old.daemon == (DaemonConfig { always_polls: old.daemon.always_polls, ..new.daemon.clone() }) => {
            (Kind::Set, false)
        }
        "ft" if old.tolerance == new.tolerance => return None,
        "fabric" if old.fabric == new.fabric => return None,
        "switch" | "daemon" | "ft" | "fabric" => (Kind::Restart, false),
        _ => match (&before, &after) {
            (one, other) if one == other => return None,
            (None, _) => (Kind::Add, false),
            (_, None) => (Kind::Remove, false),
            _ => (Kind::Set, false),
        },
    };
    let keys = match kind {
        Kind::Add | Kind::Remove => Vec::new(),
        _ => keys(&before.unwrap_or_default(), &after.unwrap_or_default()),
    };
    Some(Change { kind, object: name.to_owned(), port: None, keys, cuts_off })
}

/// The keys whose values differ.
pub fn keys(old: &Table, new: &Table) -> Vec<KeyChange> {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differing = names.into_iter().filter(|name| old.get(*name) != new.get(*name));
    differing
        .map(|key| KeyChange { key: key.clone(), from: old.get(key).map(shown), to: new.get(key).map(shown) })
        .collect()
}

/// A value as a person reads it: a text has no quotes.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn host(text: &str) -> Host {
        Host::parse(text, Path::new("/etc/host.toml")).unwrap()
    }

    fn port(number: u8, more: &str) -> String {
        format!(
            "[[port]]\nname = \"vm{number}\"\nadapter = \"e1000\"\nmac = \"52:54:00:00:00:0{number}\"\nsocket = \"vm{number}.sock\"\n{more}\n"
        )
    }

    fn plan(old: &str, new: &str) -> String {
        Plan::new(&host(old), &host(new), |name| name == "vm2").to_string()
    }

    #[test]
    fn a_plan_names_what_comes_changes_and_goes_and_who_loses_something() {
        let old = format!("{}{}", port(1, "buffer = \"1MiB\""), port(2, ""));
        let new = format!("{}{}", port(1, "buffer = \"2MiB\""), port(3, ""));
        assert_eq!(plan(&old, &new), "+ port vm3\n~ port vm1: buffer 1MiB → 2MiB\n- port vm2 (a VM is attached)\n");
        let other_address =
            format!("{}{}", port(1, ""), port(2, "").replace("0:02", "0:22").replace("e1000", "e1000e"));
        assert_eq!(
            plan(&old, &other_address),
            "~ port vm2: adapter e1000 → e1000e, mac 52:54:00:00:00:02 → 52:54:00:00:00:22 (a VM is attached: it loses its adapter)\n"
        );
    }

    #[test]
    fn vms_that_are_copied_to_another_host_change_with_a_restart() {
        let ft = "[ft]\nlisten = \"10.0.0.1:7001\"\nkey = \"ft.key\"\nlease = \"/mnt/shared\"\n";
        let vm = |more: &str| {
            format!(
                "{}[[vm]]\nname = \"web\"\nports = \"vm1\"\nqmp = \"web.qmp\"\npeer = \"host2:7001\"\n{more}",
                port(1, "").replace("e1000", "virtio-net")
            )
        };
        let with = |more: &str| format!("{ft}{}", vm(more));
        let without = format!("{ft}{}", port(1, "").replace("e1000", "virtio-net"));
        assert_eq!(plan(&with(""), &with("checkpoint = \"50ms\"")), "", "that is the default");
        assert_eq!(
            plan(&with(""), &with("checkpoint = \"1s\"")),
            "! vm.web: checkpoint (not set) → 1s (takes a restart of the daemon)\n"
        );
        let added = Plan::new(&host(&without), &host(&with("")), |_| false);
        let keys = ["vm.web.name", "vm.web.peer", "vm.web.ports", "vm.web.qmp"];
        assert_eq!(added.after_restart().collect::<Vec<_>>(), keys);
        let gone = Plan::new(&host(&with("")), &host(&without), |_| true);
        assert_eq!(
            (gone.after_restart().collect::<Vec<_>>(), gone.cuts_off().count()),
            (keys.map(str::to_owned).to_vec(), 0)
        );
        let moved = with("").replace("/mnt/shared", "/mnt/other");
        assert_eq!(plan(&with(""), &moved), "! ft: lease /mnt/shared → /mnt/other (takes a restart of the daemon)\n");
    }

    #[test]
    fn a_vlan_that_no_uplink_carries_is_asked_about_where_a_vm_is_attached() {
        let with = |uplink: &str, number, more: &str| {
            format!("[[uplink]]\nkind = \"null\"\nname = \"up\"\n{uplink}\n{}", port(number, more))
        };
        let lost = "vlan 10 → 20 (a VM is attached: it loses its way out, as no uplink carries that VLAN)\n";
        for (uplink, end) in [("", "vlan 10 → 20\n"), ("trunk = \"10\"", lost), ("trunk = \"10,20\"", "vlan 10 → 20\n")]
        {
            let plan = plan(&with(uplink, 2, "vlan = 10"), &with(uplink, 2, "vlan = 20"));
            assert_eq!(plan, format!("~ port vm2: {end}"), "{uplink}");
        }
        let nobody = plan(&with("trunk = \"10\"", 1, "vlan = 10"), &with("trunk = \"10\"", 1, "vlan = 20"));
        assert_eq!(nobody, "~ port vm1: vlan 10 → 20\n");
    }

    #[test]
    fn what_means_the_same_is_no_change() {
        let old = format!("[switch]\n{}{}", port(1, ""), port(2, ""));
        for new in [
            format!("# A comment.\n{}{}", port(2, ""), port(1, "")),
            format!("[switch]\nageing = \"300s\"\n{}{}", port(1, "buffer = \"1MiB\""), port(2, "buffer = \"1024KiB\"")),
            old.replace("52:54:00:00:00:0", "52-54-00-00-00-0"),
            old.replace("\"vm1.sock\"", "\"/etc/vm1.sock\""),
            format!("[uplink]\nkind = \"none\"\n{old}"),
        ] {
            assert_eq!(plan(&old, &new), "", "{new}");
        }
    }

    #[test]
    fn uplink_switch_and_daemon_are_compared_too() {
        let ports = format!("{}{}", port(1, ""), port(2, ""));
        let null = format!("[uplink]\nkind = \"null\"\n{ports}");
        assert_eq!(plan(&ports, &null), "+ uplink\n");
        assert_eq!(plan(&null, &ports), "- uplink (VMs lose their way out)\n");
        let paced = null.replace("\"null\"", "\"null\"\nrate = \"1Gbit/s\"");
        assert_eq!(plan(&null, &paced), "~ uplink: rate (not set) → 1Gbit/s\n", "the link stays open");
        let named = null.replace("\"null\"", "\"null\"\nname = \"far\"");
        assert_eq!(plan(&null, &named), "~ uplink: name (not set) → far (VMs lose their way out for a moment)\n");
        let two = |more: &str| {
            let uplink = |more: &str| format!("[[uplink]]\nkind = \"null\"\n{more}\n");
            format!("{}{}{ports}", uplink(""), uplink(&format!("name = \"far\"\n{more}")))
        };
        assert_eq!(plan(&null, &two("")), "+ uplink far\n");
        assert_eq!(plan(&two(""), &null), "- uplink far (VMs lose their way out)\n");
        assert_eq!(plan(&two(""), &two("vlan = 7")), "~ uplink far: vlan (not set) → 7\n");
        let more = "vlan = 7\nlldp = \"both\"\nprivate = \"isolated\"\nsnooping = true";
        assert!(!plan(&two(""), &two(more)).contains("VMs lose"), "{}", plan(&two(""), &two(more)));
        let querier = format!("[uplink]\nkind = \"querier\"\n{ports}");
        let teamed = two("") + "[[team]]\nname = \"up\"\nmembers = \"far\"\nmode = \"802.3ad\"\n";
        let teamed = teamed.replace("null\"\nname", "pair\"\nsocket = \"f\"\nname");
        let alone = two("").replace("null\"\nname", "pair\"\nsocket = \"f\"\nname");
        let moved = "+ team up\n~ uplink far: team (not set) → up (VMs lose their way out for a moment)\n";
        assert_eq!(plan(&alone, &teamed), moved);
        let back = "~ uplink far: team up → (not set) (VMs lose their way out for a moment)\n- team up (VMs lose their way out)\n";
        assert_eq!(plan(&teamed, &alone), back);
        let third = "[[uplink]]\nkind = \"stream\"\nname = \"third\"\nsocket = \"t\"\n";
        let more = teamed.replace("\"far\"\nmode", "\"far,third\"\nmode") + third;
        assert_eq!(plan(&teamed, &more), "+ uplink third\n~ team up: members far → far,third\n");
        let fewer = "~ team up: members far,third → far\n- uplink third\n";
        assert_eq!(plan(&more, &teamed), fewer, "the other goes on");
        let layer2 = more.replace("802.3ad\"", "802.3ad\"\nhash = \"layer2\"");
        assert_eq!(plan(&more, &layer2), "~ team up: hash (not set) → layer2\n");
        let another = more.replace("802.3ad", "active-standby");
        let line = "~ team up: mode 802.3ad → active-standby (VMs lose their way out for a moment)\n";
        assert_eq!(plan(&more, &another), line);
        let line = "~ uplink: vlan (not set) → 7\n";
        assert_eq!(plan(&querier, &querier.replace("querier\"", "querier\"\nvlan = 7")), line);
        let mirror = |more: &str| format!("[[mirror]]\nname = \"watch\"\n{more}\n");
        let watch = |more: &str| two("") + &mirror(&format!("ports = \"vm1\"\nto = \"far\"\n{more}"));
        assert_eq!(plan(&two(""), &watch("")), "+ mirror watch (its port loses its networks)\n");
        assert_eq!(plan(&ports, &watch("")), "+ uplink null\n+ uplink far\n+ mirror watch\n");
        let slow = "~ mirror watch: rate (not set) → 1Mbit/s\n";
        assert_eq!(plan(&watch(""), &watch("rate = \"1Mbit/s\"")), slow);
        assert_eq!(plan(&watch(""), &watch("rate = \"1000Mbit/s\"")), "", "that is the default");
        assert_eq!(plan(&watch(""), &two("")), "- mirror watch\n");
        let to = |to: &str| {
            ports.clone() + &mirror(&format!("ports = \"{}\"\nto = \"{to}\"", if to == "vm1" { "vm2" } else { "vm1" }))
        };
        assert_eq!(plan(&ports, &to("vm1")), "+ mirror watch\n", "nobody is attached there");
        assert_eq!(plan(&ports, &to("vm2")), "+ mirror watch (its port loses its networks)\n");
        let workers = format!("[daemon]\nworkers = 2\n{ports}");
        assert_eq!(plan(&ports, &workers), "! daemon: workers (not set) → 2 (takes a restart of the daemon)\n");
        let group = |vlan| {
            format!("[[port_group]]\nname = \"web\"\nvlan = {vlan}\n{}{}", port(1, "port_group = \"web\""), port(2, ""))
        };
        assert_eq!(plan(&group(10), &group(20)), "~ port vm1: vlan 10 → 20\n~ port_group.web: vlan 10 → 20\n");
        let sockets = format!("[sockets]\nmode = \"0660\"\n{ports}");
        assert_eq!(plan(&ports, &sockets), "~ port vm1: mode (not set) → 0660\n~ port vm2: mode (not set) → 0660\n");
    }
}
