//! etcd that is away, behind TLS, or lost: what the commands say, and the way out that the book names. A full etcd is tried in `real_fabric`.

use std::time::{Duration, Instant};

use crate::cluster::{Cluster, SOON, addresses, newer, refused, says};
use crate::scratch::Scratch;

#[test]
fn etcd_that_is_away_is_named_with_what_to_do() {
    let [nobody] = addresses();
    let scratch = Scratch::new();
    let at = format!("http://{nobody}:2379");
    let ended = scratch.run(&["fabric", "group", "list", "--fabric", "prod", "--etcd", &at]);
    refused(ended, 3, &format!("etcd: {nobody}:2379: Connection refused (os error 111): is etcd running there"));
    for (words, why) in [
        (&["--etcd", "etcd1:2379"][..], "this is no server of etcd: write https://HOST:PORT"),
        (&["--etcd", "https://127.0.0.1:1"], "CA"),
        (&["--etcd", &at, "--user", "root"], "--password"),
        (&["--etcd", &at, "--user", "root", "--password", "none"], "etcd_password none: No such file"),
        (&["--etcd", &at, "--fabric=-x"], "does not begin with a letter or digit"),
    ] {
        let fabric: &[&str] = if words.contains(&"--fabric=-x") { &[] } else { &["--fabric", "prod"] };
        refused(scratch.run(&[&["fabric", "group", "list"], words, fabric].concat()), 2, why);
    }
}

#[test]
fn a_cluster_without_a_majority_refuses_changes_and_says_so() {
    let mut cluster = Cluster::start_at(&newer(), Scratch::new(), ("http", addresses::<3>().into()), &[]);
    cluster.ready();
    assert_eq!(cluster.run(&["init"]).code, Some(0));
    cluster.kill(0);
    // The others may have to choose a new leader.
    let end = Instant::now() + SOON;
    while cluster.run(&["group", "add", "web", "vni=5010", "vlan=10"]).code != Some(0) {
        assert!(Instant::now() < end);
    }
    cluster.kill(1);
    let end = Instant::now() + SOON;
    loop {
        let ended = cluster.run(&["group", "list"]);
        if ended.code == Some(3) && ended.err.contains("etcd has no majority (no leader)") {
            break;
        }
        assert!(Instant::now() < end, "{ended:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_wrong_password_and_a_wrong_certificate_are_named() {
    let [address] = addresses();
    let scratch = Scratch::new();
    let at = format!("https://{address}:2379");
    let made = scratch.run(&["fabric", "certificates", "tls", "--etcd", &at]);
    assert!(made.code == Some(0) && made.out.starts_with("made tls/etcd.pem for "), "{made:?}");
    refused(scratch.run(&["fabric", "certificates", "tls", "--etcd", &at]), 2, "tls/etcd.pem is there already");
    // Another certificate of the same CA, as for a further server.
    for name in ["etcd.pem", "etcd.key"] {
        std::fs::rename(scratch.path().join("tls").join(name), scratch.path().join(name)).unwrap();
    }
    assert_eq!(scratch.run(&["fabric", "certificates", "tls", "--etcd", &at]).code, Some(0));
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(scratch.path().join("tls/ca.key")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    std::fs::remove_file(scratch.path().join("etcd.key")).unwrap();
    assert_eq!(scratch.run(&["fabric", "certificates", "other", "--etcd", &at]).code, Some(0));
    std::fs::remove_file(scratch.path().join("other/ca.key")).unwrap();
    for name in ["etcd.pem", "etcd.key"] {
        std::fs::remove_file(scratch.path().join("other").join(name)).unwrap();
    }
    let half = scratch.run(&["fabric", "certificates", "other", "--etcd", &at]);
    refused(half, 2, "other/ca.pem is there, and other/ca.key is not");

    let file = |option: &str, name: &str| format!("--{option}={}", scratch.path().join("tls").join(name).display());
    let words = [file("cert-file", "etcd.pem"), file("key-file", "etcd.key"), file("trusted-ca-file", "ca.pem")];
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    words.push("--client-cert-auth");
    let path = scratch.path().to_owned();
    let cluster = Cluster::start_at(&newer(), scratch, ("https", vec![address]), &words);
    let identity = ["--ca", "tls/ca.pem", "--certificate", "tls/etcd.pem", "--key", "tls/etcd.key"];
    let run = |words: &[&str]| cluster.run(&[words, &identity].concat());
    let end = Instant::now() + SOON;
    while run(&["init"]).code != Some(0) {
        assert!(
            Instant::now() < end,
            "{:?}\n{}",
            run(&["init"]),
            std::fs::read_to_string(path.join("etcd.log")).unwrap()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    says(run(&["group", "add", "web", "vni=5010", "vlan=10"]), 0, "+ port_group.web\n");
    // The table for a host names the files by which this command asked.
    let joined = run(&["join", "node-1", "--address", "192.0.2.1"]);
    assert!(
        joined.out.contains(&format!("etcd_ca = \"{}/tls/ca.pem\"", path.canonicalize().unwrap().display())),
        "{joined:?}"
    );
    refused(cluster.run(&["group", "list", "--ca", "tls/ca.pem"]), 2, "etcd does not accept our certificate");
    refused(cluster.run(&[&["group", "list", "--ca", "other/ca.pem"], &identity[2..]].concat()), 2, "certificate");
    let plain = cluster.endpoints().replace("https", "http");
    let ended = cluster.scratch.run(&["fabric", "group", "list", "--fabric", "prod", "--etcd", &plain]);
    assert!(ended.code != Some(0) && ended.err.contains("https"), "{ended:?}");
}

#[test]
fn a_wrong_password_is_named_with_its_user() {
    let cluster = Cluster::start(&newer());
    cluster.turn_users_on();
    assert_eq!(cluster.as_root(&["init"]).code, Some(0));
    std::fs::write(cluster.scratch.path().join("wrong"), "guessed\n").unwrap();
    let why = "etcd does not know the user `root` with this password (authentication failed";
    refused(cluster.run_as("root", "wrong", &["group", "list"]), 2, why);
    refused(cluster.run(&["group", "list"]), 2, "(--user NAME --password FILE)");
    std::fs::write(cluster.scratch.path().join("wrong"), "two\nlines\n").unwrap();
    assert_eq!(cluster.run_as("root", "wrong", &["group", "list"]).code, Some(2));
    // A password for an etcd that has no users.
    let open = Cluster::start(&newer());
    std::fs::write(open.scratch.path().join("root.password"), "x").unwrap();
    refused(open.as_root(&["group", "list"]), 2, "etcd asks nobody for a password");
}

/// docs/fabric.md, "Backup": the configuration is all that cannot be made again by the hosts.
#[test]
fn a_lost_etcd_is_replaced_by_a_new_one_and_the_file_that_export_has_written() {
    let lost = Cluster::start(&newer());
    lost.run(&["init"]);
    says(lost.run(&["group", "add", "web", "vni=5010", "vlan=10", "mac_changes=reject"]), 0, "+ port_group.web\n");
    says(lost.run(&["export", "--into", "prod.toml"]), 0, "");
    let list = lost.run(&["group", "list"]).out;
    let text = std::fs::read(lost.scratch.path().join("prod.toml")).unwrap();
    drop(lost);
    let new = Cluster::start(&newer());
    std::fs::write(new.scratch.path().join("prod.toml"), text).unwrap();
    refused(new.run(&["apply", "prod.toml"]), 2, "`nicety fabric init` makes it");
    assert_eq!(new.run(&["init"]).code, Some(0));
    says(new.run(&["apply", "prod.toml"]), 0, "+ port_group.web\n");
    assert_eq!(new.run(&["group", "list"]).out, list);
}
