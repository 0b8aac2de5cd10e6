//! The settings that an adapter was made with, as a line of a trace's header: no state of an adapter has them.

use std::fmt;
use std::str::FromStr;

use nicety_frame::Mac;

/// `made mac 52:54:00:12:34:01 mtu 9000 queues 4 subsystem 0x15ad 0x07b0 standby`; everything after the address may be missing. An option
/// ROM is left out, because no call of an adapter reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// The permanent address.
    pub mac: Mac,
    /// The largest MTU in bytes, if it was set.
    pub mtu: Option<u16>,
    /// The most queue pairs, if it was set.
    pub queues: Option<u16>,
    /// PCI subsystem vendor and device, if they are not the chip's.
    pub subsystem: Option<(u16, u16)>,
    /// Whether it stands by for another adapter.
    pub standby: bool,
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mac, mtu, queues, subsystem, standby } = self;
        write!(f, "made mac {mac}")?;
        mtu.map_or(Ok(()), |mtu| write!(f, " mtu {mtu}"))?;
        queues.map_or(Ok(()), |queues| write!(f, " queues {queues}"))?;
        subsystem.map_or(Ok(()), |(vendor, device)| write!(f, " subsystem {vendor:#06x} {device:#06x}"))?;
        if *standby { f.write_str(" standby") } else { Ok(()) }
    }
}

impl FromStr for Made {
    type Err = String;

    /// Reads the words behind `made`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_ascii_whitespace();
        let mut made = Self { mac: Mac([0; 6]), mtu: None, queues: None, subsystem: None, standby: false };
        while let Some(word) = words.next() {
            let mut number = || super::number::<u16>(words.next(), word);
            match word {
                "mtu" => made.mtu = Some(number()?),
                "queues" => made.queues = Some(number()?),
                "subsystem" => made.subsystem = Some((number()?, number()?)),
                "standby" => made.standby = true,
                "mac" => {
                    let mac = words.next().unwrap_or_default();
                    made.mac = mac.parse().map_err(|error| format!("the address `{mac}`: {error}"))?;
                }
                word => return Err(format!("`{word}` is no setting: mac, mtu, queues, subsystem, standby")),
            }
        }
        if made.mac == Mac([0; 6]) { Err("the address is missing".to_owned()) } else { Ok(made) }
    }
}
