//! Logs of ports at other daemons.

use std::sync::Arc;

use nicety_adapter::Adapter;
use nicety_host::ToleranceConfig;
use nicety_plane::Port;

use super::{Daemon, PortSpec, PortView, StartError};
use crate::tolerance::{Tolerance, ToleranceError, Tolerated};

impl Daemon {
    /// Ports with a peer have their logs there from now on, and other daemons have theirs here. Call it before ports are opened, and before
    /// the sandbox closes the network.
    ///
    /// # Errors
    /// The key cannot be read, or peers cannot connect.
    pub fn tolerate(&self, config: &ToleranceConfig) -> Result<(), ToleranceError> {
        let tolerance = Tolerance::start(config)?;
        // Called once.
        let _first = self.tolerance.set(tolerance);
        Ok(())
    }

    /// Puts a gate around a port's adapter, if the port has a peer.
    pub(super) fn tolerated(
        &self,
        spec: &PortSpec,
        adapter: Box<dyn Adapter>,
        is_again: bool,
    ) -> Result<(Box<dyn Adapter>, Option<Tolerated>), StartError> {
        let Some(peer) = &spec.config.ft_peer else { return Ok((adapter, None)) };
        let port = || spec.config.name.clone();
        let tolerance = self.tolerance.get().ok_or_else(|| StartError::Intolerant { port: port() })?;
        let around = tolerance.around(spec, peer, adapter, is_again);
        let (gate, tolerated) = around.map_err(|source| StartError::Memory { port: port(), source })?;
        Ok((gate, Some(tolerated)))
    }

    /// The port of a log is there.
    pub(super) fn log_calls(&self, tolerated: Option<Tolerated>, port: &Arc<Port>) {
        if let Some((tolerance, tolerated)) = self.tolerance.get().zip(tolerated) {
            tolerance.serve(tolerated, port);
        }
    }

    /// Notes in each port's view the state of its log.
    pub(super) fn note_tolerance(&self, views: &mut [PortView]) {
        let Some(tolerance) = self.tolerance.get() else { return };
        for view in views.iter_mut().filter(|view| view.spec.is_some()) {
            view.tolerance = tolerance.report(&view.name, view.id);
        }
    }
}
