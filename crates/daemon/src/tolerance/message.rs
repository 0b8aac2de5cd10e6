//! Messages between a port's daemon and its peer's, in postcard: both are of the same build.

use nicety_adapter::tape::Entry;
use nicety_adapters::Settings;
use nicety_frame::Mac;
use nicety_pci::Rom;
use nicety_sealed::{HELLO, Key, Protocol, SealError};
use serde::{Deserialize, Serialize};

use crate::random::random;

/// Their version counts up with each change, too: builds without a commit are all alike.
const PROTOCOL: Protocol = Protocol { magic: *b"NcPL", version: 1 };

/// Longest option ROM that goes along. A longer one is left out, and a driver that reads its size sees a difference.
const ROM_MAX: u32 = 2 << 20;

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
        let rom = rom.as_ref().filter(|rom| rom.size() <= ROM_MAX).map(bytes);
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

impl nicety_sealed::Message for Message {
    type Past = ();

    fn write(&self, (): &mut (), body: &mut Vec<u8>) {
        // Plain data can be written.
        body.extend_from_slice(&postcard::to_allocvec(self).unwrap_or_default());
    }

    fn read(body: &[u8], (): &mut ()) -> Result<Self, SealError> {
        postcard::from_bytes(body).map_err(|_| SealError::Malformed)
    }
}

/// One connection between two daemons.
pub type Link = nicety_sealed::Link<Message>;

/// The first bytes of each side.
pub fn hello(key: &Key) -> [u8; HELLO] {
    let nonce = u128::from(random()) << 64 | u128::from(random());
    // Another build may do otherwise than the recorded adapter.
    let build = key.number(&format!("build {}", nicety_version::BUILD));
    key.hello(PROTOCOL, build, 0, nonce.to_le_bytes())
}
