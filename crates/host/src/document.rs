//! A host file as a document: its tables and values as written, with absolute paths. Documents are compared, changed, saved and
//! exported. A [`Host`](super::Host) is their meaning. A document knows only the keys of paths, so a new key of the host file
//! needs no change here.

use std::path::Path;

use toml::{Table, Value};

/// The keys of paths. Relative ones start at the host file's folder.
const PATHS: [&str; 12] = [
    "control",
    "etcd_ca",
    "etcd_certificate",
    "etcd_key",
    "etcd_password",
    "file",
    "key",
    "lease",
    "qmp",
    "rom",
    "socket",
    "state",
];
/// The keys of addresses, which may be paths of sockets: `unix:ft.sock`.
const ADDRESSES: [&str; 3] = ["ft_peer", "listen", "peer"];
/// The list of ports.
const PORT: &str = "port";
/// The list of port groups, and a port's key that names its group.
const GROUP: &str = "port_group";
/// The uplink, or the list of them.
const UPLINK: &str = "uplink";
/// The list of cards.
const CARD: &str = "card";
/// The list of teams of uplinks, and a team's key that names its uplinks.
const TEAM: &str = "team";
const MEMBERS: &str = "members";
/// The list of mirrors.
const MIRROR: &str = "mirror";
/// The list of exports of flows.
const FLOW_EXPORT: &str = "flow_export";
/// The list of classes of I/O control.
const IO_CLASS: &str = "io_class";
/// The table of defaults for ports' sockets.
const SOCKETS: &str = "sockets";

/// A parsed host file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document(Table);

impl Document {
    /// Parses a TOML text. Relative paths start at `dir`.
    pub(super) fn parse(text: &str, dir: &Path) -> Option<Self> {
        let mut root: Table = text.parse().ok()?;
        root.iter_mut().for_each(|(_, value)| absolute(value, dir));
        Some(Self(root))
    }

    /// The document as the text of a host file.
    pub fn text(&self) -> String {
        // A parsed document can always be written: it has no `None`, and all keys are texts.
        toml::to_string(&self.0).unwrap_or_default()
    }

    /// The ports' tables, in order.
    fn list(&self) -> &[Value] {
        self.list_of(List::Ports)
    }

    /// The list of ports, of groups or of uplinks. A single `[uplink]` becomes the first of a list.
    fn list_mut(&mut self, list: List) -> Option<&mut Vec<Value>> {
        let value = self.0.entry(list.key()).or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Table(table) = value {
            let none = table.get("kind").and_then(Value::as_str) == Some("none");
            *value = Value::Array(if none { Vec::new() } else { vec![Value::Table(std::mem::take(table))] });
        }
        value.as_array_mut()
    }

    /// An uplink's table. Empty if there is none.
    pub fn uplink(&self, name: &str) -> Table {
        let found = match self.0.get(UPLINK) {
            Some(Value::Table(table)) => Some(table),
            Some(Value::Array(list)) => list.iter().find(|one| name_of(one) == Some(name)).and_then(Value::as_table),
            _ => None,
        };
        found.cloned().unwrap_or_default()
    }

    /// The ports' names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.list().iter().filter_map(name_of)
    }

    /// A port's table, with the values of `[sockets]` and its port group.
    pub fn port(&self, name: &str) -> Option<Table> {
        let own = self.list().iter().find(|port| name_of(port) == Some(name))?.as_table()?;
        let mut whole = self.0.get(SOCKETS).and_then(Value::as_table).cloned().unwrap_or_default();
        // A port that sets its own mode must also say itself that the socket is open to everybody.
        if own.contains_key("mode") {
            whole.remove("open_to_everybody");
        }
        let groups = self.0.get(GROUP).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let wanted = own.get(GROUP).and_then(Value::as_str);
        let group = wanted.and_then(|name| groups.iter().find(|group| name_of(group) == Some(name))?.as_table());
        whole.extend(group.into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
        whole.extend(own.clone());
        Some(whole)
    }

    /// The names of the ports of a group. `None` if there is no such group.
    pub fn members(&self, group: &str) -> Option<Vec<&str>> {
        let groups = self.0.get(GROUP).and_then(Value::as_array)?;
        groups.iter().find(|known| name_of(known) == Some(group))?;
        let is_in = |port: &&Value| port.get(GROUP).and_then(Value::as_str) == Some(group);
        Some(self.list().iter().filter(is_in).filter_map(name_of).collect())
    }

    /// The other tables, sorted by name: `switch`, `groups.web`. Subtables count as separate tables.
    pub fn tables(&self) -> Vec<(String, Table)> {
        let mut tables = Vec::new();
        for (key, value) in self.0.iter().filter(|(key, _)| ![PORT, SOCKETS].contains(&key.as_str())) {
            match value {
                Value::Table(table) if !table.is_empty() && table.values().all(Value::is_table) => {
                    let inner = table.iter().filter_map(|(name, inner)| Some((name, inner.as_table()?)));
                    tables.extend(inner.map(|(name, inner)| (format!("{key}.{name}"), inner.clone())));
                }
                Value::Table(table) => tables.push((key.clone(), table.clone())),
                Value::Array(list) => {
                    let entries = list.iter().filter_map(Value::as_table).enumerate();
                    tables.extend(entries.map(|(index, entry)| {
                        let name = entry.get("name").and_then(Value::as_str).map_or(index.to_string(), str::to_owned);
                        // Classes of two uplinks may have one name.
                        let of = entry.get("uplink").and_then(Value::as_str);
                        let of = of.map_or_else(String::new, |of| format!("{of}."));
                        (format!("{key}.{of}{name}"), entry.clone())
                    }));
                }
                other => tables.push((key.clone(), Table::from_iter([("value".to_owned(), other.clone())]))),
            }
        }
        tables
    }

    /// A copy with one more port, group or uplink. Relative paths of `entry` start at `dir`.
    pub fn with(&self, list: List, entry: Table, dir: &Path) -> Self {
        let mut new = self.clone();
        let mut entry = Value::Table(entry);
        absolute(&mut entry, dir);
        if let Some(list) = new.list_mut(list) {
            list.push(entry);
        }
        new
    }

    /// A team's table. Empty if there is none.
    pub fn team(&self, name: &str) -> Table {
        self.entry(List::Teams, name)
    }

    /// The table of this name in a list, as it is written there. Empty if there is none.
    pub fn entry(&self, of: List, name: &str) -> Table {
        let found = self.list_of(of).iter().find(|one| of.is_named(one, name)).and_then(Value::as_table);
        found.cloned().unwrap_or_default()
    }

    /// The entries of a list, in order.
    pub(super) fn list_of(&self, list: List) -> &[Value] {
        self.0.get(list.key()).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// A copy without the entry of this name, if it exists. An empty list is removed. A team takes its uplinks with it: each by itself,
    /// they would join one network in several places.
    pub fn without(&self, list: List, name: &str) -> Self {
        if list == List::Teams {
            let team = self.team(name);
            let members = team.get(MEMBERS).and_then(Value::as_str).unwrap_or_default();
            let alone =
                members.split(',').fold(self.clone(), |host, member| host.only_without(List::Uplinks, member.trim()));
            return alone.only_without(list, name);
        }
        self.only_without(list, name)
    }

    fn only_without(&self, list: List, name: &str) -> Self {
        let mut new = self.clone();
        let left = new.list_mut(list).map_or(1, |entries| {
            entries.retain(|entry| !list.is_named(entry, name));
            entries.len()
        });
        if left == 0 && list != List::Ports {
            new.0.remove(list.key());
        }
        new
    }

    /// The names of a list's entries, in order.
    pub fn names_in(&self, list: List) -> Vec<String> {
        let mut all = self.clone();
        let entries = all.list_mut(list).map(std::mem::take).unwrap_or_default();
        entries.iter().filter_map(|entry| list.name_of(entry.as_table()?)).collect()
    }

    /// Whether there is an entry of this name.
    pub fn has(&self, list: List, name: &str) -> bool {
        self.clone().list_mut(list).is_some_and(|entries| entries.iter().any(|entry| list.is_named(entry, name)))
    }

    /// A copy with these values for the entry of this name, if it exists. A key without a value is removed.
    pub fn with_values(&self, list: List, name: &str, values: &[(String, Option<Value>)], dir: &Path) -> Self {
        let mut new = self.clone();
        let found = new.list_mut(list).and_then(|entries| entries.iter_mut().find(|entry| list.is_named(entry, name)));
        if let Some(port) = found {
            if let Value::Table(table) = port {
                for (key, value) in values {
                    match value {
                        Some(value) => drop(table.insert(key.clone(), value.clone())),
                        None => drop(table.remove(key)),
                    }
                }
            }
            absolute(port, dir);
        }
        new
    }
}

/// The lists of a host file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// `[[port]]`.
    Ports,
    /// `[[port_group]]`.
    Groups,
    /// `[uplink]`, or `[[uplink]]`.
    Uplinks,
    /// `[[card]]`.
    Cards,
    /// `[[team]]`.
    Teams,
    /// `[[mirror]]`.
    Mirrors,
    /// `[[flow_export]]`.
    FlowExports,
    /// `[[io_class]]`.
    Classes,
}

impl List {
    /// Every list.
    pub const ALL: [Self; 8] = [
        Self::Ports,
        Self::Groups,
        Self::Uplinks,
        Self::Cards,
        Self::Teams,
        Self::Mirrors,
        Self::FlowExports,
        Self::Classes,
    ];

    /// The list's name in a host file.
    pub fn key(self) -> &'static str {
        match self {
            Self::Ports => PORT,
            Self::Groups => GROUP,
            Self::Uplinks => UPLINK,
            Self::Cards => CARD,
            Self::Teams => TEAM,
            Self::Mirrors => MIRROR,
            Self::FlowExports => FLOW_EXPORT,
            Self::Classes => IO_CLASS,
        }
    }

    /// The keys that name an entry, and never change.
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Self::Classes => &["uplink", "name"],
            _ => &["name"],
        }
    }

    /// The name of an entry: of a class `UPLINK/CLASS`, of an uplink without a name its kind.
    pub fn name_of(self, entry: &Table) -> Option<String> {
        let text = |key: &str| entry.get(key).and_then(Value::as_str);
        match self {
            Self::Classes => Some(format!("{}/{}", text("uplink")?, text("name")?)),
            _ => text("name").or_else(|| text("kind")).map(str::to_owned),
        }
    }

    fn is_named(self, entry: &Value, name: &str) -> bool {
        entry.as_table().and_then(|entry| self.name_of(entry)).as_deref() == Some(name)
    }
}

/// Prints the word for one entry.
impl std::fmt::Display for List {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ports => "port",
            Self::Groups => "port group",
            Self::Uplinks => "uplink",
            Self::Cards => "card",
            Self::Teams => "team",
            Self::Mirrors => "mirror",
            Self::FlowExports => "flow export",
            Self::Classes => "class",
        })
    }
}

/// The name of a port or a group. For an uplink without a name: its kind.
fn name_of(entry: &Value) -> Option<&str> {
    entry.get("name").or_else(|| entry.get("kind")).and_then(Value::as_str)
}

/// Whether a key's value is a path. One that is relative starts at the host file's folder.
pub fn is_path_key(key: &str) -> bool {
    PATHS.contains(&key)
}

/// A key's value with its path absolute, if it is or has one.
pub fn absolute_text(key: &str, text: &str, dir: &Path) -> Option<String> {
    let (before, path) = if is_path_key(key) {
        ("", text)
    } else if ADDRESSES.contains(&key) {
        ("unix:", text.strip_prefix("unix:")?)
    } else {
        return None;
    };
    if path.is_empty() || path.starts_with('~') {
        return None;
    }
    dir.join(path).to_str().map(|whole| format!("{before}{whole}"))
}

/// Makes the paths in a table and its subtables absolute.
fn absolute(value: &mut Value, dir: &Path) {
    match value {
        Value::Table(table) => {
            for (key, value) in table.iter_mut() {
                match value {
                    Value::String(text) => {
                        if let Some(whole) = absolute_text(key, text, dir) {
                            *text = whole;
                        }
                    }
                    other => absolute(other, dir),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|entry| absolute(entry, dir)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# A comment.
[sockets]
mode = \"0660\"
[switch]
ageing = \"30s\"
[groups.web]
vlan = 5
[groups.db]
vlan = 6
[[port]]
name = \"vm1\"
socket = \"vm1.sock\"
rom = \"/boot/rom\"
[[port]]
name = \"vm2\"
mode = \"0600\"
";

    fn document() -> Document {
        Document::parse(TEXT, Path::new("/etc/nicety")).unwrap()
    }

    #[test]
    fn paths_are_absolute_and_what_is_written_is_read_again_as_the_same() {
        let document = document();
        let port = document.port("vm1").unwrap();
        assert_eq!(port["socket"].as_str(), Some("/etc/nicety/vm1.sock"));
        assert_eq!(port["rom"].as_str(), Some("/boot/rom"));
        assert_eq!(Document::parse(&document.text(), Path::new("/elsewhere")).unwrap(), document);
    }

    #[test]
    fn a_port_has_what_sockets_says_unless_it_says_otherwise() {
        let mode = |name| document().port(name).unwrap()["mode"].as_str().map(str::to_owned);
        assert_eq!((mode("vm1").as_deref(), mode("vm2").as_deref()), (Some("0660"), Some("0600")));
        assert!(document().port("vm3").is_none());
    }

    #[test]
    fn tables_of_tables_are_as_many_and_ports_are_none_of_them() {
        let names: Vec<String> = document().tables().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["groups.db", "groups.web", "switch"]);
    }

    #[test]
    fn ports_come_change_and_go() {
        let dir = Path::new("/d");
        let vm3: Table = "name = \"vm3\"\nsocket = \"3.sock\"".parse().unwrap();
        let more = document().with(List::Ports, vm3, dir);
        assert_eq!(more.names().collect::<Vec<_>>(), ["vm1", "vm2", "vm3"]);
        assert_eq!(more.port("vm3").unwrap()["socket"].as_str(), Some("/d/3.sock"));
        let values = [("buffer".to_owned(), Some(Value::from("2MiB"))), ("socket".to_owned(), None)];
        let changed = more.with_values(List::Ports, "vm3", &values, dir);
        let port = changed.port("vm3").unwrap();
        assert_eq!((port["buffer"].as_str(), port.get("socket")), (Some("2MiB"), None));
        assert_eq!(changed.without(List::Ports, "vm3"), document());
        assert_eq!(document().without(List::Ports, "vm9"), document());
    }

    #[test]
    fn an_uplink_that_is_alone_becomes_the_first_of_several() {
        let dir = Path::new("/d");
        let alone = Document::parse("[uplink]\nkind = \"null\"\n", dir).unwrap();
        let pair: Table = "name = \"far\"\nkind = \"pair\"\nsocket = \"a.sock\"".parse().unwrap();
        let both = alone.with(List::Uplinks, pair.clone(), dir);
        let value = |name: &str, key: &str| both.uplink(name)[key].as_str().map(str::to_owned);
        assert_eq!(value("null", "kind").as_deref(), Some("null"));
        assert_eq!(value("far", "socket").as_deref(), Some("/d/a.sock"));
        assert_eq!(both.without(List::Uplinks, "far").without(List::Uplinks, "null").text(), "");
        let none = Document::parse("[uplink]\nkind = \"none\"\n", dir).unwrap();
        assert_eq!(none.with(List::Uplinks, pair, dir).text(), both.without(List::Uplinks, "null").text());
        assert_eq!([&alone, &none].map(|document| document.has(List::Uplinks, "null")), [true, false]);
    }
}
