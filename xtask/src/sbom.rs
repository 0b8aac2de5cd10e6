//! A software bill of materials in CycloneDX 1.5 (cyclonedx.org/docs/1.5/json): the crates that are linked into the package's programs.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::linked::{Crate, STD_LICENSE};

/// A package URL of the type `cargo` (github.com/package-url/purl-spec).
fn purl(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{version}")
}

fn component(one: &Crate) -> Value {
    let mut component = json!({
        "type": if one.name == "nicety" { "application" } else { "library" },
        "bom-ref": purl(&one.name, &one.version),
        "name": one.name,
        "version": one.version,
        "purl": purl(&one.name, &one.version),
        "licenses": [{ "expression": one.license }],
    });
    if let Some(checksum) = &one.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    if let Some(repository) = &one.repository {
        component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    component
}

/// Rust's standard library. It is of no registry of crates.
fn standard_library(version: &str) -> Value {
    let reference = std_purl(version);
    json!({
        "type": "library",
        "bom-ref": reference,
        "name": "rust-std",
        "version": version,
        "purl": reference,
        "licenses": [{ "expression": STD_LICENSE }],
        "externalReferences": [{ "type": "vcs", "url": "https://github.com/rust-lang/rust" }],
    })
}

fn std_purl(version: &str) -> String {
    format!("pkg:github/rust-lang/rust@{version}#library/std")
}

/// The document. `date` is in ISO 8601, `std` the version of Rust's standard library.
///
/// # Errors
/// `nicety` is not among the crates.
pub fn document(crates: &[Crate], std: &str, date: &str) -> Result<String> {
    let own = crates.iter().find(|one| one.name == "nicety").context("there is no package nicety")?;
    let others = crates.iter().filter(|one| one.name != "nicety");
    let links = crates.iter().map(|one| {
        let std = (one.name == "nicety").then(|| std_purl(std));
        let to: Vec<String> = one.links.iter().map(|(name, version)| purl(name, version)).chain(std).collect();
        json!({ "ref": purl(&one.name, &one.version), "dependsOn": to })
    });
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "timestamp": date, "component": component(own) },
        "components": others.map(component).chain([standard_library(std)]).collect::<Vec<_>>(),
        "dependencies": links.collect::<Vec<_>>(),
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_reference_is_of_a_component() {
        let text = document(&crate::linked::crates().unwrap(), "1.95.0", "2026-01-01T00:00:00Z").unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&document["bomFormat"], &document["specVersion"]), (&json!("CycloneDX"), &json!("1.5")));
        let components = document["components"].as_array().unwrap().iter();
        let known: BTreeSet<&str> = components
            .chain([&document["metadata"]["component"]])
            .map(|component| component["bom-ref"].as_str().unwrap())
            .collect();
        assert!(known.contains("pkg:github/rust-lang/rust@1.95.0#library/std"));
        for entry in document["dependencies"].as_array().unwrap() {
            let links = entry["dependsOn"].as_array().unwrap().iter();
            for reference in links.chain([&entry["ref"]]) {
                assert!(known.contains(reference.as_str().unwrap()), "{reference}");
            }
        }
    }
}
