//! The systemd unit under which a host file is served: what it lets the daemon do, and the drop-in for what the host file asks for beyond
//! that. Read from the unit's file and its drop-ins (systemd.unit(5), systemd.exec(5), systemd.resource-control(5)), as systemd reads
//! them at the next daemon-reload. A running daemon has the rights of its unit's last start.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path, PathBuf};

mod needs;
mod running;

pub use needs::lacks;
pub use running::{Running, told};

/// Folders of units. The first unit of a name counts (systemd.unit(5), "Unit File Load Path").
const FOLDERS: [&str; 11] = [
    // `systemctl set-property` writes to these two.
    "etc/systemd/system.control",
    "run/systemd/system.control",
    "run/systemd/transient",
    "run/systemd/generator.early",
    "etc/systemd/system",
    "run/systemd/system",
    "run/systemd/generator",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
    "run/systemd/generator.late",
];

/// A unit, with its drop-ins.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Its name, such as `nicety@lan.service`.
    pub name: String,
    /// The settings of `[Service]`: the values that were given, since the last empty one.
    settings: BTreeMap<String, Vec<String>>,
}

impl Unit {
    /// The unit that serves this host file, if there is one. `root` is `/`, but in tests.
    pub fn of(host: &Path, root: &Path) -> Option<Self> {
        let host = std::path::absolute(host).ok()?;
        let files = FOLDERS.iter().filter_map(|folder| fs::read_dir(root.join(folder)).ok()).flatten().flatten();
        let mut seen = BTreeSet::new();
        let mut names: Vec<(String, PathBuf)> = Vec::new();
        for file in files {
            let name = file.file_name().to_string_lossy().into_owned();
            if name.ends_with(".service") && seen.insert(name.clone()) {
                names.push((name, file.path()));
            }
        }
        names.sort();
        names.into_iter().find_map(|(name, path)| {
            let text = fs::read_to_string(path).ok().filter(|text| text.contains("nicety"))?;
            let mut settings = BTreeMap::new();
            read(&text, &mut settings);
            let starts = settings.get("ExecStart")?.last()?;
            let name = serves(starts, &host, &name)?;
            drop_ins(&name, root).iter().for_each(|text| read(text, &mut settings));
            Some(Self { name, settings })
        })
    }

    /// Whether a process is one of this unit's: its control group has the unit's name (cgroups(7), "/proc/pid/cgroup").
    pub fn has_process(&self, pid: u32) -> bool {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        is_in_groups(&groups, &self.name)
    }

    /// A unit of this text, for tests.
    #[cfg(test)]
    pub fn from_text(name: &str, text: &str) -> Self {
        let mut settings = BTreeMap::new();
        read(text, &mut settings);
        Self { name: name.to_owned(), settings }
    }

    /// All words of a setting.
    fn words(&self, key: &str) -> impl Iterator<Item = String> {
        self.values(key).flat_map(words).map(|word| specifiers(&word, &self.name))
    }

    fn values(&self, key: &str) -> impl Iterator<Item = &str> {
        self.settings.get(key).into_iter().flatten().map(String::as_str)
    }

    /// The last value of a setting that has one.
    fn value(&self, key: &str) -> Option<&str> {
        self.settings.get(key).and_then(|values| values.last()).map(String::as_str)
    }

    fn is_on(&self, key: &str) -> bool {
        self.value(key).is_some_and(is_yes)
    }

    /// Whether a list lets something through: without a list it does. The first value says whether the list allows or denies; later ones
    /// with `~` take from it.
    fn lists(&self, key: &str, word: &str) -> bool {
        let values: Vec<&str> = self.values(key).collect();
        let is_denying = values.first().is_some_and(|first| first.starts_with('~'));
        let mut is_in = values.is_empty() || is_denying;
        for value in values {
            let (adds, rest) = value.strip_prefix('~').map_or((true, value), |rest| (false, rest));
            if words(rest).iter().any(|listed| listed == word) {
                is_in = adds;
            }
        }
        is_in
    }

    /// Whether its processes may make sockets of this family.
    fn has_family(&self, family: &str) -> bool {
        self.lists("RestrictAddressFamilies", family)
    }

    /// Whether its processes have a capability.
    fn has_capability(&self, capability: &str) -> bool {
        let is_root = self.value("User").is_none_or(|user| user == "root" || user == "0");
        let is_bound = self.lists("CapabilityBoundingSet", capability);
        is_bound && (is_root || self.words("AmbientCapabilities").any(|word| word == capability))
    }

    /// Whether its processes may make a system call that is in no group which services usually have.
    fn has_call(&self, call: &str) -> bool {
        self.lists("SystemCallFilter", call)
    }
}

/// Something that a unit does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// The thing and the setting that forbids it, in a sentence.
    pub why: String,
    /// The drop-in's lines below `[Service]` that allow it. None: no drop-in is to be written.
    pub lines: Vec<String>,
}

/// All that a host file asks for and a unit does not allow. Shown with the drop-in that allows it, as lines for a shell.
#[derive(Clone, Debug)]
pub struct Lacks {
    /// The unit.
    pub unit: String,
    /// One or more.
    pub all: Vec<Lack>,
}

impl fmt::Display for Lacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = &self.unit;
        write!(f, "{unit} does not allow all that this host file asks for")?;
        self.all.iter().try_for_each(|Lack { why, .. }| write!(f, "\n  {why}"))?;
        let lines = self.lines();
        if lines.is_empty() {
            return Ok(());
        }
        let folder = format!("/etc/systemd/system/{unit}.d");
        write!(
            f,
            "\nThis drop-in allows it, as root:\nmkdir -p {folder}\ncat >>{folder}/host-file.conf <<'END'\n[Service]\n"
        )?;
        lines.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        write!(f, "END\nsystemctl daemon-reload && systemctl restart {unit}")
    }
}

impl Lacks {
    /// The drop-in's lines below `[Service]`.
    pub fn lines(&self) -> BTreeSet<&str> {
        self.all.iter().flat_map(|lack| lack.lines.iter().map(String::as_str)).collect()
    }

    /// The needs in one line, for the log.
    pub fn line(&self) -> String {
        let why: Vec<&str> = self.all.iter().map(|lack| lack.why.as_str()).collect();
        let mut line = format!("{} does not allow all that the host file asks for: {}", self.unit, why.join("; "));
        let lines = self.lines();
        if !lines.is_empty() {
            let lines: Vec<&str> = lines.into_iter().collect();
            let _ = write!(line, "; `nicety serve --check` prints the drop-in ({})", lines.join(", "));
        }
        line
    }

    /// The needs that are not among others. `None`: all are.
    pub fn beyond(mut self, others: Option<&Lacks>) -> Option<Self> {
        self.all.retain(|lack| !others.is_some_and(|others| others.all.iter().any(|other| other.why == lack.why)));
        (!self.all.is_empty()).then_some(self)
    }
}

/// Whether a control group in a process's list of them is this unit's.
fn is_in_groups(groups: &str, unit: &str) -> bool {
    let paths = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.flat_map(|path| path.split('/')).any(|name| name == unit)
}

/// The words of a value: parted by blanks, but for those in quotes (systemd.syntax(7), "Quoting").
fn words(value: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut letters = value.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            ('\\', _) => word.get_or_insert_default().extend(letters.next()),
            (_, Some(end)) if letter == end => quote = None,
            ('"' | '\'', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (blank, None) if blank.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

/// A word of a setting as [`words`] and [`specifiers`] read it.
fn quoted(word: &str) -> String {
    let plain = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
    if plain.contains([' ', '\t', '\'', '"']) { format!("\"{plain}\"") } else { plain }
}

/// A word without its specifiers (systemd.unit(5), "Specifiers"): those of names and of the system's folders.
fn specifiers(word: &str, unit: &str) -> String {
    let whole = unit.rsplit_once('.').map_or(unit, |(name, _)| name);
    let (prefix, instance) = whole.split_once('@').unwrap_or((whole, ""));
    let (mut text, mut letters) = (String::new(), word.chars());
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        match letters.next() {
            Some('i' | 'I') => text.push_str(instance),
            Some('n') => text.push_str(unit),
            Some('N') => text.push_str(whole),
            Some('p' | 'P') => text.push_str(prefix),
            Some('t') => text.push_str("/run"),
            Some('S') => text.push_str("/var/lib"),
            Some('C') => text.push_str("/var/cache"),
            Some('L') => text.push_str("/var/log"),
            Some('%') => text.push('%'),
            Some(other) => text.extend(['%', other]),
            None => text.push('%'),
        }
    }
    text
}

fn is_yes(value: &str) -> bool {
    ["yes", "y", "true", "t", "on", "1"].contains(&value.to_lowercase().as_str())
}

/// Reads the settings of `[Service]` (systemd.syntax(7)). An empty value takes back those before.
fn read(text: &str, settings: &mut BTreeMap<String, Vec<String>>) {
    let mut is_service = false;
    let text = text.replace("\\\n", " ");
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if line.starts_with('[') {
            is_service = line == "[Service]";
        } else if is_service && let Some((key, value)) = line.split_once('=') {
            let values = settings.entry(key.trim().to_owned()).or_default();
            match value.trim() {
                "" => values.clear(),
                value => values.push(value.to_owned()),
            }
        }
    }
}

/// The name of the unit, with its instance, if this command of it serves the host file.
fn serves(command: &str, host: &Path, name: &str) -> Option<String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let served = match words[..] {
        [program, "serve", ..] if program.ends_with("/nicety") => words.last()?,
        _ => return None,
    };
    let Some((before, behind)) = served.split_once("%i").or_else(|| served.split_once("%I")) else {
        return (Path::new(served) == host).then(|| name.to_owned());
    };
    let instance = host.to_str()?.strip_prefix(before)?.strip_suffix(behind)?;
    let is_one = !instance.is_empty() && !instance.contains('/');
    is_one.then(|| name.replace("@.", &format!("@{instance}.")))
}

/// The texts of a unit's drop-ins, in the order in which they count.
fn drop_ins(name: &str, root: &Path) -> Vec<String> {
    let of_template = name.split_once('@').map(|(template, _)| format!("{template}@.service.d"));
    // Later ones replace earlier ones of the same name: those of all services, then by the path from its end, a template's before its
    // instance's.
    let of_all = FOLDERS.iter().rev().map(|folder| (folder, "service.d".to_owned()));
    let own = FOLDERS
        .iter()
        .rev()
        .flat_map(|folder| of_template.iter().cloned().chain([format!("{name}.d")]).map(move |place| (folder, place)));
    let mut found = BTreeMap::new();
    for (folder, place) in of_all.chain(own) {
        let files = fs::read_dir(root.join(folder).join(place)).into_iter().flatten().flatten();
        for file in files.filter(|file| file.path().extension().is_some_and(|end| end == "conf")) {
            found.insert(file.file_name(), file.path());
        }
    }
    found.into_values().filter_map(|path| fs::read_to_string(path).ok()).collect()
}

#[cfg(test)]
#[path = "unit_test.rs"]
mod tests;
