//! The lines that docs/fabric.md has an administrator type: certificates, users, a fabric and its first host, its keys, defragmentation.

use std::time::Instant;

use crate::cluster::{Cluster, SOON, addresses, newer};
use crate::etcd_lines::{block, run, runs};
use crate::scratch::Scratch;

#[test]
fn the_book_s_lines_make_certificates_users_a_fabric_and_its_first_host() {
    let (etcd, scratch) = (newer(), Scratch::new());
    let folder = scratch.path().to_owned();
    let addresses = addresses::<3>();
    let names = ["etcd1", "etcd2", "etcd3"].map(|name| format!("//{name}:"));
    let here: Vec<String> = addresses.iter().map(|address| format!("//{address}:")).collect();
    let replace: Vec<(&str, &str)> =
        names.iter().zip(&here).map(|(name, here)| (name.as_str(), here.as_str())).collect();
    let certificates = runs(&folder, &etcd, &[], &block("nicety fabric certificates"), &replace);
    assert!(certificates.contains("made tls/etcd.pem for "), "{certificates}");
    // One server of the three is enough for these lines.
    let file = |option: &str, name: &str| format!("--{option}={}", folder.join("tls").join(name).display());
    let tls = [file("cert-file", "etcd.pem"), file("key-file", "etcd.key")];
    let tls: Vec<&str> = tls.iter().map(String::as_str).collect();
    let cluster = Cluster::start_at(&etcd, scratch, ("https", addresses[..1].to_vec()), &tls);
    // The administrator has copied the CA's certificate, and has chosen a password.
    std::fs::copy(folder.join("tls/ca.pem"), folder.join("ca.pem")).unwrap();
    std::fs::write(folder.join("root.password"), "r00t\n").unwrap();
    let make = block("export ETCDCTL_ENDPOINTS");
    let end = Instant::now() + SOON;
    while !run(&folder, &etcd, &make[..1], &["etcdctl endpoint health".to_owned()], &replace).status.success() {
        assert!(Instant::now() < end);
    }
    let made = runs(&folder, &etcd, &[], &make, &replace);
    for line in ["made the fabric prod, without groups", "made the user nicety/prod/admin", "+ port_group.web"] {
        assert!(made.contains(line), "{made}");
    }
    let table = std::fs::read_to_string(folder.join("node-1.toml")).unwrap();
    assert!(
        table.contains("host = \"node-1\"") && table.contains("etcd_user = \"nicety/prod/host/node-1\""),
        "{table}"
    );
    // The same session goes on: etcdctl knows where etcd is, and who asks.
    let session: Vec<String> = make.into_iter().filter(|line| line.starts_with("export ")).collect();
    let keys = runs(&folder, &etcd, &session, &block("etcdctl get --prefix"), &replace);
    assert!(keys.contains("/nicety/fabrics/prod/config\n") && keys.contains("name = \"web\""), "{keys}");
    // Compaction, defragmentation and the end of an alarm are done by root as well.
    runs(&folder, &etcd, &session, &block("etcdctl compact"), &replace);
    let refused = run(&folder, &etcd, &session[..1], &block("etcdctl compact"), &replace);
    assert!(!refused.status.success(), "nobody may do it without a password: {refused:?}");
    drop(cluster);
}
