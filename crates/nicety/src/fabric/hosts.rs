//! `nicety fabric init`, `join`, `leave` and `forget`: a fabric is made, and hosts take part in it or not any more.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use nicety_etcd::{Keys as Range, Scheme, User};
use nicety_fabric::{Entry, HostRecord, Key, Name, Op, Transaction};
use nicety_host::{EtcdConfig, EtcdIdentity};
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, value};

use crate::change::agree;
use crate::exit::{Exit, Failure};
use crate::output;

use super::store::Store;
use super::{rights, secret};

/// The name of the tunnel's uplink in the tables that `join` prints.
const TUNNEL: &str = "tunnel";

fn say(lines: &[String]) -> Result<(), Failure> {
    output::print(&lines.iter().map(|line| format!("{line}\n")).collect::<String>())
}

/// `nicety fabric init`. What is there already stays, and lacking roles and rights are made, also those of hosts.
pub fn init(store: &Store, into: Option<&Path>) -> Result<(), Failure> {
    let fabric = &store.fabric;
    let mut done = Vec::new();
    let basis = match store.look()? {
        Some(basis) => {
            done.push(format!("the fabric {fabric} is there, with version {} of its configuration", basis.version));
            basis
        }
        None => {
            let text =
                format!("# The port groups of the fabric {fabric}, on all its hosts (docs/fabric.md).\nformat = 1\n");
            let config = store.keys.text(&Key::Config);
            let compares = vec![nicety_fabric::Compare::Modified { key: config.clone(), revision: 0 }];
            let ops = vec![Op::Put { key: config, value: text, lease: 0 }];
            // If it fails, somebody else has made it meanwhile.
            store.transact(Transaction { compares, ops, otherwise: None })?;
            done.push(format!("made the fabric {fabric}, without groups"));
            store.basis()?
        }
    };
    if !store.has_user() {
        say(&done)?;
        output::tell(
            "note: etcd asks nobody for a password, so whoever reaches it may change the fabric, and roles would mean nothing: \
             docs/fabric.md says how to turn users on",
        );
        return Ok(());
    }
    let role = rights::administrator(fabric);
    done.extend(user(store, &role, rights::of_administrator(&store.keys), into, "admin")?);
    rights::set_all(store, &basis.config.groups.keys().collect(), true)?;
    say(&done)?;
    warn_of_clear_passwords(store);
    Ok(())
}

/// Makes a role with these rights, and a user of its name. Says what was made.
fn user(
    store: &Store,
    role: &str,
    wanted: BTreeSet<nicety_etcd::Permission>,
    into: Option<&Path>,
    whose: &str,
) -> Result<Vec<String>, Failure> {
    let file = password_file(store, into, whose);
    let is_made = store.wait(|client| async move { rights::set(&client, role, &wanted, true).await })?;
    // The file first: a user whose password nobody knows would be of no use.
    let user = User { name: role.to_owned(), password: secret::password(&file)? };
    let is_new = store.wait(|client| async move { rights::set_user(&client, &user, role).await })?;
    let made = if is_made { "made the role" } else { "the rights are right of the role" };
    let has = if is_new { "made the user" } else { "there was a user" };
    Ok(vec![format!("{made} {role}"), format!("{has} {role}; its password is in {}", file.display())])
}

fn password_file(store: &Store, into: Option<&Path>, whose: &str) -> PathBuf {
    into.map_or_else(|| PathBuf::from(format!("{}-{whose}.password", store.fabric)), Path::to_owned)
}

fn warn_of_clear_passwords(store: &Store) {
    if let Some(endpoint) = store.config.endpoints.iter().find(|endpoint| endpoint.scheme == Scheme::Http) {
        output::tell(format_args!(
            "note: {endpoint} has no TLS: whoever reads the network there reads the passwords; `nicety fabric certificates` makes \
             certificates for those who have none"
        ));
    }
}

/// `nicety fabric join`.
pub fn join(store: &Store, name: &Name, (address, mtu): (IpAddr, u16), into: Option<&Path>) -> Result<(), Failure> {
    if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
        let what =
            format!("{address} cannot be a tunnel's address: name that of the host on the network between hosts");
        return Err(Failure::new(Exit::Usage, what));
    }
    let basis = store.basis()?;
    for (other, record) in registered(store)? {
        if record.address == address && other != *name {
            let what = format!("host {other} has the tunnel address {address} already: give {name} another one");
            return Err(Failure::new(Exit::Usage, what));
        }
        if record.address != address && other == *name {
            output::tell(format_args!(
                "note: host {name} is registered with the tunnel address {}; the new one counts when its daemon begins anew",
                record.address
            ));
        }
    }
    let mut config = EtcdConfig { user: None, ..store.config.clone() };
    if store.has_user() {
        let role = rights::host(&store.fabric, name);
        let wanted = rights::of_host(&store.keys, name, basis.config.groups.keys());
        for line in user(store, &role, wanted, into, name.as_str())? {
            output::tell(format_args!("note: {line}"));
        }
        let password = absolute(&password_file(store, into, name.as_str()));
        config.user = Some(nicety_host::EtcdUser { name: role, password });
        warn_of_clear_passwords(store);
    } else {
        output::tell("note: etcd asks nobody for a password, so no user was made");
    }
    output::tell(format_args!(
        "note: these tables belong into the host file of {name}, with the files that they name:"
    ));
    output::print(&tables(store, name, address, mtu, &config))
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The tables for the host file of a host.
fn tables(store: &Store, name: &Name, address: IpAddr, mtu: u16, config: &EtcdConfig) -> String {
    let mut fabric = Table::new();
    let endpoints: Vec<String> = config.endpoints.iter().map(ToString::to_string).collect();
    fabric.insert("name", value(store.fabric.as_str()));
    fabric.insert("host", value(name.as_str()));
    fabric.insert("tunnel", value(TUNNEL));
    fabric.insert("etcd", value(endpoints.join(",")));
    let path = |path: &Path| value(absolute(path).display().to_string());
    if let Some(user) = &config.user {
        fabric.insert("etcd_user", value(user.name.as_str()));
        fabric.insert("etcd_password", path(&user.password));
    }
    if let Some(ca) = &config.ca {
        fabric.insert("etcd_ca", path(ca));
    }
    if let Some(EtcdIdentity { certificate, key }) = &config.identity {
        fabric.insert("etcd_certificate", path(certificate));
        fabric.insert("etcd_key", path(key));
    }
    let mut uplink = Table::new();
    uplink.insert("name", value(TUNNEL));
    uplink.insert("kind", value("vxlan"));
    uplink.insert("address", value(address.to_string()));
    uplink.insert("mtu", value(i64::from(mtu)));
    let mut uplinks = ArrayOfTables::new();
    uplinks.push(uplink);
    let mut document = DocumentMut::new();
    document.insert("fabric", Item::Table(fabric));
    document.insert("uplink", Item::ArrayOfTables(uplinks));
    document.to_string()
}

/// The hosts that are registered. What cannot be read is left out.
fn registered(store: &Store) -> Result<Vec<(Name, HostRecord)>, Failure> {
    let read = |entry: Entry| match (store.keys.parse(&entry.key), HostRecord::parse(&entry.value)) {
        (Ok(Key::Host(name)), Ok(record)) => Some((name, record)),
        _ => None,
    };
    Ok(store.all(&store.keys.hosts())?.into_iter().filter_map(read).collect())
}

/// `nicety fabric leave`.
pub fn leave(store: &Store, yes: bool) -> Result<(), Failure> {
    let usage = |what: String| Failure::new(Exit::Usage, what);
    let name = match &store.file {
        Some(file) if file.name == store.fabric.as_str() => file.host().map_err(usage)?,
        _ => {
            return Err(usage(
                "no host file here says which host this is: name it, by `nicety fabric forget NAME`".to_owned(),
            ));
        }
    };
    forget(store, &Name::new(&name).map_err(usage)?, yes)
}

/// The parts of a host that are in etcd.
struct Parts {
    has_user: bool,
    has_role: bool,
    record: Option<Entry>,
    /// The keys that claim its tunnel address.
    tunnels: Vec<Entry>,
    claims: Vec<Entry>,
}

/// `nicety fabric forget`.
pub fn forget(store: &Store, name: &Name, yes: bool) -> Result<(), Failure> {
    let role = rights::host(&store.fabric, name);
    let parts = parts(store, name, &role)?;
    let mut plan = Vec::new();
    let count = output::count(parts.claims.len() as u64, "address");
    match &parts.record {
        Some(_) => plan.push(format!("- host {name} with {count} (VMs there lose their way to other hosts)")),
        None if !parts.claims.is_empty() => plan.push(format!("- {count} of host {name}")),
        None if !parts.tunnels.is_empty() => plan.push(format!("- the tunnel's address of host {name}")),
        None => {}
    }
    plan.extend(parts.has_user.then(|| format!("- user {role}")));
    plan.extend(parts.has_role.then(|| format!("- role {role}")));
    if plan.is_empty() {
        return output::print(&format!("nothing to change: there is no host {name} in the fabric {}\n", store.fabric));
    }
    say(&plan)?;
    if parts.record.is_some() && !yes {
        agree("cuts the VMs of that host off from other hosts")?;
    }
    let is_registered = parts.record.is_some();
    drop_parts(store, name, &role, parts)?;
    if is_registered && !store.has_user() {
        output::tell(format_args!(
            "note: while the daemon of {name} runs with its [fabric] it registers again: take that table out of its host file, and \
             restart it"
        ));
    }
    Ok(())
}

fn parts(store: &Store, name: &Name, role: &str) -> Result<Parts, Failure> {
    let is_its = |entry: &Entry| matches!(store.keys.parse(&entry.key), Ok(Key::At { host, .. }) if host == *name);
    let claims = store.all(&store.keys.claims())?.into_iter().filter(is_its).collect();
    let key = store.keys.text(&Key::Host(name.clone())).into_bytes();
    let record = store.all(&store.keys.hosts())?.into_iter().find(|entry| entry.key == key);
    let tunnels = store.all(&store.keys.tunnels(name))?;
    let (has_user, has_role) = if store.has_user() {
        store.wait(|client| async move {
            let users = client.users().await?;
            Ok((users.iter().any(|user| user == role), client.role(role).await?.is_some()))
        })?
    } else {
        (false, false)
    };
    Ok(Parts { has_user, has_role, record, tunnels, claims })
}

fn drop_parts(store: &Store, name: &Name, role: &str, parts: Parts) -> Result<(), Failure> {
    let Parts { has_user, has_role, record, tunnels, claims } = parts;
    let key = |entry: &Entry| String::from_utf8_lossy(&entry.key).into_owned();
    let all = || record.iter().chain(&tunnels).chain(&claims);
    let keys: Vec<String> = all().map(key).collect();
    let leases: BTreeSet<i64> = all().map(|entry| entry.lease).filter(|lease| *lease != 0).collect();
    store.wait(|client| async move {
        // The user first: it writes nothing any more.
        if has_user {
            client.delete_user(role).await?;
        }
        for lease in leases {
            client.revoke(lease).await?;
        }
        // These were written without a lease, or meanwhile.
        for key in keys {
            client.delete(&Range::one(key)).await?;
        }
        client.delete(&Range::one(store.keys.text(&Key::Host(name.clone())))).await?;
        client.delete(&Range::prefix(store.keys.tunnels(name))).await?;
        if has_role {
            client.delete_role(role).await?;
        }
        Ok(())
    })
}
