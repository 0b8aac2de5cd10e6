use std::fs;

use tempfile::TempDir;

use super::*;

const FILE: &str =
    "[[port]]\nname = \"vm1\"\nadapter = \"e1000\"\nmac = \"52:54:00:00:00:01\"\nsocket = \"vm1.sock\"\n";

/// A folder with a host file.
struct Scratch(TempDir);

impl Scratch {
    fn new() -> Self {
        let scratch = Self(TempDir::new().unwrap());
        fs::write(scratch.host(), FILE).unwrap();
        scratch
    }

    fn host(&self) -> PathBuf {
        self.0.path().join("host.toml")
    }

    fn state(&self) -> PathBuf {
        self.0.path().join("host.toml.state")
    }

    fn begin(&self) -> Begin {
        Begin::new(Host::read(&self.host()).unwrap())
    }

    /// The host after somebody has added a port.
    fn changed(&self) -> Host {
        Host::parse(&format!("{FILE}{}", FILE.replace("vm1", "vm2").replace("0:01", "0:02")), &self.host()).unwrap()
    }

    fn keep(&self) -> Result<(), KeepError> {
        let Begin { file, state, .. } = self.begin();
        state.keep(&file, &self.changed(), &[])
    }
}

fn names(host: &Host) -> Vec<&str> {
    host.ports.iter().map(|port| port.name.as_str()).collect()
}

#[test]
fn what_was_changed_live_comes_back_and_goes_when_the_file_says_the_same() {
    let scratch = Scratch::new();
    assert!(matches!(scratch.begin().found, Found::Nothing));
    scratch.keep().unwrap();
    let begin = scratch.begin();
    assert_eq!(names(&begin.host), ["vm1", "vm2"]);
    let path = scratch.state();
    let message = format!("what was changed live is in force again, from {}: + port vm2", path.display());
    assert_eq!(begin.found.to_string(), message);
    begin.set_aside().unwrap();
    // The state after `apply host.toml`.
    begin.state.keep(&begin.file, &begin.file, &[]).unwrap();
    assert!(!path.exists());
    assert_eq!(fs::read_dir(scratch.0.path()).unwrap().count(), 1, "nothing is left behind");
}

/// A person who edits the host file does not know the ports that hooks have made, and VMs use these.
#[test]
fn ports_with_an_origin_stay_when_the_host_file_has_changed_and_are_kept_again() {
    let scratch = Scratch::new();
    let made = |name: &str, number: u8, origin: &str| {
        let port = FILE.replace("vm1", name).replace("0:01", &format!("0:0{number}"));
        format!("{port}{origin}")
    };
    let origin = "origin = \"hook libvirt, domain web1, 4dea22b3-1d52-d8f3-2516-782e98ab3fa0\"\n";
    let running = |live: &str| Host::parse(&format!("{FILE}{live}"), &scratch.host()).unwrap();
    let hooked = made("web1", 3, origin);
    let Begin { file, state, .. } = scratch.begin();
    state.keep(&file, &running(&(hooked.clone() + &made("vm2", 2, ""))), &[]).unwrap();
    fs::write(scratch.host(), FILE.replace("\"e1000\"", "\"e1000e\"")).unwrap();
    let begin = scratch.begin();
    assert_eq!(names(&begin.host), ["vm1", "web1"]);
    assert_eq!(begin.host.ports[0].entry.about.name, "e1000e", "the host file wins");
    let found = begin.found.to_string();
    assert!(found.ends_with("left out: + port vm2; ~ port vm1: adapter e1000e → e1000"), "{found}");
    begin.set_aside().unwrap();
    // The next start knows them too, and says that they are in force.
    let in_force = |names_wanted: &[&str]| {
        let begin = scratch.begin();
        assert_eq!(names(&begin.host), names_wanted);
        let found = begin.found.to_string();
        assert!(found.contains("is in force again") && found.ends_with(": + port web1"), "{found}");
        begin.set_aside().unwrap();
    };
    in_force(&["vm1", "web1"]);
    // Somebody has written the other live change into the file by hand.
    fs::write(scratch.host(), FILE).unwrap();
    state.keep(&file, &running(&(made("vm2", 2, "") + &hooked)), &[]).unwrap();
    fs::write(scratch.host(), format!("{FILE}{}", made("vm2", 2, ""))).unwrap();
    in_force(&["vm1", "vm2", "web1"]);
    // Where the new file has given the port's address to another, the file is right.
    fs::write(scratch.host(), format!("{FILE}{}", made("other", 3, ""))).unwrap();
    let begin = scratch.begin();
    assert_eq!(names(&begin.host), ["vm1", "other"]);
    assert!(begin.found.to_string().contains("+ port web1"), "{}", begin.found);
}

#[test]
fn a_host_file_that_was_changed_since_wins_and_what_is_left_out_is_said() {
    let scratch = Scratch::new();
    scratch.keep().unwrap();
    // A comment is not a change.
    fs::write(scratch.host(), format!("# mine\n{FILE}")).unwrap();
    assert!(matches!(scratch.begin().found, Found::Taken(..)));
    fs::write(scratch.host(), FILE.replace("e1000", "e1000e")).unwrap();
    let begin = scratch.begin();
    assert_eq!((names(&begin.host), begin.host.ports[0].entry.about.name), (vec!["vm1"], "e1000e"));
    let message = begin.found.to_string();
    assert!(
        message.ends_with("the host file wins, and this is left out: + port vm2; ~ port vm1: adapter e1000e → e1000"),
        "{message}"
    );
    begin.set_aside().unwrap();
    assert!(!scratch.state().exists() && scratch.0.path().join("host.toml.state.old").exists());
}

#[test]
fn a_state_file_that_was_cut_or_is_none_is_set_aside_and_the_host_file_is_served() {
    let scratch = Scratch::new();
    scratch.keep().unwrap();
    let whole = fs::read(scratch.state()).unwrap();
    let cuts = (0..whole.len() - 2).step_by(7).map(|length| whole[..length].to_vec());
    let wrong = String::from_utf8(whole.clone()).unwrap().replace("e1000", "e9");
    for bytes in cuts.chain([b"\0\0\0".to_vec(), b"{\"version\":1}".to_vec(), wrong.into_bytes()]) {
        fs::write(scratch.state(), &bytes).unwrap();
        let begin = scratch.begin();
        assert_eq!(names(&begin.host), ["vm1"]);
        assert!(matches!(begin.found, Found::Damaged(..)), "{bytes:?}");
        begin.set_aside().unwrap();
        assert!(scratch.0.path().join("host.toml.state.damaged").exists());
        begin.state.keep(&begin.file, &scratch.changed(), &[]).unwrap();
        assert!(matches!(scratch.begin().found, Found::Taken(..)), "the next one is kept");
    }
}

#[test]
fn a_state_file_of_a_newer_version_is_left_as_it_is_and_nothing_is_kept() {
    let scratch = Scratch::new();
    let newer = "{\"version\":2,\"what\":[\"nobody knows\"]}\n";
    let newer = newer.to_owned() + &digest(newer.as_bytes());
    fs::write(scratch.state(), &newer).unwrap();
    let begin = scratch.begin();
    assert_eq!(names(&begin.host), ["vm1"]);
    begin.set_aside().unwrap();
    let error = begin.state.keep(&begin.file, &scratch.changed(), &[]).unwrap_err();
    assert!(
        error.to_string().ends_with("is of a newer version of nicety, and is left as it is: move it away"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(scratch.state()).unwrap(), newer);
}

#[test]
fn a_place_that_cannot_be_written_to_is_said_and_what_was_kept_stays() {
    let scratch = Scratch::new();
    scratch.keep().unwrap();
    let before = fs::read(scratch.state()).unwrap();
    // Not even root can write to a folder as to a file.
    fs::create_dir(scratch.0.path().join("host.toml.state.new")).unwrap();
    let error = scratch.keep().unwrap_err();
    assert!(error.to_string().contains("Is a directory"), "{error}");
    assert_eq!(fs::read(scratch.state()).unwrap(), before);
    let nowhere = StateFile { path: scratch.0.path().join("absent/state"), is_newer: false, unconfirmed: Vec::new() };
    let host = Host::read(&scratch.host()).unwrap();
    assert!(matches!(nowhere.keep(&host, &scratch.changed(), &[]), Err(KeepError::System { .. })));
}

#[test]
fn a_link_at_the_new_state_or_at_the_state_is_not_followed() {
    let scratch = Scratch::new();
    let precious = scratch.0.path().join("precious");
    fs::write(&precious, "text").unwrap();
    std::os::unix::fs::symlink(&precious, scratch.0.path().join("host.toml.state.new")).unwrap();
    std::os::unix::fs::symlink(&precious, scratch.state()).unwrap();
    let found = scratch.begin().found;
    assert!(found.to_string().contains("it is a link, and must be a file"), "{found}");
    scratch.keep().unwrap();
    assert_eq!(fs::read(&precious).unwrap(), b"text");
    assert!(matches!(scratch.begin().found, Found::Taken(..)));
}

/// The check value of CRC-32/ISO-HDLC, from the catalogue of parametrised CRC algorithms (reveng.sourceforge.io).
#[test]
fn the_digest_is_the_crc_32_of_ethernet_and_zip() {
    assert_eq!(digest(b"123456789"), "crc32 cbf43926\n");
}

#[test]
fn a_state_file_with_one_flipped_bit_is_set_aside_and_what_it_would_have_changed_is_named() {
    let scratch = Scratch::new();
    scratch.keep().unwrap();
    let whole = fs::read(scratch.state()).unwrap();
    let mut named = 0;
    for bit in (0..whole.len() * 8).step_by(7) {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(scratch.state(), &bytes).unwrap();
        let Begin { host, found, .. } = scratch.begin();
        assert_eq!(names(&host), ["vm1"], "bit {bit}");
        let Found::Damaged(_, _, left) = &found else { panic!("bit {bit}: {found}") };
        named += u32::from(left.as_ref().is_some_and(|plan| plan.to_string().contains("+ port vm2")));
    }
    // A bit flip in the program's name, or in the digest itself, leaves the rest readable.
    assert!(named > 20, "{named} name port vm2");
}

fn unconfirmed(file: Option<String>) -> Unconfirmed {
    Unconfirmed { by: "user 7".to_owned(), changes: vec!["+ port vm2".to_owned()], file, waits: true }
}

#[test]
fn a_host_file_that_nobody_has_confirmed_is_not_served_while_it_says_the_same() {
    let scratch = Scratch::new();
    let Begin { file, state, .. } = scratch.begin();
    let changed = scratch.changed().document.text();
    state.keep(&file, &file, &[unconfirmed(Some(changed.clone()))]).unwrap();
    // The file as it was; with a comment; and as it was not confirmed.
    for text in [FILE.to_owned(), format!("# mine\n{FILE}"), changed.clone(), format!("# mine\n{changed}")] {
        fs::write(scratch.host(), &text).unwrap();
        let begin = scratch.begin();
        assert_eq!((names(&begin.host), names(&begin.file)), (vec!["vm1"], vec!["vm1"]), "{text}");
        assert_eq!(matches!(begin.found, Found::Unconfirmed(..)), text.contains("vm2"), "{}", begin.found);
        assert_eq!(begin.undone().unwrap().to_string(), "+ port vm2, by user 7");
        begin.set_aside().unwrap();
    }
    let said = "the host file has a change that nobody has confirmed: + port vm2, by user 7; what was confirmed before is served, from ";
    assert!(scratch.begin().found.to_string().starts_with(said));
    // It is told once, and stays out.
    scratch.begin().note_undone().unwrap();
    let begin = scratch.begin();
    assert!(begin.undone().is_none() && names(&begin.host) == ["vm1"]);
    // Another text is the administrator's word.
    fs::write(scratch.host(), changed.replace("vm2", "vm3")).unwrap();
    let begin = scratch.begin();
    assert!(matches!(begin.found, Found::Outdated(..)) && begin.undone().is_none());
    assert_eq!(names(&begin.host), ["vm1", "vm3"]);
    begin.set_aside().unwrap();
    assert!(begin.state.refused().is_none());
}

#[test]
fn a_change_of_an_entry_that_waited_is_told_once_and_leaves_no_file() {
    let scratch = Scratch::new();
    let Begin { file, state, .. } = scratch.begin();
    state.keep(&file, &file, &[unconfirmed(None)]).unwrap();
    let begin = scratch.begin();
    assert!(matches!(begin.found, Found::Nothing) && begin.undone().is_some());
    begin.note_undone().unwrap();
    assert!(!scratch.state().exists());
}

/// Only `NICETY_GOLDEN=write` makes the file of a new version.
#[test]
fn a_state_file_of_each_version_brings_its_changes_back() {
    let of = |version| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/host-v{version}.state"));
    let scratch = Scratch::new();
    let file = FILE.replace("vm1.sock", "/run/nicety/vm1.sock");
    let both = format!("{file}{}", file.replace("vm1", "vm2").replace("0:01", "0:02"));
    fs::write(scratch.host(), &file).unwrap();
    let text = |text: &str| Host::parse(text, &scratch.host()).unwrap().document.text();
    if !of(VERSION).exists() && std::env::var_os("NICETY_GOLDEN").is_some_and(|what| what == "write") {
        let (program, host, running) = ("0.1.0".to_owned(), text(&file), text(&both));
        write(&of(VERSION), &Kept { version: VERSION, program, host, running, unconfirmed: Vec::new() }).unwrap();
    }
    for version in 1..=VERSION {
        fs::copy(of(version), scratch.state()).unwrap();
        let begin = scratch.begin();
        assert!(matches!(begin.found, Found::Taken(..)), "version {version}: {}", begin.found);
        assert_eq!(begin.host.document.text(), text(&both), "version {version}");
    }
}

/// Another version of the TOML writer may order and quote otherwise.
#[test]
fn a_host_file_that_another_program_has_written_otherwise_is_the_same_one() {
    let scratch = Scratch::new();
    scratch.keep().unwrap();
    let Begin { file, .. } = scratch.begin();
    let host = file.document.text().replace("\"e1000\"", "'e1000'");
    assert_ne!(host, file.document.text());
    let running = scratch.changed().document.text();
    write(
        &scratch.state(),
        &Kept { version: VERSION, program: "0.2.0".to_owned(), host, running, unconfirmed: Vec::new() },
    )
    .unwrap();
    let begin = scratch.begin();
    assert!(matches!(begin.found, Found::Taken(..)), "{}", begin.found);
    assert_eq!(names(&begin.host), ["vm1", "vm2"]);
}
