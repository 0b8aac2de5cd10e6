//! What ports may do, changed while they run.

use nicety_switch::Policy;

use super::Daemon;

impl Daemon {
    /// What a port may do from now on: its VLANs, security, guards, storm control, and how fast it sends and gets. False if there is no
    /// port of this name. An uplink has a name too; it is held to no shape (its host file's `rate` does that).
    ///
    /// Safe at any time and from any thread: the switch's tables are replaced whole, and the next batch goes by the new ones; no frame
    /// of another port is lost or waits. The same policy again changes nothing, and a bucket whose shape stays keeps its tokens. The
    /// first of [`Policy::addresses`] must be the port's own, if the policy restricts addresses. A port that is closed, or restarted
    /// after it failed, loses its policy: set it again.
    pub fn set_policy(&self, name: &str, policy: &Policy) -> bool {
        let id = self.ports().iter().find(|(_, running)| running.spec.name == name).map(|(id, _)| *id);
        let uplink = || self.uplinks().iter().find(|uplink| uplink.name == name).map(|uplink| uplink.port.id());
        let Some(port) = id.or_else(uplink).and_then(|id| self.plane.port(id)) else { return false };
        self.plane.set_policy(&port, policy);
        true
    }
}
