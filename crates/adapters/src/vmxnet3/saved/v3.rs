//! Version 3: like version 4, for a device that offered fewer versions and capabilities.

use nicety_adapter::RestoreError;
use nicety_adapter::snapshot::Version;
use serde::Deserialize;

use super::v2;
use crate::vmxnet3::registers::{CAPABILITIES, VERSIONS};

/// Indices of VRRS and DCR among the registers.
const VRRS: usize = 0;
const DCR: usize = 9;

#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct Saved(pub super::Saved);

impl Version for Saved {
    const NUMBER: u16 = 3;
    type Before = v2::Saved;

    fn from_before(before: v2::Saved) -> Result<Self, RestoreError> {
        Ok(Self(before.into_next()))
    }
}

impl Saved {
    /// Converts to version 4: VRRS and DCR show the present offer.
    pub(super) fn into_next(self) -> super::Saved {
        let Self(mut saved) = self;
        (saved.registers[VRRS], saved.registers[DCR]) = (VERSIONS, CAPABILITIES);
        saved
    }
}
