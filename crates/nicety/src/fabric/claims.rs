//! `nicety fabric port list` and `where`: which host has which address, by the claims of all hosts.

use std::collections::{BTreeMap, BTreeSet};

use nicety_control as control;
use nicety_fabric::{CARRIED, ClaimRecord, Entry, Key, Name};
use nicety_frame::Mac;
use serde_json::{Value, json};

use crate::exit::{Exit, Failure};
use crate::output;

use super::store::Store;

/// An address of a group, claimed by a host, or an uplink that carries the group's VLAN.
#[derive(Clone, Debug)]
pub struct Claim {
    group: Name,
    /// The host.
    pub host: Name,
    /// The port.
    pub port: Name,
    mac: Mac,
    sequence: u64,
    modified: i64,
    /// Whether frames go there. If not, a newer claim counts.
    is_current: bool,
}

impl Claim {
    /// Whether it is the claim of a host whose uplink carries the group's VLAN.
    fn is_uplink(&self) -> bool {
        self.mac == CARRIED
    }

    fn address(&self) -> String {
        if self.is_uplink() { "uplink".to_owned() } else { self.mac.to_string() }
    }

    fn json(&self) -> Value {
        let Self { group, host, port, mac: _, sequence, modified: _, is_current } = self;
        let (group, host, port) = (group.as_str(), host.as_str(), port.as_str());
        json!({ "group": group, "port": port, "address": self.address(), "host": host, "sequence": sequence, "current": is_current })
    }
}

/// All claims below a prefix, in the order of groups, hosts and addresses, and the keys that cannot be read, each with the reason.
pub fn all(store: &Store, prefix: &str) -> Result<(Vec<Claim>, Vec<String>), Failure> {
    let (mut claims, mut odd) = (Vec::new(), Vec::new());
    for entry in store.all(prefix)? {
        match read(store, &entry) {
            Ok(claim) => claims.push(claim),
            Err(why) => odd.push(format!("{}: {why}", String::from_utf8_lossy(&entry.key).escape_debug())),
        }
    }
    // Of several claims the one with the highest number counts, and of equal ones the one that was written last.
    let mut best: BTreeMap<(Name, Mac), (u64, i64)> = BTreeMap::new();
    for claim in claims.iter().filter(|claim| !claim.is_uplink()) {
        let rank = (claim.sequence, claim.modified);
        let known = best.entry((claim.group.clone(), claim.mac)).or_insert(rank);
        *known = rank.max(*known);
    }
    for claim in &mut claims {
        let known = best.get(&(claim.group.clone(), claim.mac));
        claim.is_current = claim.is_uplink() || known == Some(&(claim.sequence, claim.modified));
    }
    Ok((claims, odd))
}

fn read(store: &Store, entry: &Entry) -> Result<Claim, String> {
    let Key::At { group, host, mac } = store.keys.parse(&entry.key)? else {
        return Err("it is no claim".to_owned());
    };
    let ClaimRecord { port, sequence } = ClaimRecord::parse(&entry.value)?;
    Ok(Claim { group, host, port, mac, sequence, modified: entry.modified, is_current: false })
}

/// Claims of each group: addresses, and hosts.
pub fn by_group(claims: &[Claim]) -> BTreeMap<Name, (usize, BTreeSet<Name>)> {
    let mut groups: BTreeMap<Name, (usize, BTreeSet<Name>)> = BTreeMap::new();
    for claim in claims.iter().filter(|claim| claim.is_current) {
        let (count, hosts) = groups.entry(claim.group.clone()).or_default();
        *count += usize::from(!claim.is_uplink());
        hosts.insert(claim.host.clone());
    }
    groups
}

fn show(claims: &[Claim], odd: &[String], as_json: bool) -> Result<(), Failure> {
    odd.iter().for_each(|odd| output::tell(format_args!("note: left out the key {odd}")));
    if as_json {
        let all: Vec<Value> = claims.iter().map(Claim::json).collect();
        let text = serde_json::to_string_pretty(&json!({ "version": control::VERSION, "claims": all }));
        return output::print(&(text.map_err(Failure::with(Exit::Failed))? + "\n"));
    }
    let mut rows = vec![["GROUP", "PORT", "ADDRESS", "HOST", ""].map(str::to_owned).to_vec()];
    rows.extend(claims.iter().map(|claim| {
        let Claim { group, host, port, is_current, .. } = claim;
        let state = if *is_current { "" } else { "overtaken" };
        vec![group.to_string(), port.to_string(), claim.address(), host.to_string(), state.to_owned()]
    }));
    output::print(&output::columns(&rows))
}

/// `nicety fabric port list`.
pub fn list(store: &Store, group: Option<&Name>, as_json: bool) -> Result<(), Failure> {
    let basis = store.basis()?;
    if let Some(group) = group.filter(|group| !basis.config.groups.contains_key(group)) {
        let names: Vec<&str> = basis.config.groups.keys().map(Name::as_str).collect();
        let there =
            if names.is_empty() { "it has none".to_owned() } else { format!("there are: {}", names.join(", ")) };
        return Err(Failure::new(Exit::Usage, format!("the fabric has no group {group:?}; {there}")));
    }
    let prefix = group.map_or_else(|| store.keys.claims(), |group| store.keys.group(group));
    let (claims, odd) = all(store, &prefix)?;
    if claims.is_empty() && odd.is_empty() && !as_json {
        return output::print(
            "no port of any host has an address here: a port has one while its guest's driver works\n",
        );
    }
    show(&claims, &odd, as_json)
}

/// `nicety fabric where`.
pub fn find(store: &Store, mac: Mac, as_json: bool) -> Result<(), Failure> {
    store.basis()?;
    let (mut claims, _) = all(store, &store.keys.claims())?;
    claims.retain(|claim| claim.mac == mac);
    if claims.is_empty() {
        let what = format!(
            "no host claims {mac}: its guest's driver does not work now, or no port of a group of the fabric has it"
        );
        return Err(Failure::new(Exit::Failed, what));
    }
    show(&claims, &[], as_json)
}
