use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use nicety_frame::{Mac, Vni};
use nicety_host::List;
use nicety_switch::{Vlan, VlanId};
use nicety_uplink::{Hop, Way};
use tempfile::TempDir;

use super::super::confirm::{Confirm, Undo};
use super::super::state::Begin;
use super::*;
use crate::serve;

/// A host of a fabric, whose etcd is not there.
struct Stage {
    live: Live,
    _place: TempDir,
}

impl Stage {
    /// With this group of its own, if it is named.
    fn new(own: Option<&str>) -> Self {
        let place = TempDir::new().unwrap();
        let path = place.path().join("host.toml");
        let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let own = own.map(|name| format!("[[port_group]]\nname = \"{name}\"\nvlan = 99\n")).unwrap_or_default();
        let text = format!(
            "[fabric]\nname = \"prod\"\nhost = \"node-1\"\ntunnel = \"tunnel\"\netcd = \"http://127.0.0.1:1\"\n\
             [[uplink]]\nkind = \"vxlan\"\nname = \"tunnel\"\naddress = \"127.0.0.1\"\nudp_port = {port}\n\
             [[port]]\nname = \"vm1\"\nadapter = \"e1000\"\nmac = \"52:54:00:00:00:01\"\nsocket = \"vm1.sock\"\nport_group = \"web\"\n{own}"
        );
        std::fs::write(&path, text).unwrap();
        let Begin { host, file, state, found: _ } = Begin::new(Host::read(&path).unwrap());
        let opened = serve::open_ahead(&host, None, &mut Vec::new());
        nicety_sandbox::begin_for_tests();
        let before = serve::Before { opened, ..serve::Before::default() };
        let daemon = serve::start(serve::prepare_from(&host, None, before).unwrap()).unwrap();
        Self { live: Live::new(Arc::new(daemon), host, file, state), _place: place }
    }

    fn groups(all: &[(&str, u32, u16)]) -> FabricGroups {
        let group = |(name, vni, vlan): &(&str, u32, u16)| {
            format!("[[port_group]]\nname = \"{name}\"\nvni = {vni}\nvlan = {vlan}\n")
        };
        FabricGroups::parse(&format!("format = 1\n{}", all.iter().map(group).collect::<String>())).unwrap()
    }

    /// A person makes the port's buffer larger, to be confirmed.
    fn changes_the_buffer(&self) {
        let values = [("buffer".to_owned(), Some("2MiB".into()))];
        self.live.set(List::Ports, "vm1", &values, within()).unwrap();
    }

    /// The VLAN of the port on the switch, and its buffer.
    fn port(&self) -> (Vlan, u32) {
        let views = self.live.daemon().views();
        let spec = views.iter().find(|view| view.name == "vm1").and_then(|view| view.spec.clone()).unwrap();
        (spec.config.policy.vlan.clone(), spec.buffer_bytes())
    }

    /// The network of a VLAN in the tunnel.
    fn network(&self, vlan: u16) -> Option<u32> {
        match self.live.daemon().hops("tunnel").way(vlan, Mac::BROADCAST, nicety_adapter::Time::ZERO) {
            Way::NoNetwork => None,
            Way::Hop(vni, _) | Way::All(vni, _) => Some(vni.number()),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.live.daemon().stop();
    }
}

fn within() -> Terms {
    let confirm = Some(Confirm { within: Duration::from_secs(600), by: "user 7".to_owned() });
    Terms { consent: Consent::All, confirm }
}

fn access(vlan: u16) -> Vlan {
    Vlan::Access(VlanId::new(vlan).unwrap())
}

#[test]
fn a_version_is_in_force_beside_a_change_that_waits_and_an_undo_of_that_keeps_it() {
    let stage = Stage::new(None);
    stage.live.apply_fabric(&Stage::groups(&[("web", 5, 10)])).unwrap();
    let (vlan, buffer) = stage.port();
    assert_eq!((vlan, stage.network(10)), (access(10), Some(5)));
    stage.changes_the_buffer();
    // Another group gets the VNI and the VLAN.
    let version = Stage::groups(&[("web", 7, 11), ("db", 5, 10)]);
    let changed = stage.live.apply_fabric(&version).unwrap();
    assert!(changed.waiting.is_none() && stage.live.waiting().is_some(), "the person's change still waits");
    let is_in_force = |buffer| {
        assert_eq!(stage.port(), (access(11), buffer));
        assert_eq!((stage.network(11), stage.network(10)), (Some(7), Some(5)));
    };
    is_in_force(2 << 20);
    stage.live.undo(Undo::By("user 7")).unwrap();
    is_in_force(buffer);
    // So does a confirmation.
    stage.changes_the_buffer();
    stage.live.apply_fabric(&Stage::groups(&[("web", 8, 11)])).unwrap();
    stage.live.confirm("user 7").unwrap();
    assert_eq!((stage.port(), stage.network(11), stage.network(10)), ((access(11), 2 << 20), Some(8), None));
    assert_eq!(stage.live.export().matches("vni").count(), 0, "the host file stays its own");
}

#[test]
fn a_version_that_fits_only_one_side_of_a_change_that_waits_says_which_command_lets_it_be_in_force() {
    let version = Stage::groups(&[("web", 5, 10), ("db", 6, 20)]);
    let waits = |stage: &Stage| match stage.live.apply_fabric(&version).unwrap_err() {
        ChangeError::Waits(why) => why,
        other => panic!("{other}"),
    };
    // A person has removed the group that the fabric is about to have.
    let stage = Stage::new(Some("db"));
    stage.live.remove(List::Groups, "db", within()).unwrap();
    let why = waits(&stage);
    let start = "it fits this host only once a change is confirmed that waits to be confirmed (- port_group.db, by user 7): \
                 `nicety confirm` confirms it; until then ";
    assert!(why.starts_with(start) && why.contains("the fabric has a port group \"db\", too"), "{why}");
    assert_eq!(stage.network(10), None);
    stage.live.confirm("user 7").unwrap();
    stage.live.apply_fabric(&version).unwrap();
    assert_eq!((stage.network(10), stage.network(20)), (Some(5), Some(6)));
    // A person has added it.
    let stage = Stage::new(None);
    let own = "name = \"db\"\nvlan = 99\n".parse().unwrap();
    stage.live.add(List::Groups, own, within()).unwrap();
    let why = waits(&stage);
    assert!(why.contains("only once a change is undone") && why.contains("`nicety confirm --undo` undoes it"), "{why}");
    stage.live.undo(Undo::By("user 7")).unwrap();
    stage.live.apply_fabric(&version).unwrap();
    // Neither side has room for it.
    let stage = Stage::new(Some("db"));
    stage.changes_the_buffer();
    assert!(matches!(stage.live.apply_fabric(&version), Err(ChangeError::Wrong(_))));
}

#[test]
fn a_tunnel_that_has_left_a_network_stays_out_of_it_whatever_is_in_force() {
    let stage = Stage::new(None);
    let hops = stage.live.daemon().hops("tunnel");
    hops.leave(&[Vni::new(5).unwrap()].into());
    stage.live.apply_fabric(&Stage::groups(&[("web", 5, 10), ("db", 6, 20)])).unwrap();
    hops.put(Hop { address: [127, 0, 0, 2].into(), networks: None });
    assert_eq!((stage.network(10), stage.network(20)), (None, Some(6)));
    hops.leave(&[].into());
    assert_eq!(stage.network(10), Some(5));
}
