//! Servers that are not etcd, or are broken: each call ends in time, with bounded memory, and says what is wrong.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nicety_etcd::{Answer, Blocking, Client, Error, ErrorKind, Keys, Op, Pem, Settings, Txn, User};
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A time limit that a test waits for.
const SHORT: Duration = Duration::from_millis(400);
/// Time in which each call must have ended, however busy the machine is.
const SOON: Duration = Duration::from_secs(30);

/// An answer of etcd 3.5.16 to a range without keys.
const NONE: &str = r#"{"header":{"cluster_id":"1","member_id":"2","revision":"7","raft_term":"2"}}"#;

/// A server that treats each connection so, on a thread of its own.
fn serve(treat: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let treat = Arc::new(treat);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let treat = Arc::clone(&treat);
            std::thread::spawn(move || treat(stream));
        }
    });
    address
}

/// Reads one request, and returns its path; `None`: the client has hung up.
fn request(stream: &mut impl Read) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length =
        head.to_lowercase().split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    Some(head.split(' ').nth(1)?.to_owned())
}

/// Answers each request with this text, until the client hangs up.
fn answers(text: String) -> impl Fn(TcpStream) {
    move |mut stream| {
        while request(&mut stream).is_some() && stream.write_all(text.as_bytes()).is_ok() {}
    }
}

fn http(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn no_names(_: &str, _: u16, _: Answer) {}

fn client(settings: Settings) -> Blocking {
    Blocking::new(Client::new(settings, no_names).unwrap()).unwrap()
}

fn settings(addresses: &[SocketAddr]) -> Settings {
    let endpoints = addresses.iter().map(|address| format!("http://{address}").parse().unwrap()).collect();
    Settings { limit: SOON, ..Settings::new(endpoints) }
}

/// The error of a read from this server, which comes in time.
fn error(settings: Settings) -> Error {
    let begun = Instant::now();
    let error = client(settings).range(&Keys::one("a"), 1).unwrap_err();
    assert!(begun.elapsed() < SOON, "{error}");
    error
}

#[test]
fn a_server_that_is_silent_or_slow_or_breaks_off_costs_the_time_limit_at_most() {
    let drips = |mut stream: TcpStream| {
        request(&mut stream);
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n";
        for byte in head.iter().chain(std::iter::repeat(&b' ')) {
            if stream.write_all(&[*byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let silent = |stream: TcpStream| {
        std::thread::sleep(SOON);
        drop(stream);
    };
    for address in [serve(silent), serve(drips)] {
        let begun = Instant::now();
        let error = error(Settings { limit: SHORT, ..settings(&[address]) });
        assert!(begun.elapsed() >= SHORT, "{error}");
        assert_eq!(error.to_string(), format!("{address}: no answer within 400ms"));
        assert_eq!(error.kind, ErrorKind::Late(SHORT));
    }
    let half = serve(answers("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{".to_owned()));
    let cut = serve(|mut stream| {
        drop((request(&mut stream), stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{")))
    });
    let gone = serve(|mut stream| drop(request(&mut stream)));
    assert!(matches!(error(Settings { limit: SHORT, ..settings(&[half]) }).kind, ErrorKind::Late(_)));
    for address in [cut, gone] {
        let error = error(settings(&[address]));
        // A read changes nothing, whatever became of it.
        assert!(matches!(error.kind, ErrorKind::Broken(_)) && !error.unknown_outcome, "{error}");
    }
}

#[test]
fn an_endpoint_where_nobody_listens_is_named_with_what_to_look_at() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = error(settings(&[address])).to_string();
    assert!(
        error.starts_with(&format!("{address}: Connection refused")) && error.contains("is etcd running"),
        "{error}"
    );
}

#[test]
fn answers_without_end_are_cut_at_the_limit() {
    let endless = |head: &'static str| {
        serve(move |mut stream| {
            request(&mut stream);
            let _gone = stream.write_all(head.as_bytes());
            while stream.write_all(&[b'1'; 1 << 16]).is_ok() {}
        })
    };
    let chunked = serve(|mut stream| {
        request(&mut stream);
        let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while stream.write_all(format!("{:x}\r\n{}\r\n", 1 << 16, "1".repeat(1 << 16)).as_bytes()).is_ok() {}
    });
    for address in [endless("HTTP/1.1 200 OK\r\n\r\n"), chunked, endless("HTTP/1.1 500 Oh\r\n\r\n")] {
        let error = error(Settings { answer_max: 1 << 20, ..settings(&[address]) });
        assert_eq!(error.kind, ErrorKind::TooLarge { max: 1 << 20 }, "{error}");
        assert!(error.to_string().contains("ask for fewer keys"), "{error}");
    }
    let error = error(settings(&[endless("HTTP/1.1 200 OK\r\nX: ")]));
    assert!(matches!(&error.kind, ErrorKind::NotEtcd(why) if why.contains("head")), "{error}");
}

#[test]
fn a_server_that_is_not_etcd_is_said_to_be_none() {
    for (answer, words) in [
        ("SSH-2.0-OpenSSH_9.9\r\n".to_owned(), "no HTTP/1.1"),
        (http("200 OK", "<html>Welcome to nginx!"), "`<html>Welcome to nginx!`"),
        // Any server of JSON says that there is nothing.
        (http("200 OK", "{}"), "missing field `header`"),
        (http("200 OK", "[]"), "not as etcd's API has it"),
        (http("200 OK", &"[".repeat(100_000)), "not as etcd's API has it"),
        (http("200 OK", r#"{"header":{},"kvs":[{"key":"*"}]}"#), "no base64"),
        (http("200 OK", r#"{"header":{"revision":"much"}}"#), "a number that is none"),
        (http("404 Not Found", "no such page\n\u{1b}[31m"), r"HTTP 404 `no such page\n\u{1b}[31m`"),
        (http("404 Not Found", r#"{"errorCode":100,"message":"Key not found","cause":"/v3"}"#), "HTTP 404"),
    ] {
        let error = error(settings(&[serve(answers(answer))]));
        let text = error.to_string();
        assert!(matches!(error.kind, ErrorKind::NotEtcd(_)) && text.contains(words) && text.len() < 600, "{text}");
        assert!(text.contains("not etcd's JSON gateway"), "{text}");
    }
}

#[test]
fn a_redirect_is_not_followed() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let other = serve(move |stream| {
        counted.fetch_add(1, Ordering::SeqCst);
        answers(http("200 OK", NONE))(stream);
    });
    let answer = format!("HTTP/1.1 307 Go\r\nLocation: http://{other}/v3/kv/range\r\nContent-Length: 0\r\n\r\n");
    let error = error(settings(&[serve(answers(answer))])).to_string();
    assert!(error.contains(&format!("sends us to `http://{other}/v3/kv/range` (HTTP 307)")), "{error}");
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

/// Counts the requests for each path.
fn counts(answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> (SocketAddr, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let address = serve(move |mut stream| {
        while let Some(path) = request(&mut stream) {
            counter.fetch_add(1, Ordering::SeqCst);
            match answer(&path) {
                Some(answer) if stream.write_all(answer.as_bytes()).is_ok() => {}
                _ => return,
            }
        }
    });
    (address, asked)
}

#[test]
fn a_change_is_sent_once_and_a_read_goes_on_to_the_next_server() {
    let (breaks, broken) = counts(|_| None);
    let (works, worked) = counts(|_| Some(http("200 OK", NONE)));
    let etcd = client(settings(&[breaks, works]));
    let change = Txn { then: vec![Op::Delete(Keys::one("a"))], ..Txn::default() };
    let error = etcd.txn(&change).unwrap_err();
    assert!(error.unknown_outcome && matches!(error.kind, ErrorKind::Broken(_)), "{error}");
    assert_eq!([&broken, &worked].map(|count| count.load(Ordering::SeqCst)), [1, 0]);
    // The one that broke off is not asked first any more.
    etcd.txn(&change).unwrap();
    assert_eq!([&broken, &worked].map(|count| count.load(Ordering::SeqCst)), [1, 1]);

    let etcd = client(settings(&[breaks, works]));
    assert_eq!(etcd.range(&Keys::one("a"), 1).unwrap().revision, 7);
    let etcd = client(settings(&[breaks, works]));
    etcd.txn(&Txn { may_repeat: true, ..Txn::default() }).unwrap();
    assert_eq!([&broken, &worked].map(|count| count.load(Ordering::SeqCst)), [3, 3]);
}

#[test]
fn a_silent_server_costs_a_part_of_the_time_and_the_one_that_answered_is_asked_first_afterwards() {
    let silent = serve(|stream| drop((std::thread::sleep(SOON), stream)));
    let (works, worked) = counts(|_| Some(http("200 OK", NONE)));
    let etcd = client(settings(&[silent, works]));
    for number in 1..4 {
        assert_eq!(etcd.range(&Keys::one("a"), 1).unwrap().revision, 7);
        assert_eq!(worked.load(Ordering::SeqCst), number);
    }
}

/// A server may close a connection that waits at any time: what was not sent yet is sent on a new one.
#[test]
fn a_connection_that_the_server_has_closed_meanwhile_costs_nothing() {
    let (tell, closed) = std::sync::mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    let address = serve(move |mut stream| {
        request(&mut stream);
        let _gone = stream.write_all(http("200 OK", NONE).as_bytes());
        drop(stream);
        tell.lock().unwrap().send(()).unwrap();
    });
    let etcd = client(settings(&[address]));
    for _ in 0..3 {
        etcd.txn(&Txn::default()).unwrap();
        closed.recv_timeout(SOON).unwrap();
        etcd.range(&Keys::one("a"), 1).unwrap();
        closed.recv_timeout(SOON).unwrap();
    }
}

#[test]
fn a_forgotten_token_is_asked_for_again_once() {
    let (logins, ranges) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counters = (Arc::clone(&logins), Arc::clone(&ranges));
    let (address, _) = counts(move |path| {
        if path == "/v3/auth/authenticate" {
            counters.0.fetch_add(1, Ordering::SeqCst);
            return Some(http("200 OK", r#"{"header":{},"token":"abc.1"}"#));
        }
        // The third and all further ones are refused.
        let number = counters.1.fetch_add(1, Ordering::SeqCst);
        let refusal = r#"{"code":16,"message":"etcdserver: invalid auth token"}"#;
        Some(if number < 2 { http("200 OK", NONE) } else { http("401 Unauthorized", refusal) })
    });
    let user = Some(User { name: "ft".to_owned(), password: "p".to_owned() });
    let etcd = client(Settings { user, ..settings(&[address]) });
    let count = || [&logins, &ranges].map(|count| count.load(Ordering::SeqCst));
    for _ in 0..2 {
        etcd.range(&Keys::one("a"), 1).unwrap();
    }
    assert_eq!(count(), [1, 2]);
    let error = etcd.range(&Keys::one("a"), 1).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Token(_)), "{error}");
    assert_eq!(count(), [2, 4]);
}

/// A CA, and what it signs.
struct Ca(rcgen::CertifiedIssuer<'static, rcgen::KeyPair>);

impl Ca {
    fn new(name: &str) -> Self {
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        Self(rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> Option<Pem> {
        Some(Pem { name: "ca.pem".to_owned(), text: self.0.pem().into_bytes() })
    }

    /// A server of TLS with a certificate for this name, valid in these years, which answers as etcd.
    fn serves(&self, name: &str, years: (i32, i32)) -> SocketAddr {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(years.0, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.1, 1, 1);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap();
        let config = Arc::new(config);
        serve(move |stream| {
            let mut stream = StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), stream);
            while request(&mut stream).is_some() && stream.write_all(http("200 OK", NONE).as_bytes()).is_ok() {}
        })
    }
}

fn secure(address: SocketAddr, ca: Option<Pem>) -> Settings {
    let endpoint = format!("https://{address}").parse().unwrap();
    Settings { ca, limit: SOON, ..Settings::new(vec![endpoint]) }
}

const VALID: (i32, i32) = (2020, 2999);

#[test]
fn a_server_with_a_certificate_of_the_ca_for_its_address_is_asked() {
    let ca = Ca::new("ours");
    let address = ca.serves("127.0.0.1", VALID);
    assert_eq!(client(secure(address, ca.pem())).range(&Keys::one("a"), 1).unwrap().revision, 7);
}

#[test]
fn a_certificate_that_is_not_good_is_refused_with_the_reason_and_the_remedy() {
    let (ca, other) = (Ca::new("ours"), Ca::new("ours"));
    // As Go's server does with what is no HTTP.
    let refuses = |mut stream: TcpStream| {
        let _gone = (stream.write_all(http("400 Bad Request", "").as_bytes()), stream.read_to_end(&mut Vec::new()));
    };
    for (address, reason, remedy) in [
        (ca.serves("127.0.0.1", (2020, 2021)), "has expired", "renew it"),
        (ca.serves("127.0.0.1", (2998, 2999)), "not valid yet", "clock"),
        (ca.serves("etcd1.example", VALID), "for another name", "write a name that it has"),
        (other.serves("127.0.0.1", VALID), "not signed by the CA that was named", "name the CA that signed it"),
        (serve(refuses), "does not speak TLS", "http://"),
        (serve(drop), "hangs up when TLS begins", "does etcd listen with TLS"),
    ] {
        let error = error(secure(address, ca.pem()));
        let text = error.to_string();
        assert!(text.contains(reason) && text.contains(remedy) && text.starts_with(&format!("{address}: ")), "{text}");
        assert!(matches!(error.kind, ErrorKind::Tls(_) | ErrorKind::Connect(_)), "{error:?}");
    }
}

#[test]
fn files_that_are_no_certificates_are_refused_before_anything_is_sent() {
    let address = "127.0.0.1:1".parse().unwrap();
    let pem = |text: &str| Some(Pem { name: "ca.pem".to_owned(), text: text.as_bytes().to_vec() });
    let odd = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for (settings, words) in [
        (secure(address, None), "name the file of the CA"),
        (secure(address, pem("hello")), "ca.pem: no certificate is in it"),
        (secure(address, pem("-----BEGIN CERTIFICATE-----\n*")), "ca.pem: no certificates in PEM format"),
        (secure(address, pem(odd)), "ca.pem: a certificate that is no CA's"),
        (Settings { ca: Ca::new("a").pem(), ..settings(&[address]) }, "write https://"),
        (Settings::new(Vec::new()), "name 1 to 16 servers"),
    ] {
        let error = Client::new(settings, no_names).err().unwrap();
        assert!(matches!(&error.kind, ErrorKind::Settings(why) if why.contains(words)), "{error}");
    }
}
