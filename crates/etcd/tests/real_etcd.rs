//! The client with Debian's etcd, 3.5 and 3.4: one server and clusters of three, on addresses of this machine.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use nicety_etcd::{
    Answer, Change, Client, Compare, Error, ErrorKind, Identity, Keys, Op, OpAnswer, Pem, Settings, Txn, Update, User,
    Watch,
};
use nicety_guests::Etcd;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

/// Time limit for everything that should take a second or two, on a busy machine.
const SOON: Duration = Duration::from_secs(60);
/// A moment between two tries.
const MOMENT: Duration = Duration::from_millis(50);

/// One member.
struct Member {
    process: Child,
    words: Vec<String>,
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ended = (self.process.kill(), self.process.wait());
    }
}

/// A cluster, which ends with this value.
struct Cluster {
    etcd: Etcd,
    folder: TempDir,
    members: Vec<Option<Member>>,
    addresses: Vec<String>,
}

impl Cluster {
    /// Addresses of this process and cluster alone, so that ports need not be looked for.
    fn new_addresses(count: usize) -> Vec<String> {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let number = usize::from(NEXT.fetch_add(1, Ordering::Relaxed));
        (0..count).map(|member| format!("127.{}.{low}.{}", 16 + high % 200, number * 8 + member)).collect()
    }

    /// Starts one member or several.
    fn start(etcd: &Etcd, count: usize) -> Self {
        Self::start_at(etcd, Self::new_addresses(count), "http", &[])
    }

    /// Starts a member at each address, with more words for each.
    fn start_at(etcd: &Etcd, addresses: Vec<String>, scheme: &str, more: &[&str]) -> Self {
        let count = addresses.len();
        let folder = tempfile::tempdir().unwrap();
        let peers = addresses.iter().enumerate().map(|(member, address)| format!("m{member}=http://{address}:2380"));
        let peers: Vec<String> = peers.collect();
        let mut cluster = Self { etcd: etcd.clone(), folder, members: Vec::new(), addresses };
        for member in 0..count {
            let address = &cluster.addresses[member];
            let (client, peer) = (format!("{scheme}://{address}:2379"), format!("http://{address}:2380"));
            let data = cluster.folder.path().join(format!("m{member}")).display().to_string();
            let mut words: Vec<String> = vec![format!("--name=m{member}"), format!("--data-dir={data}")];
            words.extend([format!("--listen-client-urls={client}"), format!("--advertise-client-urls={client}")]);
            words.extend([format!("--listen-peer-urls={peer}"), format!("--initial-advertise-peer-urls={peer}")]);
            words.push(format!("--initial-cluster={}", peers.join(",")));
            words.extend(more.iter().map(|word| (*word).to_owned()));
            cluster.members.push(None);
            cluster.run(member, words);
        }
        cluster
    }

    fn run(&mut self, member: usize, words: Vec<String>) {
        let log = File::options().append(true).create(true).open(self.folder.path().join("log")).unwrap();
        let mut command = self.etcd.command();
        command.args(&words).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.members[member] = Some(Member { process: command.spawn().unwrap(), words });
    }

    fn restart(&mut self, member: usize) {
        let words = self.members[member].take().unwrap().words.clone();
        self.run(member, words);
    }

    fn signal(&self, member: usize, signal: Signal) {
        let process = &self.members[member].as_ref().unwrap().process;
        kill_process(Pid::from_child(process), signal).unwrap();
    }

    fn settings(&self, scheme: &str) -> Settings {
        let endpoints = self.addresses.iter().map(|address| format!("{scheme}://{address}:2379").parse().unwrap());
        Settings::new(endpoints.collect())
    }

    fn client(&self) -> Client {
        client(self.settings("http"))
    }

    /// etcd's log, for a test that fails.
    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }
}

fn no_names(_: &str, _: u16, _: Answer) {}

fn client(settings: Settings) -> Client {
    Client::new(settings, no_names).unwrap()
}

fn older() -> Etcd {
    Etcd::lay_older(&mut |line| eprintln!("{line}")).unwrap()
}

fn newer() -> Etcd {
    Etcd::lay(&mut |line| eprintln!("{line}")).unwrap()
}

/// Runs this on one thread, as a daemon's control thread does.
fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Waits until the cluster has a leader.
async fn ready(cluster: &Cluster, client: &Client) {
    let end = Instant::now() + SOON;
    while let Err(error) = client.range(&Keys::one("ready"), 1).await {
        assert!(Instant::now() < end, "{error}\n{}", cluster.log());
        sleep(MOMENT).await;
    }
}

/// The next changes, as `key=value` and `-key`. Errors and news of being in touch are passed over.
async fn changes(watch: &mut Watch, count: usize) -> Vec<String> {
    let mut all = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    while all.len() < count {
        let update = timeout(SOON, watch.next()).await.unwrap_or_else(|_| panic!("only {all:?}"));
        if let Ok(Update::Changes(changes)) = update {
            all.extend(changes.iter().map(|change| match change {
                Change::Put(kv) => format!("{}={}", text(&kv.key), text(&kv.value)),
                Change::Delete { key, .. } => format!("-{}", text(key)),
            }));
        }
    }
    all
}

/// Writes a key until etcd says that it is written. The same value may be written twice.
async fn put(client: &Client, key: &str, value: &str) -> i64 {
    let end = Instant::now() + SOON;
    loop {
        match client.put(key, value, 0).await {
            Ok(revision) => return revision,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        sleep(MOMENT).await;
    }
}

async fn keys_and_transactions(etcd: Etcd) {
    let cluster = Cluster::start(&etcd, 1);
    let client = cluster.client();
    ready(&cluster, &client).await;
    assert!(client.range(&Keys::prefix("a/"), 0).await.unwrap().values.is_empty());
    // Bytes that are no text, and those at the ends of a prefix.
    for (key, value) in
        [(&b"a/\xff"[..], &b"\0\xff\n"[..]), (b"a/", b""), (b"a/b", b"1"), (b"a0", b"outside"), (b"a.", b"outside")]
    {
        client.put(key, value, 0).await.unwrap();
    }
    let found = client.range(&Keys::prefix("a/"), 0).await.unwrap();
    let pairs: Vec<(&[u8], &[u8])> = found.values.iter().map(|kv| (&kv.key[..], &kv.value[..])).collect();
    assert_eq!(pairs, [(&b"a/"[..], &b""[..]), (b"a/b", b"1"), (b"a/\xff", b"\0\xff\n")]);
    assert!(!found.more && found.count == 3);
    // In two pieces, of one revision.
    client.put("a/c", "2", 0).await.unwrap();
    let first = client.range_at(&Keys::prefix("a/"), 2, found.revision).await.unwrap();
    assert!(first.more && first.values.len() == 2 && first.count == 3, "{first:?}");

    let known = found.values[1].mod_revision;
    let txn = Txn {
        compare: vec![Compare::unchanged("a/b", known)],
        then: vec![Op::put("a/b", "new"), Op::Delete(Keys::prefix("a/c")), Op::Range(Keys::one("a/b"))],
        otherwise: vec![Op::Range(Keys::prefix("a"))],
        may_repeat: false,
    };
    let done = client.txn(&txn).await.unwrap();
    assert!(done.succeeded && done.answers[..2] == [OpAnswer::Put, OpAnswer::Delete(1)], "{done:?}");
    let OpAnswer::Range(found) = &done.answers[2] else { panic!("{done:?}") };
    assert_eq!((&found.values[0].value[..], found.values[0].mod_revision), (&b"new"[..], done.revision));
    let done = client.txn(&txn).await.unwrap();
    let OpAnswer::Range(found) = &done.answers[0] else { panic!("{done:?}") };
    assert!(!done.succeeded && found.values.len() == 5, "{done:?}");
    assert_eq!(client.delete(&Keys::prefix("a/")).await.unwrap().1, 3);
    let status = client.status().await.unwrap();
    assert!(status.is_leader && status.has_leader && status.version.starts_with("3."), "{status:?}");

    // An answer of more bytes than the limit, and a request that etcd refuses.
    let small = client_with(&cluster, |settings| settings.answer_max = 4096);
    client.put("big", [b'x'; 5000], 0).await.unwrap();
    let error = small.range(&Keys::one("big"), 1).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::TooLarge { max: 4096 }, "{error}");
    let error = client.put("big", vec![b'x'; 1_600_000], 0).await.unwrap_err();
    assert!(error.to_string().contains("etcd refuses: request is too large"), "{error}");
}

fn client_with(cluster: &Cluster, change: impl FnOnce(&mut Settings)) -> Client {
    let mut settings = cluster.settings("http");
    change(&mut settings);
    client(settings)
}

#[test]
fn keys_are_read_written_and_compared_with_etcd_3_5() {
    run(keys_and_transactions(newer()));
}

#[test]
fn keys_are_read_written_and_compared_with_etcd_3_4() {
    run(keys_and_transactions(older()));
}

async fn watches(etcd: Etcd) {
    let mut cluster = Cluster::start(&etcd, 1);
    let client = client_with(&cluster, |settings| settings.silence = Duration::from_millis(500));
    ready(&cluster, &client).await;
    let first = put(&client, "a/1", "x").await;
    let mut old = client.watch(&Keys::prefix("a/"), first);
    let mut new = client.watch(&Keys::prefix("a/"), 0);
    assert!(matches!(timeout(SOON, new.next()).await.unwrap(), Ok(Update::InTouch { revision }) if revision == first));
    client.put("b/1", "outside", 0).await.unwrap();
    client.put("a/2", "y", 0).await.unwrap();
    client.delete(&Keys::one("a/1")).await.unwrap();
    assert_eq!(changes(&mut old, 3).await, ["a/1=x", "a/2=y", "-a/1"]);
    assert_eq!(changes(&mut new, 2).await, ["a/2=y", "-a/1"]);

    // A silent watch says now and then that it is in touch.
    for _ in 0..2 {
        assert!(matches!(timeout(SOON, new.next()).await.unwrap(), Ok(Update::InTouch { .. })));
    }
    // etcd is killed and started again: an error is told, and each change comes once.
    cluster.restart(0);
    let mut told = Vec::new();
    let writes = async {
        for value in 0..20 {
            put(&client, "a/3", &value.to_string()).await;
        }
    };
    let reads = async {
        while told.last().is_none_or(|last| last != "a/3=19") {
            told.extend(changes(&mut new, 1).await);
        }
    };
    tokio::join!(writes, reads);
    told.dedup();
    let expected: Vec<String> = (0..20).map(|value| format!("a/3={value}")).collect();
    assert_eq!(told, expected);

    // Compacted: the watch says so, and its owner reads anew.
    let now = client.range(&Keys::prefix("a/"), 0).await.unwrap();
    compact(&cluster, now.revision);
    let mut late = client.watch(&Keys::prefix("a/"), first);
    let compacted = loop {
        if let Ok(Update::Compacted { revision }) = timeout(SOON, late.next()).await.unwrap() {
            break revision;
        }
    };
    assert_eq!(compacted, now.revision);
    assert_eq!(late.next().await.unwrap_err().kind, ErrorKind::Compacted);
    let error = client.range_at(&Keys::prefix("a/"), 0, first).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Compacted, "{error}");
    let mut anew = client.watch(&Keys::prefix("a/"), now.revision + 1);
    client.put("a/4", "z", 0).await.unwrap();
    assert_eq!(changes(&mut anew, 1).await, ["a/4=z"]);
}

/// Asks the gateway for what this client has no method for.
fn ask(cluster: &Cluster, path: &str, body: serde_json::Value) {
    let mut stream = TcpStream::connect((cluster.addresses[0].as_str(), 2379)).unwrap();
    let body = body.to_string();
    let text = format!("POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200"), "{path}: {answer}");
}

fn compact(cluster: &Cluster, revision: i64) {
    ask(cluster, "/v3/kv/compaction", json!({ "revision": revision.to_string(), "physical": true }));
}

#[test]
fn a_watch_outlives_etcds_restart_and_says_when_changes_are_lost_with_etcd_3_5() {
    run(watches(newer()));
}

#[test]
fn a_watch_outlives_etcds_restart_and_says_when_changes_are_lost_with_etcd_3_4() {
    run(watches(older()));
}

/// Its revisions say nothing about those of the cluster before, whether they are lower or higher.
#[test]
fn a_watch_ends_when_the_servers_are_another_cluster_s_as_after_a_snapshot_was_restored() {
    run(async {
        let mut cluster = Cluster::start(&newer(), 1);
        let client = cluster.client();
        ready(&cluster, &client).await;
        let first = put(&client, "a/1", "x").await;
        let mut watch = client.watch(&Keys::prefix("a/"), first);
        assert_eq!(changes(&mut watch, 1).await, ["a/1=x"]);
        let mut words = cluster.members[0].take().unwrap().words.clone();
        let data = words.iter_mut().find(|word| word.starts_with("--data-dir=")).unwrap();
        data.push_str("-restored");
        words.push("--initial-cluster-token=restored-1".to_owned());
        cluster.run(0, words);
        loop {
            match timeout(SOON, watch.next()).await.unwrap() {
                Ok(Update::Compacted { .. }) => break,
                Ok(other) => panic!("{other:?}"),
                // It has not started yet.
                Err(_) => {}
            }
        }
        assert_eq!(watch.next().await.unwrap_err().kind, ErrorKind::Compacted);
    });
}

/// A thousand keys of one transaction's size each: etcd sends them in fragments, and its queue waits for a slow owner.
#[test]
fn a_watch_that_is_behind_catches_up_in_bounded_pieces() {
    run(async {
        let cluster = Cluster::start(&newer(), 1);
        let client = cluster.client();
        ready(&cluster, &client).await;
        let value = "x".repeat(100 << 10);
        let first = put(&client, "a/0", &value).await;
        for number in 1..60 {
            put(&client, &format!("a/{number}"), &value).await;
        }
        let mut watch = client.watch(&Keys::prefix("a/"), first);
        let mut sizes = Vec::new();
        while sizes.iter().sum::<usize>() < 60 {
            if let Update::Changes(changes) = timeout(SOON, watch.next()).await.unwrap().unwrap() {
                sizes.push(changes.len());
            }
        }
        println!("changes in each update: {sizes:?}");
        assert!(sizes.iter().all(|size| *size <= 30) && sizes.iter().sum::<usize>() == 60, "{sizes:?}");
    });
}

async fn leases(etcd: Etcd) {
    let cluster = Cluster::start(&etcd, 1);
    let client = cluster.client();
    ready(&cluster, &client).await;
    let lease = client.grant(Duration::from_millis(1500)).await.unwrap();
    assert!(lease.id != 0 && lease.time_to_live >= Duration::from_secs(2), "{lease:?}");
    client.put("a/here", "1", lease.id).await.unwrap();
    assert_eq!(client.range(&Keys::one("a/here"), 1).await.unwrap().values[0].lease, lease.id);
    let mut watch = client.watch(&Keys::prefix("a/"), 0);
    assert!(matches!(watch.next().await, Ok(Update::InTouch { .. })));
    // As long as it is renewed the key is there.
    let begun = Instant::now();
    while begun.elapsed() < 2 * lease.time_to_live {
        assert_eq!(client.keep_alive(lease.id).await.unwrap(), lease);
        sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(client.range(&Keys::one("a/here"), 1).await.unwrap().values.len(), 1);
    // It expires, and the watch tells.
    assert_eq!(changes(&mut watch, 1).await, ["-a/here"]);
    let gone = ErrorKind::LeaseGone { id: lease.id };
    assert_eq!(client.keep_alive(lease.id).await.unwrap_err().kind, gone);
    assert_eq!(client.put("a/here", "1", lease.id).await.unwrap_err().kind, gone);
    client.revoke(lease.id).await.unwrap();
    let lease = client.grant(SOON).await.unwrap();
    client.put("a/there", "1", lease.id).await.unwrap();
    client.revoke(lease.id).await.unwrap();
    assert_eq!(changes(&mut watch, 2).await, ["a/there=1", "-a/there"]);
}

#[test]
fn a_key_ends_with_its_lease_with_etcd_3_5() {
    run(leases(newer()));
}

#[test]
fn a_key_ends_with_its_lease_with_etcd_3_4() {
    run(leases(older()));
}

fn user(name: &str, password: &str) -> Option<User> {
    Some(User { name: name.to_owned(), password: password.to_owned() })
}

async fn users(etcd: Etcd) {
    let mut cluster = Cluster::start(&etcd, 1);
    let anyone = cluster.client();
    ready(&cluster, &anyone).await;
    let ft = client_with(&cluster, |settings| settings.user = user("ft", "secret"));
    let error = ft.range(&Keys::one("a/b"), 1).await.unwrap_err();
    assert!(error.to_string().contains("etcd asks nobody for a password"), "{error}");
    let role = json!({ "name": "leases", "perm": { "permType": "READWRITE", "key": "YS8=", "range_end": "YTA=" } });
    for (path, body) in [
        ("/v3/auth/user/add", json!({ "name": "root", "password": "r" })),
        ("/v3/auth/user/grant", json!({ "user": "root", "role": "root" })),
        ("/v3/auth/role/add", json!({ "name": "leases" })),
        ("/v3/auth/role/grant", role),
        ("/v3/auth/user/add", json!({ "name": "ft", "password": "secret" })),
        ("/v3/auth/user/grant", json!({ "user": "ft", "role": "leases" })),
        ("/v3/auth/enable", json!({})),
    ] {
        ask(&cluster, path, body);
    }
    let words = |error: Error, words: &str| assert!(error.to_string().contains(words), "{error}");
    words(anyone.range(&Keys::one("a/b"), 1).await.unwrap_err(), "etcd asks for a user and a password");
    let guesser = client_with(&cluster, |settings| settings.user = user("ft", "guessed"));
    words(
        guesser.put("a/b", "1", 0).await.unwrap_err(),
        "etcd does not know the user `ft` with this password (authentication failed",
    );

    ft.put("a/b", "1", 0).await.unwrap();
    let mut watch = ft.watch(&Keys::prefix("a/"), 1);
    assert_eq!(changes(&mut watch, 1).await, ["a/b=1"]);
    words(
        ft.put("b", "1", 0).await.unwrap_err(),
        "the user `ft` may not write the key `b`: `etcdctl role grant-permission",
    );
    words(ft.range(&Keys::prefix(""), 0).await.unwrap_err(), "the user `ft` may not read all keys");
    let txn = Txn { compare: vec![Compare::unchanged("a/b", 1)], otherwise: vec![Op::put("c", "1")], ..Txn::default() };
    words(ft.txn(&txn).await.unwrap_err(), "may not read and write the key `a/b`, the key `c`");
    let mut other = ft.watch(&Keys::one("b"), 0);
    words(timeout(SOON, other.next()).await.unwrap().unwrap_err(), "the user `ft` may not watch the key `b`");

    // etcd forgets its tokens when it is started again.
    cluster.restart(0);
    let end = Instant::now() + SOON;
    while let Err(error) = ft.range(&Keys::one("a/b"), 1).await {
        assert!(
            matches!(error.kind, ErrorKind::Connect(_) | ErrorKind::Broken(_) | ErrorKind::NoMajority(_)),
            "{error:?}"
        );
        assert!(Instant::now() < end, "{error}");
        sleep(MOMENT).await;
    }
    ft.put("a/b", "2", 0).await.unwrap();
    assert_eq!(changes(&mut watch, 1).await, ["a/b=2"]);
}

#[test]
fn users_and_what_they_may_not_do_with_etcd_3_5() {
    run(users(newer()));
}

#[test]
fn users_and_what_they_may_not_do_with_etcd_3_4() {
    run(users(older()));
}

/// The index of the leader.
async fn leader(cluster: &Cluster, but: Option<usize>) -> usize {
    let end = Instant::now() + SOON;
    loop {
        for (index, address) in cluster.addresses.iter().enumerate().filter(|(index, _)| Some(*index) != but) {
            let alone = client(Settings::new(vec![format!("http://{address}:2379").parse().unwrap()]));
            if alone.status().await.is_ok_and(|status| status.is_leader) {
                return index;
            }
        }
        assert!(Instant::now() < end, "no leader\n{}", cluster.log());
        sleep(MOMENT).await;
    }
}

/// The leader stands still in the middle (a killed one hangs up, which is easier), then a majority is gone.
#[test]
fn a_cluster_of_three_goes_on_without_its_leader_and_one_without_a_majority_says_so() {
    run(async {
        let mut cluster = Cluster::start(&newer(), 3);
        let client = client_with(&cluster, |settings| settings.silence = Duration::from_secs(1));
        ready(&cluster, &client).await;
        let mut watch = client.watch(&Keys::prefix("a/"), 0);
        assert!(matches!(watch.next().await, Ok(Update::InTouch { .. })));
        put(&client, "a/1", "1").await;
        assert_eq!(changes(&mut watch, 1).await, ["a/1=1"]);
        let old = leader(&cluster, None).await;
        cluster.signal(old, Signal::STOP);
        let begun = Instant::now();
        put(&client, "a/2", "1").await;
        println!("written {} ms after the leader stood still", begun.elapsed().as_millis());
        let mut told = changes(&mut watch, 1).await;
        told.dedup();
        assert_eq!(told, ["a/2=1"]);
        println!("told {} ms after the leader stood still", begun.elapsed().as_millis());
        cluster.signal(old, Signal::CONT);
        cluster.members[old] = None;
        let new = leader(&cluster, Some(old)).await;
        put(&client, "a/3", "1").await;

        // Two of three are gone.
        cluster.members[new] = None;
        let end = Instant::now() + SOON;
        let quick = client.with_limit(Duration::from_millis(500));
        loop {
            let begun = Instant::now();
            let error = quick.range(&Keys::one("a/1"), 1).await.unwrap_err();
            assert!(begun.elapsed() < Duration::from_secs(10), "{error}");
            if error.any(|kind| matches!(kind, ErrorKind::NoMajority(_))) {
                assert!(error.to_string().contains("etcd has no majority (no leader)"), "{error}");
                break;
            }
            assert!(Instant::now() < end, "{error}");
            sleep(MOMENT).await;
        }
        assert!(!client.status().await.unwrap().has_leader);
    });
}

/// A CA, etcd's certificate and a client's, as files.
fn certificates(folder: &Path, address: &str) {
    let key = || rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "a CA for a test");
    let ca = rcgen::CertifiedIssuer::self_signed(params, key()).unwrap();
    std::fs::write(folder.join("ca.pem"), ca.pem()).unwrap();
    for name in [address, "client"] {
        let mut params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        params.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let key = key();
        let file = if name == address { "etcd" } else { name };
        std::fs::write(folder.join(format!("{file}.pem")), params.signed_by(&key, &ca).unwrap().pem()).unwrap();
        std::fs::write(folder.join(format!("{file}.key")), key.serialize_pem()).unwrap();
    }
}

async fn tls(etcd: Etcd) {
    let files = tempfile::tempdir().unwrap();
    let pem = |name: &str| Pem::read(&files.path().join(name)).unwrap();
    let word = |option: &str, file: &str| format!("--{option}={}", files.path().join(file).display());
    let words = [word("cert-file", "etcd.pem"), word("key-file", "etcd.key"), word("trusted-ca-file", "ca.pem")];
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    words.push("--client-cert-auth");
    let addresses = Cluster::new_addresses(1);
    certificates(files.path(), &addresses[0]);
    let cluster = Cluster::start_at(&etcd, addresses, "https", &words);
    let identity = || Some(Identity { certificates: pem("client.pem"), key: pem("client.key") });
    let settings = || Settings { ca: Some(pem("ca.pem")), ..cluster.settings("https") };
    let etcd = client(Settings { identity: identity(), ..settings() });
    ready(&cluster, &etcd).await;
    let mut watch = etcd.watch(&Keys::prefix("a/"), 0);
    assert!(matches!(watch.next().await, Ok(Update::InTouch { .. })));
    etcd.put("a/1", "1", 0).await.unwrap();
    assert_eq!(changes(&mut watch, 1).await, ["a/1=1"]);
    assert!(etcd.grant(SOON).await.unwrap().id != 0);

    let error = client(settings()).range(&Keys::one("a/1"), 1).await.unwrap_err();
    assert!(error.to_string().contains("etcd does not accept our certificate"), "{error}");
    let swapped = Some(Identity { certificates: pem("client.pem"), key: pem("etcd.key") });
    let error = Client::new(Settings { identity: swapped, ..settings() }, no_names).err().unwrap();
    assert!(error.to_string().contains("not the key of the certificate in"), "{error}");
    let error = cluster.client().range(&Keys::one("a/1"), 1).await.unwrap_err();
    println!("plain HTTP to TLS: {error}");
    assert!(error.to_string().contains("https"), "{error}");
}

#[test]
fn etcd_is_asked_by_tls_with_a_certificate_of_the_clients_with_etcd_3_5() {
    run(tls(newer()));
}

#[test]
fn etcd_is_asked_by_tls_with_a_certificate_of_the_clients_with_etcd_3_4() {
    run(tls(older()));
}
