//! Mirrors of a host file, with the ports that are open.

use std::sync::Arc;

use nicety_host::{Host, MirrorConfig};
use nicety_plane::{Mirror, Mirrored, Port};

use super::{Daemon, PortView};

impl Daemon {
    /// Copies the frames that a host file's mirrors name.
    pub(super) fn set_mirrors(&self, host: &Host) {
        let mut mirrors = self.mirrors();
        mirrors.clone_from(&host.mirrors);
        self.plane.set_mirrors(mirrors.iter().filter_map(|config| self.mirror(config)).collect());
    }

    /// A mirror as the plane knows it. `None`: the port that gets the copies is not open.
    fn mirror(&self, config: &MirrorConfig) -> Option<Mirror> {
        let MirrorConfig { name: _, ports, uplinks, direction, to, rate } = config;
        let mut sources: Vec<Arc<Port>> = Vec::new();
        let (mut of_ports, mut of_uplinks) = (None, None);
        for running in self.ports().values() {
            let name = &running.spec.config.name;
            of_ports = of_ports.or((name == to).then(|| Arc::clone(&running.port)));
            if ports.contains(name) {
                sources.extend(running.parts().cloned());
            }
        }
        for running in self.uplinks().iter() {
            let is_named = |name: &String| uplinks.contains(name);
            of_uplinks = of_uplinks.or((running.name == *to).then(|| Arc::clone(&running.port)));
            let is_source = is_named(&running.name) || running.team.as_ref().is_some_and(is_named);
            sources.extend(is_source.then(|| Arc::clone(&running.port)));
        }
        let (ingress, egress) = (direction.has_ingress(), direction.has_egress());
        let sources = sources.into_iter().map(|port| Mirrored { port, ingress, egress }).collect();
        Some(Mirror { sources, to: of_ports.or(of_uplinks)?, rate: *rate })
    }

    /// Notes in each port's view the mirrors that it is part of.
    pub(super) fn note_mirrors(&self, views: &mut [PortView]) {
        let mirrors = self.mirrors();
        for view in views {
            view.mirror = mirrors.iter().find(|mirror| mirror.to == view.name).cloned();
            let of = |mirror: &&MirrorConfig| mirror.ports.contains(&view.name) || mirror.uplinks.contains(&view.name);
            view.mirrored_by = mirrors.iter().filter(of).cloned().collect();
        }
    }
}
