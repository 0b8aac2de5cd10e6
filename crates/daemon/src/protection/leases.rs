//! Where the leases of this host's VMs are.

use std::path::PathBuf;
use std::time::Duration;

use nicety_host::LeasePlace;
use nicety_lease::{Asker, LeaseFile, NodeId};

use crate::tolerance::names::Names;

/// While nothing is asked, the third party is looked at this often.
const LOOK: Duration = Duration::from_millis(50);

/// See the module's page.
pub(super) struct Leases {
    folder: PathBuf,
}

impl Leases {
    pub fn check(_place: &LeasePlace) -> Result<(), String> {
        Ok(())
    }

    pub fn open(place: &LeasePlace, _names: &Names) -> Result<Self, String> {
        match place {
            LeasePlace::Folder(folder) => Ok(Self { folder: folder.clone() }),
            LeasePlace::Etcd(_) => Err("etcd".to_owned()),
        }
    }

    pub fn start(&self, vm: &str, who: NodeId, term: Duration) -> std::io::Result<Asker> {
        Asker::start(Box::new(LeaseFile::new(&nicety_host::lease_file(&self.folder, vm), term, who)), LOOK)
    }
}
