//! etcd: Debian's package, installed beside the root. Tests of fault tolerance ask it who owns a guest.

use std::process::Command;

use super::{error::Error, layer::Layer};

/// The installed package.
#[derive(Debug, Clone)]
pub struct Etcd(Layer);

impl Etcd {
    /// Installs the package (of trixie: 3.5) if it is missing. `progress` gets a line for each step.
    ///
    /// # Errors
    /// Those of [`Layer::lay`].
    pub fn lay(progress: &mut dyn FnMut(&str)) -> Result<Etcd, Error> {
        Layer::lay("etcd", &["etcd-server"], progress).map(Etcd)
    }

    /// The same of bookworm: 3.4, the oldest that is supported.
    ///
    /// # Errors
    /// Those of [`Layer::lay`].
    pub fn lay_older(progress: &mut dyn FnMut(&str)) -> Result<Etcd, Error> {
        Layer::lay("etcd-older", &["etcd-server/bookworm"], progress).map(Etcd)
    }

    /// etcd's command.
    pub fn command(&self) -> Command {
        self.0.program("usr/bin/etcd")
    }
}
