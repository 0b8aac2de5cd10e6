//! Hosts and their rights: etcd itself is asked what each user may do.

use std::time::Duration;

use nicety_etcd::{Blocking, ErrorKind, Keys};
use nicety_guests::Etcd;
use nicety_host::{FabricConfig, Host};

use crate::cluster::{Cluster, newer, older, put, refused, says};

fn password(cluster: &Cluster, file: &str) -> String {
    std::fs::read_to_string(cluster.scratch.path().join(file)).unwrap().trim_end().to_owned()
}

/// The client of a host's user.
fn as_host(cluster: &Cluster, host: &str) -> Blocking {
    let (user, file) = (format!("nicety/prod/host/{host}"), format!("prod-{host}.password"));
    cluster.client(Some((&user, &password(cluster, &file))))
}

#[track_caller]
fn denied<T: std::fmt::Debug>(done: Result<T, nicety_etcd::Error>) {
    let error = done.unwrap_err();
    assert!(error.any(|kind| matches!(kind, ErrorKind::Denied { .. })), "{error}");
}

fn grant(client: &Blocking) -> i64 {
    client.wait(|client| async move { client.grant(Duration::from_secs(60)).await }).unwrap().id
}

/// The table that `join` has printed, as a host file has it.
fn table(cluster: &Cluster, printed: &str) -> FabricConfig {
    Host::parse(printed, &cluster.scratch.path().join("host.toml")).unwrap().fabric.unwrap()
}

fn rights(etcd: &Etcd) {
    let cluster = Cluster::start(etcd);
    cluster.turn_users_on();
    refused(cluster.run(&["init"]), 2, "etcd asks for a user and a password");
    let notes = says(
        cluster.as_root(&["init"]),
        0,
        "made the fabric prod, without groups\nmade the role nicety/prod/admin\n\
         made the user nicety/prod/admin; its password is in prod-admin.password\n",
    );
    assert!(notes.contains("has no TLS: whoever reads the network there reads the passwords"), "{notes}");
    let again = cluster.as_root(&["init"]);
    assert!(again.code == Some(0) && again.out.contains("there was a user nicety/prod/admin"), "{again:?}");
    assert_eq!(cluster.as_root(&["group", "add", "web", "vni=5010", "vlan=10"]).code, Some(0));

    // Two hosts join, one of them twice.
    let joined = cluster.as_root(&["join", "node-1", "--address", "192.0.2.1"]);
    assert_eq!(joined.code, Some(0), "{joined:?}");
    let file = table(&cluster, &joined.out);
    assert_eq!((file.name.as_str(), file.host().as_deref()), ("prod", Ok("node-1")));
    let user = file.etcd.user.unwrap();
    assert_eq!(
        (user.name.as_str(), user.password.as_path()),
        (
            "nicety/prod/host/node-1",
            cluster.scratch.path().canonicalize().unwrap().join("prod-node-1.password").as_path(),
        )
    );
    let again = cluster.as_root(&["join", "node-1", "--address", "192.0.2.1"]);
    assert_eq!((again.code, &again.out), (Some(0), &joined.out), "{again:?}");
    assert_eq!(cluster.as_root(&["join", "node-2", "--address", "2001:db8::2", "--mtu", "9000"]).code, Some(0));
    let (one, other) = (as_host(&cluster, "node-1"), as_host(&cluster, "node-2"));

    // A host writes what is its own.
    let lease = grant(&one);
    let record = "{\"address\":\"192.0.2.1\",\"mtu\":1500,\"run\":\"00000000000000ff\",\"version\":\"0.1.0\"}";
    put(&one, "host/node-1", record, lease).unwrap();
    put(&one, "host/node-1/192.0.2.1", "{}", lease).unwrap();
    put(&one, "at/web/node-1/52:54:00:00:00:01", "{\"port\":\"vm1\",\"sequence\":1}", lease).unwrap();
    assert_eq!(cluster.keys(&other, "").len(), 4, "the other one reads it, and the configuration");
    // And nothing else, whatever it tries.
    for key in [
        "config",
        "host/node-1",
        "host/",
        "host/node-20",
        "host/node-20/192.0.2.2",
        "host/node-1/192.0.2.2",
        "at/web/node-1/52:54:00:00:00:01",
        "at/web/node-20/x",
        "at/db/node-2/52:54:00:00:00:02",
        "freed/1",
        "other",
    ] {
        denied(put(&other, key, "x", 0));
        let key = format!("/nicety/fabrics/prod/{key}");
        denied(other.wait(|client| async move { client.delete(&Keys::one(key)).await }));
    }
    denied(other.wait(|client| async move { client.put("/nicety/fabrics/other/config", "x", 0).await }));
    denied(other.wait(|client| async move { client.delete(&Keys::prefix("/nicety/fabrics/prod/")).await }));
    denied(other.range(&Keys::prefix("/nicety/fabrics/"), 0));
    denied(other.wait(|client| async move { client.revoke(lease).await }));
    let roles = other.wait(|client| async move { client.add_role("mine").await }).unwrap_err();
    assert!(matches!(roles.kind, ErrorKind::NotRoot { .. }), "{roles}");
    assert_eq!(cluster.keys(&one, "host/").len(), 2);

    // A new group: its right comes with it, and goes with it.
    let as_admin = |words: &[&str]| cluster.run_as("nicety/prod/admin", "prod-admin.password", words);
    let claim = "at/db/node-2/52:54:00:00:00:02";
    let ended = as_admin(&["group", "add", "db", "vni=5020", "vlan=20"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("only a user with etcd's role `root` may"), "{ended:?}");
    assert!(ended.err.contains("each host needs the right to claim addresses in db"), "{ended:?}");
    assert_eq!(cluster.as_root(&["group", "add", "db", "vni=5020", "vlan=20"]).code, Some(0));
    put(&other, claim, "{\"port\":\"vm2\",\"sequence\":1}", 0).unwrap();
    denied(put(&other, "at/db/node-1/52:54:00:00:00:02", "x", 0));
    other
        .wait(|client| async move { client.delete(&Keys::one(format!("/nicety/fabrics/prod/{claim}"))).await })
        .unwrap();
    // An administrator of the fabric changes the groups that there are.
    let notes = says(as_admin(&["group", "set", "db", "vlan=21"]), 0, "~ port_group.db: vlan 20 → 21\n");
    assert!(notes.starts_with("note: this is version "), "{notes}");
    let ended = as_admin(&["group", "remove", "db"]);
    assert!(ended.code == Some(0) && ended.err.contains("the hosts keep the right to claim addresses"), "{ended:?}");
    put(&other, claim, "{\"port\":\"vm2\",\"sequence\":1}", 0).unwrap();
    assert_eq!(cluster.as_root(&["init"]).code, Some(0));
    denied(put(&other, claim, "x", 0));

    forgotten(&cluster, &one, lease);
}

/// The host `node-1` is taken out.
fn forgotten(cluster: &Cluster, one: &Blocking, lease: i64) {
    let words = ["forget", "node-1"];
    let plan = "- host node-1 with 1 address (VMs there lose their way to other hosts)\n- user nicety/prod/host/node-1\n\
                - role nicety/prod/host/node-1\n";
    let ended = cluster.as_root(&words);
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), plan), "{ended:?}");
    assert!(ended.err.contains("there is no terminal to ask: nothing was done"), "{ended:?}");
    assert_eq!(cluster.keys(one, "host/").len(), 2);
    says(cluster.as_root(&["forget", "node-1", "--yes"]), 0, plan);
    assert!(put(one, "host/node-1", "x", 0).is_err() && put(one, "host/node-1/192.0.2.1", "x", 0).is_err());
    let root = cluster.client(Some(("root", crate::cluster::ROOT)));
    assert_eq!(cluster.keys(&root, "host/"), []);
    assert_eq!(cluster.keys(&root, "at/web/"), []);
    let gone = root.wait(|client| async move { client.keep_alive(lease).await }).unwrap_err();
    assert_eq!(gone.kind, ErrorKind::LeaseGone { id: lease });
    let roles = root.wait(|client| async move { client.roles().await }).unwrap();
    assert_eq!(roles, ["nicety/prod/admin", "nicety/prod/host/node-2", "root"]);
    let nothing = "nothing to change: there is no host node-1 in the fabric prod\n";
    says(cluster.as_root(&["forget", "node-1"]), 0, nothing);
}

#[test]
fn a_host_may_write_its_own_keys_and_no_others_with_etcd_3_5() {
    rights(&newer());
}

#[test]
fn a_host_may_write_its_own_keys_and_no_others_with_etcd_3_4() {
    rights(&older());
}

#[test]
fn hosts_join_and_leave_where_etcd_has_no_users_and_mistakes_have_sentences() {
    let cluster = Cluster::start(&newer());
    refused(cluster.run(&["join", "node-1", "--address", "192.0.2.1"]), 2, "etcd has no fabric \"prod\"");
    cluster.run(&["init"]);
    let joined = cluster.run(&["join", "node-1", "--address", "192.0.2.1"]);
    assert!(joined.code == Some(0) && joined.err.contains("so no user was made"), "{joined:?}");
    let text = format!("[switch]\nname = \"lan\"\n\n{}", joined.out);
    assert_eq!(table(&cluster, &joined.out).etcd.user, None);
    std::fs::write(cluster.scratch.path().join("host.toml"), &text).unwrap();
    // All that a daemon lacks here is the address.
    let checked = cluster.scratch.run(&["serve", "--check"]);
    assert!(
        checked.err.starts_with("nicety: the uplink: no interface of this host has the address 192.0.2.1"),
        "{checked:?}"
    );
    // From now on the host file says where etcd is.
    let short = |words: &[&str]| cluster.scratch.run(&[&["fabric"], words].concat());
    assert_eq!(short(&["group", "add", "web", "vni=5010", "vlan=10"]).code, Some(0));
    let client = cluster.client(None);
    let record = |address: &str| {
        format!("{{\"address\":\"{address}\",\"mtu\":1500,\"run\":\"00000000000000ff\",\"version\":\"0.1.0\"}}")
    };
    let lease = grant(&client);
    put(&client, "host/node-1", &record("192.0.2.1"), lease).unwrap();
    put(&client, "at/web/node-1/52:54:00:00:00:01", "{\"port\":\"vm1\",\"sequence\":1}", lease).unwrap();
    put(&client, "at/web/node-10/52:54:00:00:00:01", "{\"port\":\"vm1\",\"sequence\":1}", 0).unwrap();
    for (words, why) in [
        (&["join", "node-2", "--address", "192.0.2.1"][..], "host node-1 has the tunnel address 192.0.2.1 already"),
        (&["join", "node-2", "--address", "127.0.0.1"], "127.0.0.1 cannot be a tunnel's address"),
        (&["join", "node-2", "--address", "ff02::1"], "ff02::1 cannot be a tunnel's address"),
        (&["join", "node-2"], "--address"),
        (&["join", "a b", "--address", "192.0.2.1"], "has a ' '"),
    ] {
        refused(short(words), 2, why);
    }
    let ended = short(&["leave", "--yes"]);
    says(ended, 0, "- host node-1 with 1 address (VMs there lose their way to other hosts)\n");
    assert_eq!(cluster.keys(&client, "host/"), []);
    assert_eq!(cluster.keys(&client, "at/").len(), 1, "another host's, whose name begins alike");
    says(short(&["leave"]), 0, "nothing to change: there is no host node-1 in the fabric prod\n");
    std::fs::remove_file(cluster.scratch.path().join("host.toml")).unwrap();
    refused(cluster.run(&["leave"]), 2, "no host file here says which host this is");
    refused(short(&["group", "list"]), 2, "which fabric? Name it by --fabric");
    refused(short(&["group", "list", "--fabric", "prod"]), 2, "where is etcd? Name its servers by --etcd");
    std::fs::write(cluster.scratch.path().join("host.toml"), "[switch]\nname = \"lan\"\n").unwrap();
    refused(short(&["group", "list", "--host", "host.toml"]), 2, "host.toml has no [fabric]");
}
