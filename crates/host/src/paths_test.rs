use std::path::Path;

use super::super::Host;
use super::super::tests::{PORT, error, parse, replaced};

#[test]
fn a_capture_is_written_over_nothing_else_that_the_file_names() {
    let result_of =
        |text: &str| error(&format!("{PORT}[daemon]\ncontrol = \"ask.sock\"\n[uplink]\nkind = \"capture\"\n{text}"));
    assert_eq!(
        result_of("file = \".//host.toml\""),
        "10: uplink.file: /etc/nicety/.//host.toml is this host file itself: choose another path \
         (allowed: with kind = \"capture\": a path, of no other file or socket here)"
    );
    let port = result_of("file = \"vm1.sock\"");
    let whose =
        "/etc/nicety/vm1.sock is the capture's file of line 10 already: choose another path (allowed: a path of";
    assert!(port.starts_with(&format!("5: port.socket: {whose}")), "{port}");
    let control = result_of("file = \"ask.sock\"");
    assert!(
        control.starts_with("7: daemon.control: /etc/nicety/ask.sock is the capture's file of line 10"),
        "{control}"
    );
    let rom = error(&format!("{PORT}rom = \"a.rom\"\n[uplink]\nkind = \"capture\"\nfile = \"a.rom\""));
    assert!(rom.starts_with("6: port.rom: /etc/nicety/a.rom is the capture's file of line 9"), "{rom}");
    // No socket can be there either.
    assert!(replaced("socket", "socket = \"host.toml\"").contains("/etc/nicety/host.toml is this host file itself"));
    let pair = error(&format!("{PORT}[uplink]\nkind = \"pair\"\nsocket = \"vm1.sock\""));
    assert!(pair.starts_with("5: port.socket: /etc/nicety/vm1.sock is the socket of line 8 already"), "{pair}");
    // One option ROM serves several ports.
    let other = PORT.replace("vm1", "vm2").replace(":01\"", ":02\"");
    assert!(parse(&format!("{PORT}rom = \"a.rom\"\n{other}rom = \"a.rom\"\n")).is_ok());
}

#[test]
fn a_path_that_leads_to_the_same_place_by_a_link_is_the_same() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    let path = dir.join("host.toml");
    std::os::unix::fs::symlink(".", dir.join("here")).unwrap();
    std::os::unix::fs::symlink("host.toml", dir.join("all.pcapng")).unwrap();
    let result_of = |file: &str| {
        std::fs::write(&path, format!("{PORT}[uplink]\nkind = \"capture\"\nfile = \"{file}\"\n")).unwrap();
        Host::read(&path).map(|_| ()).unwrap_err().to_string()
    };
    std::fs::create_dir(dir.join("deep")).unwrap();
    for file in ["all.pcapng", "here/host.toml", "deep/../host.toml"] {
        assert!(
            result_of(file)
                .contains(&format!("host.toml:8: uplink.file: {} is this host file", dir.join(file).display()))
        );
    }
    // Links to missing files.
    std::os::unix::fs::symlink("vm1.sock", dir.join("next")).unwrap();
    std::os::unix::fs::symlink("here/next", dir.join("far")).unwrap();
    std::os::unix::fs::symlink("round", dir.join("round")).unwrap();
    for link in ["next", "far"] {
        assert!(result_of(link).contains("host.toml:5: port.socket: "), "{link}");
    }
    std::fs::write(&path, format!("{PORT}[uplink]\nkind = \"capture\"\nfile = \"round\"\n")).unwrap();
    assert!(Host::read(&path).is_ok(), "a link to itself is nobody's place");
    // A missing file in an existing folder.
    assert!(result_of("here/vm1.sock").contains("host.toml:5: port.socket: "));
}

#[test]
fn the_usual_control_socket_and_traces_lie_upon_nothing_that_the_file_names() {
    let named = Path::new("host.toml");
    let result_of = |text: &str, control: &str, record: Option<&str>| {
        let host = parse(text).unwrap();
        host.leaves_room(named, Path::new(control), record.map(Path::new)).map_err(|errors| errors.to_string())
    };
    let capture = |file: &str| format!("{PORT}[uplink]\nkind = \"capture\"\nfile = \"{file}\"\n");
    assert_eq!(result_of(&capture("all.pcapng"), "/run/lan.sock", Some("/etc/nicety")), Ok(()));
    assert_eq!(
        result_of(&capture("/run/lan.sock"), "/run/lan.sock", None).unwrap_err(),
        "host.toml:8: uplink.file: /run/lan.sock would be the control socket too: choose another path"
    );
    assert!(result_of(PORT, "/etc/nicety/vm1.sock", None).unwrap_err().starts_with("host.toml:5: port.socket: "));
    // A file that names its control socket was checked already.
    let elsewhere = format!("{PORT}[daemon]\ncontrol = \"ask.sock\"\n");
    assert_eq!(result_of(&elsewhere, "/etc/nicety/ask.sock", None), Ok(()));
    for part in ["", ".1", ".2"] {
        let text = capture(&format!("traces/vm1.trace{part}"));
        assert_eq!(result_of(&text, "/run/lan.sock", None), Ok(()));
        assert_eq!(
            result_of(&text, "/run/lan.sock", Some("/etc/nicety/traces")).unwrap_err(),
            format!(
                "host.toml:8: uplink.file: /etc/nicety/traces/vm1.trace{part} would be port vm1's trace of --record too: \
                 choose another path"
            )
        );
    }
    let folder = result_of(&capture("traces"), "/run/lan.sock", Some("/etc/nicety/traces")).unwrap_err();
    assert!(folder.contains("would be the folder of --record too"), "{folder}");
    let host = Host::parse(PORT, Path::new("/etc/vm1.trace")).unwrap();
    assert_eq!(
        host.leaves_room(Path::new("vm1.trace"), Path::new("/run/lan.sock"), Some(Path::new("/etc")))
            .unwrap_err()
            .to_string(),
        "vm1.trace:1: this host file would be port vm1's trace of --record too: name another folder with --record"
    );
}
