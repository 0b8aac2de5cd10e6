//! `nicety fabric group`: the text of the configuration with another group, or with other values of one. Comments and order stay.

use nicety_control as control;
use nicety_fabric::Name;
use nicety_host::FABRIC_GROUP;
use serde_json::json;
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, Value};

use crate::change::parsed_as;
use crate::exit::{Exit, Failure};
use crate::output;

use super::claims;
use super::store::Store;

const GROUPS: &str = "port_group";

fn usage(what: String) -> Failure {
    Failure::new(Exit::Usage, what)
}

fn document(text: &str) -> Result<DocumentMut, Failure> {
    text.parse().map_err(Failure::with(Exit::Failed))
}

/// The list of groups, which is made if there is none.
fn list_of(document: &mut DocumentMut) -> Result<&mut ArrayOfTables, Failure> {
    let item = document.entry(GROUPS).or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
    item.as_array_of_tables_mut().ok_or_else(|| {
        let what = "the configuration has its groups in one line, which is not changed: write [[port_group]] for each, by `nicety fabric edit`";
        usage(what.to_owned())
    })
}

fn name_of(table: &Table) -> Option<&str> {
    table.get("name").and_then(Item::as_str)
}

fn group<'a>(groups: &'a mut ArrayOfTables, name: &Name) -> Result<&'a mut Table, Failure> {
    let names: Vec<String> = groups.iter().filter_map(name_of).map(str::to_owned).collect();
    let meant = nicety_host::did_you_mean(name.as_str(), names.iter().map(String::as_str));
    let there = if names.is_empty() { "it has none".to_owned() } else { format!("there are: {}", names.join(", ")) };
    let found = groups.iter_mut().find(|table| name_of(table) == Some(name.as_str()));
    found.ok_or_else(|| usage(format!("the fabric has no group {name:?}{meant} ({there})")))
}

/// Puts values into a group. An empty one takes its key out.
fn put(table: &mut Table, values: &[(String, String)]) -> Result<(), Failure> {
    for (key, value) in parsed_as(&FABRIC_GROUP, values) {
        if key == "name" {
            return Err(usage("a group keeps its name: remove it, and add another one".to_owned()));
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

/// The text with one more group.
pub fn added(text: &str, name: &Name, values: &[(String, String)]) -> Result<String, Failure> {
    let mut document = document(text)?;
    let groups = list_of(&mut document)?;
    if groups.iter().any(|table| name_of(table) == Some(name.as_str())) {
        let what = format!("there is a group {name:?} already: `nicety fabric group set {name}` changes it");
        return Err(usage(what));
    }
    let mut table = Table::new();
    table.insert("name", toml_edit::value(name.as_str()));
    put(&mut table, values)?;
    groups.push(table);
    Ok(document.to_string())
}

/// The text with other values of one group.
pub fn set(text: &str, name: &Name, values: &[(String, String)]) -> Result<String, Failure> {
    let mut document = document(text)?;
    put(group(list_of(&mut document)?, name)?, values)?;
    Ok(document.to_string())
}

/// The text without one group.
pub fn removed(text: &str, name: &Name) -> Result<String, Failure> {
    let mut document = document(text)?;
    let groups = list_of(&mut document)?;
    group(groups, name)?;
    groups.retain(|table| name_of(table) != Some(name.as_str()));
    Ok(document.to_string())
}

/// `nicety fabric group list`.
pub fn list(store: &Store, as_json: bool) -> Result<(), Failure> {
    let basis = store.basis()?;
    let used = claims::by_group(&claims::all(store, &store.keys.claims())?.0);
    let used = |name: &Name| used.get(name).map_or((0, 0), |(addresses, hosts)| (*addresses, hosts.len()));
    let tables = super::edit::tables(&basis.config.text)?;
    if as_json {
        let group = |(name, vni): (&Name, &nicety_frame::Vni)| {
            let (addresses, hosts) = used(name);
            let keys = tables.get(name.as_str());
            json!({ "name": name.as_str(), "vni": vni.number(), "addresses": addresses, "hosts": hosts, "keys": keys })
        };
        let groups: Vec<serde_json::Value> = basis.config.groups.iter().map(group).collect();
        let all = json!({ "version": control::VERSION, "revision": basis.version, "groups": groups });
        let text = serde_json::to_string_pretty(&all).map_err(Failure::with(Exit::Failed))?;
        return output::print(&(text + "\n"));
    }
    if basis.config.groups.is_empty() {
        return output::print("the fabric has no group: nicety fabric group add web vni=5010 vlan=10\n");
    }
    let mut rows = vec![["GROUP", "VNI", "ADDRESSES", "HOSTS", "KEYS"].map(str::to_owned).to_vec()];
    rows.extend(basis.config.groups.iter().map(|(name, vni)| {
        let (addresses, hosts) = used(name);
        let keys = tables.get(name.as_str()).into_iter().flatten();
        let keys = keys.filter(|(key, _)| !["name", "vni"].contains(&key.as_str()));
        let keys: Vec<String> = keys.map(|(key, value)| format!("{key}={}", super::edit::shown(value))).collect();
        vec![name.to_string(), vni.to_string(), addresses.to_string(), hosts.to_string(), keys.join(" ")]
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
            added(TEXT, &name("db"), &values(&[("vni", "5020"), ("vlan", "20"), ("bpdu_guard", "true")])).unwrap();
        let entry = "\n[[port_group]]\nname = \"db\"\nbpdu_guard = true\nvlan = 20\nvni = 5020\n";
        assert_eq!(more, format!("{TEXT}{entry}"));
        assert_eq!(removed(&more, &name("db")).unwrap(), TEXT);
        let set = set(TEXT, &name("web"), &values(&[("vni", "7"), ("vlan", ""), ("send_average", "1Gbit/s")])).unwrap();
        assert_eq!(set, TEXT.replace("5010", "7").replace("vlan = 10", "send_average = \"1Gbit/s\""));
        assert_eq!(
            added("format = 1\n", &name("web"), &values(&[("vni", "1")])).unwrap().matches("[[port_group]]").count(),
            1
        );
    }

    #[test]
    fn what_is_not_there_or_cannot_be_changed_is_refused_with_a_sentence() {
        let why = |done: Result<String, Failure>| done.unwrap_err().message;
        let nothing = values(&[]);
        assert_eq!(
            why(added(TEXT, &name("web"), &nothing)),
            "there is a group \"web\" already: `nicety fabric group set web` changes it"
        );
        assert_eq!(
            why(set(TEXT, &name("wbe"), &nothing)),
            "the fabric has no group \"wbe\"; did you mean \"web\"? (there are: web)"
        );
        assert_eq!(why(removed("format = 1", &name("web"))), "the fabric has no group \"web\" (it has none)");
        assert_eq!(
            why(set(TEXT, &name("web"), &values(&[("name", "db")]))),
            "a group keeps its name: remove it, and add another one"
        );
        let line = "format = 1\nport_group = [{ name = \"web\", vni = 1 }]\n";
        assert!(why(removed(line, &name("web"))).contains("has its groups in one line"));
    }
}
