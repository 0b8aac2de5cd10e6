//! The form of each key's value in a host file: for the parser, and for the API's schemas (`crates/control/src/schemas.rs`).

use nicety_adapters::REGISTRY;
use nicety_frame::Vni;

use super::quantity::{Bytes, Milliseconds, Seconds};

/// Longest name in bytes.
pub const NAME_MAX: usize = 64;
/// Longest name of a network interface in bytes (IFNAMSIZ of linux/if.h, less its NUL).
pub const INTERFACE_MAX: usize = 15;

/// The form of a value. A value of this form may still be wrong beside other keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A whole number, from the first to the second.
    Number(u32, u32),
    /// `true` or `false`.
    Flag,
    /// One of these words.
    Words(&'static [&'static str]),
    /// The name of an adapter.
    Adapter,
    /// A name of the switch, a port or a port group.
    Name,
    /// A name of an uplink. That of a tap is an interface's.
    UplinkName,
    /// The name of a network interface.
    Interface,
    /// Names of uplinks, at most this many, with commas between them.
    UplinkNames(usize),
    /// A user or a group of this machine, by name or number.
    Account,
    /// The address of one station.
    Mac,
    /// Addresses of one station each, at most this many, with commas between them.
    Macs(usize),
    /// IP addresses, at most this many, with commas between them.
    Ips(usize),
    /// An IP address.
    Ip,
    /// At most so many pairs with commas between them: a VLAN or `untagged`, `=`, and a VXLAN network identifier.
    Vnis(usize),
    /// An IP address, or a network: `10.0.0.0/8`.
    Network,
    /// A TCP and UDP port, or a range of them.
    TransportPorts,
    /// At most so many names of ports, each with `=` and shares from 1 to 100, with commas between them.
    PortShares(usize),
    /// At most so many names of ports, each with `=` and a rate, with commas between them.
    PortRates(usize),
    /// VLANs and ranges of them with commas between them, or `all`.
    Vlans,
    /// A rate with its unit.
    Rate,
    /// An amount of bytes with its unit: least and most.
    Bytes(Bytes, Bytes),
    /// A time in seconds with its unit: least and most.
    Seconds(Seconds, Seconds),
    /// A time in milliseconds or seconds with its unit: least and most.
    Milliseconds(Milliseconds, Milliseconds),
    /// An IP address and a TCP port, `10.0.0.2:7001`, `[fd00::2]:7001`, or a UNIX socket, `unix:/run/ft.sock`.
    ListenAddress,
    /// The same, or a host's name in place of the address: `host2:7001`.
    PeerAddress,
    /// A protocol, an IP address and a port: `udp:10.0.0.9:4739`.
    Collector,
    /// At most so many servers of etcd, with commas between them: `https://etcd1:2379`.
    EtcdEndpoints(usize),
    /// The name of a user of etcd.
    EtcdUser,
    /// A text of at most so many characters, none of them a control character.
    Line(usize),
    /// A path of a file.
    Path,
    /// Paths without commas, at most this many, with commas between them.
    Paths(usize),
    /// A path of a socket.
    Socket,
    /// A loopback address and a TCP port, or an absolute path.
    Page,
}

/// The words of a list of words and their meanings.
pub(super) const fn words<T: Copy, const N: usize>(pairs: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut words = [""; N];
    let mut at = 0;
    while at < N {
        words[at] = pairs[at].0;
        at += 1;
    }
    words
}

/// A byte of a MAC address, and the first one of one station's address.
const BYTE: &str = "[0-9A-Fa-f]{2}";
const FIRST_BYTE: &str = "[0-9A-Fa-f][02468ACEace]";
/// A byte of an IPv4 address, and a group of an IPv6 address.
const OCTET: &str = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
const GROUP: &str = "[0-9A-Fa-f]{1,4}";
/// Characters that no path and no account may have.
const CONTROLS: &str = r"\x00-\x1f\x7f-\x9f";
/// The units of a rate, their highest whole numbers, and the digits that may follow a point.
const RATES: [(&str, u64, usize); 5] = [
    ("bit/s", 10_000_000_000_000, 0),
    ("kbit/s", 10_000_000_000, 3),
    ("Mbit/s", 10_000_000, 6),
    ("Gbit/s", 10_000, 9),
    ("Tbit/s", 10, 12),
];

impl Form {
    /// The words, if the value is one of several.
    pub fn words(self) -> Option<Vec<&'static str>> {
        match self {
            Self::Words(words) => Some(words.to_vec()),
            Self::Adapter => Some(REGISTRY.iter().map(|entry| entry.about.name).collect()),
            _ => None,
        }
    }

    /// A regular expression (ECMA-262) of the value, if it is a text and not one of several words. Unusual spellings that the
    /// parser also takes are left out: leading zeros, and blanks around a part of a list.
    pub fn pattern(self) -> Option<String> {
        let rest = NAME_MAX - 1;
        let name = format!("[A-Za-z0-9][A-Za-z0-9._-]{{0,{rest}}}");
        let pattern = match self {
            Self::Number(..) | Self::Flag | Self::Words(_) | Self::Adapter => return None,
            Self::Name => name,
            // Linux takes more for an interface: letters that are not ASCII.
            Self::Interface => format!("[!-$&-.0-9;-~]{{1,{INTERFACE_MAX}}}"),
            Self::UplinkName => format!("({name}|[!-$&-.0-9;-~]{{1,{INTERFACE_MAX}}})"),
            Self::UplinkNames(most) => list(&format!("({name}|[!-$&-+\\-.0-9;-~]{{1,{INTERFACE_MAX}}})"), most),
            Self::Account => format!(r"[^\s:,/{CONTROLS}]+"),
            Self::Mac => mac(),
            Self::Macs(most) => list(&mac(), most),
            Self::Ips(most) => list(&ip(), most),
            Self::Ip => ip(),
            Self::Vnis(most) => list(&format!("(untagged|{})={}", digits(1, 4094), digits(1, Vni::MAX.into())), most),
            Self::Network => format!("{}(/{})?", ip(), digits(0, 32)),
            Self::TransportPorts => format!("{0}(-{0})?", digits(0, 65_535)),
            Self::ListenAddress => format!(r"(({}|\[{}\]):{}|{})", ipv4(), ipv6(), digits(1, 65_535), unix()),
            Self::Collector => format!(r"(udp|tcp):({}|\[{}\]):{}", ipv4(), ipv6(), digits(1, 65_535)),
            Self::PeerAddress => {
                // A name may be a little longer.
                let part = |first| format!("{first}[A-Za-z0-9_-]{{0,40}}");
                let name = format!(r"({}\.){{0,4}}{}", part("[A-Za-z0-9]"), part("[A-Za-z]"));
                format!(r"(({}|\[{}\]|{name}):{}|{})", ipv4(), ipv6(), digits(1, 65_535), unix())
            }
            Self::Vlans => {
                let id = digits(1, 4094);
                format!("(all|{id}(-{id})?(,{id}(-{id})?)*)")
            }
            Self::Rate => rate(),
            Self::PortShares(most) => list(&format!("{name}={}", digits(1, 100)), most),
            Self::PortRates(most) => list(&format!("{name}={}", rate()), most),
            Self::Bytes(least, most) => {
                let of = |(unit, factor): (&str, u64)| {
                    let (least, most) = (least.0.div_ceil(factor), most.0 / factor);
                    (least <= most).then(|| format!("{} ?{unit}", digits(least, most)))
                };
                either(super::quantity::BYTES.into_iter().filter_map(of))
            }
            Self::Seconds(least, most) => format!("{} ?s", digits(least.0.into(), most.0.into())),
            Self::Milliseconds(least, most) => {
                let (least, most) = (u64::from(least.0), u64::from(most.0));
                let seconds = (least.div_ceil(1000) <= most / 1000)
                    .then(|| format!("{} ?s", digits(least.div_ceil(1000), most / 1000)));
                either([format!("{} ?ms", digits(least, most))].into_iter().chain(seconds))
            }
            Self::EtcdEndpoints(most) => {
                let host = format!(r"([A-Za-z0-9._-]{{1,255}}|\[{}\])", ipv6());
                list(&format!("https?://{host}:{}", digits(1, 65_535)), most)
            }
            Self::Line(most) => format!("[^{CONTROLS}]{{1,{most}}}"),
            Self::EtcdUser => format!("[^{CONTROLS}]{{1,255}}"),
            Self::Paths(most) => list(&format!("[^~,{CONTROLS}][^,{CONTROLS}]*"), most),
            Self::Page => format!(r"(127(\.{OCTET}){{3}}:{0}|\[::1\]:{0}|/[^{CONTROLS}]*)", digits(1, 65_535)),
            Self::Path | Self::Socket => format!("[^~{CONTROLS}][^{CONTROLS}]*"),
        };
        Some(format!("^{pattern}$"))
    }
}

fn either(patterns: impl IntoIterator<Item = String>) -> String {
    let all: Vec<String> = patterns.into_iter().collect();
    if let [one] = all.as_slice() { one.clone() } else { format!("({})", all.join("|")) }
}

fn rate() -> String {
    let of = |(unit, most, places): (&str, u64, usize)| format!("{} ?{unit}", decimal(most, places));
    either(RATES.map(of))
}

/// At most so many of one, with commas between them.
fn list(one: &str, most: usize) -> String {
    format!("{one}(,{one}){{0,{}}}", most - 1)
}

fn mac() -> String {
    format!("{FIRST_BYTE}((:{BYTE}){{5}}|(-{BYTE}){{5}})")
}

/// An IPv4 address, or an IPv6 address without a part in IPv4's notation.
fn ip() -> String {
    either([ipv4(), ipv6()])
}

fn unix() -> String {
    format!("unix:[^~{CONTROLS}][^{CONTROLS}]*")
}

fn ipv4() -> String {
    format!(r"{OCTET}(\.{OCTET}){{3}}")
}

/// An IPv6 address without a part in IPv4's notation.
fn ipv6() -> String {
    let whole = format!("({GROUP}:){{7}}{GROUP}");
    let cut = (1..7).map(|before| format!("({GROUP}:){{{before}}}(:{GROUP}){{1,{}}}", 7 - before));
    let ends = [format!("({GROUP}:){{1,7}}:"), format!(":((:{GROUP}){{1,7}}|:)")];
    either([whole].into_iter().chain(cut).chain(ends))
}

/// A number above 0 and up to `most`, with at most so many digits behind a point if it is less than `most`.
fn decimal(most: u64, places: usize) -> String {
    let whole = digits(1, most);
    if places == 0 {
        return whole;
    }
    // Below 1: zeros, a digit that is none, and any others.
    let below = (0..places).map(|zeros| format!("0{{{zeros}}}[1-9][0-9]{{0,{}}}", places - zeros - 1));
    let below = either(below);
    either([whole, format!(r"{}\.[0-9]{{1,{places}}}", digits(1, most - 1)), format!(r"0\.{below}")])
}

/// The numbers from `least` to `most` in decimal, without leading zeros.
fn digits(least: u64, most: u64) -> String {
    let (mut parts, mut from) = (Vec::new(), least);
    loop {
        // The last number with as many digits.
        let end = (0..from.to_string().len()).fold(0u64, |end, _| end.saturating_mul(10).saturating_add(9)).min(most);
        parts.push(same_length(from.to_string().as_bytes(), end.to_string().as_bytes()));
        if end == most {
            return either(parts);
        }
        from = end + 1;
    }
}

/// The numbers between two of the same length.
fn same_length(least: &[u8], most: &[u8]) -> String {
    let (Some((&low, least)), Some((&high, most))) = (least.split_first(), most.split_first()) else {
        return String::new();
    };
    let shown = |digit: u8| char::from(digit).to_string();
    if low == high {
        return shown(low) + &same_length(least, most);
    }
    let (mut first, mut last, mut parts) = (low, high, Vec::new());
    if least.iter().any(|&digit| digit != b'0') {
        parts.push(shown(low) + &same_length(least, &vec![b'9'; least.len()]));
        first += 1;
    }
    let ends =
        most.iter().any(|&digit| digit != b'9').then(|| shown(high) + &same_length(&vec![b'0'; most.len()], most));
    if ends.is_some() {
        last -= 1;
    }
    if first <= last {
        let rest = match least.len() {
            0 => String::new(),
            1 => "[0-9]".to_owned(),
            count => format!("[0-9]{{{count}}}"),
        };
        parts.push(format!("[{}-{}]{rest}", shown(first), shown(last)));
    }
    either(parts.into_iter().chain(ends))
}

#[cfg(test)]
#[path = "form_test.rs"]
mod tests;
