//! Sentences about uplinks that lead into one network.

use nicety_adapter::UplinkSettings;
use nicety_switch::{Limits, Policy};
use nicety_uplink::Pair;

use super::*;
use crate::observe::report::PortReport;

#[test]
fn a_blocked_uplink_is_said_to_lead_into_the_network_of_the_one_for_which_it_is_blocked() {
    nicety_sandbox::begin_for_tests();
    let daemon = Daemon::start(Limits::default(), 1).unwrap();
    for name in ["a0", "a1", "a2"] {
        let uplink = Box::new(Pair::connected().unwrap().0);
        daemon.open_uplink(JoiningUplink::new(name, uplink)).unwrap();
    }
    let sentence = |name: &str| {
        let view = daemon.views().into_iter().find(|view| view.name == name).unwrap();
        PortReport::of(&view).sentence
    };
    // The later loop was found first.
    daemon.note_loop("a2", "a1");
    daemon.note_loop("a1", "a0");
    for (name, other) in [("a1", "a0"), ("a2", "a1")] {
        let words = format!("it leads into the network of {other}, and frames went round: ");
        assert!(sentence(name).starts_with(&words), "{name}: {}", sentence(name));
    }
    assert!(sentence("a0").ends_with("; a1 leads into the same network, and is blocked"), "{}", sentence("a0"));
    // One that a person has blocked, and another one for it.
    for blocked in [false, true] {
        let policy = Policy { blocked, ..Policy::default() };
        daemon.set_uplink("a1", &UplinkSettings::default(), &policy, None).unwrap();
    }
    assert_eq!(sentence("a1"), "it carries nothing until `nicety uplink set a1 blocked=false`, or a team takes it");
    daemon.stop();
}
