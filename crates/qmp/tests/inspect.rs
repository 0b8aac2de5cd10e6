//! What an inquiry makes of the answers of real QEMUs: `golden/*.json` hold them, with the command line that gave them. Those beside
//! `primary.json` hold only the answers that differ from its.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nicety_qmp::{Dialogue, Facts, Failure, Inquiry, Item, Role, differences};
use serde_json::Value;

type Answers = BTreeMap<String, Value>;

fn recorded(name: &str) -> Answers {
    let path = format!("{}/tests/golden/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let file: Value = serde_json::from_str(&text).expect("JSON");
    let entries = file["answers"].as_array().expect("a list");
    entries
        .iter()
        .map(|entry| (format!("{}{}", entry["command"], entry["arguments"]), entry["answer"].clone()))
        .collect()
}

fn asked(answers: &Answers) -> Result<Facts, String> {
    let (mut inquiry, now) = (Inquiry::new(Duration::from_secs(5)), Instant::now());
    for id in 1.. {
        let Some(command) = inquiry.command(now) else { break };
        inquiry.sent(id);
        let key = format!("{}{}", Value::from(command.name), command.arguments);
        let answer = answers.get(&key).unwrap_or_else(|| panic!("{key} was not recorded"));
        let result = match &answer["error"] {
            Value::Null => Ok(answer["return"].clone()),
            error => Err(Failure { class: String::new(), desc: error["desc"].to_string() }),
        };
        inquiry.hear(&Item::Answer { id, result }, now);
    }
    inquiry.result().expect("it has ended").clone()
}

fn facts(name: &str) -> Facts {
    let mut answers = recorded("primary");
    answers.extend(recorded(name));
    asked(&answers).expect("facts")
}

/// The only refusal.
fn refusal(name: &str, role: Role) -> String {
    let refusals = facts(name).refusals(role);
    assert_eq!(refusals.len(), 1, "{refusals:#?}");
    refusals[0].clone()
}

#[test]
fn a_vm_with_a_vhost_user_adapter_may_be_protected_and_its_waiting_twin_is_one() {
    let (primary, secondary) = (facts("primary"), facts("secondary"));
    assert_eq!((primary.refusals(Role::Primary), secondary.refusals(Role::Secondary)), (vec![], vec![]));
    assert_eq!(differences(&primary, &secondary), Vec::<String>::new());
    assert_eq!(primary.name.as_deref(), Some("vm1"));
    assert_eq!((primary.version.major, primary.version.minor), (11, 1));
    assert!(primary.sockets.iter().any(|path| path == "/run/nicety/vm2.sock"), "{:?}", primary.sockets);
    let device = &primary.devices["01.0 of pcie.0"];
    assert_eq!(
        (device.kind.as_str(), &device.properties["mac"]),
        ("virtio-net-pci", &Value::from("52:54:00:12:34:02"))
    );
    // It goes to the twin's host.
    let text = serde_json::to_string(&primary).expect("JSON");
    assert_eq!(serde_json::from_str::<Facts>(&text).expect("facts"), primary);
}

#[test]
fn what_cannot_be_protected_is_refused_with_what_to_do() {
    for (name, role, words) in [
        ("vfio-user", Role::Primary, ["vfio-user-pci at 01.0 of pcie.0", "dead at the destination", "vhost-user"]),
        ("disk", Role::Primary, ["the disk d ", "can be written", "make it read-only"]),
        ("network", Role::Primary, ["back end n2", "of kind user", "a port of Nicety's"]),
        ("private", Role::Primary, ["the memory m (memory-backend-memfd)", "not shared", "share=on"]),
        ("paused", Role::Primary, ["does not run", "paused", "cont"]),
        ("listening", Role::Secondary, ["a migration of its own", "", "-incoming defer"]),
        ("primary", Role::Secondary, ["does not wait for a VM", "running", "-incoming defer"]),
        ("secondary", Role::Primary, ["does not run", "inmigrate", ""]),
    ] {
        let sentence = refusal(name, role);
        assert!(words.iter().all(|words| sentence.contains(words)), "{name}: {sentence}");
    }
    assert_eq!(facts("replicated").refusals(Role::Primary), Vec::<String>::new(), "block replication copies its disk");
}

#[test]
fn a_qemu_that_is_too_old_is_refused_before_it_is_asked_what_it_does_not_know() {
    let mut answers = recorded("primary");
    let version = serde_json::json!({"return": {"qemu": {"major": 10, "minor": 1, "micro": 0}, "package": ""}});
    answers.retain(|key, _| key.contains("query-version"));
    answers.values_mut().for_each(|answer| *answer = version.clone());
    let sentence = asked(&answers).expect_err("it is too old");
    assert!(sentence.contains("QEMU 10.1.0 is too old") && sentence.contains("11.0.0"), "{sentence}");
}

#[test]
fn a_qemu_without_replication_or_with_a_blocker_of_its_own_is_refused() {
    let mut facts = facts("primary");
    facts.has_colo = false;
    facts.blockers.push("vhost-user does not support dirty logging".to_owned());
    let refusals = facts.refusals(Role::Primary).join("\n");
    assert!(
        refusals.contains("built without replication") && refusals.contains("vhost-user does not support"),
        "{refusals}"
    );
    facts.migration = Some("active".to_owned());
    assert!(facts.refusals(Role::Primary).join("\n").contains("being migrated (active)"));
    facts.migration = Some("colo".to_owned());
    assert!(facts.refusals(Role::Primary).join("\n").contains("protected by COLO already"));
}

#[test]
fn twins_that_differ_are_told_by_what_differs() {
    for (name, words) in [
        ("processors", "the machine's smp.cpus differs: 1 at the primary, 2 at the secondary"),
        ("memory", "the machine's memory.size differs: 67108864 at the primary, 100663296 at the secondary"),
        ("model", "the processor's cx16 differs: true at the primary, false at the secondary"),
        ("device", "the primary has nothing, the secondary virtio-rng-pci"),
        ("vectors", "virtio-net-pci at 01.0 of pcie.0: vectors differs: 4 at the primary, 6 at the secondary"),
    ] {
        let found = differences(&facts("primary"), &facts(name));
        assert!(found.iter().any(|sentence| sentence.contains(words)), "{name}: {found:#?}");
        assert!(found.len() <= 6, "{name}: only what was changed differs: {found:#?}");
    }
}

/// libvirt puts each adapter behind a root port of its own.
#[test]
fn a_twin_whose_guest_has_numbered_no_bus_behind_a_root_port_yet_is_one() {
    let numbered = |name: &str, number: u64| {
        let mut facts = facts(name);
        let devices = facts.devices.values_mut();
        devices.for_each(|device| drop(device.properties.insert("busnr".to_owned(), number.into())));
        facts
    };
    assert_eq!(differences(&numbered("primary", 1), &numbered("secondary", 0)), Vec::<String>::new());
}

#[test]
fn a_qemu_that_does_not_answer_or_answers_nonsense_is_named() {
    let (mut inquiry, now) = (Inquiry::new(Duration::from_secs(5)), Instant::now());
    let command = inquiry.command(now).expect("a question");
    inquiry.sent(1);
    assert_eq!(inquiry.command(now + Duration::from_secs(5)), None);
    let sentence = inquiry.result().expect("an end").clone().expect_err("no facts");
    assert!(sentence.contains(command.name) && sentence.contains("stuck"), "{sentence}");
    for (key, nonsense) in
        [("query-status", "3"), ("query-uuid", "[]"), ("query-cpus-fast", "{}"), ("info network", "{}")]
    {
        let mut answers = recorded("primary");
        let key = answers.keys().find(|known| known.contains(key)).expect("known").clone();
        answers.insert(key, serde_json::from_str(&format!("{{\"return\": {nonsense}}}")).expect("JSON"));
        assert!(asked(&answers).is_err_and(|sentence| sentence.contains("not understood")));
    }
}
