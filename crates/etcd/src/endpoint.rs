//! A server of etcd, as a person writes it: `https://HOST:PORT` or `http://HOST:PORT`.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// Most bytes of a server's name.
const HOST_MAX: usize = 255;

/// The protocol of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// HTTP in the clear. Everyone who sees the network can read and change it.
    Http,
    /// TLS 1.3.
    Https,
}

/// A server of etcd, or the servers of a cluster that one name has. Prints itself as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// HTTP or HTTPS.
    pub scheme: Scheme,
    /// A name, or an IP address without brackets.
    pub host: String,
    /// The port, not 0. etcd's own is 2379.
    pub port: u16,
}

/// A text that is no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no server of etcd: write https://HOST:PORT or http://HOST:PORT, as in https://etcd1:2379")]
pub struct NoEndpoint;

impl FromStr for Endpoint {
    type Err = NoEndpoint;

    fn from_str(text: &str) -> Result<Self, NoEndpoint> {
        let (scheme, rest) = match text.split_once("://") {
            Some(("https", rest)) => (Scheme::Https, rest),
            Some(("http", rest)) => (Scheme::Http, rest),
            _ => return Err(NoEndpoint),
        };
        let (host, port) = rest.rsplit_once(':').ok_or(NoEndpoint)?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or(NoEndpoint)?;
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(inner) => inner.parse::<Ipv6Addr>().map_err(|_| NoEndpoint)?.to_string(),
            None => {
                let is_named = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
                let is_host = (1..=HOST_MAX).contains(&host.len()) && host.bytes().all(is_named);
                if is_host { host.to_owned() } else { return Err(NoEndpoint) }
            }
        };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_prints_itself_as_it_was_written() {
        for text in ["http://127.0.0.1:2379", "https://etcd1.example:2379", "https://[fd00::2]:1", "http://a_b:65535"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        let parsed = Endpoint { scheme: Scheme::Https, host: "fd00::2".to_owned(), port: 1 };
        assert_eq!("https://[fd00::2]:1".parse(), Ok(parsed));
    }

    #[test]
    fn what_is_no_endpoint_is_refused_with_an_example() {
        let long = format!("http://{}:1", "a".repeat(256));
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
            "http://a:1/",
            "http://::1:1",
            "HTTP://a:1",
            &long,
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(NoEndpoint), "{text}");
        }
        assert!(NoEndpoint.to_string().ends_with("as in https://etcd1:2379"));
    }
}
