use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::sync::mpsc;

use rustix::fs::mknodat;

use super::*;

/// Time in which each call must have ended, however busy the machine is.
const SOON: Duration = Duration::from_secs(30);

#[test]
fn a_peer_takes_a_lease_that_nobody_renews_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let (path, term) = (folder.path().join("lease"), Duration::from_millis(40));
    let [mut one, mut other] = [1, 2].map(|id| LeaseFile::new(&path, term, NodeId(id)));
    assert!(one.ask(Request::Found).unwrap().granted);
    assert!(!other.ask(Request::Take).unwrap().granted, "it is not the peer");
    assert!(one.ask(Request::Pair { epoch: 1, peer: NodeId(2) }).unwrap().granted);
    let begun = Instant::now();
    while begun.elapsed() < 3 * term {
        assert!(one.ask(Request::Renew).unwrap().granted);
        assert!(!other.ask(Request::Take).unwrap().granted, "the owner renews");
    }
    std::thread::sleep(term);
    assert!(other.ask(Request::Take).unwrap().granted);
    assert!(!one.ask(Request::Renew).unwrap().granted);
    // A lease that is given back is taken at once, but only by the peer.
    assert!(other.ask(Request::Pair { epoch: 3, peer: NodeId(1) }).unwrap().granted);
    assert!(other.ask(Request::Release).unwrap().granted);
    let mut third = LeaseFile::new(&path, term, NodeId(3));
    assert!(!third.ask(Request::Found).unwrap().granted && !third.ask(Request::Take).unwrap().granted);
    assert!(one.ask(Request::Take).unwrap().granted);
    // Without a peer the VM is gone, and another one may begin.
    assert!(one.ask(Request::Release).unwrap().granted);
    assert!(third.ask(Request::Found).unwrap().granted);
}

/// A grant is synced, and a renewal is not. So a renewal must not put another file in the place of that one: after a power cut it may be empty.
#[test]
fn a_renewal_leaves_the_file_in_its_place_that_the_last_grant_has_synced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lease");
    let mut one = LeaseFile::new(&path, Duration::from_secs(1), NodeId(1));
    let file = |path: &Path| (fs::metadata(path).unwrap().ino(), fs::metadata(path).unwrap().len());
    let lease = |path: &Path| fs::read_to_string(path).unwrap().parse::<Lease>().unwrap();
    assert!(one.ask(Request::Found).unwrap().granted);
    let (granted, first) = (file(&path), lease(&path));
    for count in 1..=20 {
        assert!(one.ask(Request::Renew).unwrap().granted);
        assert_eq!(lease(&path), Lease { renewals: first.renewals + count, ..first });
    }
    assert_eq!(file(&path), granted);
    // A file of an earlier version, whose count has fewer digits.
    fs::write(&path, first.to_string().replace("000000", "")).unwrap();
    assert!(one.ask(Request::Renew).unwrap().granted);
    assert_eq!((lease(&path).renewals, file(&path).1), (first.renewals + 1, granted.1));
    assert_ne!(file(&path).0, granted.0);
    let renewed = file(&path).0;
    assert!(one.ask(Request::Alone { epoch: 1 }).unwrap().granted);
    assert_ne!(file(&path).0, renewed, "a grant replaces it");
}

/// On a full disk, for example.
#[test]
fn a_lease_that_cannot_be_written_is_not_granted_and_the_reason_names_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lease");
    let mut one = LeaseFile::new(&path, Duration::from_secs(1), NodeId(1));
    let place = folder.path().join("lease.new");
    fs::create_dir(&place).unwrap();
    let error = one.ask(Request::Found).unwrap_err().to_string();
    assert!(error.starts_with(&place.display().to_string()), "{error}");
    assert!(!path.exists());
    fs::remove_dir(&place).unwrap();
    assert!(one.ask(Request::Found).unwrap().granted);
    let mut nowhere = LeaseFile::new(&folder.path().join("none/lease"), Duration::from_secs(1), NodeId(1));
    let error = nowhere.ask(Request::Found).unwrap_err().to_string();
    assert!(error.contains("none/lease.lock: No such file"), "{error}");
}

/// Asks on a thread of its own: one that blocks blocks for ever.
fn refused(path: &Path) -> String {
    let (send, asked) = mpsc::channel();
    let mut lease = LeaseFile::new(path, Duration::from_millis(60), NodeId(1));
    std::thread::spawn(move || {
        lease.look();
        send.send(lease.ask(Request::Found).map_err(|error| error.to_string())).unwrap();
    });
    asked.recv_timeout(SOON).expect("an answer").unwrap_err()
}

/// Others may write to shared storage. The daemon may write where they may not: it must not be led there.
#[test]
fn what_is_no_small_file_is_refused_in_each_of_the_three_places_and_is_left_as_it_is() {
    for (place, end) in [("lease", ""), ("lease.lock", ".lock"), ("lease.new", ".new")] {
        let folder = tempfile::tempdir().unwrap();
        let (path, at) = (folder.path().join("lease"), folder.path().join(place));
        let other = folder.path().join("other");
        let refused = || {
            let error = refused(&path);
            let at = format!("{}{end}: ", path.display());
            error.strip_prefix(&at).unwrap_or_else(|| panic!("{error}, not of {at}")).to_owned()
        };
        let no_file = |what| format!("it is {what}, and must be a file: remove it, or name another place");
        fs::write(&other, Lease::default().to_string()).unwrap();
        for to in [other.as_path(), Path::new("absent")] {
            std::os::unix::fs::symlink(to, &at).unwrap();
            assert_eq!(refused(), no_file("a link"));
            fs::remove_file(&at).unwrap();
        }
        assert_eq!(fs::read_to_string(&other).unwrap(), Lease::default().to_string());
        assert!(!folder.path().join("absent").exists());
        mknodat(CWD, &at, FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(refused(), no_file("a pipe"));
        fs::remove_file(&at).unwrap();
        let listener = UnixListener::bind(&at).unwrap();
        assert_eq!(refused(), no_file("a socket"));
        drop(listener);
        fs::remove_file(&at).unwrap();
        fs::create_dir(&at).unwrap();
        assert_eq!(refused(), no_file("a folder"));
        fs::remove_dir(&at).unwrap();
        // A file of many gigabytes that has none on the disk.
        File::create(&at).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(refused(), "it has 1099511627776 bytes, and a lease at most 4096: name another place");
        assert_eq!(fs::metadata(&at).unwrap().len(), 1 << 40);
    }
    assert_eq!(refused(Path::new("/dev/zero/lease")).split(": ").last(), Some("Not a directory (os error 20)"));
    assert!(open(Path::new("/dev/zero"), OFlags::RDONLY).unwrap_err().to_string().starts_with("it is a device"));
}

#[test]
fn a_file_with_other_bytes_is_no_lease_and_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lease");
    for bytes in [&b"[Unit]\n"[..], &[0xff; 100], &[0; 4096], b""] {
        fs::write(&path, bytes).unwrap();
        let error = refused(&path);
        assert!(error.ends_with("lease: this is no lease: remove the file if no host uses it"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
}

/// A lock that a host holds which stands still, or a stranger.
#[test]
fn a_lock_that_another_holds_costs_a_third_of_the_lease_at_most() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lease");
    let lock = File::create(folder.path().join("lease.lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let error = refused(&path);
    assert!(error.ends_with("lease.lock: another process has held this lock for 20 ms"), "{error}");
    // One that is free soon is waited for.
    let mut one = LeaseFile::new(&path, 3 * SOON, NodeId(1));
    let asks = std::thread::spawn(move || one.ask(Request::Found).unwrap().granted);
    flock(&lock, FlockOperation::Unlock).unwrap();
    assert!(asks.join().unwrap());
}
