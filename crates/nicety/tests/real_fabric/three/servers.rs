//! Servers of etcd stand still: one, and two of the three.

use super::*;

/// A change is heard by all hosts within this time while one server stands still: a watch notices after half a lease, and opens another
/// stream within a third of one.
const HEARD: Duration = Duration::from_secs(15);
/// All hosts are connected within this time once a majority is back: it may have to choose a leader.
const BACK: Duration = Duration::from_secs(20);

impl Three {
    /// These servers stand still from now on.
    fn stop(&self, members: &[usize]) {
        members.iter().for_each(|member| self.cluster.signal(*member, Signal::STOP));
    }

    fn go_on(&self, members: &[usize]) {
        members.iter().for_each(|member| self.cluster.signal(*member, Signal::CONT));
    }

    /// One server stands still. A change is made by the others, and heard by all.
    fn one_stands_still(&mut self, member: usize) {
        let when = format!("server {member} stands still");
        let before = [0, 1, 2].map(|host| self.keys_of(host));
        self.traffic.mark();
        self.stop(&[member]);
        self.cluster.put("config", format!("{GROUPS}# {member}\n"));
        let (version, begun) = (self.cluster.version("config"), Instant::now());
        self.until("the change is heard", |this| this.hosts.iter().all(|host| host.report().config == Some(version)));
        println!("{when}: a change is heard after {:?}", begun.elapsed());
        assert!(begun.elapsed() < HEARD, "{when}: {:?}\n{}", begun.elapsed(), self.logs());
        // Longer than a lease: nobody's has ended.
        self.during(LEASE + Duration::from_secs(1));
        self.until("all hosts are connected", |this| this.hosts.iter().all(Host::is_connected));
        assert_eq!(self.disagreement(), None, "{when}");
        assert_eq!([0, 1, 2].map(|host| self.keys_of(host)), before, "{when}\n{}", self.logs());
        let guests = self.guests();
        self.traffic.all_came(&guests, &when);
        self.go_on(&[member]);
        self.cluster.ready();
    }

    fn guests(&self) -> Vec<u8> {
        PORTS.iter().flat_map(|ports| ports.iter().map(|(_, number)| *number)).collect()
    }
}

#[test]
fn servers_that_stand_still_take_nothing_away_and_nothing_flaps_when_they_go_on() {
    if !inside("three::servers::servers_that_stand_still_take_nothing_away_and_nothing_flaps_when_they_go_on") {
        return;
    }
    let mut three = Three::start();
    let leader = three.cluster.leader();
    let members = if is_full() { vec![0, 1, 2] } else { vec![leader] };
    members.into_iter().for_each(|member| three.one_stands_still(member));

    // The leader is one of the two: when it goes on, it finds that all leases have ended.
    let leader = three.cluster.leader();
    let still = [leader, (leader + 1) % 3];
    let guests = three.guests();
    three.traffic.mark();
    three.stop(&still);
    let forgotten = |host: &Host| host.report().connection == Connection::Forgotten;
    three.until("the leases have ended", |this| this.hosts.iter().all(forgotten));
    for host in &three.hosts {
        let why = host.report().why_not.unwrap();
        assert!(why.contains("etcd") || why.contains("no answer"), "{}: {why}", host.name);
    }
    let (code, _, said) = three.hosts[0].run(&["fabric", "group", "add", "new", "vni=5030", "vlan=30"]);
    assert_eq!(code, Some(3), "{said}");
    three.traffic.all_came(&guests, "two servers stand still");
    // A daemon that begins meanwhile goes by what it knew.
    three.kill(1);
    three.serve(1);
    three.traffic.mark();
    let begun = Instant::now();
    three.until("its guests are reached", |this| this.traffic.unheard().is_empty());
    println!("a daemon began without etcd: its guests are reached after {:?}", begun.elapsed());
    assert!(begun.elapsed() < MEET, "{:?}", begun.elapsed());
    three.traffic.mark();
    three.go_on(&still);
    let begun = Instant::now();
    three.until("they are connected", |this| this.hosts.iter().all(Host::is_connected));
    println!("connected after {:?}", begun.elapsed());
    assert!(begun.elapsed() < BACK, "{:?}\n{}", begun.elapsed(), three.logs());
    // Past the grace of one lease.
    three.during(LEASE + Duration::from_secs(1));
    three.traffic.all_came(&guests, "they go on");
    assert_eq!(three.disagreement(), None);
    // A change that was refused was not made later.
    assert_eq!(three.hosts[0].report().groups.len(), 2, "{}", three.hosts[0].report());
}
