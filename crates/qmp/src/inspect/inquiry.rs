//! The questions to a QEMU, one after the other, and how its answers become facts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Device, Disk, Facts, Memory, Network, Properties, too_old};
use crate::{Answer, Command, Dialogue, Item, Version};

/// Devices of a VM; one with more is refused.
const DEVICES_MAX: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Question {
    Version,
    Commands,
    Name,
    Uuid,
    Status,
    Migration,
    Machine,
    Objects,
    MemoryBackend(String),
    Containers,
    Device(String),
    Processors,
    Processor(String),
    Functions,
    Disks,
    Nodes,
    Sockets,
    Networks,
}

/// The first questions; answers bring more.
const FIRST: &[Question] = &[
    Question::Version,
    Question::Commands,
    Question::Name,
    Question::Uuid,
    Question::Status,
    Question::Migration,
    Question::Machine,
    Question::Objects,
    Question::Containers,
    Question::Processors,
    Question::Functions,
    Question::Disks,
    Question::Nodes,
    Question::Sockets,
    Question::Networks,
];

/// Asks a QEMU what it runs: a [`Dialogue`] of some 30 short questions, which changes nothing. About 20 ms with an idle QEMU.
#[derive(Debug)]
pub struct Inquiry {
    limit: Duration,
    deadline: Option<Instant>,
    queue: VecDeque<Question>,
    given: Option<Question>,
    under_way: Option<(u64, Question)>,
    facts: Facts,
    /// Under each block node: its driver and its children.
    nodes: BTreeMap<String, (String, Vec<String>)>,
    /// Disks with their root nodes.
    roots: Vec<(Disk, String)>,
    result: Option<Result<Facts, String>>,
}

impl Inquiry {
    /// All answers must come within `limit`.
    pub fn new(limit: Duration) -> Inquiry {
        let facts = Facts {
            version: Version { major: 0, minor: 0, micro: 0 },
            name: None,
            uuid: String::new(),
            status: String::new(),
            migration: None,
            blockers: Vec::new(),
            has_colo: false,
            machine: Properties::new(),
            processor: Properties::new(),
            memory: BTreeMap::new(),
            devices: BTreeMap::new(),
            functions: BTreeMap::new(),
            disks: Vec::new(),
            sockets: Vec::new(),
            networks: Vec::new(),
        };
        Inquiry {
            limit,
            deadline: None,
            queue: FIRST.iter().cloned().collect(),
            given: None,
            under_way: None,
            facts,
            nodes: BTreeMap::new(),
            roots: Vec::new(),
            result: None,
        }
    }

    /// The facts, or a sentence that says why there are none: a QEMU that is too old to be asked, or that does not answer. `None`: not yet.
    pub fn result(&self) -> Option<&Result<Facts, String>> {
        self.result.as_ref()
    }

    fn answered(&mut self, question: Question, answer: &Answer) -> Result<(), String> {
        let value = match answer {
            Ok(value) => value,
            Err(failure) => return Err(format!("QEMU refuses {}: {failure}", command(&question).name)),
        };
        let strange = || format!("QEMU's answer to {} is not understood", command(&question).name);
        let facts = &mut self.facts;
        match &question {
            Question::Version => {
                facts.version = Version::read(value).ok_or_else(strange)?;
                // Older ones lack some of the questions.
                too_old(facts.version).map_or(Ok(()), Err)?;
            }
            Question::Commands => {
                facts.has_colo = list(value).any(|command| command["name"] == "x-colo-lost-heartbeat")
            }
            Question::Name => facts.name = value["name"].as_str().map(str::to_owned),
            Question::Uuid => facts.uuid = value["UUID"].as_str().ok_or_else(strange)?.to_owned(),
            Question::Status => facts.status = value["status"].as_str().ok_or_else(strange)?.to_owned(),
            Question::Migration => {
                facts.migration = value["status"].as_str().map(str::to_owned);
                let reasons = list(&value["blocked-reasons"]);
                facts.blockers = reasons.filter_map(|reason| reason.as_str().map(str::to_owned)).collect();
            }
            Question::Machine => facts.machine = machine(value),
            Question::Objects => {
                for (name, kind, _) in properties(value) {
                    if kind.starts_with("child<memory-backend-") {
                        self.queue.push_back(Question::MemoryBackend(format!("/objects/{name}")));
                    }
                }
            }
            Question::MemoryBackend(path) => {
                let plain = plain(value);
                let kind = plain.get("type").and_then(Value::as_str).ok_or_else(strange)?.to_owned();
                let is_shared = plain.get("share") == Some(&Value::Bool(true));
                let id = path.rsplit('/').next().unwrap_or(path).to_owned();
                facts.memory.insert(id, Memory { kind, is_shared });
            }
            Question::Containers => {
                let children = list(value).flat_map(of_object).filter(|(_, kind, _)| kind.starts_with("child<"));
                let paths = children.filter_map(|(_, _, value)| value.as_str().map(str::to_owned));
                self.queue.extend(paths.map(Question::Device));
                if self.queue.len() > DEVICES_MAX {
                    return Err(format!("the VM has more than {DEVICES_MAX} devices"));
                }
            }
            Question::Device(path) => {
                let (place, device) = device(path, value).ok_or_else(strange)?;
                facts.devices.insert(place, device);
            }
            Question::Processors => {
                let path = list(value).next().and_then(|first| first["qom-path"].as_str()).ok_or_else(strange)?;
                self.queue.push_back(Question::Processor(path.to_owned()));
            }
            Question::Processor(_) => facts.processor = plain(value),
            Question::Functions => facts.functions = functions(value),
            Question::Disks => self.roots = list(value).filter_map(disk).collect(),
            Question::Nodes => self.nodes = list(value).filter_map(node).collect(),
            Question::Sockets => facts.sockets = list(value).filter_map(socket).collect(),
            Question::Networks => facts.networks = networks(value.as_str().ok_or_else(strange)?),
        }
        Ok(())
    }

    fn finish(&mut self) {
        for (mut disk, root) in std::mem::take(&mut self.roots) {
            disk.is_replicated = has_replication(&self.nodes, &root);
            self.facts.disks.push(disk);
        }
        self.result = Some(Ok(self.facts.clone()));
    }
}

impl Dialogue for Inquiry {
    fn command(&mut self, now: Instant) -> Option<Command> {
        if self.result.is_some() {
            return None;
        }
        let deadline = *self.deadline.get_or_insert(now + self.limit);
        if now >= deadline {
            let name = self.under_way.as_ref().map_or("the QMP greeting", |(_, question)| command(question).name);
            self.result =
                Some(Err(format!("QEMU has not answered {name} within {:?}: its main loop is stuck", self.limit)));
            return None;
        }
        if self.under_way.is_some() {
            return None;
        }
        let Some(question) = self.queue.pop_front() else {
            self.finish();
            return None;
        };
        let command = command(&question);
        self.given = Some(question);
        Some(command)
    }

    fn sent(&mut self, id: u64) {
        self.under_way = self.given.take().map(|question| (id, question));
    }

    fn hear(&mut self, item: &Item, _now: Instant) {
        let Item::Answer { id, result } = item else { return };
        if let Some((_, question)) = self.under_way.take_if(|(under_way, _)| under_way == id)
            && let Err(why) = self.answered(question, result)
        {
            self.result.get_or_insert(Err(why));
        }
    }

    fn wake_at(&self) -> Option<Instant> {
        self.deadline.filter(|_| self.result.is_none())
    }
}

fn command(question: &Question) -> Command {
    let get = |paths: &[&str]| Command::new("qom-list-get", json!({"paths": paths}));
    let plain = |name| Command::new(name, json!({}));
    match question {
        Question::Version => plain("query-version"),
        Question::Commands => plain("query-commands"),
        Question::Name => plain("query-name"),
        Question::Uuid => plain("query-uuid"),
        Question::Status => plain("query-status"),
        Question::Migration => plain("query-migrate"),
        Question::Machine => get(&["/machine"]),
        Question::Objects => get(&["/objects"]),
        Question::Containers => get(&["/machine/peripheral", "/machine/peripheral-anon"]),
        Question::MemoryBackend(path) | Question::Device(path) | Question::Processor(path) => get(&[path]),
        Question::Processors => plain("query-cpus-fast"),
        Question::Functions => plain("query-pci"),
        Question::Disks => plain("query-block"),
        Question::Nodes => plain("query-named-block-nodes"),
        Question::Sockets => plain("query-chardev"),
        // No other command tells the kind of a network back end.
        Question::Networks => Command::new("human-monitor-command", json!({"command-line": "info network"})),
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Name, type and value of an object's properties, as `qom-list-get` gives them.
fn of_object(object: &Value) -> impl Iterator<Item = (&str, &str, &Value)> {
    list(&object["properties"]).filter_map(|property| {
        Some((property["name"].as_str()?, property["type"].as_str()?, property.get("value").unwrap_or(&Value::Null)))
    })
}

/// Those of the first object.
fn properties(value: &Value) -> impl Iterator<Item = (&str, &str, &Value)> {
    list(value).take(1).flat_map(of_object)
}

fn plain(value: &Value) -> Properties {
    let is_plain = |kind: &str, value: &Value| {
        !kind.starts_with("link<")
            && !kind.starts_with("child<")
            && matches!(value, Value::Bool(_) | Value::Number(_) | Value::String(_))
    };
    properties(value)
        .filter(|(_, kind, value)| is_plain(kind, value))
        .map(|(name, _, value)| (name.to_owned(), value.clone()))
        .collect()
}

/// Type, and the members of memory and processors: `memory.size`, `smp.cpus`.
fn machine(value: &Value) -> Properties {
    let mut all = Properties::new();
    for (name, _, value) in properties(value) {
        match (name, value) {
            ("type", value) => drop(all.insert(name.to_owned(), value.clone())),
            ("memory" | "smp", Value::Object(members)) => {
                all.extend(members.iter().map(|(member, value)| (format!("{name}.{member}"), value.clone())));
            }
            _ => {}
        }
    }
    all
}

/// A device's place: bus and address of a PCI device, so that the order of the command line does not matter; otherwise its path.
fn device(path: &str, value: &Value) -> Option<(String, Device)> {
    let bus = properties(value).find(|(name, ..)| *name == "parent_bus").and_then(|(_, _, bus)| bus.as_str());
    let properties = plain(value);
    let kind = properties.get("type")?.as_str()?.to_owned();
    // `addr` is slot × 8 + function.
    let place = match (bus, properties.get("addr").and_then(Value::as_u64)) {
        (Some(bus), Some(addr)) => {
            format!("{:02x}.{} of {}", addr >> 3, addr & 7, bus.rsplit('/').next().unwrap_or(bus))
        }
        _ => path.to_owned(),
    };
    Some((place, Device { kind, properties }))
}

/// Only the root bus: a secondary's guest has not numbered the others yet.
fn functions(value: &Value) -> BTreeMap<String, String> {
    let root = list(value).find(|bus| bus["bus"] == 0);
    let devices = root.into_iter().flat_map(|bus| list(&bus["devices"]));
    let entry = |device: &Value| {
        let number = |value: &Value| value.as_u64();
        let at = format!("{:02x}.{}", number(&device["slot"])?, number(&device["function"])?);
        Some((at, format!("{:04x}:{:04x}", number(&device["id"]["vendor"])?, number(&device["id"]["device"])?)))
    };
    devices.filter_map(entry).collect()
}

fn disk(value: &Value) -> Option<(Disk, String)> {
    let medium = value.get("inserted")?;
    let named = value["device"].as_str().filter(|name| !name.is_empty());
    let name = named.or(value["qdev"].as_str()).or(medium["node-name"].as_str())?.to_owned();
    let is_writable = medium["ro"] != true;
    Some((Disk { name, is_writable, is_replicated: false }, medium["node-name"].as_str()?.to_owned()))
}

fn node(value: &Value) -> Option<(String, (String, Vec<String>))> {
    let children =
        list(&value["children"]).filter_map(|child| child["node-name"].as_str().map(str::to_owned)).collect();
    Some((value["node-name"].as_str()?.to_owned(), (value["drv"].as_str()?.to_owned(), children)))
}

fn has_replication(nodes: &BTreeMap<String, (String, Vec<String>)>, root: &str) -> bool {
    let (mut open, mut seen) = (vec![root], BTreeSet::new());
    while let Some(name) = open.pop() {
        if let Some((driver, children)) = nodes.get(name)
            && seen.insert(name)
        {
            if driver == "replication" {
                return true;
            }
            open.extend(children.iter().map(String::as_str));
        }
    }
    false
}

/// `unix:/run/vm1.sock`, `disconnected:unix:/run/vm1.sock,server=on`.
fn socket(value: &Value) -> Option<String> {
    let path = value["filename"].as_str()?.trim_start_matches("disconnected:").strip_prefix("unix:")?;
    Some(path.split(',').next().unwrap_or(path).to_owned())
}

/// Lines such as ` \ n0: index=0,type=tap,ifname=tap0` (net/net.c); a `nic` is an adapter, and no back end.
fn networks(text: &str) -> Vec<Network> {
    let network = |line: &str| {
        let (name, words) = line.trim_start_matches([' ', '\\']).split_once(": ")?;
        let kind = words.split(',').find_map(|word| word.trim().strip_prefix("type="))?;
        (kind != "nic").then(|| Network { name: name.to_owned(), kind: kind.to_owned() })
    };
    text.lines().filter_map(network).collect()
}
