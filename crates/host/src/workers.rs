//! A port whose queue pairs several workers serve.

use nicety_adapter::count;
use nicety_adapters::Entry;

use super::policy::Parts;
use super::walk::{Section, Walk};

/// Queue pairs of an adapter whose port does not say how many.
const PAIRS_USUAL: u32 = 8;

/// Reads the number of workers, and checks whether the port can have several.
pub(super) fn read(
    walk: &mut Walk,
    section: Section<'_>,
    entry: Option<&Entry>,
    queues: Option<u32>,
    parts: &Parts,
    most: usize,
) -> Option<u16> {
    let found = walk.integer(section, "workers")?;
    let pairs = queues.unwrap_or(PAIRS_USUAL);
    let is_rings = entry.is_none_or(|entry| entry.about.transports == ["vhost-user"]);
    let what = if found.value as usize > most {
        format!("the daemon has {}", count(most as u64, "worker"))
    } else if found.value < 2 {
        return Some(1);
    } else if let Some(entry) = entry.filter(|_| !is_rings) {
        format!(
            "{}'s queues share its registers, so that one worker serves all: only virtio-net's can be dealt",
            entry.about.name
        )
    } else if found.value > pairs {
        format!(
            "it has {}, which are dealt to the workers: a worker has one at least",
            count(pairs.into(), "queue pair")
        )
    } else if parts.has_rates() {
        "a port with rates (send_average, receive_average) has one worker: leave the rates out, or this".to_owned()
    } else {
        return u16::try_from(found.value).ok();
    };
    walk.wrong(section, "workers", found.line, what);
    None
}
