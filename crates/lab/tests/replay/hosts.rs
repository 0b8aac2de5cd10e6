//! Output commit: frames wait in order, are bounded, and leave when the twin has what precedes them.

use std::time::Duration;

use nicety_adapter::Time;
use nicety_lab::replay::{Action, End, Gate, GuestTime, Host, Input, Machine, Message, Role, Terms};
use nicety_lease::{Keeper, NodeId, Request};
use nicety_plane::GateMode;
use nicety_protect::{Message as Word, Pairing, Stage};

const MS: u64 = 1_000_000;
const IDS: [NodeId; 2] = [NodeId(1), NodeId(2)];
/// The first protection of the first host.
const PAIRING: Pairing = Pairing(0x1_0001);

/// Sends every frame back.
struct Mirror {
    inputs: u64,
    /// Its state differs from this input on, and nothing else.
    odd_from: u64,
}

fn mirror() -> Mirror {
    Mirror { inputs: 0, odd_from: u64::MAX }
}

impl Machine for Mirror {
    fn take(&mut self, _: GuestTime, input: &Input, out: &mut Vec<Vec<u8>>) {
        self.inputs += 1;
        if let Input::Frame(frame) = input {
            out.push(frame.clone());
        }
    }

    fn wake(&self) -> Option<GuestTime> {
        None
    }

    fn history(&self) -> u64 {
        self.inputs
    }

    fn state(&self) -> u64 {
        self.inputs << 1 | u64::from(self.inputs >= self.odd_from)
    }

    fn announcement(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }
}

/// Two hosts and a third party, with nothing between them that takes time.
struct Pair {
    hosts: [Host<Mirror>; 2],
    keeper: Keeper,
    now: Time,
    /// The first host's messages do not arrive, nor do answers to it.
    is_cut: bool,
}

impl Pair {
    fn new(terms: Terms, guests: [Mirror; 2]) -> Self {
        let [first, second] = guests;
        let hosts = [Host::owner(IDS[0], first, terms), Host::twin(IDS[1], second, terms)];
        let keeper = Keeper::new(u64::try_from(terms.protect.lease.as_nanos()).unwrap());
        Self { hosts, keeper, now: Time(MS), is_cut: false }
    }

    /// A guest whose twin may take over.
    fn protected(terms: Terms) -> Self {
        let mut pair = Self::new(terms, [mirror(), mirror()]);
        pair.pass(60);
        assert!(pair.hosts[0].status().is_protected, "{:?}", pair.hosts[0].status());
        pair
    }

    fn answer(&mut self, index: usize, number: u32, request: Request) {
        let answer = self.keeper.ask(IDS[index], request, self.now.0);
        self.hosts[index].answered(number, Some(answer), self.now);
    }

    /// The work of this host now, alone.
    fn step(&mut self, index: usize) -> Vec<Action> {
        let mut actions = Vec::new();
        self.hosts[index].step(self.now, &mut actions);
        actions
    }

    /// Until nobody has anything to do at this time.
    fn settle(&mut self) {
        loop {
            let actions = [0, 1].map(|index| self.step(index));
            if actions.iter().all(Vec::is_empty) {
                return;
            }
            for (index, actions) in actions.into_iter().enumerate() {
                for action in actions {
                    match action {
                        _ if self.is_cut && index == 0 => {}
                        Action::Send(message) => self.hosts[1 - index].receive(message, self.now),
                        Action::Ask(number, request) => self.answer(index, number, request),
                        Action::Emit(_) => {}
                    }
                }
            }
        }
    }

    /// So many milliseconds.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now = self.now.after_ns(MS);
            self.settle();
        }
    }

    fn offer(&mut self, frame: u8) -> bool {
        self.hosts[0].offer(vec![frame; 60], self.now)
    }

    /// The twin says that it has so many inputs, and what the owner does then.
    fn known(&mut self, inputs: u64) -> Vec<Action> {
        self.hosts[0].receive(Message::Protect(Word::Loaded(PAIRING, inputs + 1)), self.now);
        self.step(0)
    }
}

fn emitted(actions: &[Action]) -> Vec<u8> {
    actions.iter().filter_map(|action| if let Action::Emit(frame) = action { Some(frame[0]) } else { None }).collect()
}

/// The number of inputs in each message.
fn logged(actions: &[Action]) -> Vec<usize> {
    let piece = |action: &Action| match action {
        Action::Send(Message::Log(piece)) => Some(piece.entries.len()),
        _ => None,
    };
    actions.iter().filter_map(piece).collect()
}

#[test]
fn frames_leave_in_order_as_the_owner_s_orders_say() {
    let mut gate = Gate::new(GateMode::Shut);
    gate.push(1, [vec![1; 10], vec![2; 10]]);
    gate.push(3, [vec![3; 10]]);
    assert_eq!((gate.waiting(), gate.last(), gate.pop(Time(0))), ((3, 30), Some(3), None));
    gate.release(2, Time(100));
    assert_eq!(gate.pop(Time(99)), Some(vec![1; 10]));
    assert_eq!(gate.pop(Time(100)), None, "the lease has ended");
    assert_eq!([gate.pop(Time(99)), gate.pop(Time(99))], [Some(vec![2; 10]), None]);
    gate.release(3, Time(200));
    gate.set_mode(GateMode::Shut);
    assert_eq!(gate.pop(Time(99)), None, "it was taken back");
    gate.set_mode(GateMode::Open);
    assert_eq!((gate.pop(Time(999)), gate.waiting()), (Some(vec![3; 10]), (0, 0)));
    gate.set_mode(GateMode::Armed);
    gate.push(4, [vec![4; 10]]);
    assert!(gate.pop(Time(0)).is_some(), "no epoch was closed yet");
    gate.close();
    gate.push(5, [vec![5; 10]]);
    assert_eq!(gate.pop(Time(0)), None);
    gate.set_mode(GateMode::Mute);
    gate.push(6, [vec![6; 10]]);
    assert_eq!(gate.waiting(), (0, 0));
}

#[test]
fn one_acknowledgement_releases_a_batch() {
    let mut pair = Pair::protected(Terms::default());
    assert!((1..=20).all(|number| pair.offer(number)));
    let actions = pair.step(0);
    assert_eq!((logged(&actions), emitted(&actions)), (vec![20], vec![]), "one message");
    assert_eq!(emitted(&pair.known(7)), (1..=7).collect::<Vec<u8>>());
    assert_eq!(emitted(&pair.known(20)), (8..=20).collect::<Vec<u8>>());
}

#[test]
fn a_full_gate_and_a_full_window_stop_the_guest_until_the_twin_has_more() {
    for (terms, most) in
        [(Terms { gate_bytes: 600, ..Terms::default() }, 10), (Terms { window: 5, ..Terms::default() }, 5)]
    {
        let mut pair = Pair::protected(terms);
        let taken = (1..=100).take_while(|number| pair.offer(*number)).count();
        assert_eq!((taken, pair.hosts[0].status().waiting), (most, (most, most * 60)));
        assert!(!pair.hosts[0].has_room());
        pair.step(0);
        assert_eq!(emitted(&pair.known(3)), [1, 2, 3]);
        assert_eq!((101..=200).take_while(|number| pair.offer(*number)).count(), 3);
    }
}

#[test]
fn the_gate_closes_with_the_lease() {
    let mut pair = Pair::protected(Terms::default());
    // Until now every answer has come. The last one counts from the question.
    pair.is_cut = true;
    let owns = |pair: &Pair| pair.hosts[0].owns(pair.now);
    let begun = pair.now;
    while owns(&pair) && pair.now.since(begun) < Duration::from_secs(2) {
        pair.now = pair.now.after_ns(MS);
        // Its twin lives: what is away is the third party.
        pair.hosts[0].receive(Message::Protect(Word::Alive), pair.now);
        pair.settle();
    }
    let took = pair.now.since(begun);
    assert!(took <= Duration::from_millis(900) && took >= Duration::from_millis(600), "{took:?}");
    assert!(pair.offer(1));
    pair.step(0);
    let known = pair.hosts[0].status().inputs;
    assert!(emitted(&pair.known(known)).is_empty(), "known, and too late");
}

/// Frames have left that the twin lacks. It may take over once it has all of them, and no earlier.
#[test]
fn a_host_that_joins_a_running_guest_is_its_heir_once_it_has_all_inputs() {
    let mut pair = Pair::new(Terms { window: 10_000, ..Terms::default() }, [mirror(), mirror()]);
    let mut actions = Vec::new();
    for _ in 0..2 {
        actions = pair.step(0);
        if let [Action::Ask(number, request)] = actions[..] {
            pair.answer(0, number, request);
        }
    }
    assert_eq!(pair.hosts[0].status().stage, Some(Stage::Alone), "{actions:?}");
    assert!((0..3000_u32).all(|number| pair.offer(number as u8)));
    assert_eq!(emitted(&pair.step(0)).len(), 3000);
    // The twin is there, and its QEMU listens. The log takes several messages.
    pair.hosts[0].receive(Message::Offer(IDS[1]), pair.now);
    pair.step(0);
    pair.hosts[1].receive(Message::Protect(Word::Begin(PAIRING)), pair.now);
    pair.step(1);
    pair.hosts[0].receive(Message::Protect(Word::Ready(PAIRING)), pair.now);
    let mut pieces: Vec<Message> = pair
        .step(0)
        .into_iter()
        .filter_map(|action| match action {
            Action::Send(message @ Message::Log(_)) => Some(message),
            _ => None,
        })
        .collect();
    assert!(pieces.len() > 2, "{} pieces", pieces.len());
    let last = pieces.pop().unwrap();
    let is_loaded = |actions: &[Action]| {
        actions.iter().any(|action| matches!(action, Action::Send(Message::Protect(Word::Loaded(..)))))
    };
    pieces.into_iter().for_each(|piece| pair.hosts[1].receive(piece, pair.now));
    assert!(!is_loaded(&pair.step(1)), "a part of the copy");
    pair.hosts[1].receive(last, pair.now);
    let actions = pair.step(1);
    assert!(is_loaded(&actions), "{actions:?}");
    assert_eq!(pair.hosts[1].machine().inputs, 3000);
}

#[test]
fn a_host_that_would_need_inputs_that_are_kept_nowhere_is_refused_with_a_sentence() {
    let mut pair = Pair::new(Terms { log_bytes: 1000, ..Terms::default() }, [mirror(), mirror()]);
    for _ in 0..2 {
        if let [Action::Ask(number, request)] = pair.step(0)[..] {
            pair.answer(0, number, request);
        }
    }
    assert!((0..100).all(|number| pair.offer(number)));
    pair.pass(60);
    let Role::Out(end) = pair.hosts[1].role() else { panic!("{:?}", pair.hosts[1].status()) };
    let End::TooOld(base) = end else { panic!("{end}") };
    assert!(base > 0 && base < 100, "{base}");
    let sentence = format!("the owner has no inputs before input {base} any more: start both hosts again");
    assert_eq!(end.to_string(), sentence);
}

/// The link brings all messages, in order, or is lost.
#[test]
fn a_twin_that_misses_inputs_takes_the_link_for_lost() {
    let mut pair = Pair::protected(Terms::default());
    assert!(pair.offer(1));
    pair.step(0);
    assert!(pair.offer(2));
    let second = pair.step(0).into_iter().find_map(|action| match action {
        Action::Send(message @ Message::Log(_)) => Some(message),
        _ => None,
    });
    pair.hosts[1].receive(second.unwrap(), pair.now);
    let actions = pair.step(1);
    assert!(matches!(actions[..], [Action::Ask(_, Request::Take)]), "{actions:?}");
    assert_eq!(pair.hosts[1].machine().inputs, 0);
}

/// All that the guest has done is equal, its state is not: the digest that goes along every so many inputs says so. The twin names the last
/// input before it, and the owner goes on without it once the third party agrees.
#[test]
fn a_state_that_differs_is_noticed_at_the_next_digest_and_the_owner_goes_on_unprotected() {
    let terms = Terms { state_every: 16, ..Terms::default() };
    let mut pair = Pair::new(terms, [mirror(), Mirror { inputs: 0, odd_from: 20 }]);
    pair.pass(60);
    let mut inputs = 0;
    while pair.hosts[1].role() == Role::Twin {
        inputs += 1;
        assert!(inputs < 100 && pair.offer(inputs));
        pair.settle();
    }
    // Digests go along with inputs 16 and 32.
    assert_eq!(pair.hosts[1].role(), Role::Out(End::Differs(31)));
    assert_eq!(End::Differs(31).to_string(), "the replica differs from the owner's after input 31");
    pair.pass(50);
    let status = pair.hosts[0].status();
    assert_eq!((status.stage, status.role), (Some(Stage::Alone), Role::Owner));
    assert!(pair.offer(200));
    assert_eq!(emitted(&pair.step(0)).last(), Some(&200), "frames leave at once");
}
