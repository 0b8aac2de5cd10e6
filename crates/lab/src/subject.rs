//! The rows of a study's tables: adapters with their servers and drivers, and the native row.

use serde::{Deserialize, Serialize};

use crate::method::{Contestant, Driver, Server};

/// Name of the subject without a virtual machine, as a row and in `--adapters`.
pub const NATIVE: &str = "native";

/// A row of the tables: an adapter with its server and driver, or the same programs without a virtual machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Subject {
    /// The adapter's name in the registry, or [`NATIVE`].
    pub adapter: String,
    /// The adapter's server. None: there is no virtual machine.
    pub server: Option<Server>,
    /// The adapter's driver, where it is not the guest kernel's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<Driver>,
}

impl Subject {
    /// `adapter` served by `server`.
    pub fn new(adapter: &str, server: Server) -> Subject {
        Subject { adapter: adapter.to_owned(), server: Some(server), driver: None }
    }

    /// The same programs between two namespaces.
    pub fn native() -> Subject {
        Subject { adapter: NATIVE.to_owned(), server: None, driver: None }
    }

    /// Whether it is the same programs between two namespaces.
    pub fn is_native(&self) -> bool {
        self.adapter == NATIVE
    }

    /// The contestant to boot. None without a virtual machine.
    pub fn contestant(&self) -> Option<Contestant> {
        let Subject { adapter, server, driver } = self.clone();
        Some(Contestant { adapter, server: server?, driver })
    }

    /// Its server, for readers.
    pub fn served(&self) -> &'static str {
        // A forwarder such as testpmd has no server but itself.
        let without = if self.is_native() { "no virtual machine" } else { "itself" };
        self.server.map_or(without, Server::title)
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.server {
            Some(server) => write!(f, "{} by {server}", self.adapter),
            None => f.write_str(&self.adapter),
        }
    }
}

/// The names of all subjects' adapters, each once.
pub(crate) fn adapters(subjects: &[Subject]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for subject in subjects {
        if !names.contains(&subject.adapter.as_str()) {
            names.push(&subject.adapter);
        }
    }
    names
}
