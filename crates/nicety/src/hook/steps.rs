//! The difference between the ports that a domain needs and those that a daemon has, as steps. It is pure: what it does not decide, a
//! caller asks the daemon to do.

use std::path::Path;

use nicety_frame::Mac;
use nicety_host::{Document, Host, List, PortConfig};
use toml::{Table, Value};

use super::domain::{Domain, is_of, text};

/// A change of one port.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Remove a port that this domain no longer has.
    Remove(String),
    /// Change a port that an earlier call made otherwise. A key without a value gets its default.
    Set(String, Vec<(String, Option<Value>)>),
    /// Add a port.
    Add(Table),
}

/// Names of the ports that this hook has made for a domain.
pub fn made(running: &Host, uuid: &str) -> Vec<String> {
    let made = running.ports.iter().filter(|port| is_of(port.origin.as_deref(), uuid));
    made.map(|port| port.name.clone()).collect()
}

/// The steps to the ports that a domain needs. What is there as it should be takes none.
///
/// # Errors
/// A port that the domain needs is another's: what to do, in a sentence.
pub fn steps(running: &Host, domain: &Domain) -> Result<Vec<Step>, String> {
    let ports = named(running, domain);
    let wanted = |name: &str| ports.iter().any(|port| text(port, "name") == name);
    let gone = made(running, &domain.uuid).into_iter().filter(|name| !wanted(name));
    let mut steps: Vec<Step> = gone.map(Step::Remove).collect();
    for port in &ports {
        steps.extend(step(running, domain, port)?);
    }
    Ok(steps)
}

/// The domain's ports with the names that they have. A port that is there already keeps its name, by its socket and address: with an interface
/// more or less the usual names are others, and a VM may be using it. A new port gets a usual name that is free.
fn named(running: &Host, domain: &Domain) -> Vec<Table> {
    let ours = running.ports.iter().filter(|there| is_of(there.origin.as_deref(), &domain.uuid));
    let there = |port: &Table| ours.clone().find(|there| is_same(there, port)).map(|there| there.name.clone());
    let is_given = |name: &str| domain.named.iter().any(|given| given == name);
    let stays = |port: &Table| if is_given(text(port, "name")) { None } else { there(port) };
    let mut taken: Vec<String> = domain.named.iter().cloned().chain(domain.ports.iter().filter_map(stays)).collect();
    let mut name = |port: &Table| {
        let usual = text(port, "name");
        if is_given(usual) {
            return usual.to_owned();
        }
        if let Some(name) = there(port) {
            return name;
        }
        let more = (1..).map(|number| Domain::usual(&domain.name, number));
        let free = std::iter::once(usual.to_owned()).chain(more).find(|name| !taken.contains(name));
        let name = free.unwrap_or_default();
        taken.push(name.clone());
        name
    };
    let with_name = |port: &Table| {
        let mut port = port.clone();
        port.insert("name".to_owned(), Value::String(name(&port)));
        port
    };
    domain.ports.iter().map(with_name).collect()
}

/// The step of one port.
fn step(running: &Host, domain: &Domain, port: &Table) -> Result<Option<Step>, String> {
    let (name, socket) = (text(port, "name"), text(port, "socket"));
    if let Some(there) = running.port(name) {
        if is_of(there.origin.as_deref(), &domain.uuid) {
            let values = differing(&running.document.entry(List::Ports, name), port);
            return Ok((!values.is_empty()).then(|| Step::Set(name.to_owned(), values)));
        }
        return if is_own(there, port) { Ok(None) } else { Err(taken(there, domain, port)) };
    }
    let at_socket = running.ports.iter().find(|there| there.socket == Path::new(socket));
    match at_socket.filter(|there| !is_of(there.origin.as_deref(), &domain.uuid)) {
        Some(there) if is_own(there, port) => Ok(None),
        Some(there) => Err(taken(there, domain, port)),
        None => Ok(Some(Step::Add(port.clone()))),
    }
}

/// Whether a port that no hook has made is the one that the domain means: it has the socket and the address.
fn is_own(there: &PortConfig, port: &Table) -> bool {
    there.origin.is_none() && is_same(there, port)
}

/// Whether a port has the socket and the address of another one.
fn is_same(there: &PortConfig, port: &Table) -> bool {
    let is_address = text(port, "mac").parse::<Mac>().is_ok_and(|mac| mac == there.mac);
    is_address && there.socket == Path::new(text(port, "socket"))
}

/// The sentence about a port that is another's.
fn taken(there: &PortConfig, domain: &Domain, port: &Table) -> String {
    let whose = match &there.origin {
        Some(origin) => format!("made by {origin}"),
        None => "which no hook has made".to_owned(),
    };
    format!(
        "domain {} needs port {} at {} for {}; the daemon has port {}, {whose}, at {} for {}: remove that one, or give this one another \
         name or socket (<nicety:port mac='{}' name='…'/>)",
        domain.name,
        text(port, "name"),
        text(port, "socket"),
        text(port, "mac"),
        there.name,
        there.socket.display(),
        there.mac,
        text(port, "mac"),
    )
}

/// The values that make `old` into `new`.
fn differing(old: &Table, new: &Table) -> Vec<(String, Option<Value>)> {
    let gone = old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), None));
    let other = new.iter().filter(|(key, value)| old.get(*key) != Some(value));
    gone.chain(other.map(|(key, value)| (key.clone(), Some(value.clone())))).collect()
}

/// The host after these steps. The daemon reads it in the same way.
///
/// # Errors
/// It would be no host file: the mistakes, in sentences.
pub fn after(running: &Host, steps: &[Step]) -> Result<Host, String> {
    let dir = Path::new("/");
    let document = steps.iter().fold(running.document.clone(), |document: Document, step| match step {
        Step::Remove(name) => document.without(List::Ports, name),
        Step::Set(name, values) => document.with_values(List::Ports, name, values, dir),
        Step::Add(port) => document.with(List::Ports, port.clone(), dir),
    });
    let mistakes = |error: &nicety_host::HostError| error.to_string();
    let read = Host::parse_change(&document.text(), &running.path);
    read.map_err(|errors| errors.list.iter().map(mistakes).collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
#[path = "steps_test.rs"]
mod tests;
