use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, mpsc};

use nicety_etcd::Client;
use nicety_fabric::{Entry, Found, Me, Name, Outcome, Terms};
use nicety_uplink::Hops;

use super::*;
use crate::fabric::around::Nobody;

/// A server that answers nothing but that a lease has ended. It tells each request: its path and body.
fn etcd() -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let tell = tell.clone();
            std::thread::spawn(move || treat(stream, &tell));
        }
    });
    (endpoint, told)
}

fn treat(mut stream: TcpStream, tell: &mpsc::Sender<String>) -> Option<()> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.to_lowercase().split_once("content-length: ")?.1.split_once("\r\n")?.0.parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    let path = head.split(' ').nth(1)?;
    tell.send(format!("{path} {}", String::from_utf8(body).unwrap())).ok()?;
    if path == "/v3/lease/revoke" {
        let answer = r#"{"header":{"cluster_id":"1","member_id":"2","revision":"7","raft_term":"2"}}"#;
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{answer}", answer.len()).ok()?;
    }
    // Until the client hangs up.
    stream.read_exact(&mut byte).ok()
}

/// The host's own key in etcd.
const KEY: &str = "/nicety/fabrics/prod/host/node-1";

struct Bench {
    session: Session,
    daemon: Arc<dyn Around>,
    jobs: Receiver<Job>,
    requests: Receiver<String>,
}

fn bench() -> Bench {
    let name = |text| Name::new(text).unwrap();
    let me = Me { host: name("node-1"), address: [192, 0, 2, 1].into(), mtu: 1500, version: "1".to_owned() };
    let settings = Settings { fabric: name("prod"), me, run: 7, seed: 1, terms: Terms::default() };
    let clock = Clock::start();
    let (endpoint, requests) = etcd();
    let etcd = nicety_etcd::Settings::new(vec![endpoint.parse().unwrap()]);
    let client = Client::new(etcd, |_: &str, _: u16, _: nicety_etcd::Answer| {}).unwrap();
    let (notes, _nobody) = tokio::sync::mpsc::unbounded_channel();
    let (jobs, work) = mpsc::channel();
    let daemon: Arc<dyn Around> = Arc::new(Nobody);
    let tunnel = Tunnel::new("vxlan".to_owned(), Hops::new(1));
    let before = Before { settings, kept: None, groups: None, clock, tunnel, jobs };
    let mut session = before.session(Arc::downgrade(&daemon), |keys| Store::new(client, keys, notes));
    // Not before the test says so.
    session.keep.not_before = clock.now().after(Duration::from_secs(3600));
    Bench { session, daemon, jobs: work, requests }
}

impl Bench {
    fn hear(&mut self, event: Event) {
        assert!(self.session.hear(Note::Event(event)).is_continue());
        self.session.serve(self.daemon.as_ref());
    }

    /// The machine asks, and etcd answers, until this host is registered with lease 77.
    fn register(&mut self) {
        let found = || Found { revision: 5, entries: Vec::new() };
        // The two scopes are read by the first two calls, and watched.
        self.hear(Event::Read { call: 1, result: Ok(found()) });
        self.hear(Event::Read { call: 2, result: Ok(found()) });
        self.hear(Event::Granted { call: 3, result: Ok(77) });
        self.hear(Event::Transacted { call: 4, result: Ok(Outcome { is_done: true, revision: 6, found: None }) });
        assert_eq!(self.session.fabric.connection(self.session.clock.now()), Connection::Connected);
    }

    /// The states that are to be written, and are.
    fn kept(&mut self) -> usize {
        self.session.keep.not_before = Time::ZERO;
        self.session.serve(self.daemon.as_ref());
        let kept = self.jobs.try_iter().filter(|job| matches!(job, Job::Keep(_))).count();
        assert!(self.session.hear(Note::Kept(Ok(()))).is_continue());
        kept
    }
}

#[tokio::test]
async fn the_lease_of_a_daemon_that_ends_before_its_first_renewal_is_revoked() {
    let mut bench = bench();
    bench.register();
    bench.session.leave().await;
    let revoked = bench.requests.try_iter().find(|request| request.starts_with("/v3/lease/revoke"));
    assert_eq!(revoked.as_deref(), Some(r#"/v3/lease/revoke {"ID":"77"}"#));
}

#[tokio::test]
async fn the_last_known_state_is_written_when_it_has_changed_and_not_for_a_renewal() {
    let mut bench = bench();
    bench.register();
    assert_eq!((bench.kept(), bench.kept()), (1, 0));
    for call in 5..8 {
        // Its answer is late, or is heard.
        bench.hear(Event::Renewed { call, result: Ok(()) });
        bench.hear(Event::Broken { watch: 1, why: "it is silent".to_owned() });
        bench.hear(Event::InTouch { watch: 1, revision: 6 });
    }
    assert_eq!(bench.kept(), 0);
    let record = r#"{"address":"192.0.2.2","mtu":1500,"run":"0000000000000001","version":"1"}"#;
    let key = KEY.replace("node-1", "node-2").into_bytes();
    let entry = Entry { key, value: record.into(), created: 7, modified: 7, lease: 5 };
    let watch = 2;
    bench.hear(Event::Put { watch, entry });
    assert_eq!((bench.kept(), bench.kept()), (1, 0));
}
