//! `role`: which end of a socket this side is.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The end of a socket that this side is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Waits for the peer to connect.
    #[default]
    Listen,
    /// Connects to the peer, and tries again until it listens.
    Connect,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Listen => "listen",
            Self::Connect => "connect",
        })
    }
}

pub(super) const ROLES: [(&str, Role); 2] = [("listen", Role::Listen), ("connect", Role::Connect)];
