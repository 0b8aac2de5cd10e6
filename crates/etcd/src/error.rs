//! Errors of etcd, as sentences for a person.

use std::time::Duration;

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{kind}", at.as_ref().map(|at| format!("{at}: ")).unwrap_or_default())]
pub struct Error {
    /// The kind of the error.
    pub kind: ErrorKind,
    /// The server: its endpoint, and the address if that has a name.
    pub at: Option<String>,
    /// Whether the request has left, and no answer says what became of it: etcd may have made the change, or may make it later.
    pub unknown_outcome: bool,
}

/// Kinds of errors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    /// The settings cannot be used. Nothing was sent.
    #[error("{0}")]
    Settings(String),
    /// The name of a server has no address.
    #[error("no address was found for this name ({0}): see to DNS or /etc/hosts, or write the address instead")]
    Name(String),
    /// A name server has not answered yet.
    #[error("its name is still being looked up: see to DNS, or write the address instead")]
    LookingUp,
    /// No connection.
    #[error("{0}: is etcd running there, and does it listen at this address (--listen-client-urls)?")]
    Connect(String),
    /// TLS refuses: the reason and the remedy.
    #[error("{0}")]
    Tls(String),
    /// etcd wants a user, or does not know this one.
    #[error("{0}")]
    Login(String),
    /// The server does not know the token, which it may have forgotten. The client logs in again by itself.
    #[error("etcd forgot that we had logged in ({0})")]
    Token(String),
    /// The user may not do this.
    #[error(
        "{user} may not {what}: `etcdctl role grant-permission ROLE readwrite KEY` for a role of that user, or ask as another one"
    )]
    Denied {
        /// `the user ft`.
        user: String,
        /// `read or write the key a`.
        what: String,
    },
    /// Only an administrator of etcd may do this.
    #[error("{user} may not {what}: only a user with etcd's role `root` may, so ask as one")]
    NotRoot {
        /// `the user ft`.
        user: String,
        /// `make the role a`.
        what: String,
    },
    /// This server sees no majority of its cluster.
    #[error("etcd has no majority ({0}): more than half of its members must run and reach each other")]
    NoMajority(String),
    /// The lease has expired, was revoked, or never was.
    #[error("etcd has no lease {id:x}: it has expired or was revoked")]
    LeaseGone {
        /// Its identifier.
        id: i64,
    },
    /// The revision that was asked for is compacted away.
    #[error("this revision of the keys is compacted: read the keys anew")]
    Compacted,
    /// An answer that is too long.
    #[error("an answer of more than {max} bytes: ask for fewer keys at a time")]
    TooLarge {
        /// The limit.
        max: usize,
    },
    /// The server is not etcd.
    #[error("this is not etcd's JSON gateway: {0}")]
    NotEtcd(String),
    /// The connection ended before the answer did.
    #[error("the connection ended before the whole answer was there ({0})")]
    Broken(String),
    /// The time limit.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The time limit of a call that had to log in first. The call was not sent.
    #[error("etcd has not checked the user's password within {0:?}")]
    LoggingIn(Duration),
    /// etcd refuses for another reason, in its words.
    #[error("etcd refuses: {0}")]
    Refused(String),
    /// Several servers were tried.
    #[error("none of etcd's servers answered as it should: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    All(Vec<Error>),
}

impl Error {
    pub(crate) fn new(kind: ErrorKind) -> Self {
        Self { kind, at: None, unknown_outcome: false }
    }

    pub(crate) fn at(mut self, at: &str) -> Self {
        self.at.get_or_insert_with(|| at.to_owned());
        self
    }

    /// Whether another server of the cluster may do better.
    pub(crate) fn is_of_one_server(&self) -> bool {
        use ErrorKind::*;
        matches!(
            self.kind,
            Name(_)
                | LookingUp
                | Connect(_)
                | Tls(_)
                | NoMajority(_)
                | NotEtcd(_)
                | Broken(_)
                | Late(_)
                | TooLarge { .. }
        )
    }

    /// The errors of all servers that were tried, as one.
    pub(crate) fn all(errors: Vec<Self>) -> Self {
        let mut known = Vec::new();
        for error in errors {
            if !known.contains(&error) {
                known.push(error);
            }
        }
        let mut errors: Vec<Self> = known;
        let unknown_outcome = errors.iter().any(|error| error.unknown_outcome);
        match errors.len() {
            0 => Self::new(ErrorKind::LookingUp),
            1 => errors.remove(0),
            _ => Self { kind: ErrorKind::All(errors), at: None, unknown_outcome },
        }
    }

    /// Whether this, or one of several servers' errors, is of this kind.
    pub fn any(&self, is: impl Fn(&ErrorKind) -> bool + Copy) -> bool {
        match &self.kind {
            ErrorKind::All(errors) => errors.iter().any(|error| error.any(is)),
            kind => is(kind),
        }
    }
}

/// The beginning of a stranger's text, for one line of a log.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    const MOST: usize = 120;
    let text = String::from_utf8_lossy(bytes.get(..4 * MOST).unwrap_or(bytes));
    let text = text.trim();
    let mut line = String::new();
    for char in text.chars().take(MOST) {
        if char.is_control() { line.extend(char.escape_debug()) } else { line.push(char) }
    }
    if text.chars().count() > MOST {
        line.push('…');
    }
    line
}
