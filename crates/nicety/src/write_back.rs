//! `nicety save` and `--save`: write the running configuration into the host file, and keep its comments, order and spelling.

use std::collections::BTreeSet;
use std::path::Path;

use nicety_control::api::{DaemonView, Exported, HostText};
use nicety_control::{self as control, Ask, Reply};
use nicety_daemon::live::plan::{Change, Kind, Plan};
use nicety_daemon::whole::Whole;
use nicety_host::{Document, Host, List, absolute_text, in_one_line, is_path_key};
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, TableLike, Value};

use crate::answer::{failure, odd};
use crate::exit::{Exit, Failure};
use crate::output;

/// First keys of a new table, in order.
const FIRST: [&str; 6] = ["name", "kind", "adapter", "mac", "socket", "uplink"];
/// Tables that form lists, and tables that occur once.
const LISTS: [&str; 9] = ["uplink", "team", "card", CLASS, "mirror", FLOW_EXPORT, "port_group", "port", "vm"];
/// Classes of I/O control: those of two uplinks may have one name.
const CLASS: &str = "io_class";
const FLOW_EXPORT: &str = "flow_export";
const TABLES: [&str; 5] = ["switch", "daemon", "ft", "fabric", "sockets"];

/// Writes the whole running configuration into the host file, or one entry alone, with what its change did to other uplinks and teams.
pub fn save(socket: &Path, only: Option<((List, &str), &Plan)>) -> Result<(), Failure> {
    let (only, plan) = only.unzip();
    let failed = |what: String| Failure::new(Exit::Failed, what);
    let path = match control::ask(socket, Ask::Version).map_err(failure)? {
        Reply::Version(DaemonView { waiting: Some(waiting), .. }) => {
            return Err(failed(format!("nothing was written: {waiting}")));
        }
        Reply::Version(DaemonView { host, .. }) => host,
        other => return Err(odd(&other)),
    };
    let exported = match control::ask(socket, Ask::Export).map_err(failure)? {
        Reply::Exported(Exported { text }) => text,
        other => return Err(odd(&other)),
    };
    let shown = path.display();
    let file = Host::read(&path)?;
    let running = Host::parse(&exported, &path).map_err(|errors| failed(errors.to_string()))?;
    // Ports that programs have made go with their VMs.
    let made = match only {
        None => made_by_programs(&running, &file),
        Some(_) => Vec::new(),
    };
    let without = |document: Document, name: &String| document.without(List::Ports, name);
    let exported = made.iter().fold(running.document.clone(), without).text();
    let running = Host::parse(&exported, &path).map_err(|errors| {
        failed(format!(
            "{shown} was not written, for it would be no host file without the ports that programs have made: {errors}"
        ))
    })?;
    let old = std::fs::read_to_string(&path).map_err(|error| failed(format!("{shown}: {error}")))?;
    let text = merged(&old, &exported, &path, only);
    let text = match (only, plan) {
        (Some(one), Some(plan)) => text.and_then(|text| with_others(&text, &exported, &path, one, plan)),
        _ => text,
    };
    let text = text.map_err(|why| failed(format!("{shown}: {why}")))?;
    let new = Host::parse(&text, &path).map_err(|errors| {
        failed(format!("{shown} was not written, for it would be no host file without other live changes (`nicety save` writes all): {errors}"))
    })?;
    let left = Plan::new(&new, &running, |_| false);
    let is_meant = |change: &Change| match only {
        None => true,
        Some((List::FlowExports, name)) => change.object == format!("{FLOW_EXPORT}.{name}"),
        Some((List::Classes, name)) => change.object == format!("{CLASS}.{}", name.replacen('/', ".", 1)),
        Some((_, name)) => change.port.as_deref() == Some(name),
    };
    if left.changes.iter().any(is_meant) {
        return Err(failed(format!(
            "{shown} was not written, for it cannot say: {left}; `nicety export --into FILE` writes another"
        )));
    }
    let done = Plan::new(&file, &new, |_| false);
    if text != old {
        // If the path is a link, the linked file is replaced, not the link.
        let place = path.canonicalize().unwrap_or_else(|_| path.clone());
        let written = Whole::begin_like(&place).and_then(|whole| whole.finish(text.as_bytes()));
        written.map_err(|error| failed(format!("{shown}: {error}")))?;
    }
    let noted = HostText { text, path: Some(path.clone()), agreed: Vec::new(), cut_off: false };
    let mut left = match control::ask(socket, Ask::Saved(noted)).map_err(failure)? {
        Reply::Plan(left) => left,
        other => return Err(odd(&other)),
    };
    left.changes.retain(|change| change.port.as_ref().is_none_or(|name| !made.contains(name)));
    if !made.is_empty() {
        output::tell(format_args!("note: ports that programs have made are not in it: {}", made.join(", ")));
    }
    let count = output::count(done.changes.len() as u64, "change");
    output::tell(format_args!("note: {shown} has what runs: {count} written"));
    if !left.is_empty() {
        let lines = in_one_line(&left);
        output::tell(format_args!(
            "note: other live changes are not in it (`nicety save` writes all); it would change: {lines}"
        ));
    }
    Ok(())
}

/// Names of the ports that programs have made, such as hooks, and that the host file does not have.
fn made_by_programs(running: &Host, file: &Host) -> Vec<String> {
    let made = running.ports.iter().filter(|port| port.origin.is_some() && file.port(&port.name).is_none());
    made.map(|port| port.name.clone()).collect()
}

/// The text of a host file, updated with the values of an exported one.
fn merged(text: &str, exported: &str, path: &Path, only: Option<(List, &str)>) -> Result<String, String> {
    let parsed = |text: &str| text.parse::<DocumentMut>().map_err(|error| error.to_string());
    let (mut document, running) = (parsed(text)?, parsed(exported)?);
    let dir = path.parent().unwrap_or(Path::new(""));
    for key in LISTS {
        if only.is_none_or(|(list, _)| list.key() == key) {
            merge_list(&mut document, &running, key, dir, only.map(|(_, name)| name))?;
        }
    }
    for key in TABLES.iter().filter(|_| only.is_none()) {
        match running.get(key).and_then(Item::as_table_like) {
            Some(new) => {
                let table = document.entry(key).or_insert_with(|| Item::Table(Table::new()));
                update(table.as_table_like_mut().ok_or(format!("{key} is no table"))?, new, dir);
            }
            None => drop(document.remove(key)),
        }
    }
    Ok(document.to_string())
}

/// The text of a host file, updated with what a change of `one` did to other uplinks and teams: one that left a team was blocked, say. Other
/// live changes of theirs are left out.
fn with_others(
    text: &str,
    exported: &str,
    path: &Path,
    (list, own): (List, &str),
    plan: &Plan,
) -> Result<String, String> {
    let parsed = |text: &str| text.parse::<DocumentMut>().map_err(|error| error.to_string());
    let (mut document, running) = (parsed(text)?, parsed(exported)?);
    let dir = path.parent().unwrap_or(Path::new(""));
    for change in &plan.changes {
        let Some(its) = [List::Uplinks, List::Teams].into_iter().find(|its| its.key() == change.object) else {
            continue;
        };
        // The only uplink has no name in a plan.
        let only = || match entries(document.get(its.key()))[..] {
            [only] if its != list => Some(name_of(its.key(), only)),
            _ => None,
        };
        let Some(name) = change.port.clone().or_else(only).filter(|name| its != list || name != own) else { continue };
        match change.kind {
            Kind::Set | Kind::Reopen => update_keys(&mut document, &running, its.key(), &name, change, dir),
            Kind::Remove => drop_entry(&mut document, its.key(), &name),
            Kind::Add | Kind::Restart => {}
        }
    }
    Ok(document.to_string())
}

/// Gives an entry the values that a change has set, and no others.
fn update_keys(document: &mut DocumentMut, running: &DocumentMut, key: &str, name: &str, change: &Change, dir: &Path) {
    let running = entries(running.get(key));
    let Some(new) = running.into_iter().find(|new| name_of(key, *new) == name) else { return };
    let table = match document.get_mut(key) {
        Some(Item::ArrayOfTables(list)) => list.iter_mut().find(|table| name_of(key, *table) == name),
        Some(Item::Table(table)) => Some(table).filter(|table| name_of(key, *table) == name),
        _ => None,
    };
    let Some(table) = table else { return };
    for key in change.keys.iter().map(|change| change.key.as_str()) {
        match new.get(key).and_then(Item::as_value) {
            Some(value) => put(table, key, value, dir),
            None => drop(table.remove(key)),
        }
    }
}

fn drop_entry(document: &mut DocumentMut, key: &str, name: &str) {
    let is_empty = match document.get_mut(key) {
        Some(Item::ArrayOfTables(list)) => {
            list.retain(|table| name_of(key, table) != name);
            list.is_empty()
        }
        Some(Item::Table(table)) => name_of(key, table) == name,
        _ => false,
    };
    if is_empty {
        document.remove(key);
    }
}

/// Merges a list of tables; only the entry `only`, if it is given.
fn merge_list(
    document: &mut DocumentMut,
    running: &DocumentMut,
    key: &str,
    dir: &Path,
    only: Option<&str>,
) -> Result<(), String> {
    let wanted = entries(running.get(key));
    let is_meant = |name: &str| only.is_none_or(|only| only == name);
    if let (Some(Item::Table(table)), [new]) = (document.get_mut(key), wanted.as_slice())
        && name_of(key, table) == name_of(key, *new)
    {
        if is_meant(&name_of(key, *new)) {
            update(table, *new, dir);
        }
        return Ok(());
    }
    if wanted.is_empty() && document.get(key).is_none() {
        return Ok(());
    }
    let list = list_of(document, key)?;
    let names: BTreeSet<String> = wanted.iter().map(|new| name_of(key, *new)).collect();
    list.retain(|table| !is_meant(&name_of(key, table)) || names.contains(&name_of(key, table)));
    for new in wanted.iter().filter(|new| is_meant(&name_of(key, **new))) {
        let known = list.iter().position(|table| name_of(key, table) == name_of(key, *new));
        match known.and_then(|index| list.get_mut(index)) {
            Some(table) => update(table, *new, dir),
            None => list.push(made(*new, dir)),
        }
    }
    if list.is_empty() {
        document.remove(key);
    }
    Ok(())
}

/// The tables of a list, or a single table.
fn entries(item: Option<&Item>) -> Vec<&dyn TableLike> {
    match item {
        Some(Item::ArrayOfTables(list)) => list.iter().map(|table| table as &dyn TableLike).collect(),
        Some(Item::Value(Value::Array(list))) => {
            list.iter().filter_map(|one| Some(one.as_inline_table()? as &dyn TableLike)).collect()
        }
        Some(item) => item.as_table_like().into_iter().collect(),
        None => Vec::new(),
    }
}

/// A list in the file that can grow. A single `[uplink]` becomes its first entry.
fn list_of<'a>(document: &'a mut DocumentMut, key: &str) -> Result<&'a mut ArrayOfTables, String> {
    let item = document.entry(key).or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
    if let Item::Table(table) = item {
        let table = std::mem::take(table);
        let mut list = ArrayOfTables::new();
        if name_of(key, &table) != "none" {
            list.push(table);
        }
        *item = Item::ArrayOfTables(list);
    }
    item.as_array_of_tables_mut()
        .ok_or(format!("it has its {key}s in one line, which is not changed: write [[{key}]] for each"))
}

/// The name of an entry of a list: of a class `UPLINK/CLASS`.
fn name_of(key: &str, table: &(impl TableLike + ?Sized)) -> String {
    let name = table.get("name").or_else(|| table.get("kind")).and_then(Item::as_str).unwrap_or_default();
    match table.get("uplink").and_then(Item::as_str).filter(|_| key == CLASS) {
        Some(uplink) => format!("{uplink}/{name}"),
        None => name.to_owned(),
    }
}

/// A new table, with a blank line before it.
fn made(new: &dyn TableLike, dir: &Path) -> Table {
    let mut table = Table::new();
    table.decor_mut().set_prefix("\n");
    let mut keys: Vec<&str> = new.iter().map(|(key, _)| key).collect();
    keys.sort_by_key(|key| FIRST.iter().position(|first| first == key).unwrap_or(FIRST.len()));
    for key in keys {
        table.extend(new.get(key).and_then(Item::as_value).map(|value| (key, short(key, value, dir))));
    }
    table
}

/// Gives a table the values of another. A value with the same meaning keeps its spelling.
fn update(table: &mut dyn TableLike, new: &dyn TableLike, dir: &Path) {
    let gone: Vec<String> =
        table.iter().filter(|(key, _)| !new.contains_key(key)).map(|(key, _)| key.to_owned()).collect();
    gone.iter().for_each(|key| drop(table.remove(key)));
    for (key, value) in new.iter().filter_map(|(key, item)| Some((key, item.as_value()?))) {
        put(table, key, value, dir);
    }
}

fn put(table: &mut dyn TableLike, key: &str, value: &Value, dir: &Path) {
    match table.get_mut(key).and_then(Item::as_value_mut) {
        Some(old) if is_same(key, old, value, dir) => {}
        Some(old) => {
            let decor = old.decor().clone();
            *old = short(key, value, dir);
            *old.decor_mut() = decor;
        }
        None => drop(table.insert(key, Item::Value(short(key, value, dir)))),
    }
}

fn is_same(key: &str, old: &Value, new: &Value, dir: &Path) -> bool {
    match (old, new) {
        (Value::String(old), Value::String(new)) => {
            old.value() == new.value()
                || absolute_text(key, old.value(), dir).is_some_and(|whole| whole == *new.value())
        }
        (Value::Integer(old), Value::Integer(new)) => old.value() == new.value(),
        (Value::Boolean(old), Value::Boolean(new)) => old.value() == new.value(),
        _ => false,
    }
}

/// A value without the other file's spaces. A path in the host file's folder becomes relative.
fn short(key: &str, value: &Value, dir: &Path) -> Value {
    let relative = value.as_str().filter(|_| is_path_key(key)).and_then(|path| Path::new(path).strip_prefix(dir).ok());
    match relative.and_then(Path::to_str) {
        Some(path) if !path.is_empty() => path.into(),
        _ => value.clone().decorated(" ", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# Mine.
[switch]
name = 'lan'   # as in the plan

[uplink]
kind = \"null\"

# The web server's.
[[port]]
name = \"vm1\"
adapter = \"e1000\"
mac = \"52-54-00-00-00-01\"   # by hand
socket = \"vm1.sock\"
buffer = \"1MiB\"  # small

[[port]]  # the other
mac = \"52:54:00:00:00:02\"
name = \"vm2\"
adapter = \"e1000\"
socket = \"/run/vm2.sock\"
";

    fn back(change: impl Fn(&str) -> String, only: Option<(List, &str)>) -> String {
        // A daemon exports absolute paths and sorted keys.
        let path = Path::new("/etc/n/host.toml");
        let exported = Host::parse(&change(FILE), path).unwrap().document.text();
        let merged = merged(FILE, &exported, path, only).unwrap();
        let (new, running) = (Host::parse(&merged, path).unwrap(), Host::parse(&exported, path).unwrap());
        if only.is_none() {
            assert_eq!(Plan::new(&new, &running, |_| false).to_string(), "", "{merged}");
        }
        merged
    }

    #[test]
    fn what_has_not_changed_is_byte_for_byte_as_it_was() {
        assert_eq!(back(str::to_owned, None), FILE);
    }

    #[test]
    fn a_value_changes_in_its_place_and_keeps_its_comment() {
        assert_eq!(back(|text| text.replace("1MiB", "4MiB"), None), FILE.replace("1MiB", "4MiB"));
        let gone = back(|text| text.replace("buffer = \"1MiB\"  # small\n", ""), None);
        assert_eq!(gone, FILE.replace("buffer = \"1MiB\"  # small\n", ""));
    }

    #[test]
    fn vms_and_where_their_hosts_meet_are_written_too() {
        let ft = "[ft]\nlisten = \"unix:ft.sock\"\nkey = \"ft.key\"\nlease = \"shared\"\n";
        let vm = "[[vm]]\nname = \"web\"\nports = \"vm1\"\nqmp = \"web.qmp\"\npeer = \"unix:far.sock\"\n";
        let virtio = FILE.replacen("e1000", "virtio-net", 1);
        let whole = back(|_| format!("{virtio}{ft}{vm}"), None);
        assert!(whole.contains("lease = \"shared\"") && whole.contains("[[vm]]\nname = \"web\""), "{whole}");
        assert!(whole.contains("qmp = \"web.qmp\"") && whole.contains("peer = \"unix:/etc/n/far.sock\""), "{whole}");
        // What is there keeps its spelling.
        let path = Path::new("/etc/n/host.toml");
        let file = format!("{virtio}{ft}{vm}");
        let exported = Host::parse(&file, path).unwrap().document.text();
        assert!(exported.contains("unix:/etc/n/ft.sock") && exported.contains("\"/etc/n/ft.key\""), "{exported}");
        assert_eq!(merged(&file, &exported, path, None).unwrap(), file);
    }

    #[test]
    fn ports_come_after_the_last_and_go_with_their_comments() {
        let vm3 = "\n[[port]]\nname = \"vm3\"\nadapter = \"vmxnet3\"\nmac = \"52:54:00:00:00:03\"\nsocket = \"vm3.sock\"\nvlan = 7\n";
        assert_eq!(back(|text| format!("{text}{vm3}"), None), format!("{FILE}{vm3}"));
        let begin = FILE.find("\n# The web").unwrap();
        let end = FILE.find("\n[[port]]  #").unwrap();
        assert_eq!(back(|text| [&text[..begin], &text[end..]].concat(), None), [&FILE[..begin], &FILE[end..]].concat());
    }

    #[test]
    fn one_uplink_becomes_the_first_of_several_and_none_is_none() {
        let far = "[[uplink]]\nname = \"far\"\nkind = \"pair\"\nsocket = \"far.sock\"\n";
        let two = back(
            |text| text.replace("[uplink]\nkind = \"null\"\n", &format!("[[uplink]]\nkind = \"null\"\n\n{far}")),
            None,
        );
        assert_eq!(two, FILE.replace("[uplink]\nkind = \"null\"\n", &format!("[[uplink]]\nkind = \"null\"\n\n{far}")));
        let none = back(|text| text.replace("[uplink]\nkind = \"null\"\n", ""), None);
        assert!(!none.contains("uplink") && none.contains("# Mine."), "{none}");
    }

    #[test]
    fn one_port_alone_is_written_if_it_is_the_one_that_is_meant() {
        let both = |text: &str| text.replace("1MiB", "4MiB").replace(":02\"", ":22\"");
        assert_eq!(back(both, Some((List::Ports, "vm1"))), FILE.replace("1MiB", "4MiB"));
        assert_eq!(back(both, Some((List::Ports, "vm2"))), FILE.replace(":02\"", ":22\""));
    }

    #[test]
    fn ports_in_one_line_are_not_changed_and_that_is_said() {
        let line = "port = [{ name = \"vm1\", adapter = \"e1000\", mac = \"52:54:00:00:00:01\", socket = \"a\" }]\n";
        let path = Path::new("/etc/n/host.toml");
        let exported = Host::parse(line, path).unwrap().document.text();
        let said = "it has its ports in one line, which is not changed: write [[port]] for each";
        assert_eq!(merged(line, &exported, path, None).unwrap_err(), said);
    }

    /// A host file by a seed: with or without tables, in this order or another.
    fn random(mut seed: u64) -> String {
        let mut chance = |of: u64| {
            // Knuth's MMIX generator; its low bits are poor.
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % of
        };
        let mut parts = Vec::new();
        if chance(2) == 0 {
            parts.push(format!("# Its name.\n[switch]\nageing = \"{}s\"  # long\n", 10 + chance(3)));
        }
        if chance(3) == 0 {
            parts.push(format!("[daemon]\nworkers = {}\nstate = \"s\"\n", 1 + chance(2)));
        }
        match chance(3) {
            0 => parts.push("[uplink]\nkind = \"null\"\n".to_owned()),
            1 => parts.push(format!(
                "[[uplink]]\nkind = \"null\"\n[[uplink]]\nname = \"far\"\nkind = \"pair\"\nsocket = \"f{}\"\n",
                chance(2)
            )),
            _ => {}
        }
        let has_group = chance(2) == 0;
        if has_group {
            parts.push(format!("[[port_group]]\nname = \"web\"\nvlan = {}\n", 1 + chance(3)));
        }
        for number in 1..=4 {
            if number > 1 && chance(2) == 0 {
                continue;
            }
            let more = match chance(4) {
                0 if has_group => "port_group = \"web\"  # web\n",
                1 => "buffer = \"2MiB\"\nsend_average = \"1Gbit/s\"\n",
                2 => "buffer = '4MiB' # big\n",
                _ => "",
            };
            let socket = if chance(2) == 0 { format!("vm{number}.sock") } else { format!("/run/vm{number}.sock") };
            parts.push(format!(
                "\n# Port {number}.\n[[port]]\nname = \"vm{number}\"\n{more}adapter = \"e1000\"\nmac = \"52:54:00:00:00:0{number}\"\nsocket = \"{socket}\"\n"
            ));
        }
        // The uplink may come first or last.
        if chance(2) == 0 {
            parts.rotate_left(1);
        }
        parts.concat()
    }

    #[test]
    fn whatever_runs_and_whatever_the_file_says_afterwards_they_say_the_same() {
        let path = Path::new("/etc/n/host.toml");
        for seed in 0..300 {
            let (file, runs) = (random(seed), random(seed + 1_000_003));
            let running = Host::parse(&runs, path).unwrap_or_else(|errors| panic!("{errors}\n{runs}"));
            let exported = running.document.text();
            let written = merged(&file, &exported, path, None).unwrap();
            let new = Host::parse(&written, path).unwrap_or_else(|errors| panic!("{seed}: {errors}\n{written}"));
            assert_eq!(Plan::new(&new, &running, |_| false).to_string(), "", "{seed}: {file}\n=>\n{written}");
            assert_eq!(
                merged(&written, &exported, path, None).unwrap(),
                written,
                "{seed}: a second time nothing changes"
            );
            for number in
                (1..=4).filter(|number| [&file, &runs].iter().all(|text| text.contains(&format!("\"vm{number}\""))))
            {
                assert!(written.contains(&format!("# Port {number}.\n[[port]]\n")), "{seed}: {written}");
            }
        }
    }
}
