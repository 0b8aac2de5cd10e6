//! Hosts of a fabric in one network, and the third of them: its guests send to a guest that moves between the other two.

use std::path::Path;

use nicety_guests::{Guest, Namespace, Port, Served, Setup};
use serde_json::Value;

use super::{LOOPBACK, host_tables, requests::Requests};
use crate::{
    rings_guest,
    stage::{SOON, mac, port, well},
};

/// Its name.
const NAME: &str = "c";

/// See the module's page.
pub struct Sender {
    pub served: Served,
    /// A guest of another group, which hears nothing of the guest that moves.
    other: rings_guest::Guest,
}

/// A port in the group `web`.
pub fn in_web(port: Port) -> Port {
    Port { more: format!("{}port_group = \"web\"\n", port.more), ..port }
}

/// The tables of the host with this name and number.
pub fn tables(name: &str, number: usize) -> String {
    host_tables(name, &format!("127.0.1.{}", number + 1), LOOPBACK)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| panic!("{text}"))
}

impl Sender {
    pub fn start(namespace: &mut Namespace) -> Sender {
        let other = Port { more: "port_group = \"db\"\n".into(), ..port("virtio-net", 4) };
        let setup = Setup { daemon_more: tables(NAME, 2), ..Setup::default() };
        let ports = vec![in_web(port("virtio-net", 3)), other];
        let served = well(Served::start_as(Path::new(env!("CARGO_BIN_EXE_nicety")), namespace, ports, setup));
        let other = rings_guest::Guest::new(served.socket("vm4.sock"));
        Sender { served, other }
    }

    /// The host to which this one sends the guest's frames.
    pub fn place(&self) -> Option<String> {
        let text = self.served.get(&format!("/v1/fabric/places/{}", mac(1))).unwrap_or_default();
        let answer = json(&text);
        let places = answer["places"].as_array().into_iter().flatten();
        let current = places.clone().find(|place| place["is_current"] == true)?;
        current["host"].as_str().map(str::to_owned)
    }

    /// Sends requests to the guest, which answers.
    pub fn requests(&self, to: &mut Guest) -> Requests {
        Requests::start(self.served.socket("vm3.sock"), to)
    }

    /// No frame of the guest has come into the other group.
    pub fn is_apart(&self) {
        assert_eq!(self.other.received(), 0, "frames of another group");
    }
}

/// The hosts that claim the guest's address, as etcd has it. The first one counts.
pub fn claims(namespace: &mut Namespace) -> Vec<String> {
    let program = env!("CARGO_BIN_EXE_nicety");
    let asked = format!("'{program}' fabric port list --group web --json --fabric prod --etcd http://{LOOPBACK}:2379");
    let all = json(&well(namespace.run(&asked, SOON)));
    let claims = all["claims"].as_array().cloned().unwrap_or_else(|| panic!("{all}"));
    let mut own: Vec<Value> = claims.into_iter().filter(|claim| claim["address"] == mac(1)).collect();
    own.sort_by_key(|claim| claim["current"] != true);
    assert!(own.first().is_none_or(|first| first["current"] == true), "{all}");
    own.iter().filter_map(|claim| claim["host"].as_str().map(str::to_owned)).collect()
}
