//! etcd that is full, and etcd that is restored from a snapshot, by the book's lines: frames go on all the time.

use std::path::Path;

use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::etcd_lines::{block, runs};
use crate::etcd_servers::addresses;
use crate::{GROUPS, Host, carried, until};

/// A database that is full at once.
const QUOTA: usize = 16 << 20;

/// Two hosts with a guest each, that know each other.
fn hosts(place: &Path, cluster: &Cluster) -> [Host; 2] {
    let ends = addresses::<2>();
    let one = Host::start(place, "one", &ends[0], cluster, &[("vmxnet3", "web", 1)]);
    let ports = [("vmxnet3", "web", 2), ("vmxnet3", "web", 3)];
    [one, Host::start(place, "other", &ends[1], cluster, &ports)]
}

#[test]
fn while_etcd_is_full_frames_go_on_and_changes_are_refused_until_it_is_emptied_as_the_book_says() {
    let place = TempDir::new().unwrap();
    let cluster = Cluster::start_with::<1>(&[&format!("--quota-backend-bytes={QUOTA}")]);
    cluster.put("config", GROUPS);
    let [one, other] = &hosts(place.path(), &cluster);
    let (mut a, mut b) = (one.guest("vmxnet3", 1), other.guest("vmxnet3", 2));
    until("the guests are known", || one.place(2).is_some() && other.place(1).is_some());
    // Versions of one key fill the database.
    let (client, value) = (cluster.client(), "x".repeat(1 << 20));
    let full = (0..100).find_map(|_| client.wait(async |client| client.put("filler", &value, 0).await).err());
    let remedy = "its database is full. Compact and defragment it, then `etcdctl alarm disarm`";
    let why = full.unwrap().to_string();
    assert!(why.contains(remedy), "{why}");
    let before = client.wait(|client| async move { client.status().await }).unwrap();

    let add = ["fabric", "group", "add", "log", "vni=5030", "vlan=30"];
    let (code, out, err) = one.run(&add);
    assert_eq!((code, out.as_str()), (Some(1), "+ port_group.log\n"), "{err}");
    assert!(err.contains(remedy), "{err}");
    assert!(carried(&mut a, &mut b) > 100_000 && carried(&mut b, &mut a) > 100_000);
    // A guest that comes now is not published. It is reached all the same, by flooding.
    let mut late = other.guest("vmxnet3", 3);
    assert!(carried(&mut a, &mut late) > 100_000);
    assert_eq!(one.place(3), None);
    // Leases are renewed: nobody is taken for gone.
    assert!(one.is_connected() && one.place(2).as_deref() == Some("other"), "{}", one.report());

    let session = format!("export ETCDCTL_ENDPOINTS={}", cluster.endpoints());
    runs(cluster.folder(), cluster.etcd(), &[session], &block("etcdctl compact"), &[]);
    let after = client.wait(|client| async move { client.status().await }).unwrap();
    assert!(after.database_bytes < before.database_bytes / 4, "{before:?} {after:?}");
    assert_eq!(one.says(&add), "+ port_group.log\n");
    until("the late guest is published", || one.place(3).as_deref() == Some("other"));
    until("the change is in force", || {
        let config = one.report().config;
        config.is_some() && config == other.report().config
    });
    assert!(carried(&mut a, &mut b) > 100_000 && carried(&mut a, &mut late) > 100_000);
}

#[test]
fn a_snapshot_is_restored_by_the_book_s_lines_and_each_host_takes_its_configuration_and_registers_again() {
    let (place, mut cluster) = (TempDir::new().unwrap(), Cluster::start::<1>());
    cluster.put("config", GROUPS);
    let [one, other] = &hosts(place.path(), &cluster);
    let (mut a, mut b) = (one.guest("vmxnet3", 1), other.guest("vmxnet3", 2));
    until("the guests are known", || one.place(2).is_some() && other.place(1).is_some());
    let session = [format!("export ETCDCTL_ENDPOINTS={}", cluster.endpoints())];
    runs(cluster.folder(), cluster.etcd(), &session, &block("etcdctl snapshot save"), &[]);
    // Two things are lost with the server: a change, and a guest that has come since.
    cluster.put("config", GROUPS.replace("vlan = 10", "vlan = 11"));
    let vlan = |host: &Host, port: &str| host.port(port).policy.get("vlan").cloned().unwrap_or_default();
    until("the change is in force", || vlan(one, "vm1") == "11" && vlan(other, "vm2") == "11");
    let mut late = other.guest("vmxnet3", 3);
    until("the late guest is published", || one.place(3).as_deref() == Some("other"));
    cluster.kill(0);
    std::fs::remove_dir_all(cluster.folder().join("m0")).unwrap();
    assert!(carried(&mut a, &mut b) > 100_000);

    // The page restores one of three members. Here it is alone, and its folder, name and address are others.
    let peer = cluster.endpoints().replace("2379", "2380");
    let replace = [
        (",etcd2=https://etcd2:2380,etcd3=https://etcd3:2380", ""),
        ("https://etcd1:2380", peer.as_str()),
        ("etcd1=", "m0="),
        ("--name etcd1", "--name m0"),
        ("/var/lib/etcd/restored", "m0"),
    ];
    runs(cluster.folder(), cluster.etcd(), &[], &block("etcdctl snapshot restore"), &replace);
    cluster.run(0);
    cluster.ready();
    until("the configuration of the snapshot is in force", || vlan(one, "vm1") == "10" && vlan(other, "vm2") == "10");
    until("they are connected", || one.is_connected() && other.is_connected());
    let known =
        |host: &Host, at: &[(u8, &str)]| at.iter().all(|(number, name)| host.place(*number).as_deref() == Some(name));
    until("all guests are known again, also the late one", || {
        known(one, &[(2, "other"), (3, "other")]) && known(other, &[(1, "one")])
    });
    let version = one.report().config;
    assert_eq!(version, other.report().config);
    assert!(carried(&mut a, &mut b) > 100_000 && carried(&mut a, &mut late) > 100_000);
    let keys = cluster.keys();
    assert!(keys.iter().any(|(key, _)| key.ends_with(&crate::mac(3))), "{keys:?}");
}
