//! A link that loses what one host sends, and nothing of the other one's.

use std::time::Duration;

use nicety_adapter::Time;
use nicety_lease::NodeId;
use nicety_protect::{Action, Message, Pairing, Terms, Twin, TwinStage};

fn at(milliseconds: u64) -> Time {
    Time::ZERO.after(Duration::from_millis(milliseconds))
}

/// What it says in this millisecond.
fn said(twin: &mut Twin, now: u64) -> Vec<Message> {
    twin.tick(at(now));
    let actions = std::iter::from_fn(|| twin.action());
    actions.filter_map(|action| if let Action::Send(message) = action { Some(message) } else { None }).collect()
}

/// So the owner notices as well that the link is of no use.
#[test]
fn a_twin_that_does_not_hear_its_owner_is_silent_until_it_does() {
    let (terms, pairing) = (Terms::default(), Pairing(1));
    let mut twin = Twin::new(NodeId(7), terms);
    twin.heard(Message::Begin(pairing), at(0));
    twin.listens(pairing, at(1));
    twin.loaded(pairing, 1, at(2));
    twin.heard(Message::Heir(pairing), at(3));
    let beats = (4..303).flat_map(|now| said(&mut twin, now)).filter(|message| *message == Message::Alive).count();
    assert_eq!(beats, 6, "one in 50 ms, since the last message");
    let silent: Vec<Message> = (303..2000).flat_map(|now| said(&mut twin, now)).collect();
    assert_eq!(twin.stage(), TwinStage::Asks { pairing, is_cut: false });
    assert_eq!(silent, []);
    twin.heard(Message::Alive, at(2000));
    assert!(matches!(twin.stage(), TwinStage::Copied { .. }), "it was only late");
    assert_eq!(said(&mut twin, 2001), [Message::Alive]);
}
