//! Saved states of every version that a release has written, one file each. A test restores each one, and saves it again as the
//! newest version.
//!
//! A file is `NAME-vN.state`. Files of a release never change, nor go (`cargo xtask release-check`); the first release is 0.1.0. Numbers
//! below an adapter's first file are of versions that no release wrote. An adapter whose state changes gets another version, a conversion
//! from the version before (`nicety_adapter::snapshot::Version`), and a new file, written by
//! `NICETY_GOLDEN=write cargo test -p nicety-trials --test golden`.

use std::path::PathBuf;

use nicety_adapter::snapshot::label;
use nicety_adapter::{Offload, Time};
use nicety_adapters::{Entry, REGISTRY};
use nicety_frame::Mac;
use nicety_trials::bus::PortBus;
use nicety_trials::guest::{Guest, MEMORY, Net};
use nicety_trials::rig::{MAC, Rig, adapter};

const PEER: Mac = Mac([2, 0, 0, 0, 0, 9]);

fn path(name: &str, version: u16) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "golden", &format!("{name}-v{version}.state")].iter().collect()
}

/// The version in which an adapter saves its state.
fn newest(entry: &Entry) -> u16 {
    label(&adapter(entry).save()).unwrap().1
}

/// A broadcast of this length, with a number.
fn frame(to: Mac, from: Mac, number: u8, len: usize) -> Vec<u8> {
    let mut frame = [&to.0[..], &from.0, &[0x88, 0xb5]].concat();
    frame.resize(len, number);
    frame
}

/// The state of an adapter whose driver has sent and received, with some interrupts still pending.
fn busy(entry: &'static Entry) -> Vec<u8> {
    let name = entry.about.name;
    let mut rig = Rig::new(entry, MEMORY, true);
    rig.now = Time(1_000_000_000);
    let mut bus = PortBus::of(&rig);
    bus.now = rig.now;
    let mut guest = Guest::new(bus, Net::named(name));
    guest.open().unwrap();
    for round in 0..6 {
        for number in 0..20 {
            let arriving = frame(MAC, PEER, number, 1400);
            rig.far.ends().outgoing.push_back((arriving, Offload::default()));
        }
        assert!(guest.queue(&frame(PEER, MAC, round, 600), &Offload::default()).unwrap());
        guest.flush().unwrap();
        rig.settle();
        rig.pass(100_000);
        guest.bus.now = rig.now;
        guest.attend(&mut |_, _| ()).unwrap();
    }
    rig.far.ends().outgoing.push_back((frame(MAC, PEER, 99, 1400), Offload::default()));
    assert!(guest.queue(&frame(PEER, MAC, 99, 600), &Offload::default()).unwrap());
    guest.flush().unwrap();
    rig.settle();
    rig.port.with(rig.now, |adapter, _| adapter.save()).unwrap()
}

#[test]
fn the_newest_version_of_every_adapter_has_its_file() {
    for entry in REGISTRY {
        let name = entry.about.name;
        let path = path(name, newest(entry));
        if !path.exists() && std::env::var_os("NICETY_GOLDEN").is_some_and(|asked| asked == "write") {
            std::fs::write(&path, busy(entry)).unwrap();
        }
        assert!(
            path.exists(),
            "{name} has a new version of its state: `NICETY_GOLDEN=write cargo test -p nicety-trials --test golden` \
             writes {}; commit it",
            path.display()
        );
    }
}

#[test]
fn every_version_that_was_ever_saved_is_read_and_saved_again_as_the_newest() {
    for entry in REGISTRY {
        let (name, newest) = (entry.about.name, newest(entry));
        let mut read = 0;
        for version in 1..=newest {
            let Ok(golden) = std::fs::read(path(name, version)) else { continue };
            assert_eq!(label(&golden).map(|(kind, version, _)| (kind, version)), Ok((name, version)));
            let mut restored = adapter(entry);
            assert_eq!(restored.restore(&golden), Ok(()), "{name}, version {version}");
            let saved = restored.save();
            assert_eq!(label(&saved).unwrap().1, newest);
            let mut again = adapter(entry);
            assert_eq!(again.restore(&saved), Ok(()), "{name}, version {version} as {newest}");
            assert_eq!(again.save(), saved, "{name}, version {version} as {newest}");
            assert!(
                version != newest || saved == golden,
                "{name}: what is saved is another than in {}: give the state the version {} and convert the old one \
                 (`nicety_adapter::snapshot::Version`)",
                path(name, version).display(),
                newest + 1
            );
            read += 1;
        }
        assert!(read > 0, "{name}");
    }
}
