//! The messages of two daemons about one VM.
//!
//! ```text
//! twin's daemon                          owner's daemon
//! connects ── Hello { vm } ───────────► accepts
//!          ── Offer ──────────────────►  are these two VMs twins?
//!          ◄─ Say(Begin), … ───────────  (or Refused)
//! connects ── Hello { vm, stream } ───► the same connection is from then on the stream of copies
//! ```
//! A daemon that is about to be replaced, either one, has the stream stand still first, so that nothing of it is under way:
//! ```text
//! leaves                                 stays
//!          ── Pause { sent } ─────────►  reads nothing more of its QEMU
//!          ◄─ Paused { sent } ─────────  and both carry to their QEMUs what the other one has read
//! ends, and the next one is there        the twin's daemon connects:
//!                 ── Hello { vm, rejoins } ──► ◄── Rejoined ──   and the stream as above
//! ```

use nicety_link::{Link, LinkError, Messages};
use nicety_protect::{Message, Pairing};
use nicety_qmp::Facts;
use serde::{Deserialize, Serialize};

/// The version of these messages.
pub(super) const VERSION: u32 = 2;

/// A message.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Wire {
    /// The first one, of the daemon that connects.
    Hello {
        version: u32,
        /// The VM's name.
        vm: String,
        /// The connection is to be the stream of this protection.
        stream: Option<Pairing>,
        /// This protection goes on: one of the daemons was replaced.
        rejoins: Option<Pairing>,
    },
    /// A QEMU that waits for a VM.
    Offer {
        /// Its run.
        run: u64,
        facts: Box<Facts>,
        /// Ports of the VM, in order.
        ports: usize,
    },
    /// A sentence: the offer is not taken.
    Refused(String),
    /// The daemon is about to be replaced, and has read so many bytes of its QEMU's stream.
    Pause { pairing: Pairing, sent: u64 },
    /// This one reads nothing more, and has read so many.
    Paused { pairing: Pairing, sent: u64 },
    /// The daemon is not replaced after all.
    GoOn(Pairing),
    /// The protection goes on: now the stream.
    Rejoined(Pairing),
    /// See [`Message`].
    Say(Message),
}

/// A connection on which messages go.
pub(super) struct Line {
    pub link: Link,
    messages: Messages,
}

impl Line {
    pub fn new(link: Link) -> Self {
        Self { link, messages: Messages::default() }
    }

    /// Queues a message. `false`: the peer takes too little, or it is too long.
    #[must_use]
    pub fn send(&mut self, message: &Wire) -> bool {
        serde_json::to_vec(message).is_ok_and(|bytes| self.messages.send(&bytes))
    }

    /// Sends and receives what is possible.
    ///
    /// # Errors
    /// A sentence: the connection is of no use any more.
    pub fn turn(&mut self) -> Result<Vec<Wire>, String> {
        let mut came = Vec::new();
        self.messages.write(&mut self.link);
        let ended = self.link.turn();
        loop {
            match self.messages.read(&mut self.link) {
                Ok(Some(bytes)) => came.push(read(&bytes)?),
                Ok(None) => break,
                // What came before counts first.
                Err(why) if came.is_empty() => return Err(why.to_string()),
                Err(_) => return Ok(came),
            }
        }
        // What came may be answered, and there may be room.
        self.messages.write(&mut self.link);
        let ended = ended.and_then(|()| self.link.turn());
        match ended {
            Err(why) if came.is_empty() => Err(why.to_string()),
            _ => Ok(came),
        }
    }

    /// The connection alone: what waits was taken by it. `None`: it has no room for that.
    pub fn into_link(mut self) -> Option<Link> {
        self.messages.write(&mut self.link).then_some(self.link)
    }

    /// Only its first message: what follows may be a stream's.
    ///
    /// # Errors
    /// A sentence.
    pub fn first(&mut self) -> Result<Option<Wire>, String> {
        let words = |why: LinkError| why.to_string();
        let ended = self.link.turn();
        match self.messages.read(&mut self.link) {
            Ok(Some(bytes)) => read(&bytes).map(Some),
            Ok(None) => ended.map(|()| None).map_err(words),
            Err(why) => Err(words(why)),
        }
    }
}

fn read(bytes: &[u8]) -> Result<Wire, String> {
    let odd = |why| {
        format!("the other host's daemon says what this one does not understand ({why}): both must be of one version")
    };
    serde_json::from_slice(bytes).map_err(odd)
}
