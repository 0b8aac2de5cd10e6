//! Output commit: frames wait in order, are bounded, and leave when the secondary has what precedes them.

use nicety_adapter::Time;
use nicety_tolerance::{Action, Answer, Call, Gate, GuestTime, Machine, Message, Node, NodeId, Terms};

const MS: u64 = 1_000_000;

/// Sends every frame back.
struct Mirror {
    calls: u64,
}

impl Machine for Mirror {
    fn call(&mut self, _: GuestTime, call: &Call, out: &mut Vec<Vec<u8>>) {
        self.calls += 1;
        if let Call::Frame(frame) = call {
            out.push(frame.clone());
        }
    }

    fn wake(&self) -> Option<GuestTime> {
        None
    }

    fn history(&self) -> u64 {
        self.calls
    }

    fn state(&self) -> u64 {
        self.calls
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
    let mut host = Node::primary(id, Mirror { calls: 0 }, terms, now);
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
    assert_eq!(emitted(&actions), []);
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
        host.step(now, &mut Vec::new());
        assert_eq!(emitted(&known(&mut host, 3, now)), [1, 2, 3]);
        let more = (101..=200).take_while(|number| host.offer(vec![*number; 60], now)).count();
        assert_eq!(more, 3);
    }
}

#[test]
fn the_gate_closes_with_the_lease() {
    let terms = Terms::default();
    let mut host = protected(terms);
    let end = Time(terms.lease_ns - terms.margin_ns);
    assert!(host.owns(Time(end.0 - 1)) && !host.owns(end));
    assert!(host.offer(vec![1; 60], Time(end.0 - 1)));
    assert_eq!(emitted(&known(&mut host, 1, end)), [], "known, and too late");
}
