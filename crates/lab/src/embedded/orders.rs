//! The bench's orders to a guest, on standard input, and its answers.

use std::io::Write;

use rustix::io::Errno;

use super::link::GuestError;
use super::words::{Answer, Order};

const ORDER_BYTES: usize = 64 << 10;

/// Sends an answer to the bench.
pub fn send_answer(answer: &Answer) -> Result<(), GuestError> {
    let mut line = serde_json::to_vec(answer).map_err(|error| GuestError::Peer(error.to_string()))?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line).and_then(|()| out.flush()).map_err(|error| GuestError::Peer(error.to_string()))
}

/// Orders from standard input, one a line.
#[derive(Default)]
pub struct Orders {
    pending: Vec<u8>,
    ended: bool,
}

impl Orders {
    /// Whether standard input has ended.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Reads the available bytes.
    pub fn read(&mut self) -> Result<(), GuestError> {
        let mut bytes = [0; 4096];
        match rustix::io::read(std::io::stdin(), &mut bytes) {
            Ok(0) => self.ended = true,
            Ok(n) => self.pending.extend_from_slice(bytes.get(..n).unwrap_or_default()),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(GuestError::System("reading orders", errno)),
        }
        if self.pending.len() > ORDER_BYTES {
            return Err(GuestError::Peer("an order is too long".to_owned()));
        }
        Ok(())
    }

    pub fn next(&mut self) -> Result<Option<Order>, GuestError> {
        let Some(end) = self.pending.iter().position(|&byte| byte == b'\n') else { return Ok(None) };
        let line: Vec<u8> = self.pending.drain(..=end).collect();
        serde_json::from_slice(&line).map(Some).map_err(|error| GuestError::Peer(format!("no order: {error}")))
    }

    pub fn wait(&mut self) -> Result<Option<Order>, GuestError> {
        loop {
            match self.next()? {
                None if self.ended => return Ok(None),
                None => self.read()?,
                order => return Ok(order),
            }
        }
    }
}
