use std::sync::Mutex;

use nicety_fabric::{LEARNED_MAX, Me, Settings, Terms};
use nicety_host::Host;
use nicety_uplink::Hops;

use super::*;

/// A daemon with one port, behind which the switch has learned these addresses.
struct Learning {
    spec: PortSpec,
    addresses: Mutex<Vec<Mac>>,
}

impl Around for Learning {
    fn each_fabric_port(&self, visit: &mut dyn FnMut(PortId, &PortSpec, Presence)) {
        visit(PortId(1), &self.spec, Presence::Running);
    }

    fn each_way_out(&self, _without: &str, _visit: &mut dyn FnMut(&str, &Vlan)) {}

    fn learned(&self) -> Vec<Learned> {
        let learned = |address: &Mac| Learned { address: *address, fid: 10, port: PortId(1), silent: Duration::ZERO };
        self.addresses.lock().unwrap().iter().map(learned).collect()
    }

    fn leads_to_uplink(&self, _uplink: &str, _mac: Mac, _vlan: u16) {}

    fn leads_to_port(&self, _id: PortId, _mac: Mac, _vlan: u16) {}
}

fn learning() -> Learning {
    let text = "[[port_group]]\nname = \"web\"\nvlan = 10\n[[port]]\nname = \"vm\"\nadapter = \"e1000\"\n\
                socket = \"vm.sock\"\nmac = \"52:54:00:00:00:01\"\nport_group = \"web\"\n";
    let host = Host::parse(text, std::path::Path::new("/etc/nicety/host.toml")).unwrap();
    Learning { spec: PortSpec::plain(host.ports[0].clone()), addresses: Mutex::default() }
}

fn fabric() -> Fabric {
    let name = |text: &str| Name::new(text).unwrap();
    let me = Me { host: name("a"), address: [192, 0, 2, 1].into(), mtu: 1500, version: "1".to_owned() };
    let settings = Settings { fabric: name("prod"), me, run: 7, seed: 1, terms: Terms::default() };
    Fabric::new(settings, Time::ZERO)
}

#[test]
fn an_address_for_which_there_was_no_room_is_claimed_once_there_is() {
    let (daemon, mut fabric, mut ports) = (learning(), fabric(), Ports::default());
    let tunnel = Tunnel::new("tunnel".to_owned(), Hops::new(1));
    let mac = |number: u16| Mac([2, 0, 0, 0, 0, number as u8]);
    let claimed = |fabric: &Fabric, number| fabric.places(mac(number)).len() == 1;
    *daemon.addresses.lock().unwrap() = (0..=LEARNED_MAX).map(mac).collect();
    ports.look(&daemon, &tunnel, &mut fabric, Time::ZERO);
    assert!((0..LEARNED_MAX).all(|number| claimed(&fabric, number)) && !claimed(&fabric, LEARNED_MAX));
    // The first one ages. A look gives its room back, and the next one takes it.
    daemon.addresses.lock().unwrap().remove(0);
    for second in 1..=2 {
        ports.look(&daemon, &tunnel, &mut fabric, Time::ZERO.after(SELDOM * second));
    }
    assert!((1..=LEARNED_MAX).all(|number| claimed(&fabric, number)) && !claimed(&fabric, 0));
    assert!(ports.left_out.is_empty());
}

/// A daemon with a standby, and with the function that it stands by for.
struct Pair {
    /// Their numbers and specifications.
    standby: (PortId, PortSpec),
    function: (PortId, PortSpec),
    /// The use of the function.
    presence: Mutex<Presence>,
    /// The ports to which it was told to lead frames.
    led: Mutex<Vec<PortId>>,
}

impl Around for Pair {
    fn each_fabric_port(&self, visit: &mut dyn FnMut(PortId, &PortSpec, Presence)) {
        visit(self.standby.0, &self.standby.1, Presence::Running);
        visit(self.function.0, &self.function.1, *self.presence.lock().unwrap());
    }

    fn each_way_out(&self, _without: &str, _visit: &mut dyn FnMut(&str, &Vlan)) {}

    fn learned(&self) -> Vec<Learned> {
        Vec::new()
    }

    fn leads_to_uplink(&self, _uplink: &str, _mac: Mac, _vlan: u16) {}

    fn leads_to_port(&self, id: PortId, mac: Mac, vlan: u16) {
        assert_eq!((mac, vlan), (Mac([0x52, 0x54, 0, 0, 0, 1]), 10));
        self.led.lock().unwrap().push(id);
    }
}

#[test]
fn a_function_s_place_is_told_while_it_runs_and_its_standby_s_at_other_times_whichever_came_first() {
    let port = |name: &str, more: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\nsocket = \"{name}.sock\"\nmac = \"52:54:00:00:00:01\"\nport_group = \"web\"\n{more}"
        )
    };
    let (standby, function) = ("adapter = \"virtio-net\"\nstandby = true\n", "adapter = \"ixgbevf\"\n");
    let text =
        "[[port_group]]\nname = \"web\"\nvlan = 10\n".to_owned() + &port("vm2", standby) + &port("vm1", function);
    let host = Host::parse(&text, std::path::Path::new("/etc/nicety/host.toml")).unwrap();
    let spec = |number: usize| PortSpec::plain(host.ports[number].clone());
    for [standby, function] in [[1, 2], [2, 1]].map(|numbers| numbers.map(PortId)) {
        let daemon = Pair {
            standby: (standby, spec(0)),
            function: (function, spec(1)),
            presence: Mutex::new(Presence::Waiting),
            led: Mutex::default(),
        };
        let (mut fabric, mut ports) = (fabric(), Ports::default());
        let tunnel = Tunnel::new("tunnel".to_owned(), Hops::new(1));
        let mut led = |presence| {
            *daemon.presence.lock().unwrap() = presence;
            ports.look(&daemon, &tunnel, &mut fabric, Time::ZERO);
            let place = fabric.places(Mac([0x52, 0x54, 0, 0, 0, 1]))[0].port.clone();
            (place.to_string(), std::mem::take(&mut *daemon.led.lock().unwrap()))
        };
        assert_eq!(led(Presence::Waiting), ("vm2".to_owned(), vec![standby]), "when it has begun to run");
        assert_eq!(led(Presence::Running), ("vm1".to_owned(), vec![function]));
        assert_eq!(led(Presence::Running), ("vm1".to_owned(), vec![]));
        assert_eq!(led(Presence::Nobody), ("vm2".to_owned(), vec![standby]));
    }
}
