use std::time::Duration;

use nicety_adapter::Time;
use nicety_fabric::{Fabric, Me, Settings, Terms};
use tempfile::TempDir;

use super::*;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// What a machine keeps that has a configuration in force.
fn state(host: &str) -> Kept {
    let me = Me { host: name(host), address: [192, 0, 2, 1].into(), mtu: 1500, version: "1".to_owned() };
    let settings = Settings { fabric: name("prod"), me, run: 7, seed: 1, terms: Terms::default() };
    let now = Time::ZERO.after(Duration::from_secs(1));
    Fabric::new(settings, now).keep()
}

fn host(folder: &TempDir, own: &str) -> Host {
    let text = format!(
        "[fabric]\nname = \"prod\"\nhost = \"{own}\"\ntunnel = \"vxlan\"\netcd = \"http://127.0.0.1:2379\"\n\
         [[uplink]]\nkind = \"vxlan\"\naddress = \"192.0.2.1\"\n"
    );
    Host::parse(&text, &folder.path().join("host.toml")).unwrap()
}

#[test]
fn what_was_kept_is_read_again_and_nothing_of_another_host() {
    let folder = TempDir::new().unwrap();
    let (one, other) = (host(&folder, "node-1"), host(&folder, "node-2"));
    assert!(last_known(&one).unwrap().is_none());
    Written::new(fabric_state(&one)).write(&state("node-1")).unwrap();
    assert_eq!(last_known(&one).unwrap().unwrap().into_state(), state("node-1"));
    assert!(last_known(&other).unwrap().is_none());
    let alone = Host::parse("", &folder.path().join("host.toml")).unwrap();
    assert!(last_known(&alone).unwrap().is_none());
}

#[test]
fn the_file_is_replaced_only_if_the_state_has_changed() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("fabric");
    let mut file = Written::new(path.clone());
    let inode = || std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&path).unwrap());
    file.write(&state("node-1")).unwrap();
    let first = inode();
    // The old file is held, so that no new one has its number.
    let _held = std::fs::File::open(&path).unwrap();
    file.write(&state("node-1")).unwrap();
    assert_eq!(inode(), first);
    file.write(&state("node-2")).unwrap();
    assert_ne!(inode(), first);
}

#[test]
fn a_file_that_is_damaged_or_of_a_newer_program_is_refused_with_its_name() {
    let folder = TempDir::new().unwrap();
    let host = host(&folder, "node-1");
    let path = fabric_state(&host);
    let refused = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        last_known(&host).unwrap_err().to_string()
    };
    let shown = path.display();
    for (bytes, why) in
        [(&b""[..], "its digest is wrong"), (b"{\"version\":1}\ncrc32 00000000\n", "its digest is wrong")]
    {
        let said = refused(bytes);
        assert!(
            said.starts_with(&format!("the last known state of the fabric, {shown}, cannot be used: {why}")),
            "{said}"
        );
    }
    let newer = b"{\"version\":2,\"state\":5}\n";
    let said = refused(&[newer.as_slice(), digest(newer).as_bytes()].concat());
    assert!(said.contains("it is of version 2, and this program knows 1"), "{said}");
}
