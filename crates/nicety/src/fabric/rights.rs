//! Roles and users in etcd: one of each for the administrator of a fabric, and one for each host. A host's role has exactly what its machine
//! writes (docs/fabric.md, "Rights").

use std::collections::BTreeSet;

use nicety_etcd::{Access, Client, Error, Keys as Range, Permission, User};
use nicety_fabric::{Key, Keys, Name};

use crate::exit::Failure;

use super::store::Store;

/// The name of the administrator's role, and of its user. Names of fabrics and hosts have no '/', so two roles never have one name.
pub fn administrator(fabric: &Name) -> String {
    format!("nicety/{fabric}/admin")
}

/// The name of a host's role, and of its user.
pub fn host(fabric: &Name, host: &Name) -> String {
    format!("nicety/{fabric}/host/{host}")
}

fn right(access: Access, keys: Range) -> Permission {
    Permission { access, keys }
}

/// The rights of an administrator: all that commands write but users and roles, which only etcd's own administrators may change.
pub fn of_administrator(keys: &Keys) -> BTreeSet<Permission> {
    BTreeSet::from([
        right(Access::Read, Range::prefix(keys.prefix())),
        right(Access::ReadWrite, Range::one(keys.text(&Key::Config))),
        right(Access::ReadWrite, Range::prefix(keys.freed())),
    ])
}

/// The rights of a host in a fabric with these groups.
pub fn of_host<'a>(keys: &Keys, host: &Name, groups: impl IntoIterator<Item = &'a Name>) -> BTreeSet<Permission> {
    let mut all = BTreeSet::from([
        right(Access::Read, Range::prefix(keys.prefix())),
        right(Access::ReadWrite, Range::one(keys.text(&Key::Host(host.clone())))),
        right(Access::ReadWrite, Range::prefix(keys.tunnels(host))),
    ]);
    all.extend(groups.into_iter().map(|group| right(Access::ReadWrite, Range::prefix(keys.own(group, host)))));
    all
}

/// Gives a role the rights that it lacks, and makes it if there is none. With `exactly` takes all others. Returns whether it made a role.
pub async fn set(client: &Client, role: &str, wanted: &BTreeSet<Permission>, exactly: bool) -> Result<bool, Error> {
    let found = client.role(role).await?;
    let is_new = found.is_none();
    if is_new {
        client.add_role(role).await?;
    }
    let have: BTreeSet<Permission> = found.unwrap_or_default().into_iter().collect();
    for lacking in wanted.difference(&have) {
        client.grant_permission(role, lacking).await?;
    }
    // A right to the same keys has been replaced.
    let is_wanted = |keys: &Range| wanted.iter().any(|right| right.keys == *keys);
    for surplus in have.iter().filter(|right| exactly && !is_wanted(&right.keys)) {
        client.revoke_permission(role, &surplus.keys).await?;
    }
    Ok(is_new)
}

/// Makes a user with this role. One that is there gets the password. Returns whether it was made.
pub async fn set_user(client: &Client, user: &User, role: &str) -> Result<bool, Error> {
    let is_new = client.add_user(user).await?;
    if !is_new {
        client.set_password(user).await?;
    }
    client.grant_role(&user.name, role).await?;
    Ok(is_new)
}

/// The hosts that have a role.
pub fn hosts(store: &Store) -> Result<Vec<Name>, Failure> {
    let roles = store.wait(|client| async move { client.roles().await })?;
    let prefix = format!("nicety/{}/host/", store.fabric);
    Ok(roles.iter().filter_map(|role| Name::new(role.strip_prefix(&prefix)?).ok()).collect())
}

/// Gives each host's role the right to claim addresses in these groups, and with `exactly` no more.
pub fn set_all(store: &Store, groups: &BTreeSet<&Name>, exactly: bool) -> Result<(), Failure> {
    let hosts = hosts(store)?;
    store.wait(|client| async move {
        for name in hosts {
            let wanted = of_host(&store.keys, &name, groups.iter().copied());
            set(&client, &host(&store.fabric, &name), &wanted, exactly).await?;
        }
        Ok(())
    })
}
