//! Counters of a session. They only grow; the owner of the session reads them.

use crate::codec::Command;

/// Counts of one session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Commands received, by number ([`Command`]); index 0 counts unknown commands.
    pub commands_received: [u64; Command::TABLE],
    /// Commands sent, by number.
    pub commands_sent: [u64; Command::TABLE],
    /// Replies received.
    pub replies_received: u64,
    /// Replies sent, errors included.
    pub replies_sent: u64,
    /// Error replies sent.
    pub errors_sent: u64,
    /// Region reads.
    pub reads: u64,
    /// Region writes, posted ones and those of REGION_WRITE_MULTI included.
    pub writes: u64,
    /// Posted region writes (no reply wanted).
    pub posted_writes: u64,
    /// Descriptors received.
    pub fds_received: u64,
    /// Descriptors closed because no command takes them.
    pub fds_refused: u64,
    /// Descriptors sent.
    pub fds_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Calls of `recvmsg`.
    pub receive_calls: u64,
    /// Calls of `sendmsg`.
    pub send_calls: u64,
}

impl Counters {
    /// Commands of one kind received.
    pub fn received(&self, command: Command) -> u64 {
        self.commands_received.get(command as usize).copied().unwrap_or(0)
    }

    /// Commands of one kind sent.
    pub fn sent(&self, command: Command) -> u64 {
        self.commands_sent.get(command as usize).copied().unwrap_or(0)
    }

    /// Messages received, commands and replies.
    pub fn messages_received(&self) -> u64 {
        self.commands_received.iter().sum::<u64>() + self.replies_received
    }

    /// Messages sent, commands and replies.
    pub fn messages_sent(&self) -> u64 {
        self.commands_sent.iter().sum::<u64>() + self.replies_sent
    }

    pub(crate) fn count_received(&mut self, command: Option<Command>) {
        if let Some(count) = self.commands_received.get_mut(command.map_or(0, |c| c as usize)) {
            *count += 1;
        }
    }

    pub(crate) fn count_sent(&mut self, command: Command) {
        if let Some(count) = self.commands_sent.get_mut(command as usize) {
            *count += 1;
        }
    }
}
