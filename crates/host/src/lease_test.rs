use std::path::Path;

use nicety_etcd::{Endpoint, Scheme};

use super::*;
use crate::{EtcdIdentity, EtcdUser, Host};

const KEY: &str = "[ft]\nkey = \"ft.key\"\n";

fn parse(ft: &str) -> Result<Host, Vec<String>> {
    Host::parse(&format!("{KEY}{ft}"), Path::new("/etc/host.toml")).map_err(|errors| {
        errors.list.into_iter().map(|error| format!("{}: {}: {}", error.line, error.key, error.what)).collect()
    })
}

fn place(ft: &str) -> Option<LeasePlace> {
    parse(ft).unwrap().tolerance.unwrap().lease
}

/// The only mistake.
fn refused(ft: &str) -> String {
    let all = parse(ft).expect_err(ft);
    assert_eq!(all.len(), 1, "{all:#?}");
    all.into_iter().next().unwrap()
}

fn endpoint(text: &str) -> Endpoint {
    text.parse().unwrap()
}

#[test]
fn leases_are_in_a_folder_or_in_etcd() {
    assert_eq!(place(""), None);
    assert_eq!(place("lease = \"shared\"\n"), Some(LeasePlace::Folder("/etc/shared".into())));
    let plain = EtcdConfig {
        endpoints: vec![endpoint("http://etcd1:2379"), endpoint("http://[fd00::2]:2379")],
        user: None,
        ca: None,
        identity: None,
    };
    let found = place("etcd = \"http://etcd1:2379, http://[fd00::2]:2379\"\n");
    assert_eq!(found, Some(LeasePlace::Etcd(plain)));
    let whole = place(
        "etcd = \"https://10.0.0.5:2379\"\netcd_user = \"nicety\"\netcd_password = \"password\"\netcd_ca = \"ca.pem\"\n\
         etcd_certificate = \"host1.pem\"\netcd_key = \"/root/host1.key\"\n",
    );
    let wanted = EtcdConfig {
        endpoints: vec![Endpoint { scheme: Scheme::Https, host: "10.0.0.5".to_owned(), port: 2379 }],
        user: Some(EtcdUser { name: "nicety".to_owned(), password: "/etc/password".into() }),
        ca: Some("/etc/ca.pem".into()),
        identity: Some(EtcdIdentity { certificate: "/etc/host1.pem".into(), key: "/root/host1.key".into() }),
    };
    assert_eq!(whole, Some(LeasePlace::Etcd(wanted)));
}

#[test]
fn a_place_that_cannot_be_is_refused_with_its_line_and_the_remedy() {
    let etcd = "etcd = \"http://etcd1:2379\"\n";
    assert_eq!(
        refused(&format!("lease = \"/mnt/shared\"\n{etcd}")),
        "4: ft.etcd: a lease is in one place: leave lease or etcd out"
    );
    for (key, other) in [
        ("etcd_user = \"nicety\"", "etcd_password"),
        ("etcd_password = \"file\"", "etcd_user"),
        ("etcd_certificate = \"a.pem\"", "etcd_key"),
        ("etcd_key = \"a.key\"", "etcd_certificate"),
    ] {
        let name = key.split(' ').next().unwrap();
        let pair = if name == "etcd_user" || name == "etcd_password" {
            "etcd_user and etcd_password"
        } else {
            "etcd_certificate and etcd_key"
        };
        let tls = "etcd = \"https://etcd1:2379\"\netcd_ca = \"ca.pem\"\n";
        assert_eq!(
            refused(&format!("{tls}{key}\n")),
            format!("5: ft.{name}: {other} is missing: {pair} belong together")
        );
    }
    for key in ["etcd_user", "etcd_password", "etcd_ca", "etcd_certificate", "etcd_key"] {
        for without in ["", "lease = \"/mnt/shared\"\n"] {
            let line = 3 + without.lines().count();
            assert_eq!(
                refused(&format!("{without}{key} = \"a\"\n")),
                format!("{line}: ft.{key}: there is no etcd here that it belongs to: name its servers by etcd")
            );
        }
    }
    assert_eq!(
        refused("etcd = \"http://etcd1:2379,https://etcd2:2379\"\n"),
        "3: ft.etcd: https://etcd2:2379 has TLS: name the CA that signed its certificate by etcd_ca"
    );
    assert_eq!(
        refused(&format!("{etcd}etcd_ca = \"ca.pem\"\n")),
        "4: ft.etcd_ca: no server of etcd has TLS, and this would not be used: write https:// there"
    );
    assert_eq!(
        parse(&format!("{etcd}etcd_certificate = \"a.pem\"\netcd_key = \"a.key\"\n")).unwrap_err(),
        ["4: ft.etcd_certificate: no server of etcd has TLS, and this would not be used: write https:// there"]
    );
    for name in ["", "\\u001b"] {
        assert_eq!(
            refused(&format!("{etcd}etcd_user = \"{name}\"\netcd_password = \"file\"\n")),
            "4: ft.etcd_user: a user's name has 1 to 255 characters, and no control characters"
        );
    }
    let many = vec!["http://a:1"; 17].join(",");
    assert_eq!(refused(&format!("etcd = \"{many}\"\n")), "3: ft.etcd: these are 17, more than 16");
    assert_eq!(refused("lease = \"~/shared\"\n").split(": ").nth(1), Some("ft.lease"));
    assert_eq!(refused("etcd = 2379\n"), "3: ft.etcd: it is a number, not a text in quotes");
}

#[test]
fn what_is_no_server_of_etcd_is_refused_with_the_server_s_text() {
    assert_eq!(
        refused("etcd = \"http://etcd1:2379,etcd2:2379\"\n"),
        "3: ft.etcd: \"etcd2:2379\": this is no server of etcd: write https://HOST:PORT or http://HOST:PORT, as in https://etcd1:2379"
    );
}

#[test]
fn each_vm_has_a_file_or_a_key_of_its_own() {
    assert_eq!(lease_file(Path::new("/mnt/shared"), "web.1"), Path::new("/mnt/shared/web.1.lease"));
    assert_eq!(lease_key("web.1"), "nicety/vm/web.1/lease");
}
