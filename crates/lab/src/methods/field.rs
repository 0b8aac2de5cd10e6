//! Adapters of a method by length: few for a first look, else all that its document asks about.

use super::{Length, Subject};
use crate::method::{Guests, Server};

/// Adapters of guests that share an uplink: the document's, Intel's later one, and both paravirtual ones that Linux drives.
const SHARING: &[&str] = &["e1000-82545em", "e1000e", "igb", "vmxnet3", "virtio-net"];
/// The same, with virtual functions of one card.
const WITH_FUNCTIONS: &[&str] = &["e1000-82545em", "e1000e", "igb", "igbvf", "ixgbevf", "vmxnet3", "virtio-net"];

/// A method's adapters.
#[derive(Debug, Clone, Copy)]
pub struct Adapters {
    /// The adapters of a quick look.
    pub quick: &'static [&'static str],
    /// The adapters of every other length.
    pub all: &'static [&'static str],
}

impl Adapters {
    /// Guests that share an uplink.
    pub const fn sharing(quick: &'static [&'static str]) -> Adapters {
        Adapters { quick, all: SHARING }
    }

    /// Guests that share an uplink, which may be a card's with its functions.
    pub const fn with_functions(quick: &'static [&'static str]) -> Adapters {
        Adapters { quick, all: WITH_FUNCTIONS }
    }

    /// The names.
    pub fn names(self, length: Length) -> impl Iterator<Item = &'static str> {
        if length == Length::Quick { self.quick } else { self.all }.iter().copied()
    }

    /// Rows served by Nicety alone.
    pub fn ours(self, length: Length) -> impl Iterator<Item = Subject> {
        self.names(length).map(|name| Subject::new(name, Server::Nicety))
    }

    /// All rows that `subjects` has of each adapter under these guests; in a quick look those served by Nicety alone.
    pub fn beside_peers(
        self,
        guests: Guests,
        length: Length,
        subjects: fn(Guests, &str) -> Vec<Subject>,
    ) -> impl Iterator<Item = Subject> {
        let served = move |subject: &Subject| length != Length::Quick || subject.server == Some(Server::Nicety);
        self.names(length).flat_map(move |name| subjects(guests, name)).filter(served)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods;

    #[test]
    fn a_quick_look_of_every_method_has_rows_that_the_whole_has_too_and_each_adapter_is_known() {
        for method in methods::ALL {
            for guests in method.about().guests {
                let whole = method.field(*guests, Length::Usual);
                let quick = method.field(*guests, Length::Quick);
                assert!(quick.iter().all(|row| whole.contains(row)), "{}: {quick:?}", method.about().name);
                let served = whole.iter().filter(|row| row.server == Some(Server::Nicety));
                let unknown: Vec<_> = served.filter(|row| nicety_adapters::find(&row.adapter).is_none()).collect();
                assert!(unknown.is_empty() && !quick.is_empty(), "{}: {unknown:?}", method.about().name);
            }
        }
    }

    #[test]
    fn guests_that_share_an_uplink_have_one_field_and_functions_come_to_it_where_the_uplink_is_a_card_s() {
        let of = |name| methods::find(name).unwrap().field(Guests::Uml, Length::Usual);
        let without = |name| {
            let is_guest = |row: &Subject| {
                !row.is_native() && nicety_adapters::find(&row.adapter).is_some_and(|entry| entry.card.is_none())
            };
            of(name).into_iter().filter(is_guest).collect::<Vec<_>>()
        };
        for name in ["qos-over-time", "ten-gig", "iscsi-mix"] {
            assert_eq!(without(name), of("aggregation"), "{name}");
        }
        for name in ["ten-gig", "iscsi-mix"] {
            assert_eq!(of(name).len(), of("aggregation").len() + 3, "{name}: two functions and the native row");
        }
    }
}
