//! Changes of a fabric's configuration: the plan, the rights that hosts need for it, and one transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use nicety_daemon::live::plan::{Change, Kind, Plan, keys};
use nicety_fabric::{Basis, Config, Name};
use nicety_host::FabricGroups;
use toml::{Table, Value};

use crate::change::agree;
use crate::cli::FabricOptions;
use crate::exit::{Exit, Failure};
use crate::output;

use super::store::Store;
use super::{claims, rights, secret};

/// Keys whose change moves a group to another network.
const NETWORK: [&str; 2] = ["vni", "vlan"];

/// A value as a person reads it: a text has no quotes.
pub fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The tables of the groups and of the classes, as a plan names them: `port_group.web`, `io_class.slow`.
pub fn tables(text: &str) -> Result<BTreeMap<String, Table>, Failure> {
    let root: Table = text.parse().map_err(Failure::with(Exit::Usage))?;
    let lists = root.iter().filter_map(|(list, value)| Some((list, value.as_array()?)));
    let tables =
        lists.flat_map(|(list, values)| values.iter().filter_map(move |value| Some((list, value.as_table()?))));
    let named =
        tables.filter_map(|(list, table)| Some((format!("{list}.{}", table.get("name")?.as_str()?), table.clone())));
    Ok(named.collect())
}

/// The changes from one text to another. `used`: groups with addresses, as a plan names them.
fn compared(old: &str, new: &str, used: &BTreeSet<String>) -> Result<Plan, Failure> {
    let (old, new) = (tables(old)?, tables(new)?);
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let mut changes = Vec::new();
    for name in names {
        let (was, is) = (old.get(name), new.get(name));
        let kind = match (was, is) {
            (None, _) => Kind::Add,
            (_, None) => Kind::Remove,
            (was, is) if was == is => continue,
            _ => Kind::Set,
        };
        let keys =
            if kind == Kind::Set { was.zip(is).map(|(was, is)| keys(was, is)).unwrap_or_default() } else { Vec::new() };
        let moves = keys.iter().any(|change| NETWORK.contains(&change.key.as_str()));
        let cuts_off = used.contains(name) && (moves || kind == Kind::Remove);
        changes.push(Change { kind, object: name.clone(), port: None, keys, cuts_off });
    }
    changes.sort_by_key(|change| match change.kind {
        Kind::Add => 0,
        Kind::Remove => 2,
        _ => 1,
    });
    Ok(Plan { changes })
}

/// A change that is checked, and has not been made.
struct Checked {
    change: nicety_fabric::Change,
    plan: Plan,
}

/// Checks a text against the version that etcd has.
fn checked(store: &Store, basis: &Basis, text: &str) -> Result<Checked, Failure> {
    let usage = |what: String| Failure::new(Exit::Usage, what);
    let change = basis.change(text).map_err(usage)?;
    FabricGroups::parse(text).map_err(|errors| usage(errors.to_string()))?;
    let used = claims::by_group(&claims::all(store, &store.keys.claims())?.0);
    for (group, (count, hosts)) in &used {
        if basis.config.groups.contains_key(group) && !change.config.groups.contains_key(group) {
            let hosts: Vec<&str> = hosts.iter().map(Name::as_str).take(5).collect();
            let count = output::count(*count as u64, "address");
            return Err(usage(format!(
                "group {:?} has {count} at {}: take its ports out of it first (`nicety fabric port list --group {group}`)",
                group.as_str(),
                hosts.join(", ")
            )));
        }
    }
    let used = used.keys().map(|group| format!("port_group.{group}")).collect();
    let plan = compared(&basis.config.text, text, &used)?;
    Ok(Checked { change, plan })
}

/// Makes the change: the rights that are lacking, then the configuration, then rights that nobody needs any more.
fn make(store: &Store, basis: &Basis, change: &nicety_fabric::Change) -> Result<(), Failure> {
    let (old, new) = (&basis.config, &change.config);
    let names = |config: &'_ Config| config.groups.keys().cloned().collect::<BTreeSet<Name>>();
    let (old, new) = (names(old), names(new));
    if store.has_user() && new.difference(&old).next().is_some() {
        let what = |failure: Failure| {
            let new: Vec<&str> = new.difference(&old).map(Name::as_str).collect();
            let message =
                format!("{}: each host needs the right to claim addresses in {}", failure.message, new.join(", "));
            Failure { message, ..failure }
        };
        rights::set_all(store, &old.union(&new).collect(), false).map_err(what)?;
    }
    let lease = if change.gives_up.is_empty() { 0 } else { store.grant_reuse()? };
    let Some(revision) = store.transact(change.transaction(&store.keys, lease))? else {
        let version = store.basis()?.version;
        let what = format!(
            "somebody else has changed the fabric meanwhile (version {} is now {version}): nothing was done; look at it, and make the \
             change again",
            basis.version
        );
        return Err(Failure::new(Exit::Failed, what));
    };
    if store.has_user() && old.difference(&new).next().is_some() {
        // The groups are gone: what may be written in them has no meaning.
        if let Err(failure) = rights::set_all(store, &new.iter().collect(), true) {
            output::tell(format_args!(
                "note: the hosts keep the right to claim addresses in the removed groups: {}; `nicety fabric init` takes it",
                failure.message
            ));
        }
    }
    output::tell(format_args!("note: this is version {revision}"));
    Ok(())
}

/// Shows the plan, asks, and makes the change.
fn carry_out(store: &Store, basis: &Basis, text: &str, yes: bool) -> Result<(), Failure> {
    let Checked { change, plan } = checked(store, basis, text)?;
    if text == basis.config.text {
        return output::print("nothing to change\n");
    }
    let lines = if plan.is_empty() { "only comments and order change\n".to_owned() } else { plan.to_string() };
    output::print(&lines)?;
    if plan.cuts_off().next().is_some() && !yes {
        agree("cuts VMs off from other hosts for a moment")?;
    }
    make(store, basis, &change)
}

/// Changes the text that etcd has.
pub fn change(
    options: &FabricOptions,
    based_on: Option<i64>,
    edit: impl FnOnce(&str) -> Result<String, Failure>,
) -> Result<(), Failure> {
    let store = Store::open(&options.store)?;
    let basis = store.basis()?;
    if let Some(version) = based_on.filter(|version| *version != basis.version) {
        let what = format!(
            "the file was made from version {version}, and the newest is {}: nothing was done; `nicety fabric export` it, and make the \
             change again",
            basis.version
        );
        return Err(Failure::new(Exit::Failed, what));
    }
    carry_out(&store, &basis, &edit(&basis.config.text)?, options.yes)
}

fn text_of(file: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(file).map_err(|error| Failure::new(Exit::Usage, format!("{}: {error}", file.display())))
}

/// `nicety fabric apply`.
pub fn apply(file: &Path, based_on: Option<i64>, options: &FabricOptions) -> Result<(), Failure> {
    let text = text_of(file)?;
    change(options, based_on, |_| Ok(text))
}

/// `nicety fabric plan`.
pub fn plan(store: &Store, file: &Path) -> Result<(), Failure> {
    let text = text_of(file)?;
    let basis = store.basis()?;
    let Checked { plan, .. } = checked(store, &basis, &text)?;
    output::print(&if plan.is_empty() { "nothing to change\n".to_owned() } else { plan.to_string() })
}

/// `nicety fabric edit`.
pub fn edit(options: &FabricOptions) -> Result<(), Failure> {
    let store = Store::open(&options.store)?;
    let basis = store.basis()?;
    let name = format!("nicety-fabric-{}-{}.toml", store.fabric, std::process::id());
    let file = std::env::temp_dir().join(name);
    secret::write(&file, &basis.config.text)?;
    let done = edited(&file).and_then(|text| carry_out(&store, &basis, &text, options.yes));
    let is_same = std::fs::read_to_string(&file).is_ok_and(|text| text == basis.config.text);
    if done.is_ok() || is_same {
        // A file that is left does no harm.
        let _removed = std::fs::remove_file(&file);
    }
    done.map_err(|failure| {
        let kept = if is_same { String::new() } else { kept(&file) };
        Failure { message: format!("{}{kept}", failure.message), ..failure }
    })
}

fn kept(file: &Path) -> String {
    let file = file.display();
    format!("\nyour text is kept in {file}: mend it, and `nicety fabric apply {file}`")
}

/// The text of a file after the person has edited it.
fn edited(file: &PathBuf) -> Result<String, Failure> {
    let set = |name: &str| std::env::var(name).ok().filter(|editor| !editor.trim().is_empty());
    let editor = set("VISUAL").or_else(|| set("EDITOR")).unwrap_or_else(|| "vi".to_owned());
    // An editor may have options, as git takes it (git-var(1), GIT_EDITOR).
    let status = Command::new("sh").args(["-c", &format!("{editor} \"$1\""), "sh"]).arg(file).status();
    match status {
        Ok(status) if status.success() => text_of(file),
        Ok(status) => {
            Err(Failure::new(Exit::Failed, format!("the editor {editor} ended with {status}: nothing was done")))
        }
        Err(error) => Err(Failure::new(Exit::Missing, format!("the editor {editor}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_names_the_groups_that_come_change_and_go_and_who_is_cut_off() {
        let group = |name: &str, keys: &str| format!("[[port_group]]\nname = \"{name}\"\n{keys}\n");
        let old = format!(
            "format = 1\n{}{}{}",
            group("web", "vni = 1\nvlan = 1"),
            group("db", "vni = 2"),
            group("x", "vni = 3")
        );
        let new = format!(
            "format = 1\n{}{}{}",
            group("new", "vni = 9"),
            group("web", "vni = 4\nvlan = 1"),
            group("x", "vni = 3")
        );
        let plan = |used: &[&str]| {
            let used = used.iter().map(|name| format!("port_group.{name}")).collect();
            compared(&old, &new, &used).unwrap().to_string()
        };
        let class = "[[io_class]]\nname = \"slow\"\ngroups = \"web\"\nlimit = \"1Gbit/s\"\n";
        let classes = [class, &class.replace("1G", "2G")].map(|class| format!("{old}{class}"));
        let none = BTreeSet::new();
        assert_eq!(compared(&old, &classes[0], &none).unwrap().to_string(), "+ io_class.slow\n");
        let line = "~ io_class.slow: limit 1Gbit/s → 2Gbit/s\n";
        assert_eq!(compared(&classes[0], &classes[1], &none).unwrap().to_string(), line);
        assert_eq!(plan(&[]), "+ port_group.new\n~ port_group.web: vni 1 → 4\n- port_group.db\n");
        assert_eq!(
            plan(&["web"]),
            "+ port_group.new\n~ port_group.web: vni 1 → 4 (VMs lose their way out for a moment)\n- port_group.db\n"
        );
        assert!(compared(&old, &old.replace("format", "# A comment.\nformat"), &BTreeSet::new()).unwrap().is_empty());
    }
}
