//! The changes of the API that open something, and what they open: read from a request's bytes by a process that is not the daemon
//! (docs/adr/0027). What is no such change, or is malformed, the daemon answers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use nicety_daemon::named;
use nicety_host::{Host, List};
use serde_json::Value;

use super::REQUEST_MAX;
use super::api::HostText;
use super::body::SMALL_MAX;

/// Longest head of a request that is read, in bytes. The daemon answers a longer one.
pub const HEAD_MAX: usize = 8 << 10;
/// Most fields of a head.
const FIELDS_MAX: usize = 64;
/// Methods of changes that open something.
const METHODS: [&str; 3] = ["POST ", "PATCH ", "PUT "];

/// A change that may open something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An entry of a list, by its name if the path has it.
    Entry(List, Option<String>),
    /// A whole host file.
    Host,
}

/// The request that a connection begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Its head is not complete.
    Head,
    /// It opens nothing, or is no HTTP.
    Other,
    /// A change.
    Change {
        /// The change that it asks for.
        change: Change,
        /// Bytes of its head.
        head: usize,
        /// Bytes of its body; `None`: the body is chunked.
        length: Option<usize>,
        /// The client waits for `100 Continue` before it sends the body (RFC 9110 section 10.1.1).
        waits: bool,
    },
}

impl Change {
    /// Longest body in bytes.
    pub fn body_most(&self) -> usize {
        match self {
            Self::Entry(..) => SMALL_MAX,
            Self::Host => REQUEST_MAX,
        }
    }

    /// By method and path, as in `routes.rs`.
    fn of(method: &str, target: &str) -> Option<Self> {
        let path = target.split('?').next().unwrap_or_default();
        let words: Vec<&str> = path.strip_prefix("/v1/")?.split('/').collect();
        let list = |word: &str| match word {
            "ports" => Some(List::Ports),
            "uplinks" => Some(List::Uplinks),
            _ => None,
        };
        match (method, &words[..]) {
            ("POST", [word]) => Some(Self::Entry(list(word)?, None)),
            ("PATCH", [word, name]) => Some(Self::Entry(list(word)?, Some(decoded(name)?))),
            ("PUT", ["host"]) => Some(Self::Host),
            _ => None,
        }
    }
}

/// A path's segment, without its percent signs (RFC 3986 section 2.1).
fn decoded(segment: &str) -> Option<String> {
    let mut bytes = segment.bytes();
    let mut text = Vec::new();
    while let Some(byte) = bytes.next() {
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        text.push(if byte == b'%' { (digit()? << 4 | digit()?) as u8 } else { byte });
    }
    String::from_utf8(text).ok()
}

/// The request that these bytes begin.
pub fn change_in(read: &[u8]) -> Begun {
    let mut may_be = METHODS.iter().filter(|method| {
        let both = method.len().min(read.len());
        method.as_bytes()[..both] == read[..both]
    });
    if may_be.next().is_none() {
        return Begun::Other;
    }
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    let head = match request.parse(read) {
        Ok(httparse::Status::Complete(head)) => head,
        Ok(httparse::Status::Partial) if read.len() < HEAD_MAX => return Begun::Head,
        _ => return Begun::Other,
    };
    let Some(change) = Change::of(request.method.unwrap_or_default(), request.path.unwrap_or_default()) else {
        return Begun::Other;
    };
    let field = |name: &str| {
        let found = request.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
        found.and_then(|field| std::str::from_utf8(field.value).ok()).map(str::trim)
    };
    let is_chunked = field("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"));
    let length = if is_chunked { None } else { Some(field("content-length").map_or(Ok(0), str::parse)) };
    let Ok(length) = length.transpose() else { return Begun::Other };
    let waits = field("expect").is_some_and(|wanted| wanted.eq_ignore_ascii_case("100-continue"));
    Begun::Change { change, head, length, waits }
}

/// The body in these bytes behind the head. `None`: it is not complete, or not well formed.
pub fn body(read: &[u8], length: Option<usize>) -> Option<Vec<u8>> {
    if let Some(length) = length {
        return read.get(..length).map(<[u8]>::to_vec);
    }
    let (mut left, mut body) = (read, Vec::new());
    loop {
        let Ok(httparse::Status::Complete((head, size))) = httparse::parse_chunk_size(left) else { return None };
        let size = usize::try_from(size).ok()?;
        left = left.get(head..)?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(left.get(..size)?);
        left = left.get(size..)?.strip_prefix(b"\r\n")?;
    }
}

/// The lines that a change opens, as the user wrote them. Empty if the daemon will refuse the change. `own`: the daemon's host file.
pub fn opened_by(change: &Change, body: &[u8], own: &Path) -> BTreeSet<String> {
    let lines = match change {
        Change::Entry(list, name) => {
            let values: Option<BTreeMap<String, Value>> = serde_json::from_slice(body).ok();
            values.map(|values| {
                let name = name.as_deref().or_else(|| values.get("name").and_then(Value::as_str));
                opened_by_entry(*list, name.unwrap_or_default(), &values)
            })
        }
        Change::Host => serde_json::from_slice::<HostText>(body).ok().and_then(|HostText { text, path, .. }| {
            let path = path.as_deref().unwrap_or(own);
            let host = path.is_absolute().then(|| Host::parse(&text, path).ok()).flatten()?;
            Some(named::all(&host))
        }),
    };
    lines.unwrap_or_default()
}

/// The lines that an entry of a list opens, by these values.
pub fn opened_by_entry(list: List, name: &str, values: &BTreeMap<String, Value>) -> BTreeSet<String> {
    let is_tap = values.get("kind").is_some_and(|kind| kind == "tap") || values.contains_key("queues");
    let tap = (list == List::Uplinks && is_tap).then(|| named::tap(name));
    let path = |key: &str| values.get(key).and_then(Value::as_str).map(Path::new);
    let files = path("socket").map(named::socket).into_iter().chain(path("file").map(named::capture));
    tap.into_iter().chain(files).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(text: &str) -> Begun {
        change_in(text.as_bytes())
    }

    #[test]
    fn a_request_is_a_change_when_its_head_is_there_and_anything_else_is_the_daemons_at_once() {
        for other in ["GET /v1/ports HTTP/1.1\r\n", "G", "\x00\x01", "DELETE /v1/ports/vm1 HTTP/1.1\r\n\r\n"] {
            assert_eq!(begun(other), Begun::Other, "{other:?}");
        }
        for part in ["", "P", "PO", "POST ", "POST /v1/ports HTTP/1.1\r\nhost: a\r\n", "PATCH /v1/upl"] {
            assert_eq!(begun(part), Begun::Head, "{part:?}");
        }
        let long = format!("POST /v1/ports HTTP/1.1\r\na: {}", "b".repeat(HEAD_MAX));
        assert_eq!(begun(&long), Begun::Other, "the daemon says that it is too long");
        for (text, change, length, waits) in [
            ("POST /v1/ports HTTP/1.1\r\nContent-Length: 5\r\n\r\n", Change::Entry(List::Ports, None), Some(5), false),
            (
                "PATCH /v1/uplinks/tap%39?cut_off=true HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n",
                Change::Entry(List::Uplinks, Some("tap9".into())),
                None,
                true,
            ),
            ("PUT /v1/host HTTP/1.1\r\n\r\n", Change::Host, Some(0), false),
        ] {
            assert_eq!(begun(text), Begun::Change { change, head: text.len(), length, waits }, "{text}");
        }
        for text in [
            "POST /v1/trace",
            "POST /v1/host/plan",
            "POST /v1/ports/vm1/restore",
            "PUT /v1/ports/vm1",
            "POST /v1/groups",
        ] {
            assert_eq!(begun(&format!("{text} HTTP/1.1\r\n\r\n")), Begun::Other, "{text}");
        }
        assert_eq!(begun("POST /v1/ports HTTP/1.1\r\ncontent-length: -1\r\n\r\n"), Begun::Other);
    }

    #[test]
    fn a_body_is_read_by_its_length_or_its_chunks_when_it_is_whole() {
        assert_eq!(body(b"{}POST", Some(2)), Some(b"{}".to_vec()));
        assert_eq!(body(b"{", Some(2)), None);
        // RFC 9112 section 7.1, with an extension.
        let chunks = b"4;a=b\r\nWiki\r\n5\r\npedia\r\n0\r\n\r\n";
        assert_eq!(body(chunks, None), Some(b"Wikipedia".to_vec()));
        for end in 0..chunks.len() - 4 {
            assert_eq!(body(&chunks[..end], None), None, "{end}");
        }
        assert_eq!(body(b"ffffffffffffffff\r\n", None), None);
        assert_eq!(body(b"2\r\nabcd", None), None);
    }

    #[test]
    fn a_change_names_what_it_opens_and_nothing_else() {
        let of = |change: &Change, text: &str| {
            opened_by(change, text.as_bytes(), Path::new("/etc/nicety/own.toml")).into_iter().collect::<Vec<_>>()
        };
        let port = Change::Entry(List::Ports, None);
        assert_eq!(of(&port, r#"{"name":"vm3","adapter":"e1000","socket":"vm3.sock"}"#), ["socket vm3.sock"]);
        assert!(of(&port, r#"{"name":"vm3","vlan":7,"socket":null}"#).is_empty());
        assert!(of(&port, "[").is_empty());
        let uplink = Change::Entry(List::Uplinks, None);
        assert_eq!(of(&uplink, r#"{"kind":"tap","name":"tap9"}"#), ["tap tap9"]);
        assert_eq!(of(&uplink, r#"{"kind":"capture","name":"c","file":"/tmp/c.pcapng"}"#), ["capture /tmp/c.pcapng"]);
        assert_eq!(of(&Change::Entry(List::Uplinks, Some("tap9".into())), r#"{"queues":2}"#), ["tap tap9"]);
        let file = "[[uplink]]\nkind = \"pair\"\nname = \"up\"\nsocket = \"up.sock\"\n";
        let text = serde_json::json!({"text": file, "path": "/etc/nicety/host.toml"}).to_string();
        assert_eq!(of(&Change::Host, &text), ["socket /etc/nicety/up.sock"]);
        let without = serde_json::json!({"text": file}).to_string();
        assert_eq!(of(&Change::Host, &without), ["socket /etc/nicety/up.sock"]);
        let relative = serde_json::json!({"text": file, "path": "host.toml"}).to_string();
        assert!(of(&Change::Host, &relative).is_empty());
    }
}
