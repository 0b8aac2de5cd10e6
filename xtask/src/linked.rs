//! The crates that are linked into the package's programs, by `cargo metadata` (the Cargo book, cargo-metadata), with their licences.
//! The copyright file has Debian's machine-readable form (DEP 5).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::PathBuf,
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::command::{cargo, output, root};

/// Licences whose texts every Debian system has, in /usr/share/common-licenses (Policy 12.5).
const COMMON: [(&str, &str); 1] = [("Apache-2.0", "Apache-2.0")];

/// Licences of what every Rust program links beside its crates: `std`, its Unicode tables and the crates within it, by the list that comes
/// with the compiler (`share/doc/rust/COPYRIGHT-library.html`), and `compiler_builtins`.
pub const STD_LICENSE: &str = "(MIT OR Apache-2.0) AND Apache-2.0 WITH LLVM-exception AND Unicode-3.0 AND Zlib";

/// The compiler's version, which is that of its standard library: `1.95.0`.
///
/// # Errors
/// rustc cannot be run, or says something else.
pub fn std_version() -> Result<String> {
    let text = output(Command::new("rustc").arg("--version"))?;
    Ok(text.split(' ').nth(1).context("rustc names no version")?.to_owned())
}

/// A crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crate {
    pub name: String,
    pub version: String,
    /// Its licences, as an expression of SPDX.
    pub license: String,
    pub authors: Vec<String>,
    /// Address of its published source.
    pub repository: Option<String>,
    /// SHA-256 of its package, in hexadecimal. `None`: one of ours.
    pub checksum: Option<String>,
    /// Names and versions of the crates that it links.
    pub links: Vec<(String, String)>,
    /// Its source.
    pub folder: PathBuf,
}

impl Crate {
    pub fn is_ours(&self) -> bool {
        self.checksum.is_none()
    }

    /// Licence files, by name, with their texts.
    fn files(&self) -> Result<Vec<(String, String)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let upper = name.to_uppercase();
            let is_licence = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"]
                .iter()
                .any(|start| upper.starts_with(start));
            if is_licence && path.is_file() {
                found.push((name, String::from_utf8_lossy(&fs::read(&path)?).into_owned()));
            }
        }
        found.sort();
        Ok(found)
    }

    /// Copyright holders: lines of the licence files, else the authors.
    fn holders(&self) -> Result<BTreeSet<String>> {
        let mut holders = BTreeSet::new();
        for (_, text) in self.files()? {
            holders.extend(text.lines().filter_map(holder));
        }
        if holders.is_empty() {
            let named = self.authors.iter().cloned();
            holders.extend(named.chain(self.authors.is_empty().then(|| format!("the authors of {}", self.name))));
        }
        Ok(holders)
    }
}

/// The holder in a line `Copyright (c) 2014 Somebody`. The texts of licences speak of copyrights too, and their templates.
fn holder(line: &str) -> Option<String> {
    let rest = line.trim().trim_start_matches(['/', '*', '#', ' ']);
    let rest = rest.strip_prefix("Copyright ")?;
    let rest = ["(c) ", "(C) ", "© "].iter().find_map(|mark| rest.strip_prefix(mark)).unwrap_or(rest).trim();
    let is_dated = rest.starts_with(|c: char| c.is_ascii_digit());
    let is_named = line.contains("(c)") || line.contains("(C)") || line.contains('©') || is_dated;
    (is_named && !rest.contains(['[', '{', '<']) || is_dated && rest.contains('@'))
        .then(|| rest.trim_end_matches('.').to_owned())
        .filter(|rest| !rest.is_empty() && !rest.contains("yyyy"))
}

fn metadata() -> Result<Value> {
    let mut command = cargo();
    command.args(["metadata", "--locked", "--format-version=1", "--filter-platform=x86_64-unknown-linux-gnu"]);
    command.current_dir(root());
    Ok(serde_json::from_str(&output(&mut command)?)?)
}

/// The folder of builds.
pub fn target() -> Result<PathBuf> {
    Ok(metadata()?["target_directory"].as_str().context("cargo names no target folder")?.into())
}

/// The crates that the package `nicety` links, itself included, by name and version.
///
/// # Errors
/// cargo fails, or its answer lacks something.
pub fn crates() -> Result<Vec<Crate>> {
    let lock = fs::read_to_string(root().join("Cargo.lock"))?;
    of(&metadata()?, &checksums(&lock))
}

/// Checksums in a lock file, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let mut found = BTreeMap::new();
    for package in lock.split("[[package]]") {
        let value = |key: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
            line.and_then(|rest| rest.strip_suffix('"')).map(str::to_owned)
        };
        if let (Some(name), Some(version), Some(checksum)) = (value("name"), value("version"), value("checksum")) {
            found.insert((name, version), checksum);
        }
    }
    found
}

fn of(metadata: &Value, checksums: &BTreeMap<(String, String), String>) -> Result<Vec<Crate>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let (packages, nodes) = (list(&metadata["packages"]), list(&metadata["resolve"]["nodes"]));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let package = |id: &str| packages.iter().find(|package| package["id"] == id).context("a crate without a package");
    let root = packages.iter().find(|package| package["name"] == "nicety").context("there is no package nicety")?;
    let (mut found, mut waiting) = (BTreeMap::new(), vec![text(&root["id"])]);
    while let Some(id) = waiting.pop() {
        if found.contains_key(&id) {
            continue;
        }
        let node = nodes.iter().find(|node| node["id"] == id.as_str()).context("a crate that is not resolved")?;
        // A macro runs in the compiler, and so do a build script's crates: neither is in the program.
        let links: Vec<String> = list(&node["deps"])
            .iter()
            .filter(|link| list(&link["dep_kinds"]).iter().any(|kind| kind["kind"].is_null()))
            .map(|link| text(&link["pkg"]))
            .filter(|link| package(link).is_ok_and(|package| !is_macro(package)))
            .collect();
        waiting.extend(links.iter().cloned());
        let package_of = package(&id)?;
        let named = |package: &Value| (text(&package["name"]), text(&package["version"]));
        let (name, version) = named(package_of);
        let folder = PathBuf::from(text(&package_of["manifest_path"]));
        let one = Crate {
            checksum: checksums.get(&(name.clone(), version.clone())).cloned(),
            license: text(&package_of["license"]).replace('/', " OR "),
            authors: list(&package_of["authors"]).iter().map(&text).collect(),
            repository: package_of["repository"].as_str().map(str::to_owned),
            links: links.iter().map(|link| package(link).map(named)).collect::<Result<_>>()?,
            folder: folder.parent().context("a manifest without a folder")?.to_owned(),
            name,
            version,
        };
        ensure!(!one.license.is_empty(), "{} {} names no licence", one.name, one.version);
        found.insert(id, one);
    }
    let mut crates: Vec<Crate> = found.into_values().collect();
    crates.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(crates)
}

fn is_macro(package: &Value) -> bool {
    let targets = package["targets"].as_array();
    targets.is_some_and(|targets| targets.iter().any(|target| target["kind"][0] == "proc-macro"))
}

/// The names of licences in an expression: `MIT OR Apache-2.0`.
fn licences(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| c.is_whitespace() || c == '(' || c == ')');
    let mut found = BTreeSet::new();
    let mut exception = false;
    for word in words.filter(|word| !word.is_empty()) {
        match word {
            "OR" | "AND" => {}
            "WITH" => exception = true,
            _ if std::mem::take(&mut exception) => {}
            word => {
                found.insert(word.to_owned());
            }
        }
    }
    found
}

/// An expression as DEP 5 writes it: the operators are in small letters.
fn in_small_letters(expression: &str) -> String {
    expression.replace(" OR ", " or ").replace(" AND ", " and ").replace(" WITH ", " with ")
}

/// The copyright file.
///
/// # Errors
/// A crate's source cannot be read, or no crate has a licence's text.
pub fn copyright(crates: &[Crate]) -> Result<String> {
    let mut text = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: nicety
Comment: The programs are linked of the crates below, each in the version named. The
 texts of their licences as they came with them are in licenses.txt.gz.

Files: *
Copyright: the Nicety authors
License: MIT or Apache-2.0
"
    .to_owned();
    let _ = write!(
        text,
        "\nFiles: vendor/rust-std-{}/*\nCopyright: The Rust Project Developers (see https://thanks.rust-lang.org)\n \
         1991-2024 Unicode, Inc\nLicense: {}\nComment: Rust's standard library, with the crates in it.\n",
        std_version()?,
        in_small_letters(STD_LICENSE),
    );
    let mut names = licences(STD_LICENSE);
    for one in crates.iter().filter(|one| !one.is_ours()) {
        let holders: Vec<String> = one.holders()?.into_iter().collect();
        let license = in_small_letters(&one.license);
        let _ = write!(
            text,
            "\nFiles: vendor/{}-{}/*\nCopyright: {}\nLicense: {license}\n",
            one.name,
            one.version,
            holders.join("\n ")
        );
        names.extend(licences(&one.license));
    }
    for name in names {
        let body = match COMMON.iter().find(|(common, _)| *common == name) {
            Some((_, file)) => {
                format!("On Debian systems the full text is in /usr/share/common-licenses/{file}.\n")
            }
            None => licence_text(crates, &name)?,
        };
        let lines =
            body.trim().lines().map(|line| if line.trim().is_empty() { " .".into() } else { format!(" {line}") });
        let _ = write!(text, "\nLicense: {name}\n{}\n", lines.collect::<Vec<_>>().join("\n"));
    }
    Ok(text)
}

/// The text of a licence as some crate has it, without its copyright lines.
fn licence_text(crates: &[Crate], name: &str) -> Result<String> {
    // A phrase that only this licence has.
    let phrase = match name {
        "MIT" => "without restriction, including without limitation the rights",
        "BSD-3-Clause" => "may be used to endorse or promote products",
        "BSD-2-Clause" => "Redistributions in binary form must reproduce",
        "Unicode-3.0" => "UNICODE LICENSE V3",
        "0BSD" => "for any purpose with or without fee is hereby granted",
        "Zlib" => "This software is provided 'as-is', without any express or implied",
        "ISC" => "provided that the above copyright notice and this permission notice appear in all copies",
        "Unlicense" => "This is free and unencumbered software",
        "BSL-1.0" => "Boost Software License",
        "MIT-0" => "without restriction, including without limitation the rights",
        _ => anyhow::bail!("{name} is a licence that xtask/src/linked.rs does not know"),
    };
    // No crate has Unicode's licence: that of the standard library's tables.
    let own = [
        ("LICENSE-MIT", fs::read_to_string(root().join("LICENSE-MIT"))?),
        ("Unicode-3.0.txt", include_str!("../deb/Unicode-3.0.txt").to_owned()),
    ];
    let own = own.iter().map(|(file, text)| ((*file).to_owned(), text.clone()));
    let theirs = crates.iter().filter(|one| licences(&one.license).contains(name)).map(Crate::files);
    let theirs = theirs.collect::<Result<Vec<_>>>()?.into_iter().flatten();
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let found = own.chain(theirs).map(|(_, text)| text).find(|text| one_line(text).contains(phrase));
    let text = found.with_context(|| format!("no crate has the text of {name}"))?;
    Ok(text.lines().filter(|line| holder(line).is_none()).collect::<Vec<_>>().join("\n"))
}

/// Every licence file of every crate, each text once.
///
/// # Errors
/// A crate's source cannot be read.
pub fn texts(crates: &[Crate]) -> Result<String> {
    let mut by_text: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for one in crates.iter().filter(|one| !one.is_ours()) {
        for (file, text) in one.files()? {
            by_text.entry(text).or_default().insert(format!("{}-{}/{file}", one.name, one.version));
        }
    }
    let mut parts: Vec<(Vec<String>, String)> =
        by_text.into_iter().map(|(text, names)| (names.into_iter().collect(), text)).collect();
    parts.sort();
    Ok(parts.into_iter().map(|(names, text)| format!("==== {}\n\n{text}\n\n", names.join("\n==== "))).collect())
}

/// The crates without a licence file. Their licence's text is in the copyright file all the same.
///
/// # Errors
/// A crate's source cannot be read.
pub fn without_text(crates: &[Crate]) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for one in crates.iter().filter(|one| !one.is_ours()) {
        if one.files()?.is_empty() {
            names.push(format!("{} {}", one.name, one.version));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_told_from_a_licence_s_own_words() {
        for (line, expected) in [
            ("Copyright (c) 2014 The Rust Project Developers", Some("2014 The Rust Project Developers")),
            ("   Copyright 2019 Somebody <a@b.example>", Some("2019 Somebody <a@b.example>")),
            ("Copyright © 1991-2023 Unicode, Inc.", Some("1991-2023 Unicode, Inc")),
            ("   Copyright [yyyy] [name of copyright owner]", None),
            ("Copyright {yyyy} {name of copyright owner}", None),
            ("copyright notice that is included in or attached to the work", None),
            ("Copyright holders may not", None),
        ] {
            assert_eq!(holder(line).as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn an_expression_names_its_licences() {
        let names = |text| licences(text).into_iter().collect::<Vec<_>>().join(" ");
        assert_eq!(names("(MIT OR Apache-2.0) AND Unicode-3.0"), "Apache-2.0 MIT Unicode-3.0");
        assert_eq!(names("Apache-2.0 WITH LLVM-exception OR MIT"), "Apache-2.0 MIT");
    }

    #[test]
    fn every_crate_that_is_linked_has_a_licence_and_our_own_crates_are_among_them() {
        let crates = crates().unwrap();
        let named = |name: &str| crates.iter().find(|one| one.name == name);
        assert!(named("nicety-daemon").unwrap().is_ours());
        let serde = named("serde").unwrap();
        assert_eq!(serde.checksum.as_ref().unwrap().len(), 64);
        // A macro, a crate of tests alone, and one of the developer's commands.
        for other in ["serde_derive", "tempfile", "anyhow"] {
            assert!(named(other).is_none(), "{other}");
        }
        let text = copyright(&crates).unwrap();
        let paragraph = format!("Files: vendor/serde-{}/*\n", serde.version);
        assert!(text.contains(&paragraph) && text.contains("\nLicense: MIT\n Permission is hereby granted"), "{text}");
        for one in crates.iter().flat_map(|one| licences(&one.license)).chain(licences(STD_LICENSE)) {
            assert!(text.contains(&format!("\nLicense: {one}\n")), "{one}");
        }
        assert!(text.contains(&format!("\nFiles: vendor/rust-std-{}/*\n", std_version().unwrap())));
        assert!(texts(&crates).unwrap().contains(&format!("==== serde-{}/LICENSE-APACHE", serde.version)));
    }
}
