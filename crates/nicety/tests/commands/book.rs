//! The book's pages of adapters: their tables and diagrams match the code.
//!
//! A page has marks: `<!-- features: NAME … -->` before the table of these adapters, `<!-- diagram: FILE -->` before the first
//! drawing of a source file, each up to `<!-- end -->`. `NICETY_GOLDEN=write cargo test -p nicety --test commands book` writes the
//! text between them.

use std::{fs, path::PathBuf};

use nicety_adapters::{About, Kind, REGISTRY, Since, find};

const END: &str = "<!-- end -->";

pub fn root() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../.."].iter().collect()
}

fn since(Since { driver, version, .. }: &Since) -> String {
    let release = version.starts_with(|first: char| first.is_ascii_digit() || first.is_ascii_uppercase());
    format!("{driver}, {}{version}", if release { "since " } else { "" })
}

/// A row's name, and its cell's text.
type Row = (&'static str, fn(&About) -> String);

const ROWS: [Row; 11] = [
    ("chip", |about| about.chip.to_owned()),
    ("kind", |about| {
        match about.kind {
            Kind::Emulated => "emulated",
            Kind::Paravirtual => "paravirtual",
        }
        .to_owned()
    }),
    ("PCI", |about| format!("{:04x}:{:04x}", about.pci.0, about.pci.1)),
    ("link shown", |about| match about.link_mbps {
        mbps if mbps >= 1000 => format!("{} Gbit/s", f64::from(mbps) / 1000.0),
        mbps => format!("{mbps} Mbit/s"),
    }),
    ("offloads", |about| if about.offloads.is_empty() { "none".to_owned() } else { about.offloads.join(", ") }),
    ("queue pairs", |about| format!("at most {}", about.queues)),
    ("largest MTU", |about| format!("{} bytes{}", about.mtu_max, if about.announces_mtu { ", announced" } else { "" })),
    ("network boot", |about| {
        let rom = about.boot.rom.map(|name| format!("`pxe-{name}.rom`, `efi-{name}.rom`"));
        let u_boot = about.boot.u_boot.map(|_| "U-Boot".to_owned());
        let ways: Vec<String> = rom.into_iter().chain(u_boot).collect();
        if ways.is_empty() { "none".to_owned() } else { ways.join(", ") }
    }),
    ("Linux", |about| since(&about.linux)),
    ("Windows", |about| since(&about.windows)),
    ("reached by", |about| about.transports.join(", ")),
];

fn table(names: &str) -> String {
    let about = |name| find(name).unwrap_or_else(|| panic!("{name} is an adapter")).about;
    let all: Vec<&About> = names.split_whitespace().map(about).collect();
    let line = |first: &str, cells: Vec<String>| format!("| {first} | {} |\n", cells.join(" | "));
    let head = line("", all.iter().map(|about| format!("`{}`", about.name)).collect());
    let rows = ROWS.map(|(name, cell)| line(name, all.iter().map(|about| cell(about)).collect()));
    head + "|---" + &"|---".repeat(all.len()) + "|\n" + &rows.concat()
}

fn diagram(file: &str) -> String {
    let source = fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    let lines = source
        .lines()
        .map(|line| line.strip_prefix("//!").unwrap_or(line))
        .map(|line| line.strip_prefix(' ').unwrap_or(line));
    let drawn: Vec<&str> =
        lines.skip_while(|line| *line != "```text").skip(1).take_while(|line| *line != "```").collect();
    assert!(!drawn.is_empty(), "{file} has no drawing");
    format!("```text\n{}\n```\n", drawn.join("\n"))
}

/// The expected page.
fn made(page: &str) -> String {
    let (mut made, mut within) = (String::new(), false);
    for line in page.lines() {
        let mark = line.strip_prefix("<!-- ").and_then(|line| line.strip_suffix(" -->"));
        within &= line != END;
        if !within {
            made += &format!("{line}\n");
        }
        if let Some((kind, what)) = mark.and_then(|mark| mark.split_once(": ")) {
            made += &match kind {
                "features" => table(what),
                "diagram" => diagram(what),
                _ => panic!("{line}: features or diagram"),
            };
            within = true;
        }
    }
    assert!(!within, "{END} is missing");
    made
}

#[test]
fn each_adapter_has_a_page_with_its_features_and_a_diagram_as_the_code_has_them() {
    let (mut described, mut different) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(root().join("docs/adapters")).unwrap() {
        let path = entry.unwrap().path();
        let page = fs::read_to_string(&path).unwrap();
        assert!(page.contains("<!-- diagram: "), "{} has no diagram", path.display());
        let features = page.lines().filter_map(|line| line.strip_prefix("<!-- features: "));
        described.extend(features.flat_map(|names| names.trim_end_matches(" -->").split(' ')).map(str::to_owned));
        let made = made(&page);
        if std::env::var_os("NICETY_GOLDEN").is_some_and(|asked| asked == "write") {
            fs::write(&path, &made).unwrap();
        } else if made != page {
            different.push(path);
        }
    }
    for entry in REGISTRY {
        assert!(described.iter().any(|name| name == entry.about.name), "{} has no table in the book", entry.about.name);
    }
    assert!(
        different.is_empty(),
        "{different:?} differ from the code: `NICETY_GOLDEN=write cargo test -p nicety --test commands book`"
    );
}

/// A promise is `[`test`](file)`: whoever renames a test must rename it in the promise, or this fails.
#[test]
fn every_promise_of_the_threat_model_names_a_test_that_is_there() {
    let docs = root().join("docs");
    let page = fs::read_to_string(docs.join("threat-model.md")).unwrap();
    let mut named = 0;
    for (name, rest) in page.split("[`").skip(1).filter_map(|part| part.split_once("`](")) {
        let Some((file, _)) = rest.split_once(')').filter(|(file, _)| file.ends_with(".rs")) else { continue };
        let source = fs::read_to_string(docs.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(source.contains(&format!("fn {name}(")), "{file} has no test {name}");
        named += 1;
    }
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.ends_with("| held by |"));
    for row in rows {
        assert!(row.contains(".rs) |") || row.contains(".rs), ["), "no test holds this: {row}");
    }
    assert!(named > 30, "{named}");
    assert!(fs::read_to_string(root().join("SECURITY.md")).unwrap().contains("(docs/threat-model.md)"));
    assert!(fs::read_to_string(docs.join("README.md")).unwrap().contains("(threat-model.md)"));
}
