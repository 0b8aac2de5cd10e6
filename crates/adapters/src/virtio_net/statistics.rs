//! Device statistics (virtio 1.3, section 5.1.6.5.10): the basic counters of each queue, since the last
//! reset or restore.

use arrayvec::ArrayVec;

use super::Role;
use super::registers::command;

/// Maximum queues in one query: each of them once.
const ASKED_MAX: usize = 40;
/// Bytes of one answer: a header and six counters.
const ANSWER: usize = 8 + 6 * 8;
/// Maximum bytes of an answer.
pub(super) const ANSWER_MAX: usize = ASKED_MAX * ANSWER;
/// Types of statistics: a bit in a query, a number in an answer.
const RX_BASIC: u64 = 1;
const TX_BASIC: u64 = 1 << 16;
const REPLY_RX_BASIC: u8 = 0;
const REPLY_TX_BASIC: u8 = 16;

/// Executes a command of the class STATS and returns its answer. `None`: refused.
pub(super) fn obey(
    command: u8,
    data: &[u8],
    tallies: &[[u64; 4]],
    role: impl Fn(u16) -> Role,
) -> Option<ArrayVec<u8, ANSWER_MAX>> {
    let mut out = ArrayVec::new();
    match command {
        command::STATS_QUERY => out.extend((RX_BASIC | TX_BASIC).to_le_bytes()),
        command::STATS_GET => {
            // A ring, six reserved bytes, and the requested types.
            let (asked, rest) = data.as_chunks::<16>();
            if !rest.is_empty() || asked.len() > ASKED_MAX {
                return None;
            }
            for question in asked {
                let ring = u16::from_le_bytes([question[0], question[1]]);
                let types = u64::from_le_bytes(*question.last_chunk()?);
                let tally = tallies.get(usize::from(ring)).copied().unwrap_or_default();
                one(ring, types, role(ring), tally, &mut out)?;
            }
        }
        _ => return None,
    }
    Some(out)
}

/// The answer for one queue; empty for types that this queue lacks. `None`: no such queue.
fn one(ring: u16, types: u64, role: Role, tally: [u64; 4], out: &mut ArrayVec<u8, ANSWER_MAX>) -> Option<()> {
    let [by_driver, packets, bytes, by_device] = tally;
    let (kind, wanted) = match role {
        Role::Receive(_) => (REPLY_RX_BASIC, RX_BASIC),
        Role::Transmit(_) => (REPLY_TX_BASIC, TX_BASIC),
        Role::Control => return Some(()),
        Role::Nothing => return None,
    };
    if types & wanted != 0 {
        // Notifications, packets, bytes, interrupts, drops, and drops for lack of buffers or malformed. Drops are counted per port
        // only.
        let values = [by_driver, packets, bytes, by_device, 0, 0];
        out.try_extend_from_slice(&[kind, 0]).ok()?;
        out.try_extend_from_slice(&ring.to_le_bytes()).ok()?;
        out.try_extend_from_slice(&[0, 0]).ok()?;
        out.try_extend_from_slice(&(ANSWER as u16).to_le_bytes()).ok()?;
        values.iter().try_for_each(|value| out.try_extend_from_slice(&value.to_le_bytes())).ok()?;
    }
    Some(())
}
