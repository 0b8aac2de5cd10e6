//! An owner at instants that random histories (`vm.rs`) hardly ever meet.

use nicety_adapter::Time;
use nicety_lease::{Keeper, Lease, NodeId, Request};
use nicety_protect::{Action, Ended, Message, Owner, Pairing, Stage, Terms, Twin, TwinStage};

const MS: u64 = 1_000_000;
const ME: NodeId = NodeId(1);
const TWIN: NodeId = NodeId(2);
const PAIRING: Pairing = Pairing(7);

/// An owner, and the third party.
struct World {
    owner: Owner,
    lease: Keeper,
    now: u64,
}

impl World {
    /// A twin joins, and has the first copy.
    fn copied() -> Self {
        let terms = Terms::default();
        let owner = Owner::new(ME, terms);
        let mut world = Self { owner, lease: Keeper::new(terms.lease.as_nanos() as u64), now: MS };
        world.pass(true);
        world.owner.went_alone();
        world.pass(true);
        assert_eq!(world.owner.stage(), Stage::Alone);
        let time = world.time();
        assert!(world.owner.wants_twin(time));
        world.owner.offered(TWIN, PAIRING, time);
        world.owner.closed(PAIRING, 1, time);
        world.owner.heard(Message::Loaded(PAIRING, 1), time);
        world
    }

    fn time(&self) -> Time {
        Time(self.now)
    }

    /// The owner does what is due. The third party carries out what it asks; answers come at once, or never. What was done.
    fn pass(&mut self, is_answered: bool) -> Vec<Action> {
        let time = self.time();
        self.owner.tick(time);
        let mut done = Vec::new();
        while let Some(action) = self.owner.action() {
            if let Action::Ask(number, request) = action {
                let answer = self.lease.ask(ME, request, self.now);
                if is_answered {
                    self.owner.answered(number, Some(answer), time);
                }
            }
            done.push(action);
        }
        done
    }
}

fn released(actions: &[Action]) -> Option<u64> {
    actions.iter().rev().find_map(|action| match action {
        Action::Release(epoch, _) => Some(*epoch),
        _ => None,
    })
}

/// A VM that is handed over at an administrator's wish, up to the request to the lease.
fn handing_over() -> World {
    let mut world = World::copied();
    world.pass(true);
    assert!(matches!(world.owner.stage(), Stage::Protected { .. }));
    let time = world.time();
    assert!(world.owner.fail_over(time));
    world.owner.heard(Message::Reaches(PAIRING), time);
    world
}

#[test]
fn a_qemu_that_is_handed_over_ends_only_when_the_lease_is_seen_to_name_the_twin_although_an_answer_was_lost() {
    let mut world = handing_over();
    let done = world.pass(false);
    assert!(done.contains(&Action::Shut) && done.iter().any(|action| matches!(action, Action::Ask(_, Request::Give))));
    assert_eq!(world.lease.lease.holder, Some(TWIN));
    let is_done =
        |done: &[Action]| (done.contains(&Action::Send(Message::HandOver(PAIRING))), done.contains(&Action::End));
    assert_eq!(is_done(&done), (false, false));
    world.now += 1000 * MS;
    let done = world.pass(true);
    assert_eq!(is_done(&done), (true, true));
    assert_eq!(world.owner.stage(), Stage::Ended(Ended::HandedOver));
    // The twin has it by its next request, which needs no lease to run out.
    assert!(world.lease.ask(TWIN, Request::Take, world.now).granted);
}

#[test]
fn a_vm_that_the_lease_gives_to_nobody_stays_where_it_is() {
    for is_removed in [false, true] {
        let mut world = handing_over();
        match is_removed {
            true => world.lease.lease = Lease::default(),
            false => world.lease.lease.peer = None,
        }
        let done = world.pass(true);
        assert!(!done.contains(&Action::End) && done.contains(&Action::Send(Message::Alone(PAIRING))), "{done:?}");
        world.owner.went_alone();
        world.pass(true);
        assert_eq!((world.owner.stage(), world.lease.lease.holder), (Stage::Alone, Some(ME)));
    }
}

/// The twin may have taken over meanwhile.
#[test]
fn a_twin_that_the_lease_may_name_bounds_what_leaves_although_the_answer_was_lost() {
    for stood_still in [false, true] {
        let mut world = World::copied();
        let done = world.pass(false);
        assert!(done.iter().any(|action| matches!(action, Action::Ask(_, Request::Pair { .. }))), "{done:?}");
        assert_eq!((released(&done), world.lease.lease.peer), (Some(1), Some(TWIN)));
        world.now += if stood_still { 1000 * MS } else { 100 * MS };
        let time = world.time();
        world.owner.closed(PAIRING, 2, time);
        world.owner.heard(Message::Loaded(PAIRING, 2), time);
        let done: Vec<_> = std::iter::from_fn(|| world.owner.action()).collect();
        assert_eq!(released(&done), (!stood_still).then_some(2));
        assert_eq!(world.owner.is_isolated(time), stood_still);
    }
}

#[test]
fn a_vm_that_goes_on_alone_while_the_lease_is_away_takes_no_twin() {
    let mut world = World::copied();
    let time = world.time();
    world.owner.stop(time);
    world.pass(true);
    world.owner.went_alone();
    world.pass(true);
    assert_eq!(world.owner.stage(), Stage::Alone);
    assert!(world.owner.wants_twin(world.time()));
    world.now += 2000 * MS;
    world.pass(false);
    assert_eq!(world.owner.stage(), Stage::Alone);
    let time = world.time();
    assert!(!world.owner.wants_twin(time));
    world.owner.offered(TWIN, Pairing(8), time);
    assert_eq!(world.owner.stage(), Stage::Alone);
}

/// A twin that heard it would not ask for the lease, and then nobody would go on with the VM.
#[test]
fn an_owner_that_does_not_hear_its_twin_and_does_not_reach_the_lease_is_silent() {
    let mut world = World::copied();
    world.pass(true);
    assert!(matches!(world.owner.stage(), Stage::Protected { .. }));
    let mut said = Vec::new();
    for _ in 0..40 {
        world.now += 50 * MS;
        let is_lost = matches!(world.owner.stage(), Stage::Parting { .. });
        let alive = world.pass(false).contains(&Action::Send(Message::Alive));
        said.push((is_lost, alive));
    }
    assert!(said.contains(&(false, true)), "it speaks while it hopes: {said:?}");
    assert!(said.contains(&(true, false)) && !said.contains(&(true, true)), "{said:?}");
    assert!(world.owner.is_isolated(world.time()));
}

/// The lease may have ended in between, and its twin may have taken over.
#[test]
fn the_next_daemon_of_an_owner_releases_nothing_before_the_lease_is_renewed_and_then_what_its_own_twin_has() {
    let mut world = World::copied();
    world.pass(true);
    let kept = world.owner.kept().unwrap();
    world.now += 500 * MS;
    world.owner = Owner::again(ME, Terms::default(), kept, 2, world.time()).unwrap();
    let time = world.time();
    world.owner.heard(Message::Loaded(Pairing(8), 2), time);
    assert_eq!(
        (world.owner.copies(), world.owner.is_isolated(time)),
        ((2, 1), true),
        "another protection's says nothing"
    );
    assert_eq!(released(&world.pass(false)), None);
    world.now += 1000 * MS;
    let done = world.pass(true);
    assert!(done.iter().any(|action| matches!(action, Action::Ask(_, Request::Renew))), "{done:?}");
    assert_eq!(released(&done), Some(1));
    let time = world.time();
    world.owner.rejoined(time);
    world.owner.heard(Message::Loaded(PAIRING, 2), time);
    assert_eq!(released(&world.pass(true)), Some(2));
}

#[test]
fn an_owner_whose_twin_took_over_while_its_daemon_was_replaced_ends() {
    let mut world = World::copied();
    world.pass(true);
    let kept = world.owner.kept().unwrap();
    world.now += 2000 * MS;
    assert!(world.lease.ask(TWIN, Request::Take, world.now).granted);
    world.owner = Owner::again(ME, Terms::default(), kept, 1, world.time()).unwrap();
    let done = world.pass(true);
    assert_eq!((world.owner.stage(), released(&done)), (Stage::Ended(Ended::Taken), None));
}

/// Nobody is lost for being silent while a daemon is replaced. That has an end.
#[test]
fn hosts_that_wait_for_a_daemon_that_is_replaced_give_up_after_a_while() {
    let terms = Terms::default();
    let patience = terms.patience.as_nanos() as u64;
    let mut world = World::copied();
    world.pass(true);
    let time = world.time();
    world.owner.pause(time);
    let mut twin = Twin::new(TWIN, terms);
    twin.heard(Message::Begin(PAIRING), time);
    twin.loaded(PAIRING, 1, time);
    let kept = twin.kept().unwrap();
    let mut twin = Twin::again(TWIN, terms, kept, time).unwrap();
    let waits = TwinStage::Copied { pairing: PAIRING, is_whole: true, is_heir: false };
    for (after, is_over) in [(patience - MS, false), (patience, true)] {
        world.now = time.0 + after;
        world.pass(true);
        twin.tick(world.time());
        assert_eq!(world.owner.pairing().is_none(), is_over, "{:?}", world.owner.stage());
        assert_eq!(twin.stage() != waits, is_over, "{:?}", twin.stage());
    }
    assert_eq!(twin.stage(), TwinStage::Asks { pairing: PAIRING, is_cut: true });
    assert_eq!(world.owner.why(), "a daemon was replaced, and the twin's host has not come back");
    assert_eq!((world.owner.kept(), twin.kept()), (None, None));
}
