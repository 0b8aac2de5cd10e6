//! A tap's state as text, with the remedy.

use super::{Line, Tap};

impl Tap {
    /// The reason why no frames pass in this state.
    pub(super) fn why(&self, line: Line) -> Option<String> {
        let name = &self.name;
        let given = |old| format!("ip link set {name} address {old} (guests know the host by it),");
        match (line, &self.barred) {
            (Line::Up, _) => None,
            (Line::Down, _) => {
                let given = self.address.wanted(name).map_or_else(String::new, |old| given(old) + " and ");
                Some(format!("{name} is down: {given}ip link set {name} up"))
            }
            (Line::Gone, Some(error)) => {
                Some(format!("{name} was deleted, and the next one cannot be attached: {error}"))
            }
            (Line::Gone, None) => {
                let given = self.address.before().map_or_else(String::new, |old| format!(" {}", given(old)));
                Some(format!(
                    "{name} was deleted: ip tuntap add dev {name} mode tap user $USER,{given} and ip link set {name} up; it is \
                     attached within a second"
                ))
            }
        }
    }

    /// Text for the log when the tap is up again.
    pub(super) fn back(&mut self) -> String {
        let name = &self.name;
        let wanted = self.address.wanted(name);
        self.address.settle();
        wanted.map_or_else(
            || format!("{name} is up"),
            |old| {
                format!(
                    "{name} is up, with another hardware address than before: guests may go on sending to the old one, in vain, \
                     for half a minute and more; ip link set {name} address {old} gives it back"
                )
            },
        )
    }
}
