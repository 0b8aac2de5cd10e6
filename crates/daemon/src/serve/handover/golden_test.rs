//! Golden files of what a daemon hands over beside its workers' images. Another form takes another version, and a conversion of this one.
//! Only `NICETY_GOLDEN=write` makes the file of a new version.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::IpAddr;
use std::path::PathBuf;

use nicety_adapter::Time;
use nicety_plane::{SavedRule, SavedSteering};
use nicety_protect::{Kept, Pairing};

use super::give::{GOING_KIND, Going};
use super::*;
use crate::run::image::{ClassImage, FrontImage, SavedInterest};

/// Whether files are made.
fn writes() -> bool {
    std::env::var_os("NICETY_GOLDEN").is_some_and(|what| what == "write")
}

fn file(kind: &str, version: u16) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join(format!("tests/golden/{}-v{version}.image", &kind["nicety-".len()..]))
}

/// The file of this version is what is written today; each earlier file reads as the value beside it; and a next version, an unknown field
/// and a part of it are refused.
fn held<T: Version + Serialize + Debug + PartialEq>(kind: &'static str, value: &T, before: &[(u16, T)]) {
    let bytes = to_bytes(kind, value);
    if writes() {
        std::fs::write(file(kind, T::NUMBER), &bytes).unwrap();
    }
    assert_eq!(std::fs::read(file(kind, T::NUMBER)).unwrap(), bytes, "{kind}");
    assert_eq!(from_bytes::<T>(kind, &bytes).as_ref(), Ok(value));
    for (version, value) in before {
        let golden = std::fs::read(file(kind, *version)).unwrap();
        assert_eq!(from_bytes::<T>(kind, &golden).as_ref(), Ok(value), "{kind}, version {version}");
    }
    let next = encode(kind, T::NUMBER + 1, value);
    let why = from_bytes::<T>(kind, &next).unwrap_err();
    assert!(why.contains(&format!("state version {}; this version reads", T::NUMBER + 1)), "{why}");
    assert!(
        from_bytes::<T>(kind, &encode(kind, T::NUMBER, &(value, 7u8))).is_err(),
        "{kind}: a field that is not known"
    );
    assert!((0..bytes.len()).all(|len| from_bytes::<T>(kind, &bytes[..len]).is_err()), "{kind}: a part");
}

#[test]
fn an_offer_is_read_by_each_later_version() {
    let (path, ids) = ("/etc/nicety/host.toml".into(), BTreeMap::from([("vm1".to_owned(), 3)]));
    let (file, running) = ("[daemon]".to_owned(), "[switch]".to_owned());
    let first = Offer { path, file, running, origin_ns: 1, ids, groups: None };
    let offer = Offer { groups: Some("format = 1".to_owned()), ..first.clone() };
    held(OFFER_KIND, &offer, &[(1, first)]);
    held(GOING_KIND, &Going(vec![("vm1".to_owned(), 2)]), &[]);
}

#[test]
fn what_is_no_port_s_is_read_by_each_later_version() {
    let learned = vec![LearnedImage { fid: 1, address: [2; 6], port: 3, at_ns: 4 }];
    let first = Rest { stopped_ns: 5, learned, ..Rest::default() };
    let steering = SavedSteering {
        rule: Some(SavedRule::Queues(0b11)),
        spread: 0b11,
        hash: 6,
        up: 0b11,
        lost: 7,
        settling: Some((Time(8), 0b10)),
        changed_at: 9,
        moved_to: vec![(10, 1)],
    };
    let places = vec![Some("a".to_owned()), None];
    let group: IpAddr = "239.1.2.3".parse().unwrap();
    let interest = |interest| InterestImage { fid: 12, port: 13, interest, left_ns: 14 };
    let second = Rest {
        teams: vec![TeamImage { name: "up".to_owned(), id: 11, system: [2; 6], places, steering }],
        announcements: vec![("a".to_owned(), vec![15])],
        interests: Some(
            [SavedInterest::Group(group), SavedInterest::Router, SavedInterest::Everything].map(interest).into(),
        ),
        neighbours: vec![NeighbourImage {
            port: 16,
            system: "switch".to_owned(),
            name: "1/1".to_owned(),
            until_ns: 17,
        }],
        ..first.clone()
    };
    // As version 1 wrote it.
    let Rest { stopped_ns, learned, .. } = first.clone();
    let bytes = to_bytes(REST_KIND, &Rest1 { stopped_ns, learned });
    if writes() && !file(REST_KIND, 1).exists() {
        std::fs::write(file(REST_KIND, 1), &bytes).unwrap();
    }
    assert_eq!(std::fs::read(file(REST_KIND, 1)).unwrap(), bytes);
    let class = ClassImage { name: "vm".to_owned(), packets: 25, bytes: 26, dropped: 27, marked: 28 };
    let counts = CountsImage { port: 18, carried: [(19, 20, 21), (22, 23, 24)], classes: [vec![class], Vec::new()] };
    let third = Rest { counts: vec![counts], ..second.clone() };
    let (pairing, carried, traffic) = (Pairing(30), [31, 32], [33, 34]);
    let owner = Kept::Owner { pairing, peer: 35, epoch: 36, loaded: 37 };
    let twin = Kept::Twin { pairing, is_heir: true };
    let vm = |(stream, kept)| VmImage { name: "web".to_owned(), run: 29, kept, stream, carried, traffic };
    let rest = Rest { vms: (0..).zip([owner, twin]).map(vm).collect(), fabric: Some(vec![39, 40]), ..third.clone() };
    held(REST_KIND, &rest, &[(1, first), (2, second), (3, third)]);
}

#[test]
fn a_vhost_user_port_is_read_by_each_later_version() {
    // The session's fields, one after the other: socket, features, status, requests, a ring, a region, kept state, record, log.
    let front = |is_paused: bool, log: Option<(u32, u32, u64, u64)>| {
        let places = Some([1u64, 2, 3]);
        let ring = (256u16, places, 4u32, true, true, Some((256u16, [5u64, 6, 7])), is_paused);
        let session = (
            8u32,
            9u64,
            10u64,
            11u8,
            Some(12u32),
            [ring].to_vec(),
            [([13u64; 4], 14u32)].to_vec(),
            Some((15u32, 16u64, 17u64)),
            true,
            log,
        );
        let front = ("vm1", Some(18u32), Some(session), [(0u16, 19u32)].to_vec(), [(1u16, 20u32)].to_vec());
        from_bytes::<FrontImage>(FRONT_KIND, &encode(FRONT_KIND, FrontImage::NUMBER, &front)).unwrap()
    };
    // Before version 2 no ring waited, and no log was handed over.
    let (first, second) = (front(false, None), front(true, Some((0, 21, 22, 23))));
    assert_eq!((second.name.as_str(), second.listener, &second.errors[..]), ("vm1", Some(18), &[(1, 20)][..]));
    held(FRONT_KIND, &second, &[(1, first)]);
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Piece {
    #[serde(with = "nicety_plane::bytes")]
    bytes: Vec<u8>,
    behind: u16,
}

#[test]
fn bytes_as_one_piece_are_written_as_a_list_of_them_and_a_piece_that_is_cut_is_refused() {
    for len in [0, 1, 127, 128, 20_000] {
        let bytes: Vec<u8> = (0..len).map(|at: u32| at as u8).collect();
        let piece = Piece { bytes: bytes.clone(), behind: 0x1234 };
        let written = postcard::to_allocvec(&piece).unwrap();
        assert_eq!(written, postcard::to_allocvec(&(bytes, 0x1234u16)).unwrap(), "{len}");
        assert_eq!(postcard::from_bytes::<Piece>(&written).as_ref(), Ok(&piece), "{len}");
        assert!((0..written.len()).step_by(97).all(|cut| postcard::from_bytes::<Piece>(&written[..cut]).is_err()));
    }
}
