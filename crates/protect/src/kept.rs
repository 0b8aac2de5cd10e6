//! The part of a protection that a daemon gives to the one that replaces it.

use serde::{Deserialize, Serialize};

use crate::Pairing;

/// See the module's page. The counts of closed epochs are the gates'.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kept {
    /// An owner's. The lease names the twin.
    Owner {
        /// The protection.
        pairing: Pairing,
        /// The twin's run.
        peer: u64,
        /// The lease's epoch.
        epoch: u32,
        /// The last epoch of this protection whose copy the twin has.
        loaded: u64,
    },
    /// A twin's, which has a whole copy.
    Twin {
        /// The protection.
        pairing: Pairing,
        /// The owner has said that the lease names this twin.
        is_heir: bool,
    },
}

impl Kept {
    /// The protection.
    pub fn pairing(&self) -> Pairing {
        let (Self::Owner { pairing, .. } | Self::Twin { pairing, .. }) = self;
        *pairing
    }
}
