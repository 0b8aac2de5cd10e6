//! Where etcd is, and as whom it is asked.

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

/// Most bytes of a file of certificates or of a key.
const PEM_MAX: u64 = 1 << 20;
/// Most endpoints of a cluster. etcd recommends at most 7 members (etcd's FAQ, "What is maximum cluster size?").
pub const ENDPOINTS_MAX: usize = 16;
/// Usual time limit of a call.
pub const LIMIT: Duration = Duration::from_secs(5);
/// Usual limit of an answer, in bytes.
pub const ANSWER_MAX: usize = 8 << 20;
/// Usual time after which a silent watch asks whether etcd is still there.
pub const SILENCE: Duration = Duration::from_secs(10);

/// How an endpoint is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Plain TCP. Who reads it reads passwords, too.
    Http,
    /// TLS 1.3.
    Https,
}

/// A server of etcd, or the servers of a cluster that one name has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// With or without TLS.
    pub scheme: Scheme,
    /// A name, or an IP address without brackets.
    pub host: String,
    /// The port, not 0. etcd's own is 2379.
    pub port: u16,
}

/// A text that is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no endpoint of etcd: write https://HOST:PORT or http://HOST:PORT, as in https://etcd1:2379")]
pub struct NoEndpoint(String);

impl FromStr for Endpoint {
    type Err = NoEndpoint;

    fn from_str(text: &str) -> Result<Self, NoEndpoint> {
        let wrong = || NoEndpoint(text.chars().take(200).flat_map(char::escape_debug).collect());
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let scheme = match scheme {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err(wrong()),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?;
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match inner {
            Some(inner) => inner.parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?.to_string(),
            None => host.to_owned(),
        };
        let is_named = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        if host.is_empty() || host.len() > 255 || !(is_named || inner.is_some()) {
            return Err(wrong());
        }
        Ok(Self { scheme, host, port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
        };
        write!(f, "{scheme}://{}", self.authority())
    }
}

impl Endpoint {
    /// Host and port, as a `Host` header has them.
    pub(crate) fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// Certificates or a key as text (RFC 7468), and where they come from.
#[derive(Clone)]
pub struct Pem {
    /// For a person: the file.
    pub name: String,
    /// The text.
    pub text: Vec<u8>,
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may be a private key.
        write!(f, "Pem({:?}, {} bytes)", self.name, self.text.len())
    }
}

impl Pem {
    /// Reads a regular file of at most 1 MiB.
    ///
    /// # Errors
    /// For a person, with the file's name.
    pub fn read(path: &Path) -> Result<Self, String> {
        let name = path.display().to_string();
        let wrong = |why: &dyn fmt::Display| format!("{name}: {why}");
        // A pipe would wait for its writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| wrong(&std::io::Error::from(errno)))?;
        let file = std::fs::File::from(file);
        let found = file.metadata().map_err(|error| wrong(&error))?;
        if !found.is_file() {
            return Err(wrong(&"this is no regular file: name a file in PEM format"));
        }
        let mut text = Vec::new();
        file.take(PEM_MAX + 1).read_to_end(&mut text).map_err(|error| wrong(&error))?;
        if text.len() as u64 > PEM_MAX {
            return Err(wrong(&format_args!("more than {PEM_MAX} bytes: name a file of certificates in PEM format")));
        }
        Ok(Self { name, text })
    }
}

/// What this client shows when etcd asks for a certificate (`--client-cert-auth`).
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate, and those between it and the CA.
    pub certificates: Pem,
    /// Its private key: PKCS #8, PKCS #1 or SEC 1.
    pub key: Pem,
}

/// A user of etcd ("Role-based access control").
#[derive(Clone)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its password.
    pub password: String,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "User({:?})", self.name)
    }
}

/// See each field. [`Settings::new`] has the usual limits.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Servers of one cluster, 1 to [`ENDPOINTS_MAX`]. Whichever is asked, the answer is that of a majority.
    pub endpoints: Vec<Endpoint>,
    /// CAs, one of which has signed the server's certificate. `https` needs it: the machine's own CAs are not asked.
    pub ca: Option<Pem>,
    /// A certificate of this client.
    pub identity: Option<Identity>,
    /// As whom to ask.
    pub user: Option<User>,
    /// Time limit of a call with all that it does: looking a name up, logging in, connecting, and asking again.
    pub limit: Duration,
    /// Most bytes of an answer, and of one message of a watch.
    pub answer_max: usize,
    /// A watch that hears nothing for so long opens its stream anew, and so learns whether etcd is still there.
    pub silence: Duration,
}

impl Settings {
    /// Those for these servers: no TLS files, no user, [`LIMIT`], [`ANSWER_MAX`], [`SILENCE`].
    pub fn new(endpoints: Vec<Endpoint>) -> Self {
        let (ca, identity, user) = (None, None, None);
        Self { endpoints, ca, identity, user, limit: LIMIT, answer_max: ANSWER_MAX, silence: SILENCE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_prints_itself_as_it_was_written() {
        for text in ["http://127.0.0.1:2379", "https://etcd1.example:2379", "https://[fd00::2]:1"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_endpoint_is_refused_with_an_example() {
        for text in [
            "",
            "etcd1:2379",
            "ftp://etcd1:1",
            "http://etcd1",
            "http://:1",
            "http://a:0",
            "http://a:65536",
            "http://a b:1",
            "http://[etcd1]:1",
            "http://a\r\nX: y:1",
            "http://a/b:1",
            "http://::1:1",
        ] {
            let error = text.parse::<Endpoint>().expect_err(text).to_string();
            assert!(error.ends_with("as in https://etcd1:2379") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_file_of_certificates_is_regular_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let big = folder.path().join("big");
        std::fs::File::create(&big).unwrap().set_len(PEM_MAX + 1).unwrap();
        assert!(Pem::read(&big).unwrap_err().contains("more than 1048576 bytes"));
        assert!(Pem::read(folder.path()).unwrap_err().contains("no regular file"));
        assert!(Pem::read(Path::new("/dev/zero")).unwrap_err().contains("no regular file"));
        assert!(Pem::read(&folder.path().join("none")).unwrap_err().contains("No such file"));
    }
}
