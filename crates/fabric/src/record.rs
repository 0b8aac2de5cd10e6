//! Keys of etcd and their values (docs/fabric.md has the table). Whatever others have written is read with bounds: a value that cannot be
//! used is an error sentence, and changes nothing.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use nicety_frame::Mac;
use serde::{Deserialize, Deserializer, Serialize};

/// Longest name, in characters: that of a host file.
pub const NAME_MAX: usize = 64;
/// Longest value of a host or of a claim, in bytes.
pub const VALUE_MAX: usize = 1024;
/// Highest sequence number: what every reader of JSON can hold exactly.
pub const SEQUENCE_MAX: u64 = (1 << 53) - 1;
/// Smallest underlay: what an IPv4 host must be able to take (RFC 791 section 3.1).
const MTU_MIN: u16 = 576;
const VERSION_MAX: usize = 64;

/// A name of a fabric, a host, a group or a port, as a host file allows it: letters, digits, `-`, `_` and `.`. The first is a letter or a
/// digit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// Reads a name.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it.
    pub fn new(text: &str) -> Result<Self, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if text.is_empty() {
            Err("the name is empty".to_owned())
        } else if text.len() > NAME_MAX {
            Err(format!("the name has {} characters, at most {NAME_MAX} are allowed", text.len()))
        } else if let Some(odd) = text.chars().find(|&c| !is_plain(c)) {
            Err(format!("the name {text:?} has a {odd:?}: use letters, digits, '-', '_' and '.'"))
        } else if !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            Err(format!("the name {text:?} does not begin with a letter or digit"))
        } else {
            Ok(Self(text.into()))
        }
    }

    /// The name's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Name {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::new(&text).map_err(serde::de::Error::custom)
    }
}

/// A key of a fabric.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// The configuration.
    Config,
    /// A host.
    Host(Name),
    /// A tunnel address, claimed by a host.
    Tunnel {
        /// The host.
        host: Name,
        /// The address.
        address: IpAddr,
    },
    /// An address of a group, claimed by a host.
    At {
        /// The group.
        group: Name,
        /// The host.
        host: Name,
        /// The address, or [`CARRIED`].
        mac: Mac,
    },
}

/// In place of a guest's address in a claim: an uplink of the host carries the group's VLAN. So the host has the group also without a port
/// in it. The claim has the uplink's name in place of the port's. No guest has this address.
pub const CARRIED: Mac = Mac::ZERO;
/// The same in a key's text.
const UPLINK: &str = "uplink";

/// The keys of one fabric.
#[derive(Clone, Debug)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// Of the fabric with this name.
    pub fn new(fabric: &Name) -> Self {
        Self { prefix: format!("/nicety/fabrics/{fabric}/") }
    }

    /// The prefix of all keys of the fabric.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The key's text.
    pub fn text(&self, key: &Key) -> String {
        let prefix = &self.prefix;
        match key {
            Key::Config => format!("{prefix}config"),
            Key::Host(host) => format!("{prefix}host/{host}"),
            Key::Tunnel { host, address } => format!("{prefix}host/{host}/{address}"),
            Key::At { group, host, mac } if *mac == CARRIED => format!("{prefix}at/{group}/{host}/{UPLINK}"),
            Key::At { group, host, mac } => format!("{prefix}at/{group}/{host}/{mac}"),
        }
    }

    /// The prefix of all hosts, and of their claims of tunnel addresses.
    pub fn hosts(&self) -> String {
        format!("{}host/", self.prefix)
    }

    /// The prefix of a host's claims of tunnel addresses.
    pub fn tunnels(&self, host: &Name) -> String {
        format!("{}host/{host}/", self.prefix)
    }

    /// The prefix of all claims in a group.
    pub fn group(&self, group: &Name) -> String {
        format!("{}at/{group}/", self.prefix)
    }

    /// The prefix of all claims.
    pub fn claims(&self) -> String {
        format!("{}at/", self.prefix)
    }

    /// The prefix of all claims of a host in a group.
    pub fn own(&self, group: &Name, host: &Name) -> String {
        format!("{}at/{group}/{host}/", self.prefix)
    }

    /// The prefix of the identifiers that were given up a moment ago ([`Basis`](crate::Basis)).
    pub fn freed(&self) -> String {
        format!("{}freed/", self.prefix)
    }

    /// Reads a key.
    ///
    /// # Errors
    /// A sentence, which does not repeat the key.
    pub fn parse(&self, key: &[u8]) -> Result<Key, String> {
        let text = std::str::from_utf8(key).map_err(|_| "the key is no text".to_owned())?;
        let rest = text.strip_prefix(&self.prefix).ok_or("the key is not of this fabric")?;
        let parts: Vec<&str> = rest.splitn(5, '/').collect();
        match parts[..] {
            ["config"] => Ok(Key::Config),
            ["host", host] => Ok(Key::Host(Name::new(host)?)),
            ["host", host, text] => {
                let host = Name::new(host)?;
                let address: IpAddr = text.parse().map_err(|_| format!("{text:?} is no IP address"))?;
                if address.to_string() != text {
                    return Err(format!("the address {text:?} must be written {address}"));
                }
                if !may_be_tunnel(address) {
                    return Err(format!("{address} cannot be a tunnel's address"));
                }
                Ok(Key::Tunnel { host, address })
            }
            ["at", group, host, mac] => {
                let (group, host) = (Name::new(group)?, Name::new(host)?);
                if mac == UPLINK {
                    return Ok(Key::At { group, host, mac: CARRIED });
                }
                let address: Mac = mac.parse().map_err(|error| format!("{error}"))?;
                if address.to_string() != mac {
                    return Err(format!("the address {mac:?} must be written {address}"));
                }
                if !address.is_unicast() {
                    return Err(format!("{address} is no address of one station"));
                }
                Ok(Key::At { group, host, mac: address })
            }
            _ => Err("no such key is known: expected are config, host/HOST, host/HOST/ADDRESS and at/GROUP/HOST/MAC"
                .to_owned()),
        }
    }
}

/// A host's value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRecord {
    /// The address of its tunnel.
    pub address: IpAddr,
    /// Its underlay's MTU, in bytes.
    pub mtu: u16,
    /// A random number of this start of the daemon, in hexadecimal digits.
    #[serde(with = "hexadecimal")]
    pub run: u64,
    /// The version of the program.
    pub version: String,
}

/// A claim's value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRecord {
    /// The port behind which the address is. Of [`CARRIED`]: the uplink.
    pub port: Name,
    /// The sequence number. Of several claims the one with the highest number counts.
    pub sequence: u64,
}

impl HostRecord {
    /// Reads a value.
    ///
    /// # Errors
    /// A sentence.
    pub fn parse(value: &[u8]) -> Result<Self, String> {
        let record: Self = json(value, "a host's record")?;
        let Self { address, mtu, run: _, version } = &record;
        if !may_be_tunnel(*address) {
            return Err(format!("{address} cannot be a tunnel's address"));
        }
        if *mtu < MTU_MIN {
            return Err(format!("an MTU of {mtu} is too small: at least {MTU_MIN} bytes"));
        }
        if version.len() > VERSION_MAX || version.chars().any(char::is_control) {
            return Err(format!("its version is no plain text of at most {VERSION_MAX} bytes"));
        }
        Ok(record)
    }

    /// The value's text.
    pub fn text(&self) -> String {
        // A struct of plain fields can always be written.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl ClaimRecord {
    /// Reads a value.
    ///
    /// # Errors
    /// A sentence.
    pub fn parse(value: &[u8]) -> Result<Self, String> {
        let record: Self = json(value, "a claim")?;
        if record.sequence == 0 || record.sequence > SEQUENCE_MAX {
            return Err(format!("the sequence number {} is not between 1 and {SEQUENCE_MAX}", record.sequence));
        }
        Ok(record)
    }

    /// The value's text.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn may_be_tunnel(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast()
}

fn json<'a, T: Deserialize<'a>>(value: &'a [u8], what: &str) -> Result<T, String> {
    if value.len() > VALUE_MAX {
        return Err(format!("the value has {} bytes, {what} has at most {VALUE_MAX}", value.len()));
    }
    serde_json::from_slice(value).map_err(|error| format!("the value is not {what}: {error}"))
}

/// The beginning of a stranger's text, for one line.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    const SHOWN_MAX: usize = 160;
    let text = String::from_utf8_lossy(bytes.get(..SHOWN_MAX).unwrap_or(bytes));
    let mut line: String = text.chars().flat_map(char::escape_debug).collect();
    if bytes.len() > SHOWN_MAX {
        line.push('…');
    }
    line
}

mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{number:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        let is_hexadecimal = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u64::from_str_radix(&text, 16).ok().filter(|_| is_hexadecimal);
        number.ok_or_else(|| D::Error::custom(format!("the run {text:?} is not 16 hexadecimal digits")))
    }
}

#[cfg(test)]
#[path = "record_test.rs"]
mod tests;
