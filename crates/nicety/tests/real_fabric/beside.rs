//! Versions of the fabric's configuration on a host on which a change waits to be confirmed.

use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::etcd_servers::addresses;
use crate::{GROUPS, Host, carried, until};

#[test]
fn a_version_does_not_wait_for_a_confirmation_and_one_that_has_to_names_the_command() {
    let (place, cluster) = (TempDir::new().unwrap(), Cluster::start::<1>());
    cluster.put("config", GROUPS);
    let [one, other] = addresses();
    let one = Host::start(place.path(), "one", &one, &cluster, &[("e1000", "web", 1)]);
    let other = Host::start(place.path(), "other", &other, &cluster, &[("e1000", "web", 2)]);
    let (mut a, mut b) = (one.guest("e1000", 1), other.guest("e1000", 2));
    until("they know each other", || one.place(2).is_some() && other.place(1).is_some());
    let vni = |host: &Host| host.report().groups[0].vni;
    one.says(&["port", "set", "vm1", "buffer=2MiB", "--confirm", "600s"]);
    cluster.put("config", GROUPS.replace("5010", "5011"));
    until("the version is in force", || vni(&one) == Some(5011) && vni(&other) == Some(5011));
    assert_eq!(one.report().waits, None);
    assert!(carried(&mut a, &mut b) > 100_000 && carried(&mut b, &mut a) > 100_000, "{}", one.log());
    one.says(&["confirm", "--undo"]);
    assert_eq!(vni(&one), Some(5011));
    assert!(carried(&mut a, &mut b) > 100_000, "{}", one.log());

    // A version that fits once a group of the host file is gone that is not confirmed yet.
    one.says(&["group", "add", "log", "vlan=99", "--confirm", "600s"]);
    let log = "[[port_group]]\nname = \"log\"\nvni = 5030\nvlan = 30\n";
    cluster.put("config", &(GROUPS.replace("5010", "5012") + log));
    until("it is in force where it fits", || vni(&other) == Some(5012));
    until("the other host says that it waits", || one.report().waits.is_some());
    let shown = one.says(&["fabric", "status"]);
    let waits = "; version ";
    let line = shown.lines().find(|line| line.starts_with("configuration: ") && line.contains(waits));
    let line = line.unwrap_or_else(|| panic!("{shown}"));
    for words in [
        " waits: it fits this host only once a change is undone that waits to be confirmed (+ port_group.log, by ",
        ": `nicety confirm --undo` undoes it; until then ",
        "the fabric has a port group \"log\", too",
        "stays in force, but nothing goes to other hosts or comes from them in web, whose VNI may be another group's",
    ] {
        assert!(line.contains(words), "{words}: {line}");
    }
    let before = one.tunnelled();
    carried(&mut a, &mut b);
    assert_eq!(one.tunnelled(), before, "its tunnel has left the network");
    one.says(&["confirm", "--undo"]);
    until("the version is in force here, too", || vni(&one) == Some(5012) && one.report().waits.is_none());
    assert!(carried(&mut a, &mut b) > 100_000, "{}", one.log());
}
