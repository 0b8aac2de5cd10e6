//! Terms of single ports inside a class: `shares_of`, `reservation_of` and `limit_of`, and minimum rates of functions.

use std::fmt::Display;
use std::str::FromStr;

use nicety_ioc::Terms;
use nicety_uplink::Rate;
use toml::{Table, Value};

use super::around::{Around, NAMES_MAX};
use super::errors::did_you_mean;
use super::io_class::{IoClassConfig, index_of};
use super::walk::{Found, Section, Walk};

/// A lower limit would keep a segmented packet of 64 KiB for more than half a second.
pub(super) const LIMIT_MIN: u64 = 1_000_000;

/// The keys of a class by which a port has these terms of its own (`shares`, `reservation`, `limit`): one without a value is that of the
/// class's other ports. Other ports' terms stay.
pub fn with_port_terms(class: &Table, port: &str, terms: &[(String, Option<Value>)]) -> Vec<(String, Option<Value>)> {
    let of_term = |(term, value): &(String, Option<Value>)| {
        let key = format!("{term}_of");
        let before = class.get(&key).and_then(Value::as_str).unwrap_or_default();
        let mut entries: Vec<String> =
            before.split(',').map(|one| one.trim().to_owned()).filter(|one| !one.is_empty()).collect();
        let is_its = |one: &String| one.split_once('=').is_some_and(|(name, _)| name.trim() == port);
        let at = entries.iter().position(is_its);
        entries.retain(|one| !is_its(one));
        if let Some(value) = value {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            entries.insert(at.unwrap_or(entries.len()), format!("{port}={text}"));
        }
        (key, (!entries.is_empty()).then(|| Value::from(entries.join(","))))
    };
    terms.iter().map(of_term).collect()
}

/// A port's name and a value: `vm1=80`.
struct Named<T> {
    port: String,
    value: T,
}

impl<T: FromStr<Err: Display>> FromStr for Named<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (port, value) = text.split_once('=').ok_or("write a port, = and its value")?;
        let value = value.trim().parse().map_err(|error: T::Err| error.to_string())?;
        Ok(Self { port: port.trim().to_owned(), value })
    }
}

/// Reads the terms of single ports. A value that no key gives a port is that of the class's other ports (`each`).
pub(super) fn single(
    walk: &mut Walk,
    section: Section<'_>,
    (each, members): (Terms, Option<&Vec<String>>),
    around: &Around<'_>,
) -> Vec<(String, Terms)> {
    let mut single = Vec::new();
    for (port, Found { value, line }) in named::<u16>(walk, section, "shares_of", members, around) {
        if !(1..=100).contains(&value) {
            walk.wrong(section, "shares_of", line, format!("{value} is not from 1 to 100"));
        }
        let at = index_of(&mut single, &port, each);
        single[at].1.shares = value;
    }
    for (port, Found { value, .. }) in named::<Rate>(walk, section, "reservation_of", members, around) {
        let at = index_of(&mut single, &port, each);
        single[at].1.reservation = Some(value);
    }
    for (port, Found { value, line }) in named::<Rate>(walk, section, "limit_of", members, around) {
        if value.bits_per_second() < LIMIT_MIN {
            walk.wrong(section, "limit_of", line, format!("{value} is too small"));
        }
        let at = index_of(&mut single, &port, each);
        single[at].1.limit = Some(value);
    }
    for (port, terms) in &single {
        if let (Some(reserved), Some(limit)) = (terms.reservation, terms.limit)
            && reserved > limit
        {
            let key = if terms.limit == each.limit { "reservation_of" } else { "limit_of" };
            let line = walk.place(section, key).unwrap_or(section.line);
            let what = format!("{reserved} are reserved for {port}, and only {limit} may be sent");
            walk.wrong(section, key, line, what);
        }
    }
    single
}

/// The ports of a key with their values.
fn named<T: FromStr<Err: Display>>(
    walk: &mut Walk,
    section: Section<'_>,
    key: &str,
    members: Option<&Vec<String>>,
    around: &Around<'_>,
) -> Vec<(String, Found<T>)> {
    let mut found: Vec<(String, Found<T>)> = Vec::new();
    for Found { value: Named { port, value }, line } in walk.list::<Named<T>>(section, key, NAMES_MAX) {
        let names = || around.ports.iter().map(|port| port.name.as_str());
        let what = if !names().any(|name| name == port) {
            format!("there is no port {port:?}{}", did_you_mean(&port, names()))
        } else if members.is_some_and(|members| !members.contains(&port)) {
            format!("{port} is none of the class's ports and groups")
        } else if found.iter().any(|(other, _)| *other == port) {
            format!("{port} is there twice")
        } else {
            found.push((port, Found { value, line }));
            continue;
        };
        walk.wrong(section, key, line, what);
    }
    found
}

/// Checks that what is reserved for a class's ports is within its own reservation.
pub(super) fn within_class(walk: &mut Walk, section: Section<'_>, class: &IoClassConfig, ports: usize) {
    let reserved = class.reservations_of_ports(ports);
    let sum: u64 = reserved.iter().fold(0, |sum, rate| sum.saturating_add(rate.bits_per_second()));
    if sum <= class.terms.reservation.map_or(0, Rate::bits_per_second) {
        return;
    }
    let is_single = walk.place(section, "reservation_of").is_some();
    let key = if is_single { "reservation_of" } else { "port_reservation" };
    let line = walk.place(section, key).unwrap_or(section.line);
    let has = class.terms.reservation.map_or_else(|| "none".to_owned(), |rate| rate.to_string());
    let shown = Rate::new(sum).map_or_else(|| format!("{sum}bit/s"), |sum| sum.to_string());
    let parts = match class.each.reservation {
        Some(each) if !is_single => format!("{} × {each}", sum / each.bits_per_second()),
        _ => reserved.iter().map(Rate::to_string).collect::<Vec<_>>().join(" + "),
    };
    let what = format!("{parts} = {shown} are reserved for its ports, and for the class: {has}");
    walk.wrong(section, key, line, what);
}
