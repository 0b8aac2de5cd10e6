//! A walk over a TOML document. It reads the values of its tables and notes every mistake.

use std::fmt::Display;
use std::ops::Range;
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::errors::{HostError, MISTAKES_MAX, did_you_mean};
use super::form::Form;

/// Most tables of one kind.
const TABLES_MAX: usize = 1024;
/// Keys of earlier versions: the table's heading, the key, and what to do instead.
const REMOVED: [(&str, &str, &str); 1] =
    [("[[port]]", "ft_peer", "a VM is protected as a whole; remove ft_peer, and name the VM in a [[vm]]")];

/// A key of a table, and its allowed values.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// The form of its value.
    pub form: Form,
    /// Whether every table of its kind must have it.
    pub required: bool,
    /// The allowed values, as an error shows them.
    pub allowed: &'static str,
}

impl Key {
    pub(super) const fn new(name: &'static str, form: Form, allowed: &'static str) -> Self {
        Self { name, form, required: false, allowed }
    }

    /// The same key, which every table of its kind must have.
    pub(super) const fn required(self) -> Self {
        Self { required: true, ..self }
    }
}

/// A kind of table: its heading as written, its name in errors, its keys.
#[derive(Debug)]
pub struct Kind {
    /// `[switch]`, `[[port]]`.
    pub heading: &'static str,
    /// `switch`, `port`.
    pub name: &'static str,
    /// The keys.
    pub keys: &'static [Key],
    /// Whether a table that is usually single may be repeated.
    pub several: bool,
}

impl Kind {
    /// Whether the file may hold several by default.
    pub fn many(&self) -> bool {
        self.heading.starts_with("[[")
    }
}

/// One table of the document.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section<'a> {
    pub(super) kind: &'static Kind,
    table: &'a DeTable<'a>,
    pub(super) line: usize,
}

/// A value and its line.
#[derive(Clone, Debug)]
pub(super) struct Found<T> {
    pub(super) value: T,
    pub(super) line: usize,
}

/// The walk so far.
#[derive(Debug)]
pub(super) struct Walk {
    /// The positions of line ends.
    ends: Vec<usize>,
    pub(super) errors: Vec<HostError>,
    /// Mistakes beyond the first hundred.
    more: usize,
    /// In a change, whose lines nobody has seen: the first line and the name of each table.
    names: Option<Vec<(usize, String)>>,
}

impl Walk {
    pub(super) fn new(text: &str) -> Self {
        Self { ends: text.match_indices('\n').map(|(at, _)| at).collect(), errors: Vec::new(), more: 0, names: None }
    }

    /// Has later mistakes name tables instead of lines.
    pub(super) fn name_tables(&mut self, root: &DeTable<'_>) {
        let mut names = Vec::new();
        let text = |table: &DeTable<'_>, key: &str| {
            let (_, value) = table.iter().find(|(name, _)| name.get_ref() == key)?;
            value.get_ref().as_str().map(str::to_owned)
        };
        for (key, value) in root.iter() {
            let is_class = key.get_ref() == "io_class";
            let kind = if is_class { "class".to_owned() } else { key.get_ref().replace('_', " ") };
            let mut add = |table: &DeTable<'_>, span: &Range<usize>| {
                let name = text(table, "name").or_else(|| text(table, "kind"));
                // Classes of two uplinks may have one name.
                let of = text(table, "uplink").filter(|_| is_class).map_or_else(String::new, |of| format!("{of}/"));
                names.push((self.line(span), name.map_or(kind.clone(), |name| format!("{kind} {of}{name}"))));
            };
            match value.get_ref() {
                DeValue::Table(table) => add(table, &value.span()),
                DeValue::Array(array) => {
                    for item in array.iter() {
                        item.get_ref().as_table().into_iter().for_each(|table| add(table, &item.span()));
                    }
                }
                _ => {}
            }
        }
        names.sort();
        self.names = Some(names);
    }

    /// Mistakes in this table name it as the fabric's.
    pub(super) fn call_fabric_s(&mut self, section: Section<'_>) {
        let name = self.peek(section, "name").unwrap_or_default().to_owned();
        let called = self.names.iter_mut().flatten().find(|(line, _)| *line == section.line);
        called.into_iter().for_each(|(_, called)| *called = format!("the fabric's class {name}"));
    }

    /// The owner of an earlier name, for a person: `the port of line 14`, or `the name of port vm1`.
    pub(super) fn whose(&self, what: &str, line: usize) -> String {
        match &self.names {
            None => format!("the {what} of line {line}"),
            Some(_) => format!("the name of {}", self.at(line)),
        }
    }

    /// The place of an earlier value, for a person: `line 14` or `port vm1`.
    pub(super) fn at(&self, line: usize) -> String {
        match &self.names {
            None => format!("line {line}"),
            Some(names) => {
                let before = names.partition_point(|(begin, _)| *begin <= line);
                before.checked_sub(1).map_or_else(|| "the host file".to_owned(), |index| names[index].1.clone())
            }
        }
    }

    /// The line of a position in the text, counted from 1.
    pub(super) fn line(&self, span: &Range<usize>) -> usize {
        self.ends.partition_point(|&end| end < span.start).saturating_add(1)
    }

    /// A line's text, without its end.
    pub(super) fn text_of<'a>(&self, line: usize, text: &'a str) -> &'a str {
        let begin = line.checked_sub(2).and_then(|before| self.ends.get(before)).map_or(0, |end| end + 1);
        text.get(begin..self.ends.get(line - 1).copied().unwrap_or(text.len())).unwrap_or_default()
    }

    /// Notes a mistake without a [`Key`].
    pub(super) fn note(&mut self, line: usize, key: &str, what: String, allowed: String) {
        if self.errors.len() < MISTAKES_MAX {
            let of = if self.names.is_some() { self.at(line) } else { String::new() };
            let line = if self.names.is_some() { 0 } else { line };
            self.errors.push(HostError { line, of, key: key.to_owned(), what, allowed });
        } else {
            self.more += 1;
        }
    }

    /// All mistakes. The last one may count the rest.
    pub(super) fn into_errors(mut self) -> Vec<HostError> {
        if let (Some(last), more @ 1..) = (self.errors.last_mut(), self.more) {
            last.what.push_str(&format!("; and {more} more mistakes"));
        }
        self.errors
    }

    /// Notes a mistake in a key's value.
    pub(super) fn wrong(&mut self, section: Section<'_>, key: &str, line: usize, what: impl Into<String>) {
        let allowed = section.kind.keys.iter().find(|known| known.name == key).map_or("", |known| known.allowed);
        self.note(line, &format!("{}.{key}", section.kind.name), what.into(), allowed.to_owned());
    }

    /// Notes that a required key is missing.
    pub(super) fn missing(&mut self, section: Section<'_>, key: &str) {
        self.wrong(section, key, section.line, format!("it is missing from this {}", section.kind.heading));
    }

    /// All tables of one kind. A heading with too few or too many brackets is a mistake.
    pub(super) fn sections<'a>(&mut self, root: &'a DeTable<'a>, kind: &'static Kind) -> Vec<Section<'a>> {
        let Some((key, value)) = root.iter().find(|(key, _)| key.get_ref() == kind.name) else { return Vec::new() };
        let (heading, line) = (kind.heading, self.line(&key.span()));
        let sections = match value.get_ref() {
            DeValue::Table(table) if !kind.many() => vec![Section { kind, table, line: self.line(&value.span()) }],
            DeValue::Table(_) => {
                self.note(line, kind.name, format!("there may be several: write {heading}"), String::new());
                Vec::new()
            }
            DeValue::Array(array) if kind.many() || kind.several => {
                if array.len() > TABLES_MAX {
                    let what = format!("there are {}, more than {TABLES_MAX}", array.len());
                    self.note(line, kind.name, what, String::new());
                }
                let items = array.iter().take(TABLES_MAX).enumerate();
                items.filter_map(|(index, item)| self.entry(kind, index, item)).collect()
            }
            DeValue::Array(_) => {
                self.note(line, kind.name, format!("there is only one: write {heading}"), String::new());
                Vec::new()
            }
            other => {
                let what = format!("it is {}, not a table: write {heading}", name_of(other));
                self.note(line, kind.name, what, String::new());
                Vec::new()
            }
        };
        for section in &sections {
            self.unknown_keys(*section);
            for key in kind.keys.iter().filter(|key| key.required) {
                if self.place(*section, key.name).is_none() {
                    self.missing(*section, key.name);
                }
            }
        }
        sections
    }

    /// One of several tables. A list entry that is not a table is a mistake.
    fn entry<'a>(&mut self, kind: &'static Kind, index: usize, item: &'a Spanned<DeValue<'a>>) -> Option<Section<'a>> {
        let line = self.line(&item.span());
        let Some(table) = item.get_ref().as_table() else {
            let (found, heading) = (name_of(item.get_ref()), kind.heading);
            let what = format!("entry {} of the list is {found}, not a table: write {heading} for each", index + 1);
            let keys = kind.keys.iter().map(|key| key.name).collect::<Vec<_>>().join(", ");
            self.note(line, kind.name, what, format!("a table of {keys}"));
            return None;
        };
        Some(Section { kind, table, line })
    }

    fn unknown_keys(&mut self, section: Section<'_>) {
        let names = || section.kind.keys.iter().map(|key| key.name);
        let unknown = section.table.keys().filter(|key| !names().any(|name| name == key.get_ref().as_ref()));
        // Each costs a search for a similar name. Those beyond the limit are only counted, at the end.
        for (index, key) in unknown.enumerate() {
            if index >= MISTAKES_MAX {
                self.more += 1;
                continue;
            }
            let heading = section.kind.heading;
            let what = match REMOVED.iter().find(|(kind, name, _)| *kind == heading && *name == key.get_ref().as_ref())
            {
                Some((.., instead)) => format!("there is no such key in {heading} any more: {instead}"),
                None => format!("there is no such key in {heading}{}", did_you_mean(key.get_ref(), names())),
            };
            let allowed = names().collect::<Vec<_>>().join(", ");
            let line = self.line(&key.span());
            self.note(line, &format!("{}.{}", section.kind.name, printable(key.get_ref())), what, allowed);
        }
    }

    /// Notes unknown tables and keys at the top level. `plain`: keys that are no tables.
    pub(super) fn unknown_sections(&mut self, root: &DeTable<'_>, kinds: &[&'static Kind], plain: &[&str]) {
        let is_known = |key: &str| plain.contains(&key) || kinds.iter().any(|kind| kind.name == key);
        let unknown = root.keys().filter(|key| !is_known(key.get_ref()));
        for (index, key) in unknown.enumerate() {
            if index >= MISTAKES_MAX {
                self.more += 1;
                continue;
            }
            let names = kinds.iter().map(|kind| kind.name);
            let what = format!("there is no such table{}", did_you_mean(key.get_ref(), names));
            let allowed = kinds.iter().map(|kind| kind.heading).collect::<Vec<_>>().join(", ");
            let line = self.line(&key.span());
            self.note(line, &printable(key.get_ref()), what, allowed);
        }
    }

    /// The line of a key, if it exists.
    pub(super) fn place(&self, section: Section<'_>, key: &str) -> Option<usize> {
        let (key, _) = section.table.iter().find(|(name, _)| name.get_ref() == key)?;
        Some(self.line(&key.span()))
    }

    fn value<'a>(&self, section: Section<'a>, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        section.table.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
    }

    /// A text value, if it is one. Whoever reads it notes what is wrong.
    pub(super) fn peek<'a>(&self, section: Section<'a>, key: &str) -> Option<&'a str> {
        self.value(section, key)?.get_ref().as_str()
    }

    /// A text value.
    pub(super) fn string<'a>(&mut self, section: Section<'a>, key: &str) -> Option<Found<&'a str>> {
        let value = self.value(section, key)?;
        let line = self.line(&value.span());
        let Some(text) = value.get_ref().as_str() else {
            self.wrong(section, key, line, format!("it is {}, not a text in quotes", name_of(value.get_ref())));
            return None;
        };
        Some(Found { value: text, line })
    }

    /// A text with a parsed meaning, such as an address or a quantity.
    pub(super) fn parsed<T: FromStr<Err: Display>>(&mut self, section: Section<'_>, key: &str) -> Option<Found<T>> {
        let Found { value: text, line } = self.string(section, key)?;
        match text.parse() {
            Ok(value) => Some(Found { value, line }),
            Err(error) => {
                let error = error.to_string();
                // Some errors already quote the text.
                let quoted = error.contains(&format!("`{text}`"));
                self.wrong(section, key, line, if quoted { error } else { format!("{text:?}: {error}") });
                None
            }
        }
    }

    /// Up to `most` parsed values, separated by commas. Notes each wrong one.
    pub(super) fn list<T: FromStr<Err: Display>>(
        &mut self,
        section: Section<'_>,
        key: &str,
        most: usize,
    ) -> Vec<Found<T>> {
        let Some(Found { value: text, line }) = self.string(section, key) else { return Vec::new() };
        let count = text.split(',').count();
        if count > most {
            self.wrong(section, key, line, format!("these are {count}, more than {most}"));
            return Vec::new();
        }
        let mut values = Vec::new();
        for part in text.split(',').map(str::trim) {
            match part.parse() {
                Ok(value) => values.push(Found { value, line }),
                Err(error) => self.wrong(section, key, line, format!("{part:?}: {error}")),
            }
        }
        values
    }

    /// One of several words.
    pub(super) fn word<T: Copy>(
        &mut self,
        section: Section<'_>,
        key: &str,
        words: &[(&'static str, T)],
    ) -> Option<Found<T>> {
        let Found { value: text, line } = self.string(section, key)?;
        let known = words.iter().find(|(word, _)| *word == text);
        if known.is_none() {
            let meant = did_you_mean(text, words.iter().map(|(word, _)| *word));
            self.wrong(section, key, line, format!("{text:?} is not known{meant}"));
        }
        known.map(|(_, value)| Found { value: *value, line })
    }

    /// `true` or `false`.
    pub(super) fn boolean(&mut self, section: Section<'_>, key: &str) -> Option<Found<bool>> {
        let value = self.value(section, key)?;
        let line = self.line(&value.span());
        let found = value.get_ref().as_bool();
        if found.is_none() {
            self.wrong(section, key, line, format!("it is {}, not true or false", name_of(value.get_ref())));
        }
        found.map(|value| Found { value, line })
    }

    /// A whole number within the range of the key's form.
    pub(super) fn integer(&mut self, section: Section<'_>, key: &str) -> Option<Found<u32>> {
        let form = section.kind.keys.iter().find(|known| known.name == key).map(|known| known.form);
        let (least, most) = if let Some(Form::Number(least, most)) = form { (least, most) } else { (0, u32::MAX) };
        let value = self.value(section, key)?;
        let line = self.line(&value.span());
        let Some(number) = value.get_ref().as_integer() else {
            self.wrong(section, key, line, format!("it is {}, not a whole number", name_of(value.get_ref())));
            return None;
        };
        let number = i128::from_str_radix(number.as_str(), number.radix()).ok();
        match number.and_then(|number| u32::try_from(number).ok()).filter(|number| (least..=most).contains(number)) {
            Some(value) => Some(Found { value, line }),
            None => {
                let shown = number.map_or_else(|| "it".to_owned(), |number| number.to_string());
                let what = format!("{shown} is not from {least} to {most}");
                self.wrong(section, key, line, what);
                None
            }
        }
    }
}

/// Checks that a quantity is within its range. Otherwise notes a mistake.
pub fn within<T: PartialOrd + Display>(
    walk: &mut Walk,
    section: Section<'_>,
    key: &str,
    found: &Found<T>,
    (least, most): (T, T),
) -> bool {
    let fits = found.value >= least && found.value <= most;
    if !fits {
        let size = if found.value < least { "small" } else { "large" };
        walk.wrong(section, key, found.line, format!("{} is too {size}", found.value));
    }
    fits
}

/// The name of a TOML type, for a person.
fn name_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// A key in a form that is safe for a terminal.
fn printable(key: &str) -> String {
    let plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_graphic());
    if plain { key.to_owned() } else { format!("{key:?}") }
}
