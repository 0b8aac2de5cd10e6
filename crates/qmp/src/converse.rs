//! A dialogue carried over a monitor.

use std::time::Instant;

use crate::command::Dialogue;
use crate::monitor::{Error, Monitor};

/// One turn of a dialogue over its monitor: brings what has come, sends what is due. Never waits. The owner calls it when poll reports the
/// socket, when either's `wake_at` has come, and after each of its own calls that wants something of QEMU.
///
/// # Errors
/// The socket is of no use any more. The dialogue has heard all items that came before.
pub fn converse(monitor: &mut Monitor, dialogue: &mut impl Dialogue, now: Instant) -> Result<(), Error> {
    let result = monitor.turn(now);
    while let Some(item) = monitor.next() {
        dialogue.hear(&item, now);
    }
    result?;
    let mut has_sent = false;
    while let Some(command) = dialogue.command(now) {
        dialogue.sent(monitor.send(&command, now));
        has_sent = true;
    }
    if has_sent { monitor.turn(now) } else { Ok(()) }
}
