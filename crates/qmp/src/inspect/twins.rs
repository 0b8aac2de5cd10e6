//! Differences between two VMs that should be twins. QEMU finds some of these itself, but only during the first synchronization. Its words
//! then name no option ("Section footer error, section_id: 14"). It does not find the others.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Facts, Properties};

/// Names of back ends, and what a VM's life changes: they may differ. The guest numbers the buses behind its root ports (`busnr`). A
/// processor's clock and microcode are its host's.
const MAY_DIFFER: &[&str] = &[
    "netdev",
    "chardev",
    "drive",
    "hotplugged",
    "hotpluggable",
    "realized",
    "romfile",
    "busnr",
    "tsc-frequency",
    "ucode-rev",
];
/// More differences than a person reads.
const SHOWN_MAX: usize = 20;

/// Each difference is a sentence that names both values. Empty: they are twins, as far as QEMU tells.
pub fn differences(primary: &Facts, secondary: &Facts) -> Vec<String> {
    let mut all = Vec::new();
    let mut pair = |what: &str, left: &str, right: &str| {
        if left != right {
            all.push(format!("{what} differs: {left} at the primary, {right} at the secondary"));
        }
    };
    pair("QEMU's version", &primary.version.to_string(), &secondary.version.to_string());
    pair("the UUID (-uuid)", &primary.uuid, &secondary.uuid);
    all.extend(of("the machine's", &primary.machine, &secondary.machine));
    all.extend(of("the processor's", &primary.processor, &secondary.processor));
    let memory = |facts: &Facts| -> Properties {
        facts.memory.iter().map(|(id, memory)| (id.clone(), Value::from(memory.kind.clone()))).collect()
    };
    all.extend(of("the memory backend", &memory(primary), &memory(secondary)));
    for place in both(primary.devices.keys(), secondary.devices.keys()) {
        match (primary.devices.get(place), secondary.devices.get(place)) {
            (Some(left), Some(right)) if left.kind == right.kind => {
                all.extend(of(&format!("{} at {place}:", left.kind), &left.properties, &right.properties));
            }
            (left, right) => {
                let kind = |device: Option<&super::Device>| device.map_or("nothing", |device| &device.kind).to_owned();
                all.push(format!("at {place} the primary has {}, the secondary {}", kind(left), kind(right)));
            }
        }
    }
    // What is no -device: the default adapters of a machine without -nodefaults.
    if all.is_empty() {
        let functions = |facts: &Facts| -> Properties {
            facts.functions.iter().map(|(at, id)| (at.clone(), Value::from(id.clone()))).collect()
        };
        all.extend(of("the PCI function", &functions(primary), &functions(secondary)));
    }
    let more = all.len().saturating_sub(SHOWN_MAX);
    if more > 0 {
        all.truncate(SHOWN_MAX);
        all.push(format!("and {more} more differences"));
    }
    all
}

fn both<'a>(left: impl Iterator<Item = &'a String>, right: impl Iterator<Item = &'a String>) -> BTreeSet<&'a String> {
    left.chain(right).collect()
}

fn of(what: &str, left: &Properties, right: &Properties) -> Vec<String> {
    let shown = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
    let sentence = |name: &String| {
        let (left, right) = (left.get(name), right.get(name));
        let differs = left != right && !MAY_DIFFER.contains(&name.as_str());
        differs.then(|| {
            format!("{what} {name} differs: {} at the primary, {} at the secondary", shown(left), shown(right))
        })
    };
    both(left.keys(), right.keys()).into_iter().filter_map(sentence).collect()
}
