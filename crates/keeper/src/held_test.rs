use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::*;

/// Less than a descriptor lingers.
const SOON: Duration = Duration::from_secs(20);

fn is_open(peer: &mut UnixStream) -> bool {
    peer.set_nonblocking(true).unwrap();
    !matches!(peer.read(&mut [0]), Ok(0))
}

fn is_closed_soon(peer: &mut UnixStream) -> bool {
    peer.set_nonblocking(false).unwrap();
    peer.set_read_timeout(Some(SOON)).unwrap();
    matches!(peer.read(&mut [0]), Ok(0))
}

/// A descriptor, and its peer, which sees when it is closed.
fn watched() -> (UnixStream, OwnedFd) {
    let (peer, ours) = UnixStream::pair().unwrap();
    (peer, ours.into())
}

fn null() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Held {
    fn holds(&mut self, name: &str, number: u64, fds: Vec<OwnedFd>) {
        self.hold(&content(number, name), fds, Instant::now());
    }

    fn forgets(&mut self, name: &str, below: u64) {
        self.forget(&content(below, name), Instant::now());
    }

    fn numbers(&self, name: &str) -> Vec<u64> {
        self.iter().filter(|(owner, ..)| *owner == name).map(|(_, number, _)| number).collect()
    }
}

#[test]
fn a_vmm_whose_descriptors_are_slow_to_close_holds_up_no_other() {
    let mut held = Held::default();
    let (slow, _peers): (Vec<_>, Vec<_>) = (0..100).map(|_| lingering::lingering()).unzip();
    let (mut other, ours) = watched();
    held.holds("vm1", 1, slow);
    held.holds("vm2", 1, vec![ours]);
    held.forgets("vm1", 2);
    held.forgets("vm2", 2);
    assert!(is_closed_soon(&mut other));
    assert!(held.closing.load(Ordering::Relaxed) > 90, "the slow ones wait");
}

#[test]
fn an_older_group_is_closed_when_the_daemon_says_so_and_not_before() {
    let mut held = Held::default();
    let (mut first, ours) = watched();
    held.holds("vm1", 5, vec![ours]);
    let (mut second, ours) = watched();
    held.holds("vm1", 6, vec![ours]);
    held.forgets("vm2", 9);
    assert!(is_open(&mut first) && is_open(&mut second));
    held.forgets("vm1", 6);
    assert!(is_closed_soon(&mut first) && is_open(&mut second));
    assert_eq!((held.numbers("vm1"), held.count), (vec![6], 1));
    held.forgets("vm1", u64::MAX);
    assert!(is_closed_soon(&mut second) && held.is_empty());
}

#[test]
fn a_group_that_comes_after_a_newer_one_is_closed() {
    let mut held = Held::default();
    held.holds("vm1", 6, Vec::new());
    let (mut peer, ours) = watched();
    held.holds("vm1", 5, vec![ours]);
    assert!(is_closed_soon(&mut peer));
}

#[test]
fn a_renewed_group_has_the_old_descriptors_and_the_new_ones_in_their_places() {
    let mut held = Held::default();
    let ((mut gone, first), (mut stays, second), (mut new, third)) = (watched(), watched(), watched());
    held.holds("vm1", 1, vec![first, second]);
    let kept = Arc::as_ptr(&held.owners["vm1"].groups[0].1[1]);
    held.renew(&renewal(2, "vm1", 1, &[None, Some(1)]), vec![third], Instant::now());
    assert_eq!((held.numbers("vm1"), held.count), (vec![1, 2], 3));
    held.forgets("vm1", 2);
    assert!(is_closed_soon(&mut gone) && is_open(&mut stays) && is_open(&mut new));
    let group = &held.owners["vm1"].groups[0].1;
    assert_eq!((group.len(), Arc::as_ptr(&group[1]), held.count), (2, kept, 2));
    held.forgets("vm1", 3);
    assert!(is_closed_soon(&mut stays) && is_closed_soon(&mut new) && held.count == 0);
}

#[test]
fn a_group_that_renews_one_that_is_not_there_is_not_held_and_the_daemon_hears_it() {
    let mut held = Held::default();
    let (ours, daemon) = Channel::pair().unwrap();
    held.heard_by(ours);
    let (mut peer, fd) = watched();
    held.renew(&renewal(2, "vm1", 1, &[None]), vec![fd], Instant::now());
    let told = daemon.receive(SOON).unwrap();
    assert_eq!((told.kind, named(&told.content)), (kind::LOST, Some((Why::Missing.number(), "vm1".into()))));
    assert!(is_closed_soon(&mut peer) && held.is_empty());
    // A place that the older group has not, and one descriptor too few.
    for (number, places) in [(1, [Some(7)]), (2, [None])] {
        let name = format!("other{number}");
        held.holds(&name, 1, vec![null()]);
        held.renew(&renewal(2, &name, 1, &places), Vec::new(), Instant::now());
        assert!(held.numbers(&name).is_empty());
    }
}

/// Eight VMMs that change their interrupts as fast as they can, and a daemon that sends each change.
#[test]
fn eight_ports_that_storm_leave_the_table_to_the_others_and_are_named_once() {
    const TABLE: usize = 20_000;
    let mut held = Held::with(TABLE);
    let (ours, daemon) = Channel::pair().unwrap();
    held.heard_by(ours);
    held.holds("idle", 1, vec![null()]);
    let now = Instant::now();
    let storms = 8;
    for number in 1..=200 {
        for storm in 0..storms {
            // Each message has the whole group again, as one of an earlier program, and nobody forgets the older ones.
            let fds = (0..40).map(|_| null()).collect();
            held.hold(&content(number, &format!("storm{storm}")), fds, now);
        }
    }
    assert!(held.count <= storms * DESCRIPTORS_MAX + 1, "{}", held.count);
    // One that renews its group, with one new descriptor each time.
    for number in 1..=2 * u64::from(MESSAGES.0) {
        held.renew(&renewal(number + 1, "often", number, &[None]), vec![null()], now);
        if number == 1 {
            held.owners.get_mut("often").unwrap().lost = None;
            held.holds("often", 2, vec![null()]);
        }
        held.forget(&content(number + 1, "often"), now);
    }
    assert!(held.numbers("often").is_empty());
    held.holds("new", 1, (0..FEW).map(|_| null()).collect());
    assert_eq!((held.numbers("idle"), held.numbers("new")), (vec![1], vec![1]));
    let told: Vec<_> = std::iter::from_fn(|| daemon.receive(Duration::ZERO).ok()).collect();
    let of = |name: &str| told.iter().filter(|told| named(&told.content).unwrap().1 == name).count();
    assert_eq!((of("often"), of("idle"), of("new")), (2, 0, 0), "and once before");
}

#[test]
fn where_few_are_left_the_next_daemons_group_is_held_beside_the_last_ones() {
    let mut held = Held::with(1200);
    let group = || (0..160).map(|_| null()).collect::<Vec<_>>();
    held.holds("vm1", 1, group());
    held.holds("vm1", 2, group());
    assert_eq!(held.numbers("vm1"), [1, 2]);
    held.forgets("vm1", 2);
    // Many that have as much leave some to a port with a few.
    (0..9).for_each(|number| held.holds(&format!("other{number}"), 1, group()));
    // Another thread closes what was refused, and until then it takes room.
    until("all that is not held is closed", || held.closing.load(Ordering::Relaxed) == 0);
    held.holds("few", 1, (0..FEW).map(|_| null()).collect());
    assert_eq!((held.numbers("vm1"), held.numbers("few")), (vec![2], vec![1]));
    assert!(held.numbers("other8").is_empty() && held.count < 900);
}

#[test]
fn a_port_whose_descriptors_do_not_close_is_held_no_more_and_again_when_they_have() {
    let mut held = Held::default();
    let (ours, daemon) = Channel::pair().unwrap();
    held.heard_by(ours);
    held.holds("idle", 1, vec![null()]);
    // All that the port has sent is open: each group replaces one whose descriptors do not close.
    let (slow, peers): (Vec<_>, Vec<_>) = (0..4).map(|_| lingering::lingering()).unzip();
    held.holds("vm1", 1, slow);
    let mut number = 1;
    let told = loop {
        number += 1;
        held.holds("vm1", number, (0..FDS_MAX).map(|_| null()).collect());
        held.forgets("vm1", number);
        if let Ok(told) = daemon.receive(Duration::ZERO) {
            break told;
        }
        assert!(number < 20, "{held:?}");
    };
    assert_eq!((told.kind, named(&told.content).unwrap()), (kind::LOST, (Why::Slow.number(), "vm1".into())));
    let open = held.owners["vm1"].closing.open();
    assert!((DESCRIPTORS_MAX - FDS_MAX..=DESCRIPTORS_MAX + FDS_MAX).contains(&open), "{open}");
    // Descriptors that come before the daemon has heard of the loss are closed.
    held.holds("vm1", 99, vec![null()]);
    assert_eq!((held.numbers("vm1"), held.numbers("idle")), (vec![], vec![1]));
    assert!(held.next().is_some());
    // Without a peer a socket does not linger.
    drop(peers);
    until("all are closed", || held.owners["vm1"].closing.open() == 0);
    held.look(held.looks_at);
    let told = daemon.receive(SOON).unwrap();
    assert_eq!((told.kind, named(&told.content).unwrap()), (kind::FREE, (0, "vm1".into())));
    held.holds("vm1", 100, vec![null()]);
    assert_eq!((held.numbers("vm1"), held.next()), (vec![100], None));
}

#[test]
fn a_daemon_that_comes_later_hears_what_is_not_held() {
    let mut held = Held::default();
    held.renew(&renewal(2, "vm1", 1, &[]), Vec::new(), Instant::now());
    let (ours, daemon) = Channel::pair().unwrap();
    held.heard_by(ours);
    assert_eq!(daemon.receive(SOON).unwrap().kind, kind::LOST);
    // It reads nothing: what is told later waits, once for each owner.
    (0..1000).for_each(|number| held.tell(&number.to_string()));
    let untold = held.hearers[0].untold.len();
    assert!(untold > 0 && untold < 1000 && held.next().is_some(), "{untold}");
    while daemon.receive(Duration::ZERO).is_ok() {}
    held.looks_at = Instant::now();
    held.look(Instant::now());
    assert!(held.hearers[0].untold.len() < untold);
}

#[test]
fn a_daemon_cannot_make_it_hold_without_end() {
    let mut held = Held::default();
    for number in 0..20 {
        held.holds("vm1", number, Vec::new());
    }
    assert_eq!(held.numbers("vm1"), [16, 17, 18, 19]);
    for number in 0..2 * NAMES_MAX {
        held.holds(&number.to_string(), 0, Vec::new());
    }
    held.hold(&[1, 2], Vec::new(), Instant::now());
    held.holds(&"x".repeat(NAME_MAX + 1), 0, Vec::new());
    assert_eq!(held.owners.len(), NAMES_MAX);
}

#[test]
fn a_full_table_takes_no_message_until_descriptors_are_closed() {
    let held = Held::with(4 * OWN);
    assert!(held.has_room());
    let (slow, peer) = lingering::lingering();
    let (third, third_peer) = lingering::lingering();
    let (second, second_peer) = lingering::lingering();
    held.close([slow, second, third]);
    held.close((0..3 * OWN).map(|_| null()));
    assert!(!held.has_room());
    drop((peer, second_peer, third_peer));
    until("there is room", || held.has_room());
}
