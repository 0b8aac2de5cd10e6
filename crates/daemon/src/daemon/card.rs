//! Cards: families of the ports that are their functions.

use std::sync::Arc;

use nicety_adapter::PortId;
use nicety_adapter::family::FunctionPolicy;
use nicety_adapters::Card;
use nicety_host::{CardConfig, FunctionConfig, LinkState};
use nicety_plane::{AdapterLink, Port, SharedFamily};

use super::{Daemon, PortSpec, Running};

/// A card that is open.
#[derive(Debug)]
pub(super) struct RunningCard {
    name: String,
    /// The adapter that its functions are.
    adapter: &'static str,
    family: SharedFamily,
    /// The uplink or team whose carrier is its link.
    uplink: Option<String>,
}

impl RunningCard {
    fn new(name: &str, adapter: &'static str, card: Card) -> Self {
        // Each function gets its own policy as its port is opened.
        let nobody = FunctionPolicy { trusted: false, ..FunctionPolicy::free(nicety_frame::Mac([0; 6])) };
        let family = SharedFamily::new((card.family)(vec![nobody; card.functions.into()]));
        Self { name: name.to_owned(), adapter, family, uplink: None }
    }
}

impl Daemon {
    /// Makes a card, or gives the one of this name another uplink.
    pub fn set_card(&self, config: &CardConfig) {
        self.with_card(&config.name, config.entry.about.name, config.entry.card, |card| {
            card.uplink.clone_from(&config.uplink);
        });
        self.link_functions();
    }

    /// Forgets a card. None of its functions is a port any more.
    pub fn remove_card(&self, name: &str) {
        self.cards().retain(|card| card.name != name);
    }

    /// Resets a card: the driver of each of its functions is told, and must reset it. Returns false if there is no such card.
    pub fn reset_card(&self, name: &str) -> bool {
        for running in self.ports().values().filter(|running| running.spec.is_of(name)) {
            running.port.reset_function();
        }
        self.cards().iter().any(|card| card.name == name)
    }

    fn with_card<R>(
        &self,
        name: &str,
        adapter: &'static str,
        kind: Option<Card>,
        act: impl FnOnce(&mut RunningCard) -> R,
    ) -> Option<R> {
        let mut cards = self.cards();
        // A card of another chip is another card.
        cards.retain(|card| card.name != name || card.adapter == adapter);
        if !cards.iter().any(|card| card.name == name) {
            cards.push(RunningCard::new(name, adapter, kind?));
        }
        cards.iter_mut().find(|card| card.name == name).map(act)
    }

    /// Gives a port its place on its card, or makes it a card of its own.
    pub(super) fn seat(&self, port: &Arc<Port>, spec: &PortSpec) {
        let Some(kind) = spec.config.entry.card else { return };
        let free = FunctionPolicy::free(spec.config.mac);
        let Some(function) = &spec.config.function else {
            port.join_family(&SharedFamily::new((kind.family)(vec![free])), 0, None);
            return;
        };
        let family = self.with_card(&function.card, spec.config.entry.about.name, spec.config.entry.card, |card| {
            card.family.clone()
        });
        if let Some(family) = family {
            let policy = FunctionPolicy {
                trusted: function.trusted,
                queries_rss: function.queries_rss,
                checks_tags: function.checks_source && !function.trusted,
                ..free
            };
            port.join_family(&family, function.number, Some(policy));
        }
    }

    /// The link of a new port. It is up without this, but for that of a card's adapter.
    pub(super) fn link_port(&self, running: &Running) {
        let config = &running.spec.config;
        if config.entry.card.is_some() || config.link != LinkState::Auto || config.waits_for_group {
            self.set_link(running);
        }
    }

    /// A port's link is up, and a function's its card's, unless the host forces it up or down, or its group is not known yet.
    pub(super) fn set_link(&self, running: &Running) {
        let config = &running.spec.config;
        let link = match (config.link, &config.function) {
            _ if config.waits_for_group => AdapterLink::Down,
            (LinkState::Disable, _) => AdapterLink::Down,
            (LinkState::Auto, Some(function)) => self.uplink_of(function).map_or(AdapterLink::Up, AdapterLink::Carrier),
            _ => AdapterLink::Up,
        };
        running.parts().for_each(|part| self.plane.follow(part, link, self.clock.now()));
    }

    /// The links of all functions: an uplink was opened or closed, or a card has another one.
    pub(super) fn link_functions(&self) {
        self.ports()
            .values()
            .filter(|running| running.spec.config.function.is_some())
            .for_each(|one| self.link_port(one));
    }

    fn uplink_of(&self, function: &FunctionConfig) -> Option<PortId> {
        let name = self.cards().iter().find(|card| card.name == function.card)?.uplink.clone()?;
        let uplink = self.uplinks().iter().find(|uplink| uplink.name == name).map(|uplink| uplink.port.id());
        // One that is not open has no carrier, and no port has this number.
        uplink
            .or_else(|| self.teams().iter().find(|team| team.spec.name == name).map(|team| team.id))
            .or(Some(PortId(u16::MAX)))
    }
}

impl PortSpec {
    fn is_of(&self, card: &str) -> bool {
        self.config.function.as_ref().is_some_and(|function| function.card == card)
    }
}
