//! `nicety adapters`: the registry's facts, each with its source.

use nicety_adapters::{About, Entry, Kind, REGISTRY, Since};
use nicety_host::did_you_mean;
use serde_json::{Value, json};

use crate::cli::Adapters;
use crate::exit::{Exit, Failure};
use crate::output;

/// Source for the usual option ROMs.
const ROMS: &str = "QEMU roms/Makefile, pxerom_variants";

/// Runs it.
pub fn run(args: &Adapters) -> Result<(), Failure> {
    let chosen: Vec<&About> = match &args.name {
        None => REGISTRY.iter().map(|entry| entry.about).collect(),
        Some(name) => {
            vec![known(name)?.about]
        }
    };
    let text = match (args.json, &args.name) {
        (true, _) => {
            let all: Vec<Value> = chosen.into_iter().map(as_json).collect();
            let text = serde_json::to_string_pretty(&json!({ "version": 1, "adapters": all }));
            text.map_err(Failure::with(Exit::Failed))? + "\n"
        }
        (false, None) => table(&chosen),
        (false, Some(_)) => chosen.into_iter().map(page).collect(),
    };
    output::print(&text)
}

/// The adapter of this name.
pub fn known(name: &str) -> Result<&'static Entry, Failure> {
    nicety_adapters::find(name).ok_or_else(|| unknown(name))
}

fn unknown(name: &str) -> Failure {
    let names = || REGISTRY.iter().map(|entry| entry.about.name);
    let (meant, all) = (did_you_mean(name, names()), names().collect::<Vec<_>>().join(", "));
    Failure::new(Exit::Usage, format!("there is no adapter {name:?}{meant} (there are: {all})"))
}

fn kind(about: &About) -> &'static str {
    match about.kind {
        Kind::Emulated => "emulated",
        Kind::Paravirtual => "paravirtual",
    }
}

fn link(about: &About) -> String {
    match about.link_mbps {
        mbps if mbps >= 1000 && mbps.is_multiple_of(1000) => format!("{} Gbit/s", mbps / 1000),
        mbps => format!("{mbps} Mbit/s"),
    }
}

fn table(all: &[&About]) -> String {
    let head = ["NAME", "CHIP", "KIND", "LINK", "QUEUES", "PXE", "LINUX", "WINDOWS"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(all.iter().map(|about| {
        let pxe = if about.boot.rom.is_some() { "yes" } else { "no" };
        vec![
            about.name.to_owned(),
            about.chip.to_owned(),
            kind(about).to_owned(),
            link(about),
            about.queues.to_string(),
            pxe.to_owned(),
            about.linux.version.to_owned(),
            about.windows.version.to_owned(),
        ]
    }));
    let names = "LINK is the speed that a guest is shown, never a limit; LINUX and WINDOWS say since when they carry the driver.";
    output::columns(&rows) + "\n" + names + "\n`nicety adapters NAME` says all, with sources.\n"
}

/// A release of the system, or the package that contains the driver.
fn since(since: &Since) -> String {
    let Since { driver, version, .. } = since;
    let release = version.starts_with(|c: char| c.is_ascii_digit() || c.is_ascii_uppercase());
    let word = if release { "since " } else { "" };
    format!("{driver}, {word}{version}")
}

fn page(about: &About) -> String {
    let why = match about.kind {
        Kind::Emulated => "drivers for it are everywhere, and it costs work for every frame",
        Kind::Paravirtual => "made for virtual machines: fast, and needs its own driver",
    };
    let offloads = if about.offloads.is_empty() { "none".to_owned() } else { about.offloads.join(", ") };
    let boot = if about.boot.rom.is_some() { "with the usual option ROMs" } else { "no usual option ROM" };
    let unless = about.link_unless.map_or_else(String::new, |unless| format!("; {unless}"));
    let (vendor, device) = about.pci;
    let sources = &about.sources;
    let facts = [
        ("chip", about.chip.to_owned(), sources.chip),
        ("kind", format!("{}: {why}", kind(about)), ""),
        ("PCI", format!("{vendor:04x}:{device:04x}"), sources.pci),
        ("link", format!("{} shown to the guest; never a limit{unless}", link(about)), sources.link),
        ("offloads", offloads, sources.offloads),
        ("queue pairs", format!("at most {}", about.queues), sources.queues),
        ("largest MTU", format!("{} bytes", about.mtu_max), sources.mtu),
        ("network boot", boot.to_owned(), ROMS),
        ("Linux", since(&about.linux), about.linux.source),
        ("Windows", since(&about.windows), about.windows.source),
        ("reached by", about.transports.join(", "), ""),
    ];
    let mut text = format!("{}\n", about.name);
    for (name, fact, source) in facts {
        text.push_str(format!("  {name:12}  {fact}").trim_end());
        text.push('\n');
        if !source.is_empty() {
            text.push_str(&format!("  {:12}    [{source}]\n", ""));
        }
    }
    text
}

fn as_json(about: &About) -> Value {
    let since = |since: &Since| json!({ "driver": since.driver, "since": since.version, "source": since.source });
    let sources = &about.sources;
    json!({
        "name": about.name,
        "chip": about.chip,
        "kind": kind(about),
        "pci": { "vendor": about.pci.0, "device": about.pci.1 },
        "link_mbps": about.link_mbps,
        "link_unless": about.link_unless,
        "offloads": about.offloads,
        "queue_pairs_most": about.queues,
        "mtu_most": about.mtu_max,
        "pxe": about.boot.rom.is_some(),
        "linux": since(&about.linux),
        "windows": since(&about.windows),
        "transports": about.transports,
        "sources": {
            "chip": sources.chip,
            "pci": sources.pci,
            "link_mbps": sources.link,
            "offloads": sources.offloads,
            "queue_pairs_most": sources.queues,
            "mtu_most": sources.mtu,
            "pxe": ROMS,
        },
    })
}
