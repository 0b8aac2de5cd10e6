use std::path::Path;

use super::super::tests::{PORT, error, parse};
use super::*;

#[test]
fn all_ports_have_what_sockets_says_and_each_may_have_its_own() {
    let second = PORT.replace("vm1", "vm2").replace("34:01", "34:02");
    let host = parse(&format!(
        "{PORT}{second}group = \"0\"\nmode = \"0600\"\n[sockets]\nowner = \"root\"\ngroup = \"libvirt-qemu\"\n"
    ))
    .unwrap();
    assert_eq!(host.port("vm1").unwrap().access.to_string(), "owner root, group libvirt-qemu, mode 0660");
    assert_eq!(host.port("vm2").unwrap().access.to_string(), "owner root, group 0, mode 0600");
    assert_eq!(host.daemon.access, AccessConfig::default(), "who may be a VMM may not ask what others do");
    let host = parse(&format!("{PORT}[daemon]\ncontrol_group = \"adm\"\n")).unwrap();
    assert_eq!(host.daemon.access.to_string(), "group adm, mode 0660");
    assert_eq!(host.port("vm1").unwrap().access.to_string(), "mode 0600");
}

#[test]
fn a_socket_is_open_to_everybody_only_if_that_is_said_twice_in_one_place() {
    let open = "mode = \"0666\"\nopen_to_everybody = true\n";
    assert_eq!(parse(&format!("{PORT}{open}")).unwrap().ports[0].access.mode(), 0o666);
    assert_eq!(parse(&format!("{PORT}[sockets]\n{open}")).unwrap().ports[0].access.mode(), 0o666);
    let once = error(&format!("{PORT}mode = \"0666\"\n"));
    let message = "6: port.mode: with \"0666\" every user of this machine may connect, as this VM's VMM; if that is meant, say it twice: open_to_everybody = true (allowed: \"0600\"";
    assert!(once.starts_with(message), "{once}");
    for (text, message) in [
        ("open_to_everybody = true\n", "6: port.open_to_everybody: there is no mode = \"0666\" beside it"),
        (
            "mode = \"0666\"\n[sockets]\nmode = \"0660\"\nopen_to_everybody = false\n",
            "6: port.mode: with \"0666\" every",
        ),
        ("open_to_everybody = \"yes\"\n", "6: port.open_to_everybody: it is a text, not true or false"),
        ("mode = \"0640\"\n", "6: port.mode: \"0640\" is not known"),
        ("mode = \"0777\"\n", "6: port.mode: \"0777\" is not known"),
        ("mode = 432\n", "6: port.mode: it is a number, not a text in quotes"),
        ("group = \"a b\"\n", "6: port.group: \"a b\" cannot be a name"),
        ("owner = \"\"\n", "6: port.owner: \"\" cannot be a name"),
    ] {
        let found = error(&format!("{PORT}{text}"));
        assert!(found.starts_with(message), "{found}");
    }
}

#[test]
fn a_group_that_is_no_unix_group_but_a_port_group_is_told_so() {
    let with = |name: &str| format!("{PORT}group = {name:?}\n[[port_group]]\nname = {name:?}\n");
    let message = error(&with("web-of-nobody"));
    let expected = "6: port.group: there is no UNIX group \"web-of-nobody\", whose members could connect; a port group is chosen by port_group = \"web-of-nobody\"";
    assert!(message.starts_with(expected), "{message}");
    // A name that is both is a UNIX group.
    assert_eq!(parse(&with("root")).unwrap().ports[0].access.group.as_deref(), Some("root"));
}

#[test]
fn names_are_looked_up_and_numbers_taken() {
    let of = |owner: Option<&str>, group: Option<&str>| {
        AccessConfig { owner: owner.map(str::to_owned), group: group.map(str::to_owned), mode: None }.resolve()
    };
    let root = of(Some("root"), Some("0")).unwrap();
    assert_eq!((root.owner.unwrap().id, root.group.unwrap().id, root.mode), (0, 0, 0o660));
    assert_eq!(of(Some("4711"), None).unwrap().owner.unwrap().id, 4711);
    let unknown = of(None, Some("no-such-group")).unwrap_err().to_string();
    assert_eq!(
        unknown,
        "there is no group \"no-such-group\" on this machine (`getent group` lists those that there are)"
    );
    assert!(of(Some("4294967295"), None).is_err(), "chown(2) would take it for no change");
}

#[test]
fn a_path_that_begins_with_a_tilde_is_refused_with_the_path_that_is_meant() {
    let home = std::env::home_dir().unwrap_or_else(|| Path::new("/home/you").to_owned());
    let message = error(&PORT.replace("\"vm1.sock\"", "\"~/vm1.sock\""));
    let meant = format!(
        "5: port.socket: \"~/vm1.sock\": no shell reads this file, and ~ is a name like any other here: write \"{}/vm1.sock\"",
        home.display()
    );
    assert!(message.starts_with(&meant), "{message}");
    let message = error(&format!("{PORT}[uplink]\nkind = \"capture\"\nfile = \"~you/all.pcapng\"\n"));
    assert!(message.contains("no shell reads this file") && message.contains("\"./~you/all.pcapng\""), "{message}");
}
