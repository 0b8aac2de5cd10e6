//! Messages of a caller's type, each direction with what it remembers of the last ones.

use crate::{HELLO, Key, Opener, SealError, Sealer};

/// A caller's message.
pub trait Message: Sized {
    /// The earlier messages of a direction, as far as both ends remember them: the next message may be a difference. It begins at its default.
    type Past: Default;

    /// Appends the message to a body, of at most [`BODY_MAX`](crate::BODY_MAX) bytes in all.
    fn write(&self, past: &mut Self::Past, body: &mut Vec<u8>);

    /// The message of a body.
    ///
    /// # Errors
    /// [`SealError::Malformed`]: it makes no sense.
    fn read(body: &[u8], past: &mut Self::Past) -> Result<Self, SealError>;
}

/// Both directions of a connection, once both sides have said hello. Returns how to write and how to read.
///
/// # Errors
/// The peer is another one than it should be.
pub fn joined<M: Message>(
    key: &Key,
    ours: &[u8; HELLO],
    theirs: &[u8; HELLO],
) -> Result<(Writer<M>, Reader<M>), SealError> {
    let (sealer, opener) = key.joined(ours, theirs)?;
    Ok((Writer { sealer, past: M::Past::default() }, Reader { opener, past: M::Past::default() }))
}

/// Makes bytes of messages.
#[derive(Clone, Debug)]
pub struct Writer<M: Message> {
    sealer: Sealer,
    past: M::Past,
}

impl<M: Message> Writer<M> {
    /// Appends a message.
    pub fn write(&mut self, message: &M, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        message.write(&mut self.past, &mut body);
        self.sealer.seal(&body, out);
    }
}

/// Makes messages of bytes.
#[derive(Clone, Debug)]
pub struct Reader<M: Message> {
    opener: Opener,
    past: M::Past,
}

impl<M: Message> Reader<M> {
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.opener.push(bytes);
    }

    /// The next message, if all of it is there.
    ///
    /// # Errors
    /// It is not authentic, or malformed. Nothing after it is of use.
    pub fn read(&mut self) -> Result<Option<M>, SealError> {
        let Some(body) = self.opener.open()? else { return Ok(None) };
        M::read(&body, &mut self.past).map(Some)
    }
}
