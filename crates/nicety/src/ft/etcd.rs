//! The lease in etcd, by its JSON gateway (etcd 3.4, "Why gRPC gateway"): a key whose value is the text of a lease's file.
//!
//! A request reads the key, applies the lease's own rules, and writes the result in a transaction that compares the key's revision: of two
//! hosts that ask at once, one finds the key changed and begins again. etcd carries out a transaction after a majority has it, so there is
//! one order of all requests. No clock is shared, and etcd's own leases are not needed: a lease has expired for a host that has seen the
//! value unchanged for the lease's duration, by its own clock, as with the file.
//!
//! With a user and a password it asks for a token (etcd 3.4, "Role-based access control"), and for another one when etcd knows that one no more.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nicety_daemon::tolerance::names::{ADDRESSES_MAX, Addresses, Names};
use nicety_host::PeerAddress;
use nicety_sealed::Place;
use nicety_tolerance::{Answer, Lease, NodeId, Request};
use serde_json::{Value, json};

use super::lease_file::{parse, print};
use super::third_party::ThirdParty;

/// Times that a request begins again because another host's came between.
const TRIES: usize = 5;
/// Longest answer, in bytes.
const ANSWER_MAX: usize = 64 << 10;

/// Time limit for a token: etcd makes a password's check slow on purpose.
const TOKEN: Duration = Duration::from_secs(5);

/// A user of etcd.
#[derive(Clone)]
pub struct Account {
    /// Its name.
    pub user: String,
    /// Its password.
    pub password: String,
}

/// A server of etcd, or the servers of a cluster that one name has. Whichever is asked, etcd's answer is that of a majority.
pub struct Server {
    place: PeerAddress,
    addresses: Addresses,
    names: Names,
    /// The address that answered last.
    address: Option<SocketAddr>,
}

/// Time left until then, as a time limit of a socket, which cannot be 0.
fn left_until(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

impl Server {
    /// The server at this place, whose name is looked up by `names`.
    pub fn new(place: &PeerAddress, names: Names) -> Self {
        Self { place: place.clone(), addresses: Addresses::of(place), names, address: None }
    }

    /// Connects to the address that answered last, or to the next one that can be reached until `end`.
    fn connect(&mut self, end: Instant) -> io::Result<(TcpStream, SocketAddr)> {
        let (mut first, mut why) = (None, None);
        for _ in 0..ADDRESSES_MAX {
            let Ok(left) = left_until(end) else { break };
            let next = || match self.addresses.next_within(&self.names, Instant::now(), left) {
                Ok(Some(Place::Tcp(address))) => Ok(Some(address)),
                Ok(Some(Place::Unix(_)) | None) => Ok(None),
                Err(why) => Err(io::Error::other(why)),
            };
            let known = self.address.take();
            let address = known.map_or_else(next, |address| Ok(Some(address)))?;
            let Some(address) = address.filter(|address| first != Some(*address)) else { break };
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => return Ok((stream, address)),
                Err(error) => {
                    why = Some(io::Error::new(
                        error.kind(),
                        format!("{}: {error}", self.addresses.at(&Place::Tcp(address))),
                    ))
                }
            }
            // The one that answered last is tried once more in its turn.
            first = first.or(Some(address).filter(|_| known.is_none()));
        }
        Err(why.unwrap_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "its name is still being looked up")))
    }

    /// The answer to a request over a connection of its own, within `limit` from the first look-up to the last byte.
    fn answer(&mut self, request: &str, limit: Duration) -> io::Result<String> {
        let end = Instant::now() + limit;
        let (mut stream, address) = self.connect(end)?;
        let answer = exchange(&mut stream, request, end).map_err(|error| {
            let late = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
            let why = if late { format!("no answer within {limit:?}") } else { error.to_string() };
            io::Error::new(error.kind(), format!("{}: {why}", self.addresses.at(&Place::Tcp(address))))
        })?;
        self.address = Some(address);
        Ok(answer)
    }
}

/// Writes a request, and reads until the server hangs up.
fn exchange(stream: &mut TcpStream, request: &str, end: Instant) -> io::Result<String> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(left_until(end)?))?;
    stream.write_all(request.as_bytes())?;
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        // A server that sends a byte now and then has no more time than another.
        stream.set_read_timeout(Some(left_until(end)?))?;
        match stream.read(&mut piece) {
            Ok(0) => return String::from_utf8(answer).map_err(|_| odd("no text")),
            Ok(read) => answer.extend_from_slice(piece.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if answer.len() > ANSWER_MAX {
            return Err(odd("without end"));
        }
    }
}

fn odd(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("etcd answers {why}"))
}

/// See the module's page.
pub struct Etcd {
    server: Server,
    account: Option<Account>,
    /// The token of this user, once it was asked for.
    token: Option<String>,
    key: String,
    term: Duration,
    who: NodeId,
    /// The last change that this host has seen, and when.
    seen: Option<(Lease, Instant)>,
}

impl Etcd {
    /// The lease at this key of this server, for this host.
    pub fn new(server: Server, account: Option<Account>, key: &str, term: Duration, who: NodeId) -> Self {
        Self { server, account, token: None, key: base64(key.as_bytes()), term, who, seen: None }
    }

    fn notice(&mut self, lease: Lease) {
        if self.seen.is_none_or(|(seen, _)| seen != lease) {
            self.seen = Some((lease, Instant::now()));
        }
    }

    /// The lease, and the key's revision: 0 if there is none.
    fn read(&mut self) -> io::Result<(Lease, u64)> {
        let answer = self.request("/v3/kv/range", &json!({ "key": self.key }))?;
        let Some(found) = answer.pointer("/kvs/0") else { return Ok((Lease::default(), 0)) };
        let odd = || io::Error::new(io::ErrorKind::InvalidData, "the key has no lease");
        let revision = found["mod_revision"].as_str().and_then(|text| text.parse().ok()).ok_or_else(odd)?;
        let text = found["value"].as_str().and_then(bytes).and_then(|bytes| String::from_utf8(bytes).ok());
        Ok((text.as_deref().and_then(parse).ok_or_else(odd)?, revision))
    }

    /// Writes the lease if the key still has this revision.
    fn write(&mut self, lease: &Lease, revision: u64) -> io::Result<bool> {
        let compare =
            json!([{ "key": self.key, "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string() }]);
        let put = json!([{ "requestPut": { "key": self.key, "value": base64(print(lease).as_bytes()) } }]);
        let answer = self.request("/v3/kv/txn", &json!({ "compare": compare, "success": put }))?;
        Ok(answer["succeeded"] == true)
    }

    /// A request, as the user if there is one. Its time limit is a part of the lease.
    fn request(&mut self, path: &str, body: &Value) -> io::Result<Value> {
        let limit = self.term / 3;
        let Some(Account { user, password }) = &self.account else { return self.post(path, body, limit) };
        let credentials = json!({ "name": user, "password": password });
        let is_new = self.token.is_none();
        if is_new {
            self.log_in(&credentials)?;
        }
        match self.post(path, body, limit) {
            // etcd was started again, or nobody used the token for minutes.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !is_new => {
                self.log_in(&credentials)?;
                self.post(path, body, limit)
            }
            done => done,
        }
    }

    fn log_in(&mut self, credentials: &Value) -> io::Result<()> {
        self.token = None;
        let answer = self.post("/v3/auth/authenticate", credentials, TOKEN)?;
        let token = answer["token"].as_str().filter(|token| !token.contains(char::is_control));
        self.token = Some(token.ok_or_else(|| io::Error::other("etcd answers no token"))?.to_owned());
        Ok(())
    }

    fn post(&mut self, path: &str, body: &Value, limit: Duration) -> io::Result<Value> {
        let body = body.to_string();
        // A server of HTTP/1.1 answers 1.0 with one piece, and hangs up.
        let token = self.token.as_ref().map(|token| format!("Authorization: {token}\r\n")).unwrap_or_default();
        let head = format!(
            "POST {path} HTTP/1.0\r\nHost: {}\r\n{token}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.server.place,
            body.len()
        );
        let answer = self.server.answer(&format!("{head}{body}"), limit)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| odd("half"))?;
        let status = head.lines().next().unwrap_or_default();
        match status.split(' ').nth(1) {
            Some("200") => {}
            code => {
                // Another server of the cluster may do better, but not with this token.
                let is_refusal = code == Some("401");
                if !is_refusal {
                    self.server.address = None;
                }
                let kind = if is_refusal { io::ErrorKind::PermissionDenied } else { io::ErrorKind::InvalidData };
                return Err(io::Error::new(kind, format!("etcd answers `{status}`: {}", body.trim())));
            }
        }
        serde_json::from_str(body).map_err(|_| odd("no JSON"))
    }
}

impl ThirdParty for Etcd {
    fn look(&mut self) {
        // One that does not answer says nothing new.
        if let Ok((lease, _)) = self.read() {
            self.notice(lease);
        }
    }

    fn ask(&mut self, request: Request) -> io::Result<Answer> {
        for _ in 0..TRIES {
            let (mut lease, revision) = self.read()?;
            self.notice(lease);
            let expired = self.seen.is_some_and(|(_, since)| since.elapsed() >= self.term);
            let answer = lease.ask(self.who, request, expired);
            if !answer.granted || self.write(&lease, revision)? {
                self.notice(lease);
                return Ok(answer);
            }
        }
        Err(io::Error::other("etcd: another host writes the lease all the time"))
    }
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 (RFC 4648, section 4), as JSON has bytes.
fn base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for piece in bytes.chunks(3) {
        let word =
            piece.iter().enumerate().fold(0u32, |word, (index, byte)| word | u32::from(*byte) << (16 - 8 * index));
        for index in 0..4 {
            let digit = (word >> (18 - 6 * index) & 63) as usize;
            let is_there = index <= piece.len();
            text.push(if is_there { DIGITS.get(digit).copied().map_or('=', char::from) } else { '=' });
        }
    }
    text
}

/// The bytes of base64; `None` if it is none.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').bytes().map(|digit| DIGITS.iter().position(|known| *known == digit));
    let digits: Vec<u32> = digits.map(|digit| digit.map(|digit| digit as u32)).collect::<Option<_>>()?;
    let mut out = Vec::new();
    for piece in digits.chunks(4) {
        let word = piece.iter().enumerate().fold(0u32, |word, (index, digit)| word | digit << (18 - 6 * index));
        out.extend(word.to_be_bytes().into_iter().skip(1).take(piece.len().saturating_sub(1)));
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4648, section 10.
    #[test]
    fn base64_is_that_of_the_rfc() {
        let known =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("foobar", "Zm9vYmFy")];
        for (plain, text) in known {
            assert_eq!(base64(plain.as_bytes()), text);
            assert_eq!(bytes(text).as_deref(), Some(plain.as_bytes()));
        }
        assert_eq!(bytes("Zm9*"), None);
    }
}
