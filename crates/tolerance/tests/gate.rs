//! Output commit: frames wait in order, are bounded, and leave when the secondary has what precedes them.

use nicety_adapter::Time;
use nicety_lease::{Answer, NodeId, Request};
use nicety_tolerance::node::End;
use nicety_tolerance::{Action, Call, Gate, GuestTime, Machine, Message, Node, Role, Terms};

const MS: u64 = 1_000_000;

/// Sends every frame back.
struct Mirror {
    calls: u64,
    /// Its state differs from this call on, and nothing else.
    odd_from: u64,
}

fn mirror() -> Mirror {
    Mirror { calls: 0, odd_from: u64::MAX }
}

/// Bytes of its image: several messages.
const IMAGE: usize = 200_000;

impl Machine for Mirror {
    fn call(&mut self, _: GuestTime, call: &Call, out: &mut Vec<Vec<u8>>) {
        self.calls += 1;
        if let Call::Frame(frame) = call {
            out.push(frame.clone());
        }
    }

    fn renew(&mut self, _: GuestTime, _: &mut Vec<Vec<u8>>) -> Option<Vec<u8>> {
        self.calls += 1;
        Some([self.calls.to_le_bytes().as_slice(), &[9; IMAGE]].concat())
    }

    fn restore(&mut self, _: GuestTime, image: &[u8], _: &mut Vec<Vec<u8>>) -> Result<(), String> {
        let (calls, rest) = image.split_at(8);
        assert_eq!(rest, [9; IMAGE]);
        self.calls = u64::from_le_bytes(calls.try_into().unwrap());
        Ok(())
    }

    fn wake(&self) -> Option<GuestTime> {
        None
    }

    fn history(&self) -> u64 {
        self.calls
    }

    fn state(&self) -> u64 {
        self.calls << 1 | u64::from(self.calls >= self.odd_from)
    }

    fn announcement(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }
}

const PEER: NodeId = NodeId(2);

fn known(host: &mut Node<Mirror>, calls: u64, now: Time) -> Vec<Action> {
    let mut actions = Vec::new();
    host.receive(Message::Known { from: PEER, calls }, now, &mut actions);
    host.step(now, &mut actions);
    actions
}

/// A primary whose secondary may take over.
fn protected(terms: Terms) -> Node<Mirror> {
    let (id, now) = (NodeId(1), Time(0));
    let mut host = Node::primary(id, mirror(), terms, now);
    let agree = |host: &mut Node<Mirror>, number: u32, peer: Option<NodeId>| {
        host.answered(number, Answer { granted: true, holder: Some(id), peer, epoch: number }, now);
    };
    host.step(now, &mut Vec::new());
    agree(&mut host, 1, None);
    known(&mut host, 0, now);
    agree(&mut host, 2, Some(PEER));
    assert!(host.status().is_protected, "{:?}", host.status());
    host
}

fn emitted(actions: &[Action]) -> Vec<u8> {
    actions.iter().filter_map(|action| if let Action::Emit(frame) = action { Some(frame[0]) } else { None }).collect()
}

#[test]
fn frames_leave_in_order_when_all_that_precedes_them_is_known() {
    let mut gate = Gate::new(100);
    gate.push(1, [vec![1; 10], vec![2; 10]]);
    gate.push(3, [vec![3; 10]]);
    assert_eq!((gate.len(), gate.bytes(), gate.is_full()), (3, 30, false));
    assert_eq!(gate.pop(0), None);
    assert_eq!(gate.pop(2), Some((1, vec![1; 10])));
    assert_eq!(gate.pop(2), Some((1, vec![2; 10])));
    assert_eq!(gate.pop(2), None);
    gate.push(4, [vec![4; 90]]);
    assert!(gate.is_full());
    assert_eq!(gate.pop(3), Some((3, vec![3; 10])));
    assert!(!gate.is_full());
}

#[test]
fn one_acknowledgement_releases_a_batch() {
    let mut host = protected(Terms::default());
    let now = Time(MS);
    for number in 1..=20 {
        assert!(host.offer(vec![number; 60], now));
    }
    let mut actions = Vec::new();
    host.step(now, &mut actions);
    let logs: Vec<usize> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Send(Message::Log { entries, .. }) => Some(entries.len()),
            _ => None,
        })
        .collect();
    assert_eq!(logs, [20], "one message");
    assert!(emitted(&actions).is_empty());
    assert_eq!(emitted(&known(&mut host, 7, now)), (1..=7).collect::<Vec<u8>>());
    assert_eq!(emitted(&known(&mut host, 20, now)), (8..=20).collect::<Vec<u8>>());
}

#[test]
fn a_full_gate_and_a_full_window_stop_the_guest_until_the_secondary_has_more() {
    for (terms, most) in
        [(Terms { gate_bytes: 600, ..Terms::default() }, 10), (Terms { window_calls: 5, ..Terms::default() }, 5)]
    {
        let mut host = protected(terms);
        let now = Time(MS);
        let taken = (1..=100).take_while(|number| host.offer(vec![*number; 60], now)).count();
        assert_eq!(taken, most);
        assert_eq!(host.status().waiting, (most, most * 60));
        assert!(!host.has_room());
        host.step(now, &mut Vec::new());
        assert_eq!(emitted(&known(&mut host, 3, now)), [1, 2, 3]);
        let more = (101..=200).take_while(|number| host.offer(vec![*number; 60], now)).count();
        assert_eq!(more, 3);
    }
}

/// A link that is slow loses nothing. What is sent again makes it slower.
#[test]
fn a_secondary_that_lives_and_makes_no_progress_is_sent_the_same_again_less_and_less_often() {
    const FRAMES: u8 = 10;
    let mut host = protected(Terms::default());
    (0..FRAMES).for_each(|number| assert!(host.offer(vec![number; 60], Time(MS))));
    let entries = |actions: &[Action]| -> usize {
        let logs = actions.iter().filter_map(|action| match action {
            Action::Send(Message::Log { entries, .. }) => Some(entries.len()),
            _ => None,
        });
        logs.sum()
    };
    let mut sent = 0;
    for ms in (1..3000).step_by(10) {
        sent += entries(&known(&mut host, 0, Time(ms * MS)));
    }
    assert_eq!(sent, 4 * usize::from(FRAMES), "at once, and after 0.2, 0.4 and 0.8 s more");
    assert_eq!(entries(&known(&mut host, 4, Time(3001 * MS))), 0);
    assert_eq!(entries(&known(&mut host, 4, Time(3250 * MS))), usize::from(FRAMES) - 4, "progress makes it soon again");
}

fn asks(actions: &[Action]) -> Vec<Request> {
    let asked = actions.iter().filter_map(|action| match action {
        Action::Ask(_, request) => Some(*request),
        _ => None,
    });
    asked.collect()
}

/// Frames have left the host that died, and the survivor knows which calls they follow from. A host with less than that is no heir, and one
/// with a part of an image asks for nothing.
#[test]
fn a_host_that_joins_a_survivor_is_its_heir_once_it_has_the_image() {
    let (terms, id, third) = (Terms::default(), NodeId(1), NodeId(3));
    let mut host = Node::secondary(id, mirror(), terms, Time(0));
    let mut before = protected(terms);
    (0..10).for_each(|number| assert!(before.offer(vec![number; 60], Time(MS))));
    let mut actions = Vec::new();
    before.step(Time(MS), &mut actions);
    pass(actions, &mut host, Time(MS), &mut || false);
    // The other host dies.
    let mut actions = Vec::new();
    host.step(Time(400 * MS), &mut actions);
    assert_eq!(asks(&actions), [Request::Take]);
    host.answered(1, Answer { granted: true, holder: Some(id), peer: None, epoch: 3 }, Time(400 * MS));
    let calls = host.status().calls;
    assert!(*host.role() == Role::Primary && calls == 10, "{:?}", host.status());
    let from = third;
    let mut now = Time(401 * MS);
    let mut hear = |host: &mut Node<Mirror>, message: Message| {
        now = Time(now.0 + 50 * MS);
        let mut actions = Vec::new();
        host.receive(message, now, &mut actions);
        host.step(now, &mut actions);
        actions
    };
    let mut sent = hear(&mut host, Message::Known { from, calls: 0 });
    sent.extend(hear(&mut host, Message::Assembled { from, calls: 11, bytes: 65_536 }));
    assert!(!asks(&sent).iter().any(|request| matches!(request, Request::Pair { .. })), "{:?}", asks(&sent));
    let images = sent.iter().filter(|action| matches!(action, Action::Send(Message::Image { .. }))).count();
    assert_eq!(images, 4);
    let granted = hear(&mut host, Message::Known { from, calls: 11 });
    assert!(asks(&granted).contains(&Request::Pair { epoch: 3, peer: third }), "{:?}", asks(&granted));
    // The third host has the first piece, and the survivor dies.
    let mut third = Node::secondary(third, mirror(), terms, Time(0));
    sent.truncate(sent.iter().position(|action| matches!(action, Action::Send(Message::Image { .. }))).unwrap() + 1);
    pass(sent, &mut third, Time(500 * MS), &mut || false);
    let mut actions = Vec::new();
    third.step(Time(5000 * MS), &mut actions);
    assert_eq!((asks(&actions), third.status().epoch), (Vec::new(), 3));
    assert!(third.due().is_some_and(|due| due > Time(5000 * MS)), "it does not spin");
}

#[test]
fn the_gate_closes_with_the_lease() {
    let terms = Terms::default();
    let mut host = protected(terms);
    let end = Time(terms.lease_ns - terms.margin_ns);
    assert!(host.owns(Time(end.0 - 1)) && !host.owns(end));
    assert!(host.offer(vec![1; 60], Time(end.0 - 1)));
    assert!(emitted(&known(&mut host, 1, end)).is_empty(), "known, and too late");
}

/// Delivers what a host sends to the other one, but for the messages that `loses` names by their number.
fn pass(actions: Vec<Action>, to: &mut Node<Mirror>, now: Time, loses: &mut impl FnMut() -> bool) -> Vec<Action> {
    let mut answers = Vec::new();
    for action in actions {
        if let Action::Send(message) = action
            && !loses()
        {
            to.receive(message, now, &mut answers);
        }
    }
    answers
}

/// Pieces that get lost are sent again, from the first one that the secondary lacks.
#[test]
fn an_empty_secondary_goes_on_from_an_image_while_the_primary_runs() {
    let (id, terms) = (NodeId(1), Terms::default());
    let mut number = 0;
    let mut loses = || {
        number += 1;
        number % 3 == 0
    };
    let mut host = Node::primary(id, mirror(), terms, Time(0));
    host.step(Time(0), &mut Vec::new());
    host.answered(1, Answer { granted: true, holder: Some(id), peer: None, epoch: 1 }, Time(0));
    for frame in 0..100 {
        assert!(host.offer(vec![frame; 60], Time(MS)));
        host.step(Time(MS), &mut Vec::new());
    }
    let mut other = Node::secondary(PEER, mirror(), terms, Time(MS));
    let mut pieces = 0;
    for step in 1..200 {
        let now = Time(step * 10 * MS);
        assert!(host.offer(vec![step as u8; 60], now));
        let mut actions = Vec::new();
        host.step(now, &mut actions);
        pieces += actions.iter().filter(|action| matches!(action, Action::Send(Message::Image { .. }))).count();
        let mut answers = pass(actions, &mut other, now, &mut loses);
        other.step(now, &mut answers);
        pass(answers, &mut host, now, &mut loses);
        if host.status().image.is_none() && host.status().known + 5 > host.status().calls {
            break;
        }
    }
    assert!(pieces >= 4, "{pieces} pieces");
    let (first, second) = (host.status(), other.status());
    assert!(first.image.is_none() && first.known + 5 > first.calls && first.known > 101, "{first:?}");
    assert_eq!(other.machine().calls, second.calls);
}

/// All that the guest has done is equal, its state is not: the digest that goes along every so many calls says so. The secondary names the last
/// call before it, and the primary goes on without it once the third party agrees.
#[test]
fn a_state_that_differs_is_noticed_at_the_next_digest_and_the_primary_goes_on_unprotected() {
    let terms = Terms { state_every: 16, ..Terms::default() };
    let mut host = protected(terms);
    let mut other = Node::secondary(PEER, Mirror { calls: 0, odd_from: 20 }, terms, Time(0));
    let now = Time(MS);
    let mut calls = 0;
    while *other.role() == Role::Secondary {
        calls += 1;
        assert!(calls < 100 && host.offer(vec![calls; 60], now));
        let mut actions = Vec::new();
        host.step(now, &mut actions);
        let answers = pass(actions, &mut other, now, &mut || false);
        pass(answers, &mut host, now, &mut || false);
    }
    // Digests go along with calls 16 and 32.
    assert_eq!(*other.role(), Role::Out(End::Diverged(31)));
    assert_eq!(End::Diverged(31).to_string(), "the replica differs from the primary after call 31");
    let mut actions = Vec::new();
    host.step(Time(400 * MS), &mut actions);
    let asked = actions.iter().find_map(|action| match action {
        Action::Ask(number, Request::Alone { epoch: 2 }) => Some(*number),
        _ => None,
    });
    let alone = Answer { granted: true, holder: Some(NodeId(1)), peer: None, epoch: 3 };
    host.answered(asked.expect("it asks to go on alone"), alone, Time(400 * MS));
    let status = host.status();
    assert!(!status.is_protected && status.role == Role::Primary, "{status:?}");
    assert!(host.offer(vec![200; 60], Time(400 * MS)));
    let mut actions = Vec::new();
    host.step(Time(400 * MS), &mut actions);
    assert_eq!(emitted(&actions).last(), Some(&200), "frames leave at once");
}
