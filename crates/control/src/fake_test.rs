//! A host that the tests show.

use super::*;

#[path = "../../daemon/tests/fabric_report/mod.rs"]
mod fabric_report;
use fabric_report::other;

/// A daemon with this many ports.
pub(crate) struct Fake(pub(crate) usize);

/// A host in a fabric with two others, of which one has another's address.
pub(crate) fn fabric() -> FabricReport {
    let second = HostReport { address: other(2).address, is_reached: false, ..other(3) };
    fabric_report::fabric(vec![other(2), second])
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
