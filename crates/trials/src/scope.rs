//! Scope of the tests: the default, which grows by a constant for each adapter, or all, for `cargo xtask test --full`.

use nicety_adapters::{Entry, REGISTRY, find};

use crate::guest::driver;

/// The environment variable for tests: `1` for all.
pub const VARIABLE: &str = "NICETY_FULL";

/// The peer of every adapter: the adapter with most features in both adapter and driver.
const REFERENCE: &str = "vmxnet3";

/// See [`few()`].
const FEW: [&str; 4] = ["pcnet", "e1000e", "vmxnet3", "virtio-net"];

/// The environment variable that selects adapters for tests, separated by commas. Tests over [`entries()`] then run with these
/// only.
pub const ADAPTERS: &str = "NICETY_ADAPTERS";

/// Whether all tests are to run.
pub fn is_full() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| value == "1")
}

/// One adapter for each driver, the first in the registry. These tests cover a family's code more than a chip's.
pub fn families() -> Vec<&'static Entry> {
    let mut seen = Vec::new();
    let is_new = |entry: &&Entry| {
        let name = driver(entry.about.name).name;
        let new = !seen.contains(&name);
        seen.push(name);
        new
    };
    REGISTRY.iter().filter(is_new).collect()
}

/// The adapters of expensive tests: one of each family; with the full scope each adapter; or those selected by name. The default
/// leaves out an adapter without DMA: it costs its guest hundreds of messages a frame, so that a test of a minute would take an
/// hour.
///
/// # Panics
/// If a selected adapter is not registered.
pub fn entries() -> Vec<&'static Entry> {
    match std::env::var(ADAPTERS).ok() {
        Some(names) => named(&names),
        None if is_full() => REGISTRY.iter().collect(),
        None => families().into_iter().filter(|entry| entry.about.dma).collect(),
    }
}

/// Whether the selection by name includes this adapter, or no selection was made.
pub fn is_asked(adapter: &str) -> bool {
    std::env::var(ADAPTERS).ok().is_none_or(|names| named(&names).iter().any(|entry| entry.about.name == adapter))
}

/// Whether adapters were selected by name.
pub fn is_selected() -> bool {
    std::env::var_os(ADAPTERS).is_some()
}

/// Whether neither all tests nor some adapters were asked for.
pub fn is_usual() -> bool {
    !is_full() && !is_selected()
}

/// The adapters with these names.
fn named(names: &str) -> Vec<&'static Entry> {
    let entry = |name| find(name).unwrap_or_else(|| panic!("{ADAPTERS}={names}: no adapter is called {name:?}"));
    names.split(',').map(entry).collect()
}

/// Adapters for tests of what all share, one of each way to a guest: an interrupt line, MSI-X, a paravirtual ring over vfio-user, and
/// vhost-user. With the full scope, or by name, as [`in_linux`].
pub fn few() -> Vec<&'static Entry> {
    let mut all = in_linux();
    if is_usual() {
        all.retain(|entry| FEW.contains(&entry.about.name));
    }
    all
}

/// The adapters of [`entries()`] that Linux has a driver for.
pub fn in_linux() -> Vec<&'static Entry> {
    entries().into_iter().filter(|entry| entry.about.in_linux()).collect()
}

/// The peer of every adapter.
///
/// # Panics
/// If it is not registered.
pub fn reference() -> &'static Entry {
    find(REFERENCE).unwrap_or_else(|| panic!("{REFERENCE} is registered"))
}

/// Pairs of sender and receiver: each adapter with itself, and to and from the [`reference()`]; with the full scope, each to each.
pub fn pairs(entries: &[&'static Entry]) -> Vec<[&'static Entry; 2]> {
    let all = entries.iter().flat_map(|&from| entries.iter().map(move |&to| [from, to]));
    let is_usual = |pair: &[&Entry; 2]| {
        let [from, to] = pair.map(|entry| entry.about.name);
        from == to || [from, to].contains(&REFERENCE)
    };
    all.filter(|pair| is_full() || is_usual(pair)).collect()
}

/// The same pairs, as positions in a list of adapters by name.
pub fn pairs_of(adapters: &[&str]) -> Vec<[usize; 2]> {
    let entries: Vec<&Entry> = adapters.iter().filter_map(|name| find(name)).collect();
    let place = |entry: &Entry| adapters.iter().position(|name| *name == entry.about.name);
    let places = |[from, to]: [&Entry; 2]| Some([place(from)?, place(to)?]);
    pairs(&entries).into_iter().filter_map(places).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "NICETY_ADAPTERS=igb,typo: no adapter is called \"typo\"")]
    fn adapters_are_asked_for_by_name_and_one_that_is_not_there_ends_the_test() {
        let names = |list: &str| -> Vec<&str> { named(list).iter().map(|entry| entry.about.name).collect() };
        assert_eq!(names("igb,ne2k_pci"), ["igb", "ne2k_pci"]);
        names("igb,typo");
    }

    #[test]
    fn pairs_grow_by_three_for_each_adapter_and_each_driver_has_a_family() {
        let all = REGISTRY.iter().collect::<Vec<_>>();
        let usual = if is_full() { all.len() * all.len() } else { 3 * all.len() - 2 };
        assert_eq!(pairs(&all).len(), usual);
        assert_eq!(families().len(), nicety_drivers::DRIVERS.len());
        assert!(families().iter().any(|entry| entry.about.name == reference().about.name));
        assert!(FEW.iter().all(|name| families().iter().any(|entry| entry.about.name == *name)));
    }
}
