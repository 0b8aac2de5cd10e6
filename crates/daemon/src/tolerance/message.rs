//! Messages between a port's daemon and its peer's, in postcard: both are of the same build.

use nicety_adapter::tape::Entry;
use nicety_adapters::Settings;
use nicety_frame::Mac;
use nicety_pci::Rom;
use nicety_sealed::Protocol;
use serde::{Deserialize, Serialize};

/// Their version counts up with each change, too: builds without a commit are all alike.
pub const PROTOCOL: Protocol = Protocol { magic: *b"NcPL", version: 1 };

/// Longest option ROM that goes along. A longer one is left out, and a driver that reads its size sees a difference.
const ROM_MOST: u32 = 2 << 20;

/// An adapter's settings. Its state has none: a vmxnet3 tells its permanent address after each reset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeWith {
    mac: [u8; 6],
    mtu: Option<u16>,
    queues: Option<u16>,
    rom: Option<Vec<u8>>,
    subsystem: Option<(u16, u16)>,
    standby: bool,
}

impl MadeWith {
    pub fn of(settings: &Settings) -> Self {
        let Settings { mac, mtu, queues, rom, subsystem, standby } = settings;
        let bytes = |rom: &Rom| {
            let mut bytes = vec![0; rom.size() as usize];
            rom.read(0, &mut bytes);
            bytes
        };
        let rom = rom.as_ref().filter(|rom| rom.size() <= ROM_MOST).map(bytes);
        Self { mac: mac.0, mtu: *mtu, queues: *queues, rom, subsystem: *subsystem, standby: *standby }
    }

    /// # Errors
    /// The option ROM is none. For a person.
    pub fn settings(self) -> Result<Settings, String> {
        let Self { mac, mtu, queues, rom, subsystem, standby } = self;
        let rom = rom.map(Rom::new).transpose().map_err(|error| error.to_string())?;
        Ok(Settings { mac: Mac(mac), mtu, queues, rom, subsystem, standby })
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// To the peer: a log begins, with the adapter's memory and its state. So many calls were made before.
    Begin {
        /// The port.
        port: String,
        /// Its adapter.
        adapter: String,
        /// The adapter's settings.
        made_with: Box<MadeWith>,
        /// The number of calls.
        calls: u64,
    },
    /// To the peer: these calls, each once and in order. None: a sign of life.
    Calls {
        /// Calls before them.
        first: u64,
        /// The calls.
        entries: Vec<Entry>,
    },
    /// From the peer: it has so many calls.
    Known(u64),
    /// From the peer: it does not follow any more. For a person.
    Ends(String),
}

impl Message {
    /// The body of the sealed message that carries it.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Plain data can be written.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Of a sealed message's body.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
}
