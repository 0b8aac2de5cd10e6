//! A daemon is killed, and stands still.

use super::*;

/// The host that is disturbed.
const ILL: usize = 2;
/// Its guest.
const LOST: u8 = 3;

impl Three {
    /// Its keys go within a lease, and the other hosts have its guests nowhere. Their own guests lose nothing.
    fn forget(&mut self, host: usize, since: Instant, when: &str) {
        let others = [0, 1, 2].map(|other| other != host);
        self.until("its keys have gone", |this| this.keys_of(host).is_empty());
        self.until("the others have it nowhere", |this| {
            let known = this.hosts.iter().zip(others).filter(|(_, is_other)| *is_other);
            known.map(|(other, _)| other).all(|other| other.place(LOST).is_none() && other.report().hosts.len() == 1)
        });
        let took = since.elapsed();
        println!("{when}: it is forgotten after {took:?}");
        assert!(took < LEASE + LATE, "{when}: {took:?}");
    }

    /// The other hosts' keys are as they were: none was made anew.
    fn others_are(&self, before: &[Vec<(String, i64)>; 2], when: &str) {
        for (host, before) in before.iter().enumerate() {
            assert_eq!(&self.keys_of(host), before, "{when}: {}\n{}", NAMES[host], self.hosts[host].log());
        }
    }
}

#[test]
fn a_daemon_that_is_killed_or_stands_still_is_forgotten_in_time_and_back_at_once_and_the_others_lose_nothing() {
    if !inside(
        "three::daemons::a_daemon_that_is_killed_or_stands_still_is_forgotten_in_time_and_back_at_once_and_the_others_lose_nothing",
    ) {
        return;
    }
    let mut three = Three::start();
    let others = three.guests_but(ILL);
    let before = [0, 1].map(|host| three.keys_of(host));
    let calm = |three: &mut Three, when: &str| {
        three.traffic.all_came(&others, when);
        three.others_are(&before, when);
        three.traffic.mark();
    };

    // It is there again before its lease has ended: it goes on by its last known state, and under its keys.
    three.traffic.mark();
    three.kill(ILL);
    three.during(Duration::from_secs(1));
    three.serve(ILL);
    calm(&mut three, "killed");
    three.meet("killed and started");

    three.traffic.mark();
    let since = Instant::now();
    three.kill(ILL);
    three.forget(ILL, since, "killed");
    calm(&mut three, "killed for longer than a lease");
    three.serve(ILL);
    three.meet("killed for longer than a lease, and started");

    // It stands still for longer than its lease. Meanwhile its group gets another network.
    let rounds = if is_full() { 3 } else { 1 };
    for round in 1..=rounds {
        let last = if round % 2 == 1 { GROUPS.replace("5010", "5011") } else { GROUPS.to_owned() };
        three.traffic.mark();
        let since = Instant::now();
        three.signal(ILL, Signal::STOP);
        three.forget(ILL, since, "stopped");
        calm(&mut three, "stopped for longer than a lease");
        three.cluster.put("config", &last);
        let version = three.cluster.version("config");
        let has = |host: &Host| host.report().config == Some(version);
        three.until("the others have the other network", |this| this.hosts[..ILL].iter().all(has));
        three.during(Duration::from_millis(200));
        three.traffic.mark();
        three.signal(ILL, Signal::CONT);
        three.meet("stopped and continued");
        assert!(has(&three.hosts[ILL]), "{}", three.hosts[ILL].report());
        calm(&mut three, "it goes on");
    }
}
