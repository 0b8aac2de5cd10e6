//! Forwarding tables of tunnels. The tunnel's worker reads one; the fabric, which knows where guests are, writes to it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{MutexGuard, PoisonError};

use nicety_frame::Mac;
use nicety_uplink::{Hops, Traffic, Way};

use super::{Daemon, PortView};
use crate::random::random;

/// The traffic of a tunnel from and to each other host, in the order of their addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelTraffic {
    /// The uplink.
    pub port: String,
    /// Each other host.
    pub peers: Vec<(IpAddr, Traffic)>,
}

impl Daemon {
    /// The hops of the tunnel with this name. They outlive it: one that is opened again has the same.
    pub fn hops(&self, name: &str) -> Hops {
        self.all_hops().entry(name.to_owned()).or_insert_with(|| Hops::new(random())).clone()
    }

    /// The tunnel of this name, which is about to join, finds other hosts by these.
    pub(crate) fn feed_by(&self, name: &str, hops: Hops) {
        self.all_hops().insert(name.to_owned(), hops);
    }

    /// The traffic of each tunnel among these ports.
    pub fn tunnels(&self, views: &[PortView]) -> Vec<TunnelTraffic> {
        let of =
            |view: &PortView| Some(TunnelTraffic { port: view.name.clone(), peers: self.hops_of(view)?.traffic() });
        views.iter().filter_map(of).collect()
    }

    /// The hosts to which a tunnel would send a frame of this VLAN (0: without a tag) for this address. `None`: the port is no tunnel.
    pub(crate) fn way(&self, view: &PortView, vlan: u16, to: Mac) -> Option<Way> {
        Some(self.hops_of(view)?.way(vlan, to, self.clock.now()))
    }

    /// The hops of a port that is a tunnel. An uplink of another kind may have the name of a tunnel of earlier.
    fn hops_of(&self, view: &PortView) -> Option<Hops> {
        let is_tunnel = view.spec.is_none() && view.state.features.contains(&"VXLAN");
        self.all_hops().get(&view.name).filter(|_| is_tunnel).cloned()
    }

    fn all_hops(&self) -> MutexGuard<'_, BTreeMap<String, Hops>> {
        self.hops.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
