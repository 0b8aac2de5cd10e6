//! A trace with calls (`nicety serve --record DIR --calls`) of a running daemon's ports plays to the same answers.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;
mod nic;
mod stage;

use nic::Nic;
use nicety_adapter::tape::Player;
use nicety_adapter::trace::{Event, Trace};
use nicety_adapters::{Settings, find};
use nicety_daemon::recorder::Target;
use nicety_frame::Mac;
use stage::Stage;
use tempfile::TempDir;

with_one_worker_and_with_two!(what_two_guests_and_their_ports_did_is_played_to_the_byte);

fn what_two_guests_and_their_ports_did_is_played_to_the_byte(workers: usize) {
    let folder = TempDir::new().unwrap();
    let stage = Stage::new(workers, &[]);
    stage.daemon.record(Target::Calls(folder.path().to_owned())).unwrap();
    for number in 1..=2 {
        stage.daemon.open(stage.spec(number, "e1000")).unwrap();
    }
    stage.daemon.begin_traces().unwrap();
    let (mut one, mut two) = (Nic::new(&stage, 1), Nic::new(&stage, 2));
    for round in 1..=3 {
        one.send().unwrap();
        two.send().unwrap();
        stage.until("frames", || stage.taken(1) == 64 * round && stage.taken(2) == 64 * round);
        one.repost().unwrap();
        two.repost().unwrap();
    }
    drop((one, two));
    stage.daemon.stop();
    for name in ["vm1", "vm2"] {
        let text = std::fs::read_to_string(folder.path().join(format!("{name}.trace"))).unwrap();
        let trace = Trace::parse(&text).unwrap();
        // An address of its own: the tape begins with the recorded adapter's state.
        let adapter = (find("e1000").unwrap().create)(&Settings::new(Mac([2, 0, 0, 0, 0, 9]))).unwrap();
        let (mut player, mut frames, mut calls) = (Player::new(adapter), 0, 0);
        for (line, record) in &trace.records {
            let Event::Call(entry) = &record.event else { continue };
            player.play(entry).unwrap_or_else(|divergence| panic!("{name}, line {line}: {divergence}"));
            calls += 1;
            if matches!(entry.call, nicety_adapter::tape::Call::Fetch { .. }) {
                let whole = |(frame, _): &&(Vec<u8>, _)| frame.len() == nic::FRAME && frame[..6] == [0xff; 6];
                frames += player.sent().iter().filter(whole).count();
            }
        }
        assert_eq!(frames, 3 * 64, "{name}: {calls} calls");
    }
}
