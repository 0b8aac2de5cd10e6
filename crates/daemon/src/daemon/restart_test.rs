//! An uplink that is blocked for a loop is restarted.

use std::time::Duration;

use nicety_adapter::{Batch, Budget, Context, Progress};
use nicety_plane::doubles::{Linked, Traffic};
use nicety_switch::Limits;
use nicety_uplink::Pair;
use rustix::event::{EventfdFlags, eventfd};

use super::*;
use crate::observe::report::{Condition, PortReport};

const SOON: Duration = Duration::from_secs(60);

/// An uplink with a defect: it panics when something comes in. Something has.
struct Defect;

impl Traffic for Defect {
    fn fetch(&mut self, _: u16, _: Budget, _: &mut Batch, _: &mut Context<'_>) -> Progress {
        panic!("a defect")
    }
}

#[test]
fn an_uplink_that_was_blocked_for_a_loop_stays_blocked_when_it_is_restarted() {
    nicety_sandbox::begin_for_tests();
    let daemon = Daemon::start(Limits::default(), 1).unwrap();
    let pair = || Box::new(Pair::connected().unwrap().0) as Box<dyn Uplink>;
    let open = |name: &str, uplink| {
        let maker: UplinkMaker = Box::new(move |_| Ok(pair()));
        daemon.open_uplink(JoiningUplink { maker: Some(maker), ..JoiningUplink::new(name, uplink) }).unwrap();
    };
    open("old", pair());
    open("new", Box::new(Linked::new(Defect).with_bell(eventfd(1, EventfdFlags::empty()).unwrap())));
    let view = || daemon.views().into_iter().find(|view| view.name == "new").unwrap();
    let end = Instant::now() + SOON;
    let has_failed = || PortReport::of(&view()).condition == Condition::Failed;
    while !has_failed() {
        assert!(Instant::now() < end, "it has not failed");
        std::thread::yield_now();
    }
    daemon.note_loop("new", "old");
    assert!(view().blocked);
    daemon.restart("new").unwrap();
    assert!(!has_failed() && view().blocked);
    // `Daemon::settle` notes the reason again: the plane has forgotten it with the failed port.
    daemon.note_loop("new", "old");
    assert_eq!(view().in_loop.map(|found| (found.name, found.other)), Some(("new".to_owned(), "old".to_owned())));
    daemon.stop();
}
