//! etcd: Debian's packages, installed beside the root. Tests of fault tolerance ask it who owns a guest, and hosts of a fabric agree by it.

use std::process::Command;

use super::{error::Error, layer::Layer};

/// The installed packages: the server, and `etcdctl`.
#[derive(Debug, Clone)]
pub struct Etcd(Layer);

impl Etcd {
    /// Installs the packages (of trixie: 3.5) if they are missing. `progress` gets a line for each step.
    ///
    /// # Errors
    /// Those of [`Layer::lay`].
    pub fn lay(progress: &mut dyn FnMut(&str)) -> Result<Etcd, Error> {
        Layer::lay("etcd", &["etcd-server", "etcd-client"], progress).map(Etcd)
    }

    /// The server of bookworm: 3.4, the oldest that is supported. Its `etcdctl` cannot be resolved beside trixie's packages.
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

    /// The command of an administrator, `etcdctl`, of trixie's packages.
    pub fn control(&self) -> Command {
        self.0.program("usr/bin/etcdctl")
    }
}
