//! Changes that wait to be confirmed, and are undone.

use nicety_daemon::live::confirm::{Confirm, Terms, Undo};

use super::*;

fn within(seconds: u64) -> Terms {
    let confirm = Some(Confirm { within: Duration::from_secs(seconds), by: "user 7".to_owned() });
    Terms { consent: Consent::All, confirm }
}

fn an_undo_brings_back_what_ran_also_what_the_text_before_did_not_say(workers: usize) {
    let stage = Stage::new(workers, &[1, 2]);
    let uplinks = "[[uplink]]\nkind = \"pair\"\nname = \"a\"\nsocket = \"a.sock\"\n\
                   [[uplink]]\nkind = \"pair\"\nname = \"b\"\nsocket = \"b.sock\"\nvlan = 7\n";
    let before = format!("{}{uplinks}", text(workers, &[1, 2]));
    std::fs::write(stage.path().join("host.toml"), &before).unwrap();
    stage.live.apply(&stage.host(&before), &Consent::Nothing).unwrap();
    let runs = stage.live.export();
    let blocked = |name: &str| stage.report(name).unwrap().condition == Condition::Blocked;
    let blocks = [("blocked".to_owned(), Some(true.into()))];
    let adapter = [("adapter".to_owned(), Some("vmxnet3".into()))];
    type Act<'a> = &'a dyn Fn() -> Result<nicety_daemon::live::Changed, ChangeError>;
    let acts: [(&str, Act<'_>); 5] = [
        ("blocked", &|| stage.live.set(List::Uplinks, "a", &blocks, within(600))),
        ("reopened", &|| stage.live.set(List::Ports, "vm1", &adapter, within(600))),
        ("removed", &|| stage.live.remove(List::Ports, "vm2", within(600))),
        ("added", &|| {
            let three = one(3).replace("[[port]]\n", "");
            stage.live.add(List::Ports, three.parse().unwrap(), within(600))
        }),
        ("all", &|| stage.live.apply(&stage.host(&text(workers, &[2, 3])), within(600))),
    ];
    for (what, act) in acts {
        let changed = act().unwrap();
        let waiting = changed.waiting.unwrap();
        assert_eq!((waiting.by.as_str(), changed.not_kept), ("user 7", None), "{what}");
        assert!(waiting.seconds_left > 590 && waiting.not_undone.is_none(), "{what}: {waiting:?}");
        assert_ne!(stage.live.export(), runs, "{what}");
        // Its time is not over.
        stage.live.undo_late();
        assert!(stage.live.waiting().is_some() && !stage.live.is_late(), "{what}");
        let other = stage.live.set(List::Ports, "vm2", &adapter, &Consent::All).unwrap_err();
        assert!(what == "removed" || matches!(other, ChangeError::Waits(_)), "{what}: {other}");
        // What a start would serve.
        assert_eq!(
            Begin::new(Host::read(&stage.path().join("host.toml")).unwrap()).host.document.text(),
            runs,
            "{what}"
        );
        stage.live.undo(Undo::By("user 8")).unwrap();
        assert_eq!(stage.live.export(), runs, "{what}");
        assert!(stage.live.waiting().is_none() && stage.live.undo_at().is_none(), "{what}");
        assert!(!blocked("a") && !blocked("b"), "{what}");
        assert_eq!(stage.names(), ["a", "b", "vm1", "vm2"], "{what}");
        assert_eq!(stage.report("vm1").unwrap().adapter.as_deref(), Some("e1000"), "{what}");
        assert!(matches!(stage.live.undo(Undo::By("user 8")), Err(ChangeError::NothingWaits(_))), "{what}");
    }
    for number in [1, 2] {
        Client::connect(stage.socket(number)).unwrap();
    }
}

fn a_change_is_late_once_until_it_is_tried_again(workers: usize) {
    let stage = Stage::new(workers, &[1]);
    let runs = stage.live.export();
    stage.live.remove(List::Ports, "vm1", within(0)).unwrap();
    assert!(stage.live.is_late() && !stage.live.is_late());
    stage.live.undo_late();
    assert_eq!(stage.live.export(), runs);
    assert!(!stage.live.is_late() && stage.socket(1).exists());
}

with_one_worker_and_with_two! {
    an_undo_brings_back_what_ran_also_what_the_text_before_did_not_say,
    a_change_is_late_once_until_it_is_tried_again,
}
