//! etcd that is there and is not reached: packets to it, from it, or both are lost on the way. And a host on another machine, whose tunnel
//! has the address of one that is there.

use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::far::{Far, HERE, THERE, sh};
use super::*;

/// A command that etcd does not answer ends within this time: a change is not left in the dark.
const REFUSED: Duration = Duration::from_secs(15);

/// Runs the named test of this file again, in namespaces of its own. True inside of them.
fn inside(test: &str) -> bool {
    let veth = "ip link add va type veth peer name vb";
    again::inside(test, "-Urn", || again::refusal(&["-Urn", "sh", "-c", veth], "a network namespace with a wire"))
}

/// The wire between the hosts and etcd.
struct Wire {
    far: Far,
}

/// Whose packets are lost.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lost {
    Hosts,
    Etcd,
    Both,
}

impl Wire {
    /// Packets that go to an address of Ethernet that nobody has are lost, and nobody is told.
    fn cut(&self, lost: Lost) {
        let to_nobody = |address, device| {
            sh(&format!("ip neighbour replace {address} lladdr 02:00:00:00:00:99 nud permanent dev {device}"));
        };
        if lost != Lost::Etcd {
            to_nobody(THERE, "wire0");
        }
        if lost != Lost::Hosts {
            self.far.run(|| to_nobody(HERE, "far0"));
        }
    }

    fn heal(&self) {
        sh(&format!("ip neighbour flush to {THERE} nud permanent dev wire0"));
        self.far.run(|| sh(&format!("ip neighbour flush to {HERE} nud permanent dev far0")));
    }
}

/// Two hosts with a guest each, and an etcd behind a wire.
struct Behind {
    wire: Wire,
    cluster: Cluster,
    hosts: [Host; 2],
    guests: [Station; 2],
    _place: TempDir,
}

impl Behind {
    fn start() -> Self {
        let (place, far) = (TempDir::new().unwrap(), Far::new(1500));
        let cluster = far.run(|| Cluster::start_at(vec![THERE.to_owned()], &[]));
        cluster.ready();
        cluster.put("config", GROUPS);
        let ends = addresses::<2>();
        let hosts = [("one", 1), ("other", 2)]
            .map(|(name, number)| (name, number, &ends[usize::from(number) - 1]))
            .map(|(name, number, end)| Host::start(place.path(), name, end, &cluster, &[("vmxnet3", "web", number)]));
        let guests = [hosts[0].guest("vmxnet3", 1), hosts[1].guest("vmxnet3", 2)];
        let this = Self { wire: Wire { far }, cluster, hosts, guests, _place: place };
        until("they know each other", || this.know());
        until("they are connected", || this.hosts.iter().all(Host::is_connected));
        this
    }

    fn know(&self) -> bool {
        let [one, other] = &self.hosts;
        one.place(2).as_deref() == Some("other") && other.place(1).as_deref() == Some("one")
    }

    /// Frames pass between the guests, and both hosts know where both are.
    fn passes(&mut self, when: &str) {
        let [a, b] = &mut self.guests;
        let bytes = [carried(a, b), carried(b, a)];
        assert!(bytes.iter().all(|bytes| *bytes > 100_000), "{when}: {bytes:?} {}", self.hosts[0].log());
        assert!(self.know(), "{when}: {}{}", self.hosts[0].report(), self.hosts[1].report());
    }

    /// A change is refused in time, by a sentence that names the server.
    fn refuses(&self, lost: Lost) {
        let begun = Instant::now();
        let child = self.hosts[0].command(&["fabric", "group", "add", "new", "vni=5030", "vlan=30"]);
        let ended = child.wait_with_output().unwrap();
        let (took, said) = (begun.elapsed(), String::from_utf8_lossy(&ended.stderr).into_owned());
        println!("{lost:?} lost, {took:?}: {}", said.trim_end());
        assert_eq!(ended.status.code(), Some(3), "{said}");
        assert!(said.contains(THERE) && took < REFUSED, "{took:?}: {said}");
    }

    /// Nothing changes for this time: neither where frames go nor which hosts there are.
    fn is_calm(&mut self, time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time {
            self.passes("after healing");
            assert!(self.hosts.iter().all(|host| host.report().hosts.len() == 1), "{}", self.hosts[0].report());
        }
    }
}

#[test]
fn etcd_that_is_cut_off_one_way_or_both_leaves_all_as_it_is_and_nothing_flaps_when_it_is_back() {
    if !inside("cut::etcd_that_is_cut_off_one_way_or_both_leaves_all_as_it_is_and_nothing_flaps_when_it_is_back") {
        return;
    }
    let mut behind = Behind::start();
    let is_full = std::env::var_os("NICETY_FULL").is_some_and(|value| value == "1");
    let ways: &[Lost] = if is_full { &[Lost::Hosts, Lost::Etcd, Lost::Both] } else { &[Lost::Etcd, Lost::Both] };
    let connected = |host: &Host| host.log().matches("etcd has this host").count();
    for (before, &lost) in (1..).zip(ways) {
        until("the log says so", || connected(&behind.hosts[0]) == before);
        behind.wire.cut(lost);
        behind.refuses(lost);
        let away = |host: &Host| matches!(host.report().connection, Connection::Away | Connection::Forgotten);
        until("both say so", || behind.hosts.iter().all(away));
        let why = behind.hosts[0].report().why_not;
        assert!(why.is_some_and(|why| why.contains(THERE)), "{}", behind.hosts[0].report());
        behind.passes("cut off");
        if lost == Lost::Both {
            // Longer than a lease: etcd has forgotten both.
            let forgotten = |host: &Host| host.report().connection == Connection::Forgotten;
            until("the leases have ended", || behind.hosts.iter().all(forgotten));
            behind.passes("longer than a lease");
        }
        behind.wire.heal();
        until("they are back", || behind.hosts.iter().all(Host::is_connected));
        until("the log says so again", || connected(&behind.hosts[0]) == before + 1);
        // Past the grace of one lease, after the longest cut.
        behind.is_calm(Duration::from_secs(if lost == Lost::Both { 11 } else { 1 }));
        assert_eq!(connected(&behind.hosts[0]), before + 1, "{}", behind.hosts[0].log());
    }
    // A change that was refused was not made later.
    let keys = behind.cluster.keys();
    assert!(!behind.hosts[0].report().groups.iter().any(|group| group.name == "new") && keys.len() == 7, "{keys:?}");
}

#[test]
fn a_host_with_the_tunnel_address_of_another_one_is_refused_with_its_name_and_gets_nothing() {
    if !inside("cut::a_host_with_the_tunnel_address_of_another_one_is_refused_with_its_name_and_gets_nothing") {
        return;
    }
    let (place, far) = (TempDir::new().unwrap(), Far::new(1500));
    // Both reach it.
    let cluster = Cluster::start_at(vec![HERE.to_owned()], &[]);
    cluster.ready();
    cluster.put("config", GROUPS);
    let [end, other] = addresses::<2>();
    let one = Host::start(place.path(), "one", &end, &cluster, &[("e1000", "web", 1)]);
    let third = Host::start(place.path(), "third", &other, &cluster, &[("e1000", "web", 3)]);
    until("they are there", || one.is_connected() && third.is_connected());
    // Its machine has the same address, as one that was copied.
    let twin = far.run(|| Host::start(place.path(), "twin", &end, &cluster, &[("e1000", "web", 2)]));
    until("it is refused", || twin.report().connection == Connection::Refused);
    let why = twin.report().why_not.unwrap();
    let says = format!(
        "host \"one\" has the tunnel address {end} already, so host \"twin\", which has the same one, is refused: \
         give one of them another address"
    );
    assert_eq!(why, says);
    until("the log says so", || twin.log().contains(&format!("this host is refused: {says}")));
    assert!(one.is_connected() && third.is_connected() && one.log().matches("refused").count() == 0, "{}", one.log());
    let hosts = third.report().hosts;
    assert!(hosts.len() == 1 && hosts[0].name == "one" && hosts[0].is_reached, "{}", third.report());
    assert!(cluster.keys().iter().all(|(key, _)| !key.contains("twin")), "{:?}", cluster.keys());
    // Its guest reaches nobody, and is told nobody's place.
    let guest = twin.guest("e1000", 2);
    let far_guest = third.guest("e1000", 3);
    until("the other guest is known to its neighbour", || one.place(3).as_deref() == Some("third"));
    assert_eq!((twin.tunnelled(), third.place(2)), (0, None), "{}", twin.report());
    drop((guest, far_guest));
    // Once the first one has left, the second may take its place.
    let mut one = one;
    one.end(Signal::TERM);
    until("it is taken", || twin.is_connected());
    until("others reach it", || third.report().hosts.iter().any(|host| host.name == "twin" && host.is_reached));
}
