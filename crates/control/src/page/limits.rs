//! The rates that the host file gives to links, classes and ports: lines in their charts.

use std::collections::BTreeMap;

use nicety_host::{Host, IoClassConfig, TeamMode, UplinkConfig};

use super::history::Series;

/// A line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Limit {
    /// `link`, `reserved` or `limit`: the name of its style.
    pub kind: &'static str,
    /// `link 10 Gbit/s`.
    pub words: String,
    /// The rate in bit/s.
    pub bits: f64,
}

impl Limit {
    fn new(kind: &'static str, words: &str, bits: u64, after: &str) -> Self {
        Self { kind, words: format!("{words} {}{after}", written(bits)), bits: bits as f64 }
    }
}

/// `2.5 Gbit/s`: as a host file has it, with a blank before the unit.
fn written(bits: u64) -> String {
    let text = nicety_adapter::Rate::new(bits).map_or_else(|| format!("{bits}bit/s"), |rate| rate.to_string());
    let unit = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    format!("{} {}", &text[..unit], &text[unit..])
}

/// The lines of each series.
#[derive(Debug, Default)]
pub(super) struct Limits(BTreeMap<Series, Vec<Limit>>);

impl Limits {
    pub fn of(host: &Host) -> Self {
        let mut limits = Self::default();
        host.uplinks.iter().for_each(|uplink| limits.uplink(host, uplink));
        limits.teams(host);
        limits.ports(host);
        limits
    }

    /// The lines of a series, the highest first.
    pub fn get(&self, series: &Series) -> &[Limit] {
        self.0.get(series).map_or(&[], Vec::as_slice)
    }

    fn add(&mut self, series: Series, limit: Limit) {
        let all = self.0.entry(series).or_default();
        if !all.contains(&limit) {
            all.push(limit);
            all.sort_by(|one, other| other.bits.total_cmp(&one.bits));
        }
    }

    fn uplink(&mut self, host: &Host, uplink: &UplinkConfig) {
        let own = Series::port(&uplink.name);
        let link = uplink.rate.map(|rate| Limit::new("link", "link", rate.bits_per_second(), ""));
        link.iter().for_each(|link| self.add(own.clone(), link.clone()));
        if let Some(inward) = uplink.inward {
            self.add(own, Limit::new("limit", "comes in at most", inward.rate.bits_per_second(), ""));
        }
        for class in host.outward_classes_of(uplink) {
            let places = [Some(&uplink.name), uplink.team.as_ref()];
            for place in places.into_iter().flatten() {
                let series = Series::class(place, &class.name);
                // Of a team each member gives what is reserved.
                let after = if *place == uplink.name { "" } else { " by each link" };
                let terms =
                    [("reserved", "reserved", class.terms.reservation), ("limit", "at most", class.terms.limit)];
                for (kind, words, rate) in
                    terms.into_iter().filter_map(|(kind, words, rate)| Some((kind, words, rate?)))
                {
                    self.add(series.clone(), Limit::new(kind, words, rate.bits_per_second(), after));
                }
                if after.is_empty() {
                    link.iter().for_each(|link| self.add(series.clone(), link.clone()));
                }
            }
            self.reservations(host, &class, uplink, link.as_ref());
        }
    }

    /// Lines of guests' ports for which a class reserves something. Its other ports are uplinks, whose lines are their own.
    fn reservations(&mut self, host: &Host, class: &IoClassConfig, uplink: &UplinkConfig, link: Option<&Limit>) {
        let after = format!(" of {}, class {}", uplink.name, class.name);
        let own = class.terms_of_ports();
        let has_own = |port: &&String| own.iter().any(|(name, _)| name == *port);
        let others = class.ports.iter().flatten().filter(|port| !has_own(port)).map(|port| (port.clone(), class.each));
        for (port, terms) in others.chain(own.iter().cloned()) {
            let is_guest = host.ports.iter().any(|of| of.name == port);
            let Some(reserved) = terms.reservation.filter(|_| is_guest) else { continue };
            let series = Series::port(&port);
            self.add(series.clone(), Limit::new("reserved", "reserved", reserved.bits_per_second(), &after));
            let of = |link: &Limit| Limit { words: format!("{} of {}", link.words, uplink.name), ..link.clone() };
            link.map(of).into_iter().for_each(|link| self.add(series.clone(), link));
        }
    }

    /// A team is as fast as its links together, or as the fastest of them if it uses one at a time.
    fn teams(&mut self, host: &Host) {
        for team in &host.teams {
            let of = |name: &String| host.uplinks.iter().find(|uplink| uplink.name == *name)?.rate;
            let Some(rates) = team.members.iter().map(of).collect::<Option<Vec<_>>>() else { continue };
            let rates = rates.iter().map(|rate| rate.bits_per_second());
            let (bits, words) = match team.mode {
                TeamMode::Standby { .. } => (rates.max().unwrap_or(0), "link"),
                _ => (rates.sum(), "links together"),
            };
            if bits > 0 {
                self.add(Series::port(&team.name), Limit::new("link", words, bits, ""));
            }
        }
    }

    fn ports(&mut self, host: &Host) {
        for port in &host.ports {
            let ways = [("sends", &port.policy.transmit), ("gets", &port.policy.receive)];
            for (way, shape) in ways {
                let Some(shape) = shape else { continue };
                let words = format!("{way} at most");
                self.add(Series::port(&port.name), Limit::new("limit", &words, shape.average.bits_per_second(), ""));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = r#"
[[uplink]]
kind = "null"
name = "up"
rate = "10Gbit/s"

[[uplink]]
kind = "tap"
name = "l0"
rate = "1Gbit/s"

[[uplink]]
kind = "tap"
name = "l1"
rate = "2.5Gbit/s"

[[team]]
name = "lan"
members = "l0,l1"
mode = "active-standby"

[[io_class]]
name = "storage"
uplink = "up"
reservation = "2Gbit/s"
limit = "4Gbit/s"
ports = "vm1"
reservation_of = "vm1=500Mbit/s"

[[port]]
name = "vm1"
adapter = "e1000"
mac = "52:54:00:12:34:01"
socket = "vm1.sock"
send_average = "100Mbit/s"
"#;

    #[test]
    fn links_classes_and_ports_have_the_lines_that_the_host_file_gives_them() {
        let host = Host::parse(HOST, std::path::Path::new("/etc/host.toml")).unwrap();
        let limits = Limits::of(&host);
        let words = |series: &Series| -> Vec<(&str, String)> {
            limits.get(series).iter().map(|limit| (limit.kind, limit.words.clone())).collect()
        };
        let own = |text: &str| text.to_owned();
        assert_eq!(words(&Series::port("up")), [("link", own("link 10 Gbit/s"))]);
        assert_eq!(words(&Series::port("lan")), [("link", own("link 2.5 Gbit/s"))]);
        assert_eq!(
            words(&Series::class("up", "storage")),
            [
                ("link", own("link 10 Gbit/s")),
                ("limit", own("at most 4 Gbit/s")),
                ("reserved", own("reserved 2 Gbit/s"))
            ]
        );
        assert_eq!(
            words(&Series::port("vm1")),
            [
                ("link", own("link 10 Gbit/s of up")),
                ("reserved", own("reserved 500 Mbit/s of up, class storage")),
                ("limit", own("sends at most 100 Mbit/s")),
            ]
        );
        assert_eq!(limits.get(&Series::port("up"))[0].bits, 1e10);
    }
}
