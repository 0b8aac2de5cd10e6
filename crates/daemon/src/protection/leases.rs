//! The place of the leases of this host's VMs.

use std::time::Duration;

use nicety_host::{LeasePlace, VmConfig, lease_file, lease_key};
use nicety_lease::{Asker, LeaseFile, LeaseInEtcd, NodeId, Storage, ThirdParty};
use nicety_names::Names;
use tracing::warn;

/// While nothing is asked, the third party is looked at this often.
const LOOK: Duration = Duration::from_millis(50);
/// Asks for nobody yet: each request says for which run it is.
const NOBODY: NodeId = NodeId(0);

/// Checks that the files can be read.
pub(super) fn check(place: &LeasePlace) -> Result<(), String> {
    match place {
        LeasePlace::Folder(folder) if !folder.is_dir() => {
            Err(format!("lease {}: there is no such folder: make it, where both hosts see it", folder.display()))
        }
        LeasePlace::Folder(_) => Ok(()),
        LeasePlace::Etcd(config) => config.settings().map(drop),
    }
}

/// Starts the thread that asks for this VM. To be called before the process confines itself: etcd is reached by TCP.
///
/// # Errors
/// A sentence.
pub(super) fn start(place: &LeasePlace, vm: &VmConfig, names: &Names, term: Duration) -> Result<Asker, String> {
    let party: Box<dyn ThirdParty> = match place {
        LeasePlace::Folder(folder) => {
            let is_alone = matches!(vm.peer, nicety_host::PeerAddress::Unix(_));
            if let Some(warning) = Storage::of(folder).and_then(|storage| storage.warning(is_alone)) {
                warn!(vm = vm.name, "the lease in {}: {warning}", folder.display());
            }
            Box::new(LeaseFile::new(&lease_file(folder, &vm.name), term, NOBODY))
        }
        LeasePlace::Etcd(config) => {
            Box::new(LeaseInEtcd::new(config.settings()?, names.clone(), &lease_key(&vm.name), term, NOBODY)?)
        }
    };
    Asker::start(party, LOOK).map_err(|error| format!("the lease of VM {}: {error}", vm.name))
}
