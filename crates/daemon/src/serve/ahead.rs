//! Opens what only a process with rights can that it gives up before its threads start: the queues of interfaces (AF_XDP), and the sockets of
//! tunnels. After a kill queues go on: the keeper has held them. Tunnels are opened anew.

use std::collections::BTreeMap;
use std::net::IpAddr;

use nicety_host::{Host, TunnelConfig, UplinkConfig, UplinkKind};
use nicety_keeper::{Group, Holder};
use nicety_uplink::{Hop, Hops, Vxlan, VxlanError, Xdp, XdpError};

use crate::random::random;
use crate::run::kept_uplinks::{HeldUplinks, let_go_first};

/// The queues of the host file's interfaces, and its tunnels.
#[derive(Debug, Default)]
pub struct OpenedAhead {
    /// The queues of each uplink, or why they could not be opened.
    pub(super) queues: BTreeMap<String, Result<Vec<Xdp>, XdpError>>,
    /// The tunnel of each uplink, or why it could not be opened.
    pub(super) tunnels: BTreeMap<String, Result<Vxlan, VxlanError>>,
    /// Warnings for the log, which has not begun.
    pub notes: Vec<String>,
}

impl OpenedAhead {
    pub(super) fn has(&self, config: &UplinkConfig) -> bool {
        self.queues.contains_key(&config.name) || self.tunnels.contains_key(&config.name)
    }
}

/// Opens the queues of a host file's interfaces, and its tunnels. A keeper may hold those of a daemon that was killed: they are taken out of `groups`.
pub fn open_ahead(host: &Host, holder: Option<&Holder>, groups: &mut Vec<Group>) -> OpenedAhead {
    let mut opened = OpenedAhead::default();
    let mut held = HeldUplinks::take_queues(groups);
    if let Some(holder) = holder {
        // Of another uplink they would be in the way.
        held.keep_only(&host.uplinks, holder);
    }
    for config in &host.uplinks {
        if let UplinkKind::Vxlan(tunnel) = &config.kind {
            opened.tunnels.insert(config.name.clone(), open_tunnel(tunnel, Hops::new(random())));
        }
        let UplinkKind::Xdp { interface, queues } = &config.kind else { continue };
        let again = match resumed(config, interface, &mut held) {
            None => Xdp::open(interface, *queues),
            Some(Ok(queues)) => Ok(queues),
            Some(Err(why)) => {
                let name = &config.name;
                opened.notes.push(format!(
                    "uplink {name}: the killed daemon's queues do not go on, and are opened anew: {why}"
                ));
                if let Some(holder) = holder {
                    held.forget(config, holder);
                }
                // The keeper closes its duplicates a moment later.
                let may_pass = |error: &XdpError| matches!(error, XdpError::Taken { .. } | XdpError::Program(_));
                let_go_first(|| Xdp::open(interface, *queues), may_pass)
            }
        };
        opened.queues.insert(config.name.clone(), again);
    }
    opened
}

/// Opens a tunnel to the peers that the host file names, or that the fabric tells.
pub(super) fn open_tunnel(config: &TunnelConfig, hops: Hops) -> Result<Vxlan, VxlanError> {
    set_tunnel(config, &hops);
    Vxlan::open(config.settings.clone(), hops, random())
}

/// A tunnel has the networks of its settings. Its hops are the peers that the host file names, each with all networks. In a fabric they
/// are that's.
pub(super) fn set_tunnel(config: &TunnelConfig, hops: &Hops) {
    hops.set_networks(&config.settings.networks);
    if config.is_fabric {
        return;
    }
    let hop = |address: &IpAddr| Hop { address: *address, networks: None };
    hops.set(&config.peers.iter().map(hop).collect::<Vec<_>>());
}

/// The queues of an uplink, if they are held.
fn resumed(config: &UplinkConfig, interface: &str, held: &mut HeldUplinks) -> Option<Result<Vec<Xdp>, XdpError>> {
    if !held.has(config) {
        return None;
    }
    let queues = (0..config.queues()).map(|queue| {
        let descriptors = held.remove_all(config, queue.into());
        Xdp::resume(interface, queue, descriptors)
    });
    Some(queues.collect())
}
