//! Policies of ports, set while the ports run.

use nicety_switch::Policy;

use super::Daemon;

impl Daemon {
    /// Sets a port's policy: its VLANs, security, guards, storm control, and send and receive rates. Returns false if there is no
    /// port of this name. An uplink has a name too, but no shape (its host file's `rate` limits it).
    ///
    /// Safe at any time and from any thread: the switch's tables are replaced as a whole, and the next batch uses the new ones.
    /// No frame of another port is lost or delayed. Setting the same policy again changes nothing, and a token bucket with an
    /// unchanged shape keeps its tokens. If the policy restricts addresses, the first of [`Policy::addresses`] must be the port's
    /// own. A port that is closed, or restarted after a failure, loses its policy: set it again.
    pub fn set_policy(&self, name: &str, policy: &Policy) -> bool {
        let id = self.ports().iter().find(|(_, running)| running.spec.config.name == name).map(|(id, _)| *id);
        let uplink = || self.uplinks().iter().find(|uplink| uplink.name == name).map(|uplink| uplink.port.id());
        let Some(port) = id.or_else(uplink).and_then(|id| self.plane.port(id)) else { return false };
        self.plane.set_policy(&port, policy);
        true
    }
}
