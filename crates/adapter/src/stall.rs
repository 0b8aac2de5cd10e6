//! Stopped queues: their driver broke them, and they carry nothing until the driver restarts them.

use std::fmt;

/// A queue, as named for a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Wire → guest.
    Receive(u16),
    /// Guest → wire.
    Transmit(u16),
    /// Commands.
    Control,
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Queue::Receive(queue) => write!(f, "receive queue {queue}"),
            Queue::Transmit(queue) => write!(f, "transmit queue {queue}"),
            Queue::Control => f.write_str("the control queue"),
        }
    }
}

/// A stopped queue. Prints itself as a sentence for an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The queue.
    pub queue: Queue,
    /// The driver's mistake: "a chain of descriptors loops".
    pub why: &'static str,
    /// The action that makes the driver restart it: "restart the guest".
    pub cure: &'static str,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, why, cure } = self;
        write!(f, "{queue} stands still: {why}; {cure}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_says_what_where_and_what_to_do() {
        let stall = Stall { queue: Queue::Transmit(3), why: "a head is none", cure: "restart the guest" };
        assert_eq!(stall.to_string(), "transmit queue 3 stands still: a head is none; restart the guest");
        assert_eq!(
            [Queue::Receive(0), Queue::Control].map(|queue| queue.to_string()),
            ["receive queue 0", "the control queue"]
        );
    }
}
