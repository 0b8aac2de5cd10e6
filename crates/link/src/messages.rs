//! Short messages on a link: a length of 4 bytes (big endian), then as many bytes.

use crate::{Link, LinkError};

/// Most bytes of a message.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Most bytes that wait in [`Messages`] for their link.
pub const WAITING_BYTES_MAX: usize = 1 << 20;

const LENGTH_BYTES: usize = 4;

/// The messages of a link, both directions. It takes no byte behind a message, so that an owner may go on with [`Link::read`].
#[derive(Debug, Default)]
pub struct Messages {
    waiting: Vec<u8>,
    /// Length and body, as far as they are here.
    coming: Vec<u8>,
}

impl Messages {
    /// Queues a message. `false`: it is longer than [`MESSAGE_BYTES_MAX`], or the peer takes too little and [`WAITING_BYTES_MAX`] bytes
    /// wait; nothing of it is queued.
    #[must_use]
    pub fn send(&mut self, message: &[u8]) -> bool {
        let is_short = message.len() <= MESSAGE_BYTES_MAX;
        if !is_short || self.waiting.len() + LENGTH_BYTES + message.len() > WAITING_BYTES_MAX {
            return false;
        }
        self.waiting.extend_from_slice(&(message.len() as u32).to_be_bytes());
        self.waiting.extend_from_slice(message);
        true
    }

    /// Writes what waits to the link, as far as it has room. Returns whether that is all: then the owner may write bytes of its own.
    /// Call it before [`Link::turn`].
    pub fn write(&mut self, link: &mut Link) -> bool {
        let count = link.write(&self.waiting);
        self.waiting.drain(..count);
        self.waiting.is_empty()
    }

    /// The next message, if all of it is here.
    ///
    /// # Errors
    /// Those of [`Link::read`], and [`LinkError::Message`]. An orderly end within a message is a cut.
    pub fn read(&mut self, link: &mut Link) -> Result<Option<Vec<u8>>, LinkError> {
        loop {
            let length = match self.coming.first_chunk::<LENGTH_BYTES>() {
                Some(length) => u32::from_be_bytes(*length),
                None => 0,
            };
            let whole = LENGTH_BYTES + length as usize;
            if whole > LENGTH_BYTES + MESSAGE_BYTES_MAX {
                return Err(LinkError::Message(length));
            }
            let had = self.coming.len();
            if had >= LENGTH_BYTES && had == whole {
                let mut message = std::mem::take(&mut self.coming);
                message.drain(..LENGTH_BYTES);
                return Ok(Some(message));
            }
            self.coming.resize(whole, 0);
            let read = link.read(self.coming.get_mut(had..).unwrap_or_default());
            self.coming.truncate(had + read.as_ref().map_or(0, |count| *count));
            match read {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(LinkError::Ended) if had > 0 => return Err(LinkError::Cut),
                Err(why) => return Err(why),
            }
        }
    }
}
