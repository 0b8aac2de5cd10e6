//! Users, roles and their rights: etcd's Auth service (`api/etcdserverpb/rpc.proto`). Only a user with the role `root` may ask it, or anybody
//! while authentication is off.
//!
//! A change that is there already is no error: whoever was interrupted does it again.

use serde::Deserialize;
use serde_json::json;

use crate::client::{Client, Question};
use crate::error::{Error, ErrorKind};
use crate::keys::Keys;
use crate::settings::User;
use crate::wire::{Header, bytes};

/// A role's access to its keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Access {
    /// Read and watch them.
    #[default]
    Read,
    /// Write and delete them.
    Write,
    /// Both.
    ReadWrite,
}

/// A right of a role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// The access.
    pub access: Access,
    /// The keys.
    pub keys: Keys,
}

#[derive(Deserialize)]
struct PermissionJson {
    #[serde(rename = "permType", default)]
    access: Access,
    #[serde(default, deserialize_with = "bytes")]
    key: Vec<u8>,
    #[serde(default, deserialize_with = "bytes")]
    range_end: Vec<u8>,
}

#[derive(Deserialize)]
struct RoleJson {
    /// Every answer of etcd's has one.
    #[serde(rename = "header")]
    _header: Header,
    #[serde(default)]
    perm: Vec<PermissionJson>,
}

#[derive(Deserialize)]
struct NamesJson {
    #[serde(rename = "header")]
    _header: Header,
    #[serde(default)]
    roles: Vec<String>,
    #[serde(default)]
    users: Vec<String>,
}

#[derive(Deserialize)]
struct DoneJson {
    #[serde(rename = "header")]
    _header: Header,
}

impl Access {
    fn word(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::ReadWrite => "READWRITE",
        }
    }
}

/// Whether etcd refuses with these words.
fn refuses(error: &Error, words: &str) -> bool {
    matches!(&error.kind, ErrorKind::Refused(why) if why.contains(words))
}

/// `false` instead of an error with these words.
fn unless(done: Result<(), Error>, words: &str) -> Result<bool, Error> {
    match done {
        Ok(()) => Ok(true),
        Err(error) if refuses(&error, words) => Ok(false),
        Err(error) => Err(error),
    }
}

impl Client {
    async fn change_auth(&self, path: &'static str, body: serde_json::Value, what: String) -> Result<(), Error> {
        let question = Question::new(path, body, what);
        self.ask::<DoneJson>(Question { may_repeat: false, ..question }).await.map(drop)
    }

    async fn names(&self, path: &'static str, body: serde_json::Value, what: String) -> Result<NamesJson, Error> {
        self.ask(Question::new(path, body, what)).await
    }

    /// The names of all roles.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub async fn roles(&self) -> Result<Vec<String>, Error> {
        Ok(self.names("/v3/auth/role/list", json!({}), "list the roles".to_owned()).await?.roles)
    }

    /// The rights of a role, in order. `None`: there is no such role.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub async fn role(&self, role: &str) -> Result<Option<Vec<Permission>>, Error> {
        let question = Question::new("/v3/auth/role/get", json!({ "role": role }), format!("read the role `{role}`"));
        let RoleJson { perm, .. } = match self.ask(question).await {
            Ok(found) => found,
            Err(error) if refuses(&error, "role name not found") => return Ok(None),
            Err(error) => return Err(error),
        };
        let right = |PermissionJson { access, key, range_end }| Permission { access, keys: Keys::of(key, range_end) };
        let mut all: Vec<Permission> = perm.into_iter().map(right).collect();
        all.sort();
        Ok(Some(all))
    }

    /// Makes a role without rights. Returns whether there was none.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub async fn add_role(&self, role: &str) -> Result<bool, Error> {
        let done = self.change_auth("/v3/auth/role/add", json!({ "name": role }), format!("make the role `{role}`"));
        unless(done.await, "role name already exists")
    }

    /// Deletes a role, which its users lose. Returns whether there was one.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub async fn delete_role(&self, role: &str) -> Result<bool, Error> {
        let done =
            self.change_auth("/v3/auth/role/delete", json!({ "role": role }), format!("delete the role `{role}`"));
        unless(done.await, "role name not found")
    }

    /// Gives a role a right. It replaces another right to the same keys.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub async fn grant_permission(&self, role: &str, Permission { access, keys }: &Permission) -> Result<(), Error> {
        let mut perm = keys.fields();
        perm["permType"] = json!(access.word());
        let what = format!("give the role `{role}` {}", keys.text());
        self.change_auth("/v3/auth/role/grant", json!({ "name": role, "perm": perm }), what).await
    }

    /// Takes a right from a role. Returns whether it had it.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub async fn revoke_permission(&self, role: &str, keys: &Keys) -> Result<bool, Error> {
        let mut body = keys.fields();
        body["role"] = json!(role);
        let what = format!("take {} from the role `{role}`", keys.text());
        unless(self.change_auth("/v3/auth/role/revoke", body, what).await, "permission is not granted")
    }

    /// The names of all users.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub async fn users(&self) -> Result<Vec<String>, Error> {
        Ok(self.names("/v3/auth/user/list", json!({}), "list the users".to_owned()).await?.users)
    }

    /// Makes a user. Returns whether there was none; the password of one that is there stays.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub async fn add_user(&self, User { name, password }: &User) -> Result<bool, Error> {
        let body = json!({ "name": name, "password": password });
        let done = self.change_auth("/v3/auth/user/add", body, format!("make the user `{name}`"));
        unless(done.await, "user name already exists")
    }

    /// Gives a user another password. Its tokens end.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub async fn set_password(&self, User { name, password }: &User) -> Result<(), Error> {
        let body = json!({ "name": name, "password": password });
        self.change_auth("/v3/auth/user/changepw", body, format!("change the password of the user `{name}`")).await
    }

    /// Deletes a user. Its tokens end. Returns whether there was one.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub async fn delete_user(&self, user: &str) -> Result<bool, Error> {
        let done =
            self.change_auth("/v3/auth/user/delete", json!({ "name": user }), format!("delete the user `{user}`"));
        unless(done.await, "user name not found")
    }

    /// Gives a user a role.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub async fn grant_role(&self, user: &str, role: &str) -> Result<(), Error> {
        let what = format!("give the user `{user}` the role `{role}`");
        self.change_auth("/v3/auth/user/grant", json!({ "user": user, "role": role }), what).await
    }
}
