use std::path::Path;

use super::MirrorDirection;
use crate::Host;
use crate::io_classes::tests::{GUESTS, class};

const PATH: &str = "/etc/nicety/host.toml";

fn up(name: &str) -> String {
    format!("[[uplink]]\nname = \"{name}\"\nkind = \"null\"\n")
}

fn mirror(name: &str, more: &str) -> String {
    format!("[[mirror]]\nname = \"{name}\"\n{more}\n")
}

/// Two uplinks, two guests, and these mirrors.
fn file(mirrors: &str) -> String {
    format!("{}{}{GUESTS}{mirrors}", up("up"), up("out"))
}

#[test]
fn a_mirror_has_its_ports_and_a_port_that_is_its_own() {
    let host = Host::parse(
        &file(
            &(mirror(
                "one",
                "groups = \"storage\"\nuplinks = \"up\"\nto = \"vm2\"\ndirection = \"egress\"\nrate = \"2Gbit/s\"",
            ) + &mirror("two", "ports = \"vm1,vm1\"\nto = \"out\"")),
        ),
        Path::new(PATH),
    )
    .unwrap();
    let [one, two] = &host.mirrors[..] else { panic!("two mirrors") };
    assert_eq!(
        (&one.ports[..], &one.uplinks[..], one.to.as_str()),
        (&["vm1".to_owned()][..], &["up".to_owned()][..], "vm2")
    );
    assert_eq!((one.direction, one.rate.to_string()), (MirrorDirection::Egress, "2Gbit/s".to_owned()));
    assert_eq!(
        (&two.ports[..], two.direction, two.rate.to_string()),
        (&["vm1".to_owned()][..], MirrorDirection::Both, "1Gbit/s".to_owned())
    );
    let team = mirror("m", "uplinks = \"both\"\nto = \"vm2\"") + &teamed();
    assert_eq!(Host::parse(&file(&team), Path::new(PATH)).unwrap().mirrors[0].uplinks, ["both"]);
}

#[test]
fn a_mirror_that_cannot_be_is_refused_with_the_reason() {
    let error = |mirrors: &str| {
        let errors = Host::parse(&file(mirrors), Path::new(PATH)).unwrap_err();
        errors.list[0].to_string().split(" (allowed").next().unwrap().to_owned()
    };
    let one = |more: &str| mirror("m", more);
    for (mirrors, what) in [
        (one("to = \"vm2\""), "mirror.ports: mirror \"m\" has no frames: say whose, by ports, groups or uplinks"),
        (one("ports = \"vm1\""), "mirror.to: it is missing from this [[mirror]]"),
        (one("ports = \"vm3\"\nto = \"vm2\""), "mirror.ports: there is no port \"vm3\"; did you mean \"vm1\"?"),
        (
            one("groups = \"storag\"\nto = \"vm2\""),
            "mirror.groups: there is no port group \"storag\"; did you mean \"storage\"?",
        ),
        (
            one("uplinks = \"u\"\nto = \"vm2\""),
            "mirror.uplinks: there is no uplink and no team \"u\"; did you mean \"up\"?",
        ),
        (
            one("ports = \"vm1\"\nto = \"ou\""),
            "mirror.to: there is no port and no uplink \"ou\"; did you mean \"out\"?",
        ),
        (one("ports = \"vm1,vm2\"\nto = \"vm2\""), "mirror.to: vm2 would get copies of what it gets: a loop"),
        (one("uplinks = \"up\"\nto = \"up\""), "mirror.to: up would get copies of what it gets: a loop"),
        (
            one("ports = \"vm1\"\nto = \"vm2\"") + &mirror("n", "ports = \"vm2\"\nto = \"out\""),
            "mirror.to: mirror n copies the frames of vm2: copies are not copied again",
        ),
        (
            one("ports = \"vm1\"\nto = \"out\"") + &mirror("n", "uplinks = \"up\"\nto = \"out\""),
            "mirror.to: out gets the copies of mirror m already, and gets nothing else",
        ),
        (
            one("ports = \"vm1\"\nto = \"out\"") + &one("uplinks = \"up\"\nto = \"vm2\""),
            "mirror.name: there is a mirror \"m\" already",
        ),
        (
            one("ports = \"vm1\"\nto = \"up\"") + &class("nfs", ""),
            "mirror.to: uplink up has I/O control, and would have copies alone: leave its classes and inward_rate out",
        ),
        (
            one("ports = \"vm1\"\nto = \"t1\"") + &teamed(),
            "mirror.to: uplink t1 is a member of team both: copies go to an uplink that is in no team",
        ),
        (
            one("ports = \"vm1\"\nto = \"both\"") + &teamed(),
            "mirror.to: both is a team: copies go to a port, or to an uplink that is in no team",
        ),
        (
            one("uplinks = \"t1\"\nto = \"vm2\"") + &teamed(),
            "mirror.uplinks: uplink t1 is a member of team both: name the team",
        ),
        (
            one("ports = \"vm1\"\nto = \"q\"") + "[[uplink]]\nname = \"q\"\nkind = \"querier\"\n",
            "mirror.to: uplink q is a querier, which reads no copies",
        ),
        (
            one("ports = \"vm1\"\nto = \"vm2\"\nrate = \"0Mbit/s\""),
            "mirror.rate: `0Mbit/s` is no rate: it must be more than 0, such as 100Mbit/s",
        ),
    ] {
        assert_eq!(error(&mirrors), what);
    }
    let its_own = |number| {
        let uplink = format!("[[uplink]]\nname = \"o{number}\"\nkind = \"null\"\n");
        mirror(&format!("m{number}"), &format!("ports = \"vm1\"\nto = \"o{number}\"")) + &uplink
    };
    let many: String = (0..17).map(its_own).collect();
    assert_eq!(error(&many), "mirror: a switch has at most 16 mirrors");
}

/// A team of one uplink.
fn teamed() -> String {
    "[[uplink]]\nname = \"t1\"\nkind = \"pair\"\nsocket = \"t1.sock\"\n[[team]]\nname = \"both\"\nmembers = \"t1\"\nmode = \"802.3ad\"\n"
        .to_owned()
}
