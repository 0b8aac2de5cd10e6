use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nicety_etcd::User;
use serde_json::{Value, json};

use super::*;

/// The act of another host.
type Rival = Box<dyn FnMut(&mut Server) + Send>;

/// A server with one key, in the words of etcd's JSON gateway.
#[derive(Default)]
struct Server {
    value: String,
    /// 0: there is no such key.
    revision: i64,
    /// Called before each transaction.
    before: Option<Rival>,
    /// The time that it takes to check a password.
    login: Duration,
    is_silent: bool,
}

impl Server {
    fn write(&mut self, value: String) {
        (self.value, self.revision) = (value, self.revision + 1);
    }

    fn answer(&mut self, path: &str, body: &Value) -> Value {
        let header = json!({ "revision": self.revision.to_string() });
        match path {
            "/v3/kv/range" if self.revision == 0 => json!({ "header": header }),
            "/v3/kv/range" => {
                let (key, revision) = (&body["key"], self.revision.to_string());
                let value = json!({
                    "key": key, "value": STANDARD.encode(&self.value), "mod_revision": revision, "create_revision": "1", "version": "1"
                });
                json!({ "header": header, "kvs": [value], "count": "1" })
            }
            "/v3/kv/txn" => {
                if let Some(mut before) = self.before.take() {
                    before(self);
                    self.before = Some(before);
                }
                let succeeded = body["compare"][0]["mod_revision"].as_str() == Some(&self.revision.to_string());
                if succeeded {
                    let value = body["success"][0]["request_put"]["value"].as_str().unwrap();
                    self.write(String::from_utf8(STANDARD.decode(value).unwrap()).unwrap());
                }
                json!({ "header": header, "succeeded": succeeded })
            }
            "/v3/auth/authenticate" => json!({ "header": header, "token": "abc.1" }),
            other => panic!("{other}"),
        }
    }
}

/// Reads one request, and returns its path and body; `None`: the client has hung up.
fn request(stream: &mut TcpStream) -> Option<(String, Value)> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.to_lowercase().split("content-length: ").nth(1)?.split("\r\n").next()?.parse().ok()?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some((head.split(' ').nth(1)?.to_owned(), serde_json::from_slice(&body).unwrap()))
}

fn serve(server: Server) -> (SocketAddr, Arc<Mutex<Server>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = Arc::new(Mutex::new(server));
    let shared = Arc::clone(&server);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let server = Arc::clone(&shared);
            std::thread::spawn(move || {
                while let Some((path, body)) = request(&mut stream) {
                    let login = server.lock().unwrap().login;
                    if path == "/v3/auth/authenticate" {
                        std::thread::sleep(login);
                    }
                    if server.lock().unwrap().is_silent {
                        // Until the client hangs up.
                        let _end = stream.read(&mut [0]);
                        return;
                    }
                    let body = server.lock().unwrap().answer(&path, &body).to_string();
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                    if stream.write_all((head + &body).as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, server)
}

fn settings(address: SocketAddr) -> Settings {
    Settings::new(vec![format!("http://{address}").parse().unwrap()])
}

fn lease(settings: Settings, term: Duration, id: u64) -> LeaseInEtcd {
    LeaseInEtcd::new(settings, Names::start().unwrap(), "vm1", term, NodeId(id)).unwrap()
}

/// A lease that no test waits for.
const LONG: Duration = Duration::from_secs(90);

#[test]
fn two_hosts_have_one_lease_and_it_is_the_text_of_a_lease_s_file() {
    let (address, server) = serve(Server::default());
    let [mut one, mut other] = [1, 2].map(|id| lease(settings(address), LONG, id));
    assert!(one.ask(Request::Found).unwrap().granted);
    assert!(!other.ask(Request::Found).unwrap().granted);
    assert!(one.ask(Request::Pair { epoch: 1, peer: NodeId(2) }).unwrap().granted);
    assert!(!other.ask(Request::Take).unwrap().granted, "the owner's lease has not expired");
    let wanted = Lease { holder: Some(NodeId(1)), peer: Some(NodeId(2)), epoch: 2, renewals: 2, ..Lease::default() };
    assert_eq!(server.lock().unwrap().value, wanted.to_string());
    assert!(one.ask(Request::Release).unwrap().granted && other.ask(Request::Take).unwrap().granted);
}

#[test]
fn a_lease_that_nobody_has_renewed_for_its_time_is_taken() {
    let (address, _) = serve(Server::default());
    let [mut one, mut other] = [1, 2].map(|id| lease(settings(address), Duration::from_secs(3), id));
    assert!(one.ask(Request::Found).unwrap().granted);
    assert!(one.ask(Request::Pair { epoch: 1, peer: NodeId(2) }).unwrap().granted);
    other.look();
    assert!(one.ask(Request::Renew).unwrap().granted);
    let renewed = Instant::now();
    while !other.ask(Request::Take).unwrap().granted {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(renewed.elapsed() >= Duration::from_secs(3));
}

#[test]
fn a_request_that_another_host_s_came_before_begins_again_and_not_for_ever() {
    let mut left = 2;
    let rival = Lease { holder: Some(NodeId(9)), ..Lease::default() };
    let before = move |server: &mut Server| {
        if left > 0 {
            server.write(Lease::default().to_string());
            left -= 1;
        }
    };
    let (address, server) = serve(Server { before: Some(Box::new(before)), ..Server::default() });
    let mut one = lease(settings(address), LONG, 1);
    assert!(one.ask(Request::Found).unwrap().granted);
    server.lock().unwrap().before = Some(Box::new(move |server| server.write(rival.to_string())));
    assert!(!one.ask(Request::Renew).unwrap().granted, "the rival owns it by now");
    server.lock().unwrap().write(Lease { holder: Some(NodeId(1)), ..Lease::default() }.to_string());
    let busy = |server: &mut Server| {
        let value = server.value.clone();
        server.write(value);
    };
    server.lock().unwrap().before = Some(Box::new(busy));
    let error = one.ask(Request::Renew).unwrap_err().to_string();
    assert_eq!(error, "etcd: another host writes the lease all the time");
}

#[test]
fn a_value_that_is_no_lease_is_left_as_it_is() {
    let (address, server) = serve(Server { value: "{}".to_owned(), revision: 7, ..Server::default() });
    let error = lease(settings(address), LONG, 1).ask(Request::Found).unwrap_err().to_string();
    assert_eq!(error, "etcd: the key vm1 has a value that is no lease: delete it if no host uses it");
    let server = server.lock().unwrap();
    assert_eq!((server.value.as_str(), server.revision), ("{}", 7));
}

/// Asks, and returns the error of a request that has kept its time.
fn late(lease: &mut LeaseInEtcd, limit: Duration) -> String {
    let begun = Instant::now();
    let error = lease.ask(Request::Found).unwrap_err().to_string();
    let elapsed = begun.elapsed();
    // A busy machine may take a moment more, and not as long as any other limit: those of etcd's client are seconds.
    assert!(elapsed >= limit.mul_f32(0.9) && elapsed < limit + Duration::from_secs(2), "{elapsed:?}: {error}");
    error
}

#[test]
fn a_server_that_accepts_and_never_answers_costs_a_third_of_the_lease_at_most() {
    let limit = Duration::from_millis(200);
    let user = || Some(User { name: "ft".to_owned(), password: "p".to_owned() });
    let (address, server) = serve(Server { is_silent: true, ..Server::default() });
    let mut one = lease(settings(address), 3 * limit, 1);
    for _ in 0..2 {
        let error = late(&mut one, limit);
        assert_eq!(error, format!("{address}: no answer within 200ms"));
    }
    // Nor does it with a password to check, or with several servers, or if nobody knows their names.
    let mut with_user = lease(Settings { user: user(), ..settings(address) }, 3 * limit, 1);
    let error = late(&mut with_user, limit);
    assert_eq!(error, "etcd has not checked the user's password within 200ms");
    let many = (0..8).map(|_| format!("http://{address}").parse().unwrap()).collect();
    late(&mut lease(Settings::new(many), 3 * limit, 1), limit);
    server.lock().unwrap().is_silent = false;
    // On a busy machine it may be late itself.
    let granted = (0..50).any(|_| one.ask(Request::Found).is_ok_and(|answer| answer.granted));
    assert!(granted);
}

/// etcd checks passwords slowly on purpose, and a lease may be short.
#[test]
fn a_log_in_that_takes_longer_than_a_request_may_goes_on_meanwhile() {
    let limit = Duration::from_millis(100);
    let user = Some(User { name: "ft".to_owned(), password: "p".to_owned() });
    let (address, _) = serve(Server { login: 3 * limit, ..Server::default() });
    let mut one = lease(Settings { user, ..settings(address) }, 3 * limit, 1);
    let mut tries = 0;
    let granted = loop {
        match one.ask(Request::Found) {
            Ok(answer) => break answer.granted,
            Err(error) => assert!(error.to_string().ends_with(" within 100ms"), "{error}"),
        }
        tries += 1;
        assert!(tries < 100);
    };
    assert!(granted && tries >= 2, "{tries}");
}

#[test]
fn a_name_that_is_looked_up_for_ever_costs_a_third_of_the_lease_at_most() {
    let limit = Duration::from_millis(200);
    let settings = Settings::new(vec!["http://etcd1:2379".parse().unwrap()]);
    let kept: Mutex<Vec<Found>> = Mutex::default();
    let client = Client::new(settings, move |_: &str, _: u16, answer: Found| {
        kept.lock().unwrap().push(answer);
    })
    .unwrap();
    let etcd = Blocking::new(client).unwrap();
    let mut one = LeaseInEtcd { etcd, key: "vm1".to_owned(), term: 3 * limit, who: NodeId(1), seen: None };
    let error = late(&mut one, limit);
    assert!(error.contains("its name is still being looked up"), "{error}");
}
