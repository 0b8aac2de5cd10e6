//! The JSON of etcd's gateway (protocol buffers' JSON mapping): 64-bit numbers are texts, bytes are base64 (RFC 4648, section 4), and what has
//! its default value is left out. And etcd's errors, by gRPC's codes (`api/v3/v3rpc/rpctypes/error.go`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};

use crate::error::{Error, ErrorKind, excerpt};

/// Bytes as a text of JSON.
pub(crate) fn text(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub(crate) fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
    STANDARD.decode(text.as_bytes()).map_err(|_| D::Error::custom("bytes that are no base64"))
}

/// A 64-bit number, which is a text, or a number in some versions.
pub(crate) fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Text(String),
        Number(i64),
    }
    match Either::deserialize(deserializer)? {
        Either::Text(text) => text.parse().map_err(|_| D::Error::custom("a number that is none")),
        Either::Number(number) => Ok(number),
    }
}

/// The part with which each answer begins. A server without it is not etcd.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Header {
    #[serde(default, deserialize_with = "number")]
    pub revision: i64,
}

/// An answer as this type.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|error| {
        Error::new(ErrorKind::NotEtcd(format!(
            "it answers `{}`, which is not as etcd's API has it ({error})",
            excerpt(body)
        )))
    })
}

/// The user and the question, for sentences.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    /// `the user ft`, or `nobody in particular`.
    pub user: String,
    /// `read the key a`.
    pub what: String,
    /// The lease that the call is about, or 0.
    pub lease: i64,
    /// Only users with the role `root` may ask for it.
    pub needs_root: bool,
}

#[derive(Deserialize)]
pub(crate) struct Failure {
    #[serde(default, alias = "grpc_code")]
    code: u32,
    #[serde(default)]
    message: String,
    #[serde(default)]
    error: String,
}

/// The error of an answer whose status is not 200.
pub(crate) fn failure(status: u16, body: &[u8], subject: &Subject) -> Error {
    match serde_json::from_slice::<Failure>(body) {
        Ok(failure) if failure.code != 0 => failure.error(subject),
        _ => Error::new(ErrorKind::NotEtcd(format!("it answers HTTP {status} `{}`", excerpt(body)))),
    }
}

impl Failure {
    pub(crate) fn error(self, subject: &Subject) -> Error {
        let words = if self.message.is_empty() { &self.error } else { &self.message };
        let words = excerpt(words.strip_prefix("etcdserver: ").unwrap_or(words).as_bytes());
        Error::new(kind(self.code, words, subject))
    }
}

/// gRPC's codes: 3 invalid argument, 5 not found, 7 permission denied, 8 resource exhausted, 9 failed precondition, 11 out of range,
/// 14 unavailable, 16 unauthenticated.
pub(crate) fn kind(code: u32, words: String, subject: &Subject) -> ErrorKind {
    let has = |part: &str| words.contains(part);
    match code {
        16 => ErrorKind::Token(words),
        3 if has("auth store is old") => ErrorKind::Token(words),
        3 if has("user name is empty") => ErrorKind::Login(format!(
            "etcd asks for a user and a password ({words}): name one that may {}",
            subject.what
        )),
        3 if has("authentication failed") => ErrorKind::Login(format!(
            "etcd does not know {} with this password ({words}): see `etcdctl user list` and the password's file",
            subject.user
        )),
        9 if has("authentication is not enabled") => ErrorKind::Login(format!(
            "etcd asks nobody for a password ({words}): name no user, or turn it on with `etcdctl auth enable`"
        )),
        7 if subject.needs_root => ErrorKind::NotRoot { user: subject.user.clone(), what: subject.what.clone() },
        7 => ErrorKind::Denied { user: subject.user.clone(), what: subject.what.clone() },
        5 if has("lease not found") => ErrorKind::LeaseGone { id: subject.lease },
        11 if has("compacted") => ErrorKind::Compacted,
        8 if has("database space exceeded") => ErrorKind::Refused(format!(
            "{words}: its database is full. Compact and defragment it, then `etcdctl alarm disarm` (etcd's manual, \"Space quota\")"
        )),
        // The gateway is a client of its own server.
        14 if has("connection error") => ErrorKind::NotEtcd(format!(
            "the gateway does not reach etcd behind it ({words}). With --client-cert-auth, etcd's own certificate needs the usage clientAuth"
        )),
        14 => ErrorKind::NoMajority(words),
        _ => ErrorKind::Refused(words),
    }
}
