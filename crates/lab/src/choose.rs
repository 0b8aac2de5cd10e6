//! The choice of an adapter for a guest: from the adapters' facts ([`About`]) and from the lab's results on this machine, never beyond them.

use std::cmp::Reverse;

use nicety_adapters::{About, Entry, Kind};

use crate::host::Host;
use crate::study::Study;

mod comparison;
mod measured;
mod table;

pub use comparison::of_comparison;
pub use table::Table;

/// The guest's system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// Linux; its version is the kernel's, such as `2.6.18`.
    Linux,
    /// Windows; its version is a release, such as `7`, `XP` or `Server 2008 R2`.
    Windows,
}

/// The figure that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefer {
    /// Bulk transfers.
    Throughput,
    /// Answers to requests.
    Latency,
    /// The host's processors: many VMs.
    Processor,
}

/// The answers to the questions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wishes {
    /// The guest's system.
    pub system: System,
    /// Its version. None: a current one.
    pub version: Option<String>,
    /// Whether only drivers count that the system brings.
    pub in_box: bool,
    /// Whether it boots from the network.
    pub network_boot: bool,
    /// Whether it migrates live under QEMU.
    pub migrates: bool,
    /// Whether it needs the adapter to segment what TCP sends.
    pub segmentation: bool,
    /// The figure that decides.
    pub prefer: Prefer,
}

/// A choice, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The adapter. None: no adapter fits.
    pub adapter: Option<String>,
    /// Reasons, a sentence each.
    pub why: Vec<String>,
    /// The measured figures that say so, a sentence each; or that there are none.
    pub measured: Vec<String>,
    /// The adapters that do not fit, each with the reason.
    pub others: Vec<(String, String)>,
    /// All adapters: what each needs, its figures, and why it was chosen or not.
    pub table: Table,
}

/// The mistake in a version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnknownVersion(String);

/// The oldest kernel that is taken to have had a driver of VMware's tools.
const TOOLS_SINCE: [u32; 2] = [2, 4];

/// Windows releases with their year.
const WINDOWS: [(&str, u16); 19] = [
    ("98", 1998),
    ("2000", 2000),
    ("xp", 2001),
    ("server 2003", 2003),
    ("xp x64", 2005),
    ("vista", 2007),
    ("server 2008", 2008),
    ("7", 2009),
    ("server 2008 r2", 2009),
    ("8", 2012),
    ("server 2012", 2012),
    ("8.1", 2013),
    ("server 2012 r2", 2013),
    ("10", 2015),
    ("server 2016", 2016),
    ("server 2019", 2018),
    ("11", 2021),
    ("server 2022", 2021),
    ("server 2025", 2024),
];

/// The year of a release, written as `7`, `Windows 10`, `Server 2012` or `2008 R2`.
fn year(release: &str) -> Option<u16> {
    let release = release.trim().to_lowercase();
    let release = release.strip_prefix("windows ").unwrap_or(&release).trim();
    let server = format!("server {release}");
    let known = |name: &str| WINDOWS.iter().any(|(known, _)| *known == name);
    let release = if !known(release) && known(&server) { &server } else { release };
    WINDOWS.iter().find(|(name, _)| *name == release).map(|(_, year)| *year)
}

/// A kernel's version as numbers: `2.6.32` and `6.12`.
fn numbers(version: &str) -> Option<Vec<u32>> {
    version.trim().split('.').map(|part| part.parse().ok()).collect()
}

/// The way in which a guest gets an adapter's driver.
#[derive(Debug, PartialEq, Eq)]
enum Driver {
    /// The system brings it.
    InBox,
    /// A person installs it; the text says from where.
    Install(&'static str),
    /// There is none; the text says why.
    None(String),
}

fn driver(about: &About, wishes: &Wishes) -> Driver {
    match wishes.system {
        System::Linux => {
            let Some(since) = numbers(about.linux.version) else {
                // The tools' oldest drivers are for the kernels of their time.
                let version = wishes.version.as_deref().and_then(numbers);
                return match version.is_some_and(|version| version.as_slice() < TOOLS_SINCE.as_slice()) {
                    true => Driver::None("no kernel before 2.4 is known here to have had its driver".to_owned()),
                    false => Driver::Install(about.linux.version),
                };
            };
            let has = wishes.version.as_deref().and_then(numbers).is_none_or(|version| version >= since);
            if has {
                Driver::InBox
            } else {
                Driver::None(format!("Linux has its driver since {}", about.linux.version))
            }
        }
        System::Windows => {
            let (text, until) = match about.windows.version.split_once(", not from ") {
                Some((text, until)) => (text, until.strip_suffix(" on").and_then(year)),
                None => (about.windows.version, None),
            };
            let since: Option<u16> = text.split(" and ").filter_map(year).min();
            let Some(since) = since else { return Driver::Install(about.windows.version) };
            let version = wishes.version.as_deref().and_then(year).unwrap_or(u16::MAX);
            if version < since || until.is_some_and(|until| version >= until) {
                Driver::None(format!("Windows has its driver since {}", about.windows.version))
            } else {
                Driver::InBox
            }
        }
    }
}

/// Why an adapter does not fit. None if it does.
fn against(about: &About, wishes: &Wishes) -> Option<String> {
    match driver(about, wishes) {
        Driver::None(why) => return Some(why),
        Driver::Install(from) if wishes.in_box => return Some(format!("its driver must be installed: {from}")),
        Driver::Install(_) | Driver::InBox => {}
    }
    if wishes.network_boot && about.boot.rom.is_none() {
        return Some("there is no usual option ROM for network boot".to_owned());
    }
    // docs/which-adapter.md: QEMU live-migrates a vhost-user device, and no vfio-user one.
    if wishes.migrates && !about.transports.contains(&"vhost-user") {
        return Some("QEMU does not live-migrate it".to_owned());
    }
    let segments =
        about.offloads.iter().any(|offload| offload.to_lowercase().contains("tso") || offload.contains("segmentation"));
    (wishes.segmentation && !segments).then(|| "it does not segment what TCP sends".to_owned())
}

/// The choice among `entries`. `studies` are the lab's results, of this machine or another.
///
/// # Errors
/// The version is none of the system's.
pub fn choose(wishes: &Wishes, entries: &[Entry], studies: &[Study], here: &Host) -> Result<Choice, UnknownVersion> {
    if let Some(version) = &wishes.version {
        let known = match wishes.system {
            System::Linux => numbers(version).is_some(),
            System::Windows => year(version).is_some(),
        };
        if !known {
            let releases = WINDOWS.map(|(name, _)| name).join(", ");
            return Err(UnknownVersion(match wishes.system {
                System::Linux => format!("{version:?} is no version of a Linux kernel, such as 2.6.32 or 6.12"),
                System::Windows => format!("{version:?} is no release of Windows that is known here: {releases}"),
            }));
        }
    }
    let (mut fits, mut others) = (Vec::new(), Vec::new());
    for about in entries.iter().map(|entry| entry.about) {
        match against(about, wishes) {
            None => fits.push(about),
            Some(why) => others.push((about.name.to_owned(), why)),
        }
    }
    // By facts, as docs/which-adapter.md has it: what is made for virtual machines, then what needs nothing installed, then what passes no
    // access through the VMM and outlives a daemon (vhost-user), then what has more queues.
    fits.sort_by_key(|about| {
        let installed = driver(about, wishes) != Driver::InBox;
        let through_vmm = !about.transports.contains(&"vhost-user");
        (about.kind != Kind::Paravirtual, installed, through_vmm, Reverse(about.queues), Reverse(about.link_mbps))
    });
    let names: Vec<&str> = fits.iter().map(|about| about.name).collect();
    let measured = measured::measured(wishes.prefer, &names, studies, here);
    let by_facts = fits.first().copied();
    if let Some(at) = measured.first.and_then(|first| fits.iter().position(|about| about.name == first)) {
        let best = fits.remove(at);
        fits.insert(0, best);
    }
    let why = fits.first().zip(by_facts).map(|(about, by_facts)| reasons(about, by_facts, wishes)).unwrap_or_default();
    let table = Table::new(&fits, &others, why.first().map(String::as_str), (wishes, studies, here));
    Ok(Choice {
        adapter: fits.first().map(|about| about.name.to_owned()),
        why,
        measured: measured.sentences,
        others,
        table,
    })
}

/// Reasons for an adapter, where `by_facts` is the first by facts alone.
fn reasons(about: &About, by_facts: &About, wishes: &Wishes) -> Vec<String> {
    let system = match wishes.system {
        System::Linux => ("Linux", &about.linux),
        System::Windows => ("Windows", &about.windows),
    };
    let mut why = vec![
        match about.kind {
            Kind::Paravirtual => {
                format!("{} is made for virtual machines: it needs few messages per frame.", about.name)
            }
            // Facts set those that are made for virtual machines first: if the first is none, none fits.
            Kind::Emulated if by_facts.kind == Kind::Paravirtual => format!(
                "{} imitates the {}; it was measured ahead of {}, which is made for virtual machines.",
                about.name, about.chip, by_facts.name
            ),
            Kind::Emulated => format!("{} imitates the {}; no paravirtual adapter fits.", about.name, about.chip),
        },
        match driver(about, wishes) {
            Driver::Install(from) => format!("Its driver {} must be installed: {from}.", system.1.driver),
            _ => format!("{} has its driver {} since {}.", system.0, system.1.driver, system.1.version),
        },
    ];
    if wishes.network_boot {
        why.push("Usual option ROMs boot from the network by it.".to_owned());
    }
    if wishes.migrates {
        why.push("QEMU live-migrates it.".to_owned());
    }
    why
}

#[cfg(test)]
mod tests {
    use nicety_adapters::REGISTRY;

    use super::*;

    fn linux(version: &str) -> Wishes {
        Wishes {
            system: System::Linux,
            version: Some(version.to_owned()),
            in_box: true,
            network_boot: false,
            migrates: false,
            segmentation: false,
            prefer: Prefer::Throughput,
        }
    }

    fn windows(version: &str) -> Wishes {
        Wishes { system: System::Windows, ..linux(version) }
    }

    fn of(wishes: &Wishes) -> Choice {
        choose(wishes, REGISTRY, &[], &Host::here()).unwrap()
    }

    /// docs/which-adapter.md: the table of guests.
    #[test]
    fn guests_get_the_adapter_that_the_book_names() {
        let named = |wishes: &Wishes| of(wishes).adapter.unwrap();
        assert!(named(&linux("6.12")).starts_with("virtio-net"));
        // Before 2.6.25 no paravirtual driver, before 2.6.27 no e1000e.
        assert!(named(&linux("2.6.18")).starts_with("e1000"));
        assert_eq!(named(&windows("Server 2012")), "igb");
        assert!(named(&windows("Server 2003")).starts_with("e1000"));
        assert_eq!(named(&windows("98")), "ne2k_pci");
        let may_install = Wishes { in_box: false, ..windows("10") };
        assert!(named(&may_install).starts_with("virtio-net"), "virtio-win is installed");
    }

    #[test]
    fn every_adapter_has_a_row_that_says_what_it_needs_and_why_it_is_chosen_or_not() {
        let Table { heads, rows } = of(&windows("Vista")).table;
        assert_eq!(heads, ["Adapter", "Needs", "Why"]);
        assert_eq!(rows.len(), REGISTRY.len());
        let words = |name: &str| rows.iter().find(|row| row[0] == name).map(|row| (row[1].as_str(), row[2].as_str()));
        assert_eq!(
            rows[0][2], "Chosen. e1000 imitates the Intel 82540EM; no paravirtual adapter fits.",
            "{:?}",
            rows[0]
        );
        let (needs, why) = words("pcnet").unwrap();
        assert!(needs.ends_with(", which this Windows does not have"), "{needs}");
        assert_eq!(why, "Does not fit: Windows has its driver since 2000, not from Vista on.");
        let behind = rows.iter().filter(|row| row[2].starts_with("Fits too, and stands behind ")).count();
        assert_eq!(behind + of(&windows("Vista")).others.len() + 1, rows.len());
        let markdown = of(&windows("Vista")).table.markdown();
        assert_eq!(markdown.lines().count(), 2 + rows.len());
        assert!(markdown.contains("\n|---|---|---|\n| e1000 | "), "{markdown}");
        assert_eq!(of(&windows("Vista")).table.html().matches("<tr>").count(), 1 + rows.len());
    }

    #[test]
    fn a_driver_that_left_windows_is_none_and_the_reason_is_given() {
        let choice = of(&windows("Vista"));
        let (_, why) = choice.others.iter().find(|(name, _)| name == "pcnet").unwrap();
        assert_eq!(why, "Windows has its driver since 2000, not from Vista on");
        let boots = of(&Wishes { network_boot: true, in_box: false, ..linux("6.12") });
        let (_, why) = boots.others.iter().find(|(name, _)| name == "vmxnet2").unwrap();
        assert_eq!(why, "there is no usual option ROM for network boot");
        let migrates = of(&Wishes { migrates: true, ..linux("6.12") });
        assert_eq!(migrates.adapter.as_deref(), Some("virtio-net"));
    }

    #[test]
    fn without_results_it_says_so_and_a_version_that_is_none_is_a_mistake() {
        let choice = of(&linux("6.12"));
        assert!(choice.measured[0].starts_with("There are no results of the lab: the order follows from facts alone."));
        let wrong = |wishes| choose(&wishes, REGISTRY, &[], &Host::here()).unwrap_err().to_string();
        assert!(wrong(linux("twelve")).contains("is no version of a Linux kernel"));
        for (said, meant) in
            [("Windows 10", "10"), ("2008 R2", "Server 2008 R2"), ("windows server 2012", "Server 2012")]
        {
            assert_eq!(of(&windows(said)).adapter, of(&windows(meant)).adapter, "{said}");
        }
        assert!(wrong(windows("95")).contains("is no release of Windows that is known here: 98, 2000"));
    }
}
