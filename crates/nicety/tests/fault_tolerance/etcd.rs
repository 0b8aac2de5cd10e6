//! Hosts whose lease is in etcd.

use super::*;

/// Never does a host say that it owns the guest while the lease that the other one told of still lasts.
fn watch(hosts: [&Host; 2], duration: Duration) {
    let begun = Instant::now();
    let mut until: [Option<Instant>; 2] = [None; 2];
    while begun.elapsed() < duration {
        for (index, host) in hosts.iter().enumerate() {
            let now = Instant::now();
            if let Some(end) = host.owns_until() {
                let other = until[1 - index];
                let both = || format!("both own: {}\n{}", hosts[0].said(), hosts[1].said());
                assert!(other.is_none_or(|other| other <= now), "{}", both());
                until[index] = Some(end);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The link between the hosts is cut, etcd stands still, both at once, and the primary stands still, each for longer than the lease.
#[test]
fn with_its_lease_in_etcd_a_guest_never_has_two_owners_and_its_connection_lives() {
    const LONG: Duration = Duration::from_millis(2500);
    let mut stage = Stage::new();
    let etcd = stage.etcd();
    let etcd_pid = rustix::process::Pid::from_child(&etcd.0);
    let signal_etcd = |signal| rustix::process::kill_process(etcd_pid, signal).unwrap();
    let (stop, go) = (rustix::process::Signal::STOP, rustix::process::Signal::CONT);
    stage.addresses = ["10.9.0.11", "127.0.0.1"];
    stage.ip(&["addr", "add", "10.9.0.11/32", "dev", "br0"]);
    let mut primary = stage.start(0, "primary", "e1000");
    let secondary = stage.start(1, "secondary", "e1000");
    primary.wait("primary, protected");
    let mut client = Client::connect(&stage);
    client.exchange(Duration::from_millis(100));

    // The link is cut: etcd lets the primary go on alone, and the secondary cannot take over.
    stage.ip(&["addr", "del", "10.9.0.11/32", "dev", "br0"]);
    watch([&primary, &secondary], LONG);
    primary.wait("primary, not protected");
    client.exchange(Duration::from_millis(100));
    stage.ip(&["addr", "add", "10.9.0.11/32", "dev", "br0"]);
    primary.wait("primary, protected");

    // etcd stands still: the lease runs out, and nothing leaves until it answers again.
    signal_etcd(stop);
    watch([&primary, &secondary], LONG);
    assert_eq!(primary.owns_until(), None, "{}", primary.said());
    client.send();
    signal_etcd(go);
    client.wait();
    client.exchange(Duration::from_millis(100));
    primary.wait("primary, protected");

    // Both: whoever asks first afterwards owns the guest, and the other one does not.
    signal_etcd(stop);
    stage.ip(&["addr", "del", "10.9.0.11/32", "dev", "br0"]);
    watch([&primary, &secondary], LONG);
    client.send();
    signal_etcd(go);
    watch([&primary, &secondary], LONG);
    client.wait();
    stage.ip(&["addr", "add", "10.9.0.11/32", "dev", "br0"]);
    let took_over = secondary.state().starts_with("primary");
    println!("the secondary took over: {took_over}");
    let (mut primary, mut secondary) = if took_over {
        assert!(!primary.end().success() && primary.said().contains("another host owns the guest"));
        (secondary, stage.start(0, "secondary", "e1000"))
    } else {
        (primary, secondary)
    };
    primary.wait("primary, protected");
    client.exchange(Duration::from_millis(100));

    // The primary stands still: the secondary takes over.
    primary.signal(stop);
    client.send();
    secondary.wait("primary");
    client.wait();
    primary.signal(go);
    assert!(!primary.end().success() && primary.said().contains("another host owns the guest"));
    client.exchange(Duration::from_millis(100));
}

/// etcd asks for a user and a password, and lets this user reach one key.
#[test]
fn a_lease_in_etcd_is_asked_for_by_a_user_with_a_password() {
    let mut stage = Stage::new();
    let _etcd = stage.etcd();
    let base64 = "bmljZXR5L2d1ZXN0"; // nicety/guest
    for (path, body) in [
        ("/v3/auth/user/add", r#"{"name": "root", "password": "r"}"#.to_owned()),
        ("/v3/auth/user/grant", r#"{"user": "root", "role": "root"}"#.to_owned()),
        ("/v3/auth/role/add", r#"{"name": "leases"}"#.to_owned()),
        (
            "/v3/auth/role/grant",
            format!(r#"{{"name": "leases", "perm": {{"permType": "READWRITE", "key": "{base64}"}}}}"#),
        ),
        ("/v3/auth/user/add", r#"{"name": "ft", "password": "secret"}"#.to_owned()),
        ("/v3/auth/user/grant", r#"{"user": "ft", "role": "leases"}"#.to_owned()),
        ("/v3/auth/enable", "{}".to_owned()),
    ] {
        stage.ask_etcd(path, &body);
    }
    fs::write(stage.folder.path().join("password"), "secret\n").unwrap();
    fs::write(stage.folder.path().join("wrong"), "guessed\n").unwrap();
    // All have names here. That of this machine has an IPv6 address, too, at which nobody listens.
    stage.lease = "etcd://localhost:2379/nicety/guest".to_owned();
    stage.peers = [Some("localhost:7001"), Some("localhost:7002")];
    let stranger = stage.start(0, "primary", "e1000");
    stranger.wait_for("nicety: ft: the lease: ");
    drop(stranger);
    stage.words = vec!["--etcd-user", "ft", "--etcd-password", "wrong"];
    let guesser = stage.start(0, "primary", "e1000");
    guesser.wait_for("authentication failed");
    drop(guesser);
    stage.words = vec!["--etcd-user", "ft", "--etcd-password", "password"];
    let mut primary = stage.start(0, "primary", "e1000");
    let mut secondary = stage.start(1, "secondary", "e1000");
    primary.wait("primary, protected");
    let mut client = Client::connect(&stage);
    client.exchange(Duration::from_millis(100));
    drop(primary);
    secondary.wait("primary");
    client.send();
    client.wait();
}

/// By most of a lease or by more, on the way there or back, or until its client has given up: the lease runs out, nothing leaves, nobody takes
/// the guest from a host that lives, and it goes on when etcd is quick again. With the link cut one of them owns it afterwards.
#[test]
fn with_a_slow_etcd_a_guest_waits_and_never_has_two_owners() {
    let mut stage = Stage::new();
    let _etcd = stage.etcd();
    let relay = stage.relay(2378, 2379);
    stage.lease = "etcd://localhost:2378/nicety/guest".to_owned();
    stage.addresses = ["10.9.0.11", "127.0.0.1"];
    stage.ip(&["addr", "add", "10.9.0.11/32", "dev", "br0"]);
    let mut hosts = [stage.start(0, "primary", "e1000"), stage.start(1, "secondary", "e1000")];
    hosts[0].wait("primary, protected");
    let mut client = Client::connect(&stage);
    client.exchange(Duration::from_millis(100));
    // A change is made by a transaction: etcd may make it, and the answer get lost.
    let (all, changes) = ("", "/v3/kv/txn");
    let rules = [(0, 900, all), (0, HANGS, changes), (900, 0, all), (0, 1500, all), (HANGS, 0, all), (0, 200, all)];
    let rules = rules.map(|(there, back, of)| Rule { there, back, of });
    for (number, rule) in rules.into_iter().take(if is_full() { rules.len() } else { 2 }).enumerate() {
        for is_cut in [false, true] {
            if is_cut {
                stage.ip(&["addr", "del", "10.9.0.11/32", "dev", "br0"]);
            }
            relay.set(&rule);
            watch([&hosts[0], &hosts[1]], Duration::from_millis(1500));
            let owners = hosts.iter().filter(|host| host.owns_until().is_some()).count();
            let is_late = rule.there + rule.back > 333;
            let told = || format!("{rule:?}, {is_cut}: {}\n{}", hosts[0].said(), hosts[1].said());
            assert!(owners <= 1 && !(is_late && owners > 0), "{}", told());
            let answered = client.answered.load(Ordering::Acquire);
            client.send();
            watch([&hosts[0], &hosts[1]], Duration::from_millis(500));
            let has_left = client.answered.load(Ordering::Acquire) > answered;
            assert!(!(is_late && has_left), "nobody owns the guest, and it answers: {}", told());
            relay.set(&Rule::default());
            watch([&hosts[0], &hosts[1]], Duration::from_millis(500));
            client.wait();
            if is_cut {
                stage.ip(&["addr", "add", "10.9.0.11/32", "dev", "br0"]);
            }
            // The host that has lost the guest ends, and joins again.
            if let Some(lost) = hosts.iter_mut().position(|host| host.process.0.try_wait().unwrap().is_some()) {
                assert!(is_cut && hosts[lost].said().contains("another host owns the guest"), "{}", hosts[lost].said());
                hosts[lost] = stage.start(lost, "secondary", "e1000");
            }
            let owner = hosts.iter().position(|host| host.state().starts_with("primary")).expect("one owns it");
            hosts[owner].wait("primary, protected");
            println!("{number}, {rule:?}, {is_cut}: {} bytes so far, host {owner} owns it", client.sent);
            client.exchange(Duration::from_millis(50));
        }
    }
    let said = hosts.each_ref().map(Host::said).concat();
    assert!(said.contains("localhost:2378 at 127.0.0.1:2378: no answer within 333.333333ms"), "{said}");
}
