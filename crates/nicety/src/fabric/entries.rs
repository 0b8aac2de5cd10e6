//! `nicety fabric group` and `class`: the text of the configuration with another entry, or with other values of one. Comments and order stay.

use nicety_control as control;
use nicety_fabric::Name;
use nicety_host::{FABRIC_CLASS, FABRIC_GROUP, Kind};
use serde_json::json;
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, Value};

use crate::change::parsed_as;
use crate::exit::{Exit, Failure};
use crate::output;

use super::claims;
use super::store::Store;

/// A list of the configuration.
#[derive(Debug)]
pub struct Section {
    /// Its tables.
    kind: &'static Kind,
    /// The word for one of its entries, which is its command's too.
    word: &'static str,
}

/// The port groups.
pub static GROUPS: Section = Section { kind: &FABRIC_GROUP, word: "group" };
/// The classes of I/O control.
pub static CLASSES: Section = Section { kind: &FABRIC_CLASS, word: "class" };

fn usage(what: String) -> Failure {
    Failure::new(Exit::Usage, what)
}

fn document(text: &str) -> Result<DocumentMut, Failure> {
    text.parse().map_err(Failure::with(Exit::Failed))
}

/// The list, which is made if there is none.
fn list_of<'a>(document: &'a mut DocumentMut, section: &Section) -> Result<&'a mut ArrayOfTables, Failure> {
    let item = document.entry(section.kind.name).or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
    item.as_array_of_tables_mut().ok_or_else(|| {
        let (list, heading) = (section.kind.name, section.kind.heading);
        usage(format!(
            "the configuration has its {list} in one line, which is not changed: write {heading} for each, by `nicety fabric edit`"
        ))
    })
}

fn name_of(table: &Table) -> Option<&str> {
    table.get("name").and_then(Item::as_str)
}

fn entry<'a>(entries: &'a mut ArrayOfTables, word: &str, name: &Name) -> Result<&'a mut Table, Failure> {
    let names: Vec<String> = entries.iter().filter_map(name_of).map(str::to_owned).collect();
    let meant = nicety_host::did_you_mean(name.as_str(), names.iter().map(String::as_str));
    let there = if names.is_empty() { "it has none".to_owned() } else { format!("there are: {}", names.join(", ")) };
    let found = entries.iter_mut().find(|table| name_of(table) == Some(name.as_str()));
    found.ok_or_else(|| usage(format!("the fabric has no {word} {name:?}{meant} ({there})")))
}

/// Puts values into an entry. An empty one takes its key out.
fn put(table: &mut Table, section: &Section, values: &[(String, String)]) -> Result<(), Failure> {
    for (key, value) in parsed_as(section.kind, values) {
        if key == "name" {
            return Err(usage(format!("a {} keeps its name: remove it, and add another one", section.word)));
        }
        let value = match value {
            serde_json::Value::Null => {
                table.remove(&key);
                continue;
            }
            serde_json::Value::Bool(flag) => Value::from(flag),
            serde_json::Value::Number(number) => Value::from(number.as_i64().unwrap_or_default()),
            serde_json::Value::String(text) => Value::from(text),
            other => return Err(usage(format!("{key}: {other} is no value of a key"))),
        };
        match table.get_mut(&key).and_then(Item::as_value_mut) {
            Some(old) => {
                let decor = old.decor().clone();
                *old = value;
                *old.decor_mut() = decor;
            }
            None => drop(table.insert(&key, Item::Value(value))),
        }
    }
    Ok(())
}

/// The text with one more entry.
pub fn added(text: &str, section: &Section, name: &Name, values: &[(String, String)]) -> Result<String, Failure> {
    let mut document = document(text)?;
    let entries = list_of(&mut document, section)?;
    if entries.iter().any(|table| name_of(table) == Some(name.as_str())) {
        let word = section.word;
        return Err(usage(format!("there is a {word} {name:?} already: `nicety fabric {word} set {name}` changes it")));
    }
    let mut table = Table::new();
    table.insert("name", toml_edit::value(name.as_str()));
    put(&mut table, section, values)?;
    entries.push(table);
    Ok(document.to_string())
}

/// The text with other values of one entry.
pub fn set(text: &str, section: &Section, name: &Name, values: &[(String, String)]) -> Result<String, Failure> {
    let mut document = document(text)?;
    put(entry(list_of(&mut document, section)?, section.word, name)?, section, values)?;
    Ok(document.to_string())
}

/// The text without one entry.
pub fn removed(text: &str, section: &Section, name: &Name) -> Result<String, Failure> {
    let mut document = document(text)?;
    let entries = list_of(&mut document, section)?;
    entry(entries, section.word, name)?;
    entries.retain(|table| name_of(table) != Some(name.as_str()));
    Ok(document.to_string())
}

fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::with(Exit::Failed))?;
    output::print(&(text + "\n"))
}

/// The keys of a table with their values, without these.
fn shown(table: Option<&toml::Table>, without: &[&str]) -> String {
    let keys = table.into_iter().flatten().filter(|(key, _)| !without.contains(&key.as_str()));
    let keys: Vec<String> = keys.map(|(key, value)| format!("{key}={}", super::edit::shown(value))).collect();
    keys.join(" ")
}

/// `nicety fabric class list`, in the order of the configuration: the first class that a frame fits is its.
pub fn list_classes(store: &Store, as_json: bool) -> Result<(), Failure> {
    let basis = store.basis()?;
    let root: toml::Table = basis.config.text.parse().map_err(Failure::with(Exit::Failed))?;
    let classes = root.get(CLASSES.kind.name).and_then(toml::Value::as_array);
    let classes: Vec<&toml::Table> = classes.into_iter().flatten().filter_map(toml::Value::as_table).collect();
    if as_json {
        let class = |table: &&toml::Table| json!({ "name": table.get("name"), "keys": table });
        let classes: Vec<serde_json::Value> = classes.iter().map(class).collect();
        return print_json(&json!({ "version": control::VERSION, "revision": basis.version, "classes": classes }));
    }
    if classes.is_empty() {
        return output::print("the fabric has no class: nicety fabric class add slow groups=web limit=2Gbit/s\n");
    }
    let mut rows = vec![["CLASS", "KEYS"].map(str::to_owned).to_vec()];
    rows.extend(classes.into_iter().map(|table| {
        let name = table.get("name").map(super::edit::shown).unwrap_or_default();
        vec![name, shown(Some(table), &["name"])]
    }));
    output::print(&output::columns(&rows))
}

/// `nicety fabric group list`.
pub fn list_groups(store: &Store, as_json: bool) -> Result<(), Failure> {
    let basis = store.basis()?;
    let used = claims::by_group(&claims::all(store, &store.keys.claims())?.0);
    let used = |name: &Name| used.get(name).map_or((0, 0), |(addresses, hosts)| (*addresses, hosts.len()));
    let tables = super::edit::tables(&basis.config.text)?;
    let table = |name: &Name| tables.get(&format!("{}.{name}", GROUPS.kind.name));
    if as_json {
        let group = |(name, vni): (&Name, &nicety_frame::Vni)| {
            let (addresses, hosts) = used(name);
            let keys = table(name);
            json!({ "name": name.as_str(), "vni": vni.number(), "addresses": addresses, "hosts": hosts, "keys": keys })
        };
        let groups: Vec<serde_json::Value> = basis.config.groups.iter().map(group).collect();
        return print_json(&json!({ "version": control::VERSION, "revision": basis.version, "groups": groups }));
    }
    if basis.config.groups.is_empty() {
        return output::print("the fabric has no group: nicety fabric group add web vni=5010 vlan=10\n");
    }
    let mut rows = vec![["GROUP", "VNI", "ADDRESSES", "HOSTS", "KEYS"].map(str::to_owned).to_vec()];
    rows.extend(basis.config.groups.iter().map(|(name, vni)| {
        let (addresses, hosts) = used(name);
        let keys = shown(table(name), &["name", "vni"]);
        vec![name.to_string(), vni.to_string(), addresses.to_string(), hosts.to_string(), keys]
    }));
    output::print(&output::columns(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# Ours.
format = 1

# The web servers.
[[port_group]]
name = \"web\"
vni = 5010  # since May
vlan = 10
";

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn values(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_group_is_added_changed_and_removed_and_comments_stay() {
        let more =
            added(TEXT, &GROUPS, &name("db"), &values(&[("vni", "5020"), ("vlan", "20"), ("bpdu_guard", "true")]))
                .unwrap();
        let entry = "\n[[port_group]]\nname = \"db\"\nbpdu_guard = true\nvlan = 20\nvni = 5020\n";
        assert_eq!(more, format!("{TEXT}{entry}"));
        assert_eq!(removed(&more, &GROUPS, &name("db")).unwrap(), TEXT);
        let set = set(TEXT, &GROUPS, &name("web"), &values(&[("vni", "7"), ("vlan", ""), ("send_average", "1Gbit/s")]))
            .unwrap();
        assert_eq!(set, TEXT.replace("5010", "7").replace("vlan = 10", "send_average = \"1Gbit/s\""));
        assert_eq!(
            added("format = 1\n", &GROUPS, &name("web"), &values(&[("vni", "1")]))
                .unwrap()
                .matches("[[port_group]]")
                .count(),
            1
        );
    }

    #[test]
    fn a_class_is_added_changed_and_removed_beside_the_groups() {
        let more = added(TEXT, &CLASSES, &name("slow"), &values(&[("groups", "web"), ("shares", "7")])).unwrap();
        assert_eq!(more, format!("{TEXT}\n[[io_class]]\nname = \"slow\"\ngroups = \"web\"\nshares = 7\n"));
        let slower = set(&more, &CLASSES, &name("slow"), &values(&[("shares", "5")])).unwrap();
        assert_eq!(slower, more.replace('7', "5"));
        assert_eq!(removed(&slower, &CLASSES, &name("slow")).unwrap(), TEXT);
        let why = added(&more, &CLASSES, &name("slow"), &[]).unwrap_err().message;
        assert_eq!(why, "there is a class \"slow\" already: `nicety fabric class set slow` changes it");
        let why = removed(TEXT, &CLASSES, &name("web")).unwrap_err().message;
        assert_eq!(why, "the fabric has no class \"web\" (it has none)");
    }

    #[test]
    fn what_is_not_there_or_cannot_be_changed_is_refused_with_a_sentence() {
        let why = |done: Result<String, Failure>| done.unwrap_err().message;
        let nothing = values(&[]);
        assert_eq!(
            why(added(TEXT, &GROUPS, &name("web"), &nothing)),
            "there is a group \"web\" already: `nicety fabric group set web` changes it"
        );
        assert_eq!(
            why(set(TEXT, &GROUPS, &name("wbe"), &nothing)),
            "the fabric has no group \"wbe\"; did you mean \"web\"? (there are: web)"
        );
        assert_eq!(why(removed("format = 1", &GROUPS, &name("web"))), "the fabric has no group \"web\" (it has none)");
        assert_eq!(
            why(set(TEXT, &GROUPS, &name("web"), &values(&[("name", "db")]))),
            "a group keeps its name: remove it, and add another one"
        );
        let line = "format = 1\nport_group = [{ name = \"web\", vni = 1 }]\n";
        assert!(why(removed(line, &GROUPS, &name("web"))).contains("has its port_group in one line"));
    }
}
