//! The wire between two hosts is cut, one way or both, while each of them reaches etcd and the third host.

use super::*;

/// The hosts between which it is cut, and their guests of the group in which all three are.
const ENDS: [usize; 2] = [0, 1];
const GUESTS: [u8; 2] = [1, 2];
/// Frames pass again within this time.
const HEALED: Duration = Duration::from_secs(3);

impl Three {
    /// Packets from one host to the other go to an address of Ethernet that nobody has.
    fn cut(&self, from: usize, to: usize) {
        let to = address(to);
        self.spaces[from]
            .run(|| sh(&format!("ip neighbour replace {to} lladdr 02:00:00:00:00:99 nud permanent dev veth0")));
    }

    fn heal(&self, from: usize, to: usize) {
        let to = address(to);
        self.spaces[from].run(|| sh(&format!("ip neighbour flush to {to} nud permanent dev veth0")));
    }
}

#[test]
fn two_hosts_whose_wire_is_cut_reach_etcd_and_the_third_host_and_each_other_when_it_is_healed() {
    if !inside(
        "three::wire::two_hosts_whose_wire_is_cut_reach_etcd_and_the_third_host_and_each_other_when_it_is_healed",
    ) {
        return;
    }
    let mut three = Three::start();
    let before = [0, 1, 2].map(|host| three.keys_of(host));
    let times = if is_full() { [LEASE * 2, LEASE * 2] } else { [Duration::from_secs(2); 2] };
    for (is_both, time) in [false, true].into_iter().zip(times) {
        let when = if is_both { "cut both ways" } else { "cut one way" };
        let [one, other] = ENDS;
        three.cut(one, other);
        if is_both {
            three.cut(other, one);
        }
        // Frames that were on their way have arrived.
        three.during(Duration::from_millis(100));
        three.traffic.mark();
        three.during(time);
        let [a, b] = GUESTS;
        assert_eq!(three.traffic.count(a, b), 0, "{when}");
        assert_eq!(three.traffic.count(b, a) == 0, is_both, "{when}");
        // Neither host is taken for gone, and nobody else passes frames on for them.
        three.traffic.all_came(&[a, 3], when);
        three.traffic.all_came(&[b, 3], when);
        three.until("all hosts are connected", |this| this.hosts.iter().all(Host::is_connected));
        assert_eq!((three.disagreement(), three.traffic.flooded), (None, 0), "{when}");
        three.heal(one, other);
        three.heal(other, one);
        three.traffic.mark();
        let begun = Instant::now();
        three.until("all guests reach each other", |this| this.traffic.unheard().is_empty());
        println!("{when}: healed after {:?}", begun.elapsed());
        assert!(begun.elapsed() < HEALED, "{when}: {:?}", begun.elapsed());
        three.traffic.mark();
        three.during(Duration::from_secs(1));
        three.traffic.all_came(&[1, 2, 3, 4, 5], when);
    }
    // etcd has heard nothing of it.
    for (host, before) in before.iter().enumerate() {
        assert_eq!(&three.keys_of(host), before, "{}", NAMES[host]);
    }
}
