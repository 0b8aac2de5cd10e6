//! A host that the tests show.

use super::*;

/// A daemon with this many ports.
pub(crate) struct Fake(pub(crate) usize);

/// A host in a fabric with two others, of which one has another's address.
pub(crate) fn fabric() -> FabricReport {
    let host = |name: &str, is_reached| HostReport {
        name: name.to_owned(),
        address: "192.0.2.2".to_owned(),
        mtu: 1500,
        version: "0.1.0".to_owned(),
        known_seconds: 9,
        gone_in_seconds: None,
        ports: 2,
        addresses: 3,
        is_reached,
        transmit: PassedReport { frames: 45, bytes: 65_000, dropped: 1 },
        receive: PassedReport { frames: 7, bytes: 420, dropped: 1 },
    };
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
        hosts: vec![host("node-2", true), host("node-3", false)],
        groups: Vec::new(),
        claims: 0,
        watches: 2,
        refused: Vec::new(),
        namesakes: Vec::new(),
    }
}

impl Inspect for Fake {
    fn is_ready(&self) -> bool {
        true
    }

    fn ports(&self) -> Vec<PortReport> {
        (0..self.0).map(|number| port(&format!("vm{number}"))).collect()
    }

    fn carried(&self, note: &mut NoteBytes<'_>) {
        carried(&self.ports(), note);
    }

    fn addresses(&self) -> AddressList {
        let addresses =
            vec![AddressReport { address: "52:54:00:12:34:01".into(), port: "vm0".into(), silent_seconds: 4 }];
        AddressList { addresses, more: 0 }
    }

    fn vms(&self) -> Vec<VmReport> {
        vms()
    }

    fn fabric(&self) -> Option<FabricReport> {
        Some(fabric())
    }

    fn wish(&self, vm: &str, wish: Wish) -> Result<(), String> {
        match (vm, wish) {
            ("web", Wish::FailOver) => Err("the VM is not protected: the twin's host is silent".to_owned()),
            ("web", _) => Ok(()),
            _ => Err(format!("the VM {vm} does not run here: ask at the other host")),
        }
    }

    fn flow_exports(&self) -> Vec<FlowExportReport> {
        flow_exports()
    }

    fn restart(&self, name: &str) -> Result<(), RestartError> {
        match name {
            "vm0" => Ok(()),
            "vm1" => Err(RestartError::NotFailed(name.to_owned())),
            _ => Err(RestartError::Missing(name.to_owned())),
        }
    }

    fn save(&self, name: &str) -> Result<PortState, SaveError> {
        match name {
            "vm0" => Ok(state()),
            "vm1" => Err(SaveError::NoVm),
            _ => Err(SaveError::Missing(name.to_owned())),
        }
    }

    fn restore(&self, name: &str, state: PortState) -> Result<(), SaveError> {
        assert_eq!(state, self::state());
        match name {
            "vm0" => Ok(()),
            "vm1" => Err(SaveError::InUse),
            _ => Err(SaveError::Missing(name.to_owned())),
        }
    }
}
