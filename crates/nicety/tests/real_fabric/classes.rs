//! Classes of I/O control are defined once, in the fabric, and divide the tunnel of each host.

use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::etcd_servers::addresses;
use crate::{GROUPS, Host, carried, until};

/// Far less than two guests carry without it in the 0.3 s of a measurement, with all that may wait on the way.
const LIMITED: u64 = 3_000_000;

/// The names of the classes of a host's tunnel.
fn classes(host: &Host) -> Vec<String> {
    host.port("tunnel").io_classes.into_iter().map(|class| class.name).collect()
}

#[test]
fn a_class_is_added_once_and_limits_its_group_on_each_host_and_no_other_group() {
    let (place, cluster) = (TempDir::new().unwrap(), Cluster::start::<1>());
    cluster.put("config", GROUPS);
    let [one, other] = addresses();
    let one = Host::start(place.path(), "one", &one, &cluster, &[("vmxnet3", "web", 1), ("vmxnet3", "db", 3)]);
    let other = Host::start(place.path(), "other", &other, &cluster, &[("vmxnet3", "web", 2), ("vmxnet3", "db", 4)]);
    let (mut a, mut b) = (one.guest("vmxnet3", 1), other.guest("vmxnet3", 2));
    let (mut c, mut d) = (one.guest("vmxnet3", 3), other.guest("vmxnet3", 4));
    until("the guests are known", || one.place(2).is_some() && one.place(4).is_some() && other.place(1).is_some());
    let free = [carried(&mut a, &mut b), carried(&mut b, &mut a)];
    assert!(free.iter().all(|bytes| *bytes > 4 * LIMITED), "{free:?}");
    assert_eq!(classes(&one), [""; 0]);

    let added = one.says(&["fabric", "class", "add", "slow", "groups=web", "limit=20Mbit/s"]);
    assert_eq!(added, "+ io_class.slow\n");
    let has = |names: &[&str]| classes(&one) == names && classes(&other) == names;
    until("it is on both hosts", || has(&["vm", "slow"]));
    let limited = [carried(&mut a, &mut b), carried(&mut b, &mut a)];
    println!("{free:?} bytes, and {limited:?} with the limit");
    assert!(limited.iter().all(|bytes| *bytes < LIMITED), "{limited:?}");
    assert!(carried(&mut c, &mut d) > 4 * LIMITED, "the other group");
    until("the log says so", || other.log().contains("is in force: + fabric.io_class.slow"));
    // It is the fabric's, and no class of the host file.
    let (code, _, err) = one.run(&["class", "set", "tunnel/slow", "shares=7"]);
    assert!(code == Some(2) && err.contains("there is no class \"tunnel/slow\""), "{err}");
    assert_eq!(one.says(&["fabric", "class", "list"]), "CLASS  KEYS\nslow   groups=web limit=20Mbit/s\n");
    let text = one.says(&["fabric", "export"]);
    assert!(text.contains("[[io_class]]\nname = \"slow\"\ngroups = \"web\"\nlimit = \"20Mbit/s\"\n"), "{text}");
    std::fs::write(one.dir.join("prod.toml"), text.replace("20Mbit/s", "30Mbit/s")).unwrap();
    assert_eq!(one.says(&["fabric", "plan", "prod.toml"]), "~ io_class.slow: limit 20Mbit/s → 30Mbit/s\n");

    // A version that a host cannot keep is refused there, and by its reason.
    one.says(&["fabric", "class", "set", "slow", "limit=", "reservation=10Mbit/s"]);
    until("both refuse it", || one.report().refused.len() == 1 && other.report().refused.len() == 1);
    let why = "the fabric's class slow: reservation: uplink tunnel has no rate, and a reservation is a part of it";
    assert!(one.report().refused[0].contains(why), "{}", one.report());
    assert!(has(&["vm", "slow"]), "the last version stays in force");
    let removed = other.says(&["fabric", "class", "remove", "slow"]);
    assert_eq!(removed, "- io_class.slow\n");
    until("it has gone from both", || has(&[]));
    until("the fast way is back", || carried(&mut a, &mut b) > 4 * LIMITED);
    assert!(one.report().refused.is_empty(), "{}", one.report());
}
