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

/// A folder at this path becomes a link to the folder that it is in: sockets in the two are the same from now on.
fn alias(stage: &Stage, is_link: bool) {
    let path = stage.path().join("sub");
    if is_link {
        std::fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink(".", &path).unwrap();
    } else {
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
    }
}

/// Only the uplink is removed. The uplink may have connected to the port whose socket it wants; then the change also says that a VM loses its
/// way out.
fn is_uplink(changes: &[String]) -> bool {
    changes.len() == 1 && changes[0].starts_with("- uplink")
}

fn of_a_change_that_was_undone_in_part_only_the_rest_waits_and_is_confirmed(workers: usize) {
    let stage = Stage::new(workers, &[1, 2]);
    std::fs::create_dir(stage.path().join("sub")).unwrap();
    let uplink = "[[uplink]]\nkind = \"pair\"\nname = \"a\"\nsocket = \"sub/vm2.sock\"\n";
    let before = format!("{}{uplink}", text(workers, &[1, 2]));
    stage.live.apply(&stage.host(&before), &Consent::Nothing).unwrap();
    let runs = stage.live.export();
    for is_confirmed in [false, true] {
        stage.live.apply(&stage.host(&text(workers, &[1])), within(600)).unwrap();
        alias(&stage, true);
        // The port takes the socket of the uplink, which opens after it.
        let refused = stage.live.undo(Undo::By("user 8")).unwrap_err();
        assert!(matches!(&refused, ChangeError::NotUndone(why) if why.contains("vm2.sock")), "{refused}");
        assert_eq!(stage.names(), ["vm1", "vm2"]);
        let waiting = stage.live.waiting().unwrap();
        assert!(is_uplink(&waiting.changes), "the port is there again: {:?}", waiting.changes);
        assert!(waiting.not_undone.is_some());
        let kept = std::fs::read_to_string(stage.path().join("host.toml.state")).unwrap();
        assert!(kept.contains("\"- uplink") && !kept.contains("- port vm2"), "{kept}");
        if is_confirmed {
            assert!(is_uplink(&stage.live.confirm("user 8").unwrap().changes));
            let exported = stage.live.export();
            assert!(exported.contains("vm2") && !exported.contains("uplink"), "{exported}");
            return;
        }
        stage.live.undo(Undo::By("user 8")).unwrap_err();
        alias(&stage, false);
        assert!(is_uplink(&stage.live.undo(Undo::By("user 8")).unwrap().changes));
        assert_eq!(stage.live.export(), runs);
    }
}

fn a_change_that_was_undone_waits_no_more_also_if_a_port_does_not_work(workers: usize) {
    let stage = Stage::new(workers, &[1, 2, 3]);
    std::fs::create_dir(stage.path().join("sub")).unwrap();
    let to = |path: &str| [("socket".to_owned(), Some(path.into()))];
    stage.live.set(List::Ports, "vm2", &to("sub/vm3.sock"), &Consent::Nothing).unwrap();
    let runs = stage.live.export();
    let other = text(workers, &[1, 2]).replace("vm2.sock", "other.sock");
    stage.live.apply(&stage.host(&other), within(600)).unwrap();
    alias(&stage, true);
    let failed = stage.live.undo(Undo::By("user 8")).unwrap_err();
    assert!(matches!(&failed, ChangeError::UndoneBut(why) if why.contains("vm3.sock")), "{failed}");
    assert_eq!(stage.live.export(), runs);
    assert!(stage.live.waiting().is_none() && stage.live.undo_at().is_none());
    assert!(matches!(stage.live.confirm("user 8"), Err(ChangeError::NothingWaits(_))));
    assert_eq!(stage.names(), ["vm1", "vm3"]);
    alias(&stage, false);
    stage.live.restart("vm2").unwrap();
    assert!(stage.names().contains(&"vm2".to_owned()));
}

/// A port that a hook makes.
fn of_a_vm(number: u8, more: &str) -> toml::Table {
    let port = one(number).replace("[[port]]\n", "");
    format!("{port}origin = \"hook libvirt, domain web1, 7\"\n{more}").parse().unwrap()
}

fn a_port_comes_changes_and_goes_with_its_vm_while_another_change_waits(workers: usize) {
    let stage = Stage::new(workers, &[1, 2]);
    let started = || Begin::new(Host::read(&stage.path().join("host.toml")).unwrap()).host;
    let names = |host: &Host| host.ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>();
    let adapter = [("adapter".to_owned(), Some("vmxnet3".into()))];
    let buffer = [("buffer".to_owned(), Some("2MiB".into()))];
    stage.live.remove(List::Ports, "vm2", within(600)).unwrap();
    let added = stage.live.add(List::Ports, of_a_vm(3, ""), &Consent::Nothing).unwrap();
    assert_eq!((added.plan.to_string().as_str(), added.not_kept, added.waiting), ("+ port vm3\n", None, None));
    stage.live.set(List::Ports, "vm3", &buffer, &Consent::Nothing).unwrap();
    assert_eq!(stage.live.waiting().unwrap().changes, ["- port vm2"], "the other one still waits");
    assert_eq!(stage.names(), ["vm1", "vm3"]);
    // What a start would serve.
    assert_eq!(names(&started()), ["vm1", "vm2", "vm3"]);
    stage.live.undo(Undo::By("user 8")).unwrap();
    let mut runs = stage.names();
    runs.sort();
    assert_eq!(runs, ["vm1", "vm2", "vm3"]);
    assert_eq!(stage.report("vm3").unwrap().made_of.unwrap().buffer, 2 << 20);

    // It goes meanwhile, and neither an undo nor a start brings it back.
    stage.live.set(List::Ports, "vm1", &adapter, within(600)).unwrap();
    stage.live.remove(List::Ports, "vm3", &Consent::Nothing).unwrap();
    assert_eq!(names(&started()), ["vm1", "vm2"]);
    stage.live.undo(Undo::By("user 8")).unwrap();
    assert!(!stage.live.export().contains("vm3") && !stage.live.export().contains("vmxnet3"));

    // A confirmation keeps both.
    stage.live.set(List::Ports, "vm1", &adapter, within(600)).unwrap();
    stage.live.add(List::Ports, of_a_vm(3, ""), &Consent::Nothing).unwrap();
    stage.live.confirm("user 8").unwrap();
    assert!(names(&started()).contains(&"vm3".to_owned()));
    assert_eq!(started().document.entry(List::Ports, "vm1")["adapter"].as_str(), Some("vmxnet3"));
    Client::connect(stage.socket(3)).unwrap();
}

fn a_vm_s_port_that_does_not_fit_what_an_undo_brings_back_waits_and_so_does_any_other_change(workers: usize) {
    let stage = Stage::new(workers, &[1, 2]);
    stage.live.remove(List::Ports, "vm2", within(600)).unwrap();
    let refused = |entry: toml::Table, terms: Terms| match stage.live.add(List::Ports, entry, terms) {
        Err(ChangeError::Waits(why)) => why,
        other => panic!("{other:?}"),
    };
    let mut same_address = of_a_vm(3, "");
    same_address.insert("mac".to_owned(), "52:54:00:00:00:02".into());
    let why = refused(same_address, Terms::default());
    for words in [
        "a change by user 7 waits to be confirmed (- port vm2)",
        "`nicety confirm` keeps it",
        "; this does not fit what an undo would bring back: ",
        "52:54:00:00:00:02 is the address of port vm2 already",
    ] {
        assert!(why.contains(words), "{words}: {why}");
    }
    assert!(refused(of_a_vm(2, ""), Terms::default()).contains("there is port \"vm2\" already"));
    // One that is to be confirmed itself, and one that no program has made.
    refused(of_a_vm(3, ""), within(600));
    refused(one(3).replace("[[port]]\n", "").parse().unwrap(), Terms::default());
    assert_eq!(stage.names(), ["vm1"]);
    stage.live.undo(Undo::By("user 8")).unwrap();
    assert_eq!(stage.names(), ["vm1", "vm2"]);
}

with_one_worker_and_with_two! {
    of_a_change_that_was_undone_in_part_only_the_rest_waits_and_is_confirmed,
    a_change_that_was_undone_waits_no_more_also_if_a_port_does_not_work,
    a_port_comes_changes_and_goes_with_its_vm_while_another_change_waits,
    a_vm_s_port_that_does_not_fit_what_an_undo_brings_back_waits_and_so_does_any_other_change,
    an_undo_brings_back_what_ran_also_what_the_text_before_did_not_say,
    a_change_is_late_once_until_it_is_tried_again,
}
