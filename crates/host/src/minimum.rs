//! Minimum rates of functions (`min_rate` of a port): reservations of ports in a class of their cards' uplinks.

use nicety_uplink::Rate;

use super::card::CardConfig;
use super::io_class::IoClassConfig;
use super::port::PortConfig;

/// A function's minimum rate.
#[derive(Clone, Debug)]
pub(super) struct Minimum {
    /// The function's port.
    pub port: String,
    /// The uplink or team of its card.
    pub uplink: String,
    pub rate: Rate,
}

impl Minimum {
    /// The minimum rate of a port, if it has one.
    pub(super) fn of(port: &PortConfig, cards: &[CardConfig]) -> Option<Self> {
        let function = port.function.as_ref()?;
        let card = cards.iter().find(|card| card.name == function.card)?;
        Some(Self { port: port.name.clone(), uplink: card.uplink.clone()?, rate: function.min_rate? })
    }
}

/// Gives each minimum rate to the class of its port's frames: the first that has all of them, else that of the rest, which is the first in
/// the list. A class's reservation is at least the sum of its ports'. `ports`: the number of all ports.
pub(super) fn reserve<'a>(
    classes: &mut [IoClassConfig],
    minimums: impl IntoIterator<Item = &'a Minimum>,
    ports: usize,
) {
    for Minimum { port, rate, .. } in minimums {
        let others = classes.iter().skip(1);
        let at = others.zip(1..).find(|(class, _)| class.has_all_frames_of(port)).map_or(0, |(_, at)| at);
        if let Some(class) = classes.get_mut(at) {
            class.minimums.push((port.clone(), *rate));
        }
    }
    for class in classes.iter_mut().filter(|class| !class.minimums.is_empty()) {
        let sum = Rate::new(class.reservations_of_ports(ports).iter().map(|rate| rate.bits_per_second()).sum());
        class.terms.reservation = class.terms.reservation.max(sum);
    }
}

#[cfg(test)]
#[path = "minimum_test.rs"]
mod tests;
