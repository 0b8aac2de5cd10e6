//! The bytes that everything has carried, for who looks each second.

use nicety_plane::ClassState;

use super::Daemon;
use super::counts::Counts;

/// Takes the name of a port, uplink or team, the name of one of its classes or none, and bytes.
pub type NoteBytes<'a> = dyn FnMut(&str, Option<&str>, [u64; 2]) + 'a;

impl Daemon {
    /// Notes the bytes that each port, uplink and team has carried, as its report counts them (transmit, receive), and of its classes those
    /// that went out and came in. For a guest's port nothing is allocated.
    pub fn carried(&self, note: &mut NoteBytes<'_>) {
        for uplink in self.uplinks().iter() {
            let state = uplink.port.state();
            let [sent, got] = [state.counters.transmitted(), state.counters.taken()];
            note(&uplink.name, None, [sent.bytes, got.bytes]);
            note_classes(&uplink.name, [&state.classes, &state.inward_classes], note);
        }
        for team in self.teams().iter() {
            let Counts { transmit, receive, outward, inward } = team.counts();
            note(&team.spec.name, None, [transmit.bytes, receive.bytes]);
            note_classes(&team.spec.name, [&outward, &inward], note);
        }
        for running in self.ports().values() {
            let parts = running.others.iter().map(|part| part.port.carried());
            let all = parts.fold(running.port.carried(), |sum, part| [sum[0] + part[0], sum[1] + part[1]]);
            note(&running.spec.config.name, None, all);
        }
    }
}

fn note_classes(of: &str, [outward, inward]: [&[ClassState]; 2], note: &mut NoteBytes<'_>) {
    let bytes = |classes: &[ClassState], name: &str| {
        classes.iter().find(|class| class.name == name).map_or(0, |class| class.bytes)
    };
    let others = inward.iter().filter(|class| outward.iter().all(|other| other.name != class.name));
    for class in outward.iter().chain(others) {
        note(of, Some(&class.name), [bytes(outward, &class.name), bytes(inward, &class.name)]);
    }
}
