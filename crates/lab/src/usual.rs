//! Usual guests, and the adapter for each, as [`choose`] answers. The report's front page and the book (docs/which-adapter.md) show it.

use nicety_adapters::REGISTRY;

use crate::choose::{Choice, Prefer, System, Wishes, choose};
use crate::host::Host;
use crate::study::Study;

/// A guest in words, as in the book's table, with what it wishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usual {
    /// The guest.
    pub guest: &'static str,
    /// Its wishes.
    pub wishes: Wishes,
}

/// The guests, the most frequent first.
pub fn guests() -> Vec<Usual> {
    let linux = |version: Option<&str>| Wishes {
        system: System::Linux,
        version: version.map(str::to_owned),
        in_box: true,
        network_boot: false,
        migrates: false,
        segmentation: false,
        prefer: Prefer::Throughput,
    };
    let windows = |version: &str, in_box| Wishes { system: System::Windows, in_box, ..linux(Some(version)) };
    let usual = |guest, wishes| Usual { guest, wishes };
    vec![
        usual("Linux of today", linux(None)),
        usual(
            "Linux of today, one of many on a host: few of its processors",
            Wishes { prefer: Prefer::Processor, ..linux(None) },
        ),
        usual("Linux of today, migrated live", Wishes { migrates: true, ..linux(None) }),
        usual("Linux of today, booted from the network", Wishes { network_boot: true, ..linux(None) }),
        usual("Windows 11 or Server 2025, drivers may be installed", windows("11", false)),
        usual("Windows 11 or Server 2025, nothing installed", windows("11", true)),
        usual("Windows 7 or Server 2008 R2, nothing installed", windows("7", true)),
        usual("Windows Server 2003, nothing installed", windows("Server 2003", true)),
        usual("Windows XP, nothing installed", windows("XP", true)),
        usual("Windows 98, nothing installed", windows("98", true)),
        usual("Linux 2.6.18 (RHEL 5)", linux(Some("2.6.18"))),
        usual("Linux 2.4.18", linux(Some("2.4.18"))),
    ]
}

/// The choice for each, by facts and by results of the machine `of`.
pub fn choices(studies: &[Study], of: &Host) -> Vec<(&'static str, Choice)> {
    let each = |usual: Usual| Some((usual.guest, choose(&usual.wishes, REGISTRY, studies, of).ok()?));
    guests().into_iter().filter_map(each).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_book_s_table_is_what_choose_answers() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/which-adapter.md");
        let book = std::fs::read_to_string(path).unwrap();
        let all = choices(&[], &Host::here());
        assert_eq!(all.len(), guests().len(), "each version is known");
        for (guest, choice) in all {
            let row = format!("| {guest} | `{}` |\n", choice.adapter.unwrap());
            assert!(book.contains(&row), "docs/which-adapter.md lacks {row}");
        }
    }
}
