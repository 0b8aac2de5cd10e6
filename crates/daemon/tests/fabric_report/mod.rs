//! What a host of a fabric reports, for tests that show it.

use nicety_daemon::fabric::{Connection, FabricReport, HostReport, PassedReport};

/// Another host: number 2 is `node-2`, at 192.0.2.2.
pub fn other(number: u64) -> HostReport {
    HostReport {
        name: format!("node-{number}"),
        address: format!("192.0.2.{number}"),
        mtu: 1500,
        version: "0.1.0".to_owned(),
        known_seconds: 9,
        gone_in_seconds: None,
        ports: 2,
        addresses: 3,
        is_reached: true,
        transmit: PassedReport { frames: 45, bytes: 65_000, dropped: 1 },
        receive: PassedReport { frames: 7, bytes: 420, dropped: 1 },
    }
}

/// The host `node-1`, which knows these others.
pub fn fabric(hosts: Vec<HostReport>) -> FabricReport {
    FabricReport {
        fabric: "prod".to_owned(),
        host: "node-1".to_owned(),
        tunnel: "tunnel".to_owned(),
        address: "192.0.2.1".to_owned(),
        guest_mtu: 1450,
        connection: Connection::Connected,
        why_not: None,
        away_seconds: None,
        config: Some(7),
        waits: None,
        revision: 9,
        hosts,
        groups: Vec::new(),
        claims: 3,
        watches: 3,
        refused: Vec::new(),
        namesakes: Vec::new(),
    }
}
