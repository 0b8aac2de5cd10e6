//! Frames that the daemon's switch flooded. With two ports alone a flooded frame goes where a learned one does, so the figures would hide
//! it: they would be of a switch that learns nothing. A third port without a VM gets flooded frames only, and counts them as dropped.

use serde_json::Value;

use super::Error;

/// Name of the third port.
pub(super) const WITNESS: &str = "witness";
/// Entries of a set of the switch's address table (crates/switch/src/addresses.rs).
const WAYS: u64 = 4;
/// Smallest table: with up to some thousand addresses no set has more than it holds.
const PLACES_MIN: u64 = 1 << 20;
/// The number of addresses in crowded sets depends on the daemon's seed. With 100,000 addresses this factor leaves room for eight standard deviations.
const MARGIN: f64 = 1.5;

/// Places in the table for this many addresses behind each of two ports.
pub(super) fn places(addresses: u32) -> u64 {
    (10 * u64::from(addresses)).max(PLACES_MIN)
}

/// Frames that the daemon has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    /// Sent by the two ports.
    pub sent: u64,
    /// Flooded: they went to the third port too.
    pub flooded: u64,
}

impl Counts {
    /// The counts in the control socket's answer to `GET /v1/ports`; `None` if they are not there.
    pub fn in_answer(answer: &str) -> Option<Self> {
        let answer: Value = serde_json::from_str(answer).ok()?;
        let ports = answer["ports"].as_array()?;
        let witness = ports.iter().find(|port| port["name"] == WITNESS)?;
        let queues = ports.iter().filter_map(|port| port["transmit"].as_array()).flatten();
        let sent = queues.filter_map(|queue| queue["frames"].as_u64()).sum();
        let flooded = witness["receive_drops"].as_object()?.values().filter_map(Value::as_u64).sum();
        Some(Self { sent, flooded })
    }

    /// Fails if frames were flooded since earlier counts, so that a figure is never one of a switch that does not know the addresses. A
    /// table of `places` cannot hold all of them if more than [`WAYS`] fall into one set: frames for those may be flooded.
    pub fn check(self, before: Self, addresses: u32, places: u64) -> Result<(), Error> {
        let (sent, flooded) = (self.sent.saturating_sub(before.sent), self.flooded.saturating_sub(before.flooded));
        let most = (MARGIN * crowded(addresses, places) * sent as f64) as u64;
        if flooded > most { Err(Error::Flooded { flooded, sent, most }) } else { Ok(()) }
    }
}

/// The share of addresses whose set has more than it holds. The other addresses of a set are Poisson-distributed.
fn crowded(addresses: u32, places: u64) -> f64 {
    let sets = places.div_ceil(WAYS).next_power_of_two();
    let mean = 2.0 * f64::from(addresses) / sets as f64;
    let fits = 1.0 + mean + mean.powi(2) / 2.0 + mean.powi(3) / 6.0;
    1.0 - (-mean).exp() * fits
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nicety_adapter::{PortId, Time};
    use nicety_frame::Mac;
    use nicety_switch::{Limits, Switch};

    use super::*;

    /// The two ports' second queue, and what else the answer has, as the daemon writes it.
    fn answer(sent: [u64; 2], flooded: u64) -> String {
        let port = |name: &str, sent: u64, drops: &str| {
            format!(
                "{{\"name\":\"{name}\",\"transmit\":[{{\"queue\":0,\"packets\":1,\"frames\":{sent},\"bytes\":64}}],\
                 \"receive\":[{{\"queue\":0,\"packets\":9,\"frames\":9,\"bytes\":64}}],\"receive_drops\":{drops}}}"
            )
        };
        let witness = format!(
            "{{\"name\":\"{WITNESS}\",\"transmit\":[],\"receive\":[],\"receive_drops\":{{\"no-vm\":{flooded}}}}}"
        );
        let ports = [port("port0", sent[0], "{\"buffer-full\":77}"), port("port1", sent[1], "{}"), witness];
        format!("{{\"ports\":[{}]}}", ports.join(","))
    }

    #[test]
    fn what_the_third_port_dropped_was_flooded() {
        assert_eq!(Counts::in_answer(&answer([40, 2], 5)), Some(Counts { sent: 42, flooded: 5 }));
        for other in ["", "{}", "{\"ports\":[]}", &answer([1, 1], 0).replace(WITNESS, "port2")] {
            assert_eq!(Counts::in_answer(other), None, "{other}");
        }
    }

    #[test]
    fn one_flooded_frame_fails_if_the_table_holds_all_addresses_and_floods_before_do_not() {
        let before = Counts { sent: 1_000, flooded: 300 };
        for addresses in [1, 1_000] {
            let check = |flooded| {
                let after = Counts { sent: 20_000_000, flooded };
                after.check(before, addresses, places(addresses))
            };
            assert!(check(300).is_ok());
            let said = check(301).unwrap_err().to_string();
            assert!(said.starts_with("nicety flooded 1 of 19999000 frames, and 0 were expected at most"), "{said}");
        }
    }

    /// Frames to each address in turn, both ways, as the generator sends them. Returns how many of them a table of these limits floods.
    fn floods(addresses: u32, limits: Limits) -> Counts {
        let switch = Switch::<()>::new(limits);
        for port in [0, 1] {
            switch.join(PortId(port), ()).unwrap();
        }
        let mac = |port: u16, station: u32| {
            let [a, b, c, d] = station.to_be_bytes();
            Mac([2, port as u8, a, b, c, d])
        };
        let mut counts = Counts { sent: 0, flooded: 0 };
        for round in 0..3 {
            for station in 0..addresses {
                for port in [0, 1] {
                    let is_known = switch.addresses().find(mac(1 - port, station), 0, Time::ZERO).is_some();
                    switch.addresses().learn(mac(port, station), 0, PortId(port), Time::ZERO);
                    if round > 0 {
                        counts.sent += 1;
                        counts.flooded += u64::from(!is_known);
                    }
                }
            }
        }
        counts
    }

    #[test]
    fn a_table_of_these_places_floods_as_few_frames_as_expected_and_a_smaller_one_or_a_limit_of_ports_fails() {
        let none = Counts { sent: 0, flooded: 0 };
        for addresses in [1, 1_000, 100_000] {
            let limits = |places: u64, port_addresses| Limits {
                addresses: places as usize,
                port_addresses,
                ageing: Duration::from_secs(300),
                seed: 7,
                ..Limits::default()
            };
            let enough = places(addresses);
            let check = |limits| floods(addresses, limits).check(none, addresses, enough);
            assert_eq!(check(limits(enough, u32::MAX)).map_err(|error| error.to_string()), Ok(()));
            if addresses > 1 {
                assert!(check(limits(enough, addresses - addresses / 50)).is_err(), "{addresses}: too few for a port");
                assert!(check(limits(u64::from(addresses), u32::MAX)).is_err(), "{addresses}: too few in all");
            }
        }
    }
}
