//! Values in etcd that no host of this version has written: of a newer version, damaged, of strangers. Frames go on all the time.

use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::etcd_servers::addresses;
use crate::rings_guest::Guest;
use crate::streams::{Both, port};
use crate::{GROUPS, Host, Signal, mac, until, until_or};

/// Two hosts with a guest each, that know each other.
struct Pair {
    cluster: Cluster,
    hosts: [Host; 2],
    both: Both,
    _place: TempDir,
}

impl Pair {
    fn start() -> Self {
        let (place, cluster) = (TempDir::new().unwrap(), Cluster::start::<1>());
        cluster.put("config", GROUPS);
        let ends = addresses::<2>();
        let hosts = [("one", 1), ("other", 2)].map(|(name, number)| {
            Host::start(place.path(), name, &ends[usize::from(number) - 1], &cluster, &[port(number)])
        });
        let both = Both::new([0, 1].map(|host| Guest::new(hosts[host].socket(host as u8 + 1))), [1, 2]);
        let this = Self { cluster, hosts, both, _place: place };
        until("they know each other", || this.know());
        until("they are connected", || this.hosts.iter().all(Host::is_connected));
        until("what they know is kept", || this.hosts.iter().all(|host| host.kept().exists()));
        this
    }

    fn know(&self) -> bool {
        self.hosts[0].place(2).as_deref() == Some("other") && self.hosts[1].place(1).as_deref() == Some("one")
    }

    /// Frames pass both ways, each once.
    fn passes(&mut self) {
        let first = self.both.sent;
        for _ in 0..10 {
            self.both.send();
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        self.both.all_came(first, [&self.hosts[0], &self.hosts[1]]);
    }

    /// Both hosts refuse one thing, for this reason.
    fn refuse(&self, why: &str) {
        let says = |host: &Host| matches!(&host.report().refused[..], [one] if one.contains(why));
        until(why, || self.hosts.iter().all(says));
    }

    fn refuse_nothing(&self) {
        until("nothing is refused", || self.hosts.iter().all(|host| host.report().refused.is_empty()));
    }

    /// The second host's daemon is killed, and begins again.
    fn begin_again(&mut self) {
        let sequence = |host: &Host| host.claim(2).map_or(0, |claim| claim.sequence);
        let before = sequence(&self.hosts[0]);
        self.hosts[1].end(Signal::KILL);
        self.hosts[1].serve();
        self.both.guests[1] = Guest::new(self.hosts[1].socket(2));
        // Not by the old claim: the new daemon takes it back if it hears of it before the guest has come.
        let is_new = || sequence(&self.hosts[0]) > before;
        until_or("they know each other again", || is_new() && self.know(), || self.described());
    }

    /// All that both hosts know.
    fn described(&self) -> String {
        let host = |host: &Host| format!("{}\n{}", host.report(), host.log());
        format!("{}\n{:?}", self.hosts.each_ref().map(host).join("\n"), self.cluster.keys())
    }
}

#[test]
fn a_configuration_of_a_newer_version_or_damaged_or_gone_leaves_the_last_one_in_force_over_a_restart() {
    let mut pair = Pair::start();
    let version = pair.hosts[0].report().config;
    let texts: [(&[u8], &str); 4] = [
        (
            b"format = 2\n[future]\n",
            "format = 2 is of a newer version of this program, which reads format = 1: upgrade it on this host",
        ),
        (&GROUPS.as_bytes()[..40], "the text is not TOML"),
        (b"format = 1\n# \xff\xfe\n", "the text is not UTF-8"),
        (b"", "format = 1 is missing"),
    ];
    for (text, why) in texts {
        pair.cluster.put("config", text);
        pair.refuse(why);
        pair.passes();
        assert!(pair.hosts.iter().all(|host| host.report().config == version), "{}", pair.hosts[0].report());
    }
    // A daemon that begins now goes by what it knew, and says the same.
    pair.begin_again();
    pair.refuse("format = 1 is missing");
    pair.passes();
    assert_eq!(pair.hosts[1].report().config, version);
    pair.cluster.delete("config");
    pair.refuse("its key is not there: the last known configuration stays");
    pair.passes();
    pair.begin_again();
    pair.passes();
    assert!(pair.hosts.iter().all(|host| host.report().config == version), "{}", pair.hosts[1].report());
    pair.cluster.put("config", GROUPS);
    until("the new one is in force", || pair.hosts.iter().all(|host| host.report().config > version));
    pair.refuse_nothing();
    pair.passes();
}

#[test]
fn what_strangers_write_delete_and_overwrite_is_named_or_mended_and_frames_go_on() {
    let mut pair = Pair::start();
    let own = format!("at/web/other/{}", mac(2));
    // Keys of a stranger: each is left out by its reason, until it is gone.
    let long = format!("{{\"port\":\"{}\",\"sequence\":1}}", "p".repeat(2000));
    for (key, value, why) in [
        ("host/stranger", "{}", "missing field `address`"),
        (
            "host/stranger",
            "{\"address\":\"224.0.0.1\",\"mtu\":1500,\"run\":\"00000000000000ff\",\"version\":\"9\"}",
            "224.0.0.1 cannot be a tunnel's address",
        ),
        ("host/stranger/more", "x", "\"more\" is no IP address"),
        ("host/stranger/192.0.2.9/more", "x", "no such key is known"),
        ("host/-", "{}", "does not begin with a letter or digit"),
        (
            "at/web/stranger/52:54:00:12:34:02",
            "{\"port\":\"p\",\"sequence\":0}",
            "the sequence number 0 is not between",
        ),
        ("at/web/stranger/52:54:00:12:34:02", long.as_str(), "a claim has at most 1024"),
        ("at/web/stranger/525400123402", "{\"port\":\"p\",\"sequence\":1}", "525400123402"),
        ("at/web/stranger/ff:ff:ff:ff:ff:ff", "{\"port\":\"p\",\"sequence\":1}", "is no address of one station"),
    ] {
        pair.cluster.put(key, value);
        pair.refuse(why);
        pair.passes();
        pair.cluster.delete(key);
        pair.refuse_nothing();
    }
    // A newer version's record may say more: it is used.
    let newer =
        "{\"address\":\"192.0.2.9\",\"mtu\":1600,\"run\":\"00000000000000ff\",\"version\":\"9.0\",\"more\":[1]}";
    pair.cluster.put("host/newer", newer);
    until("it is a host", || pair.hosts.iter().all(|host| host.report().hosts.iter().any(|host| host.name == "newer")));
    pair.cluster.delete("host/newer");
    until("it has gone", || pair.hosts.iter().all(|host| host.report().hosts.len() == 1));
    pair.refuse_nothing();
    // A claim of an address by a host that is not there leads nowhere, whatever its number.
    pair.cluster.put(&format!("at/web/stranger/{}", mac(2)), "{\"port\":\"p\",\"sequence\":9007199254740991}");
    std::thread::sleep(std::time::Duration::from_millis(300));
    pair.passes();
    assert!(pair.know(), "{}{}", pair.hosts[0].report(), pair.hosts[1].report());
    pair.cluster.delete(&format!("at/web/stranger/{}", mac(2)));

    // A host's own keys are written again, whatever became of them.
    let host = pair.cluster.value("host/other").unwrap();
    let claim = pair.cluster.value(&own).unwrap();
    for (key, value, what) in [("host/other", &host, "the host"), (own.as_str(), &claim, "its claim")] {
        for (how, spoil) in [
            ("deleted", &(|cluster: &Cluster| cluster.delete(key)) as &dyn Fn(&Cluster)),
            ("damaged", &|cluster: &Cluster| cluster.put(key, "{")),
            ("not UTF-8", &|cluster: &Cluster| cluster.put(key, b"\xff")),
        ] {
            let revision = pair.cluster.version(key);
            spoil(&pair.cluster);
            until(&format!("{what} is {how} and back"), || {
                pair.cluster.value(key).as_ref() == Some(value) && pair.cluster.version(key) > revision
            });
            until("they know each other", || pair.know());
            until("they are connected", || pair.hosts.iter().all(Host::is_connected));
            pair.refuse_nothing();
            pair.passes();
        }
    }
}
