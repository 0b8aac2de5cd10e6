//! Settings of etcd: the keys that `[ft]` and `[fabric]` share (docs/host-file.md).

use std::path::{Path, PathBuf};

use nicety_etcd::{ENDPOINTS_MAX, Endpoint, Identity, Pem, Scheme, Settings, User};

use super::form::Form;
use super::paths;
use super::walk::{Found, Key, Section, Walk};

/// Most bytes of a user's name.
const USER_MAX: usize = 255;

/// All but `etcd`, whose servers they are for.
pub(super) const KEYS: [Key; 5] = [
    Key::new("etcd_user", Form::EtcdUser, "with etcd and etcd_password: the name of a user of etcd"),
    Key::new("etcd_password", Form::Path, "with etcd_user: a path of a file with that user's password"),
    Key::new("etcd_ca", Form::Path, "with https://: a path of the CA's certificate, in PEM format"),
    Key::new(
        "etcd_certificate",
        Form::Path,
        "with https:// and etcd_key: a path of a client's certificate, in PEM format",
    ),
    Key::new("etcd_key", Form::Path, "with etcd_certificate: a path of that certificate's private key, in PEM format"),
];

/// Settings of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// Servers of one cluster, at least one.
    pub endpoints: Vec<Endpoint>,
    /// The user for all calls.
    pub user: Option<EtcdUser>,
    /// The file with the certificate of the CA that signed the servers' certificates. One is there if an endpoint has TLS.
    pub ca: Option<PathBuf>,
    /// This host's certificate, if etcd asks for one.
    pub identity: Option<EtcdIdentity>,
}

/// A user of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdUser {
    /// Its name.
    pub name: String,
    /// The file with its password.
    pub password: PathBuf,
}

/// Files of a client's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdIdentity {
    /// The certificate, and those between it and the CA.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl EtcdConfig {
    /// The settings of a client, with what the files have.
    ///
    /// # Errors
    /// A file cannot be read. A sentence.
    pub fn settings(&self) -> Result<Settings, String> {
        let mut settings = Settings::new(self.endpoints.clone());
        settings.ca = self.ca.as_deref().map(Pem::read).transpose()?;
        if let Some(EtcdIdentity { certificate, key }) = &self.identity {
            settings.identity = Some(Identity { certificates: Pem::read(certificate)?, key: Pem::read(key)? });
        }
        if let Some(EtcdUser { name, password: file }) = &self.user {
            let text = std::fs::read_to_string(file);
            let text = text.map_err(|error| format!("etcd_password {}: {error}", file.display()))?;
            let password = text.strip_suffix('\n').unwrap_or(&text).to_owned();
            settings.user = Some(User { name: name.clone(), password });
        }
        Ok(settings)
    }
}

/// Reads how etcd is asked. `None`: the table has no `etcd`.
pub(super) fn etcd(walk: &mut Walk, section: Section<'_>, dir: &Path) -> Option<EtcdConfig> {
    let endpoints: Vec<Found<Endpoint>> = walk.list(section, "etcd", ENDPOINTS_MAX);
    let user = walk.string(section, "etcd_user").map(|found| found.value.to_owned());
    let [password, ca, certificate, key] =
        ["etcd_password", "etcd_ca", "etcd_certificate", "etcd_key"].map(|name| paths::file(walk, section, name, dir));
    if walk.place(section, "etcd").is_none() {
        for Key { name, .. } in &KEYS {
            if let Some(line) = walk.place(section, name) {
                walk.wrong(section, name, line, "there is no etcd here that it belongs to: name its servers by etcd");
            }
        }
        return None;
    }
    together(walk, section, ["etcd_user", "etcd_password"]);
    together(walk, section, ["etcd_certificate", "etcd_key"]);
    let tls = endpoints.iter().find(|found| found.value.scheme == Scheme::Https);
    match tls {
        Some(Found { value, line }) if walk.place(section, "etcd_ca").is_none() => {
            let what = format!("{value} has TLS: name the CA that signed its certificate by etcd_ca");
            walk.wrong(section, "etcd", *line, what);
        }
        None if !endpoints.is_empty() => {
            for name in ["etcd_ca", "etcd_certificate"] {
                if let Some(line) = walk.place(section, name) {
                    let what = "no server of etcd has TLS, and this would not be used: write https:// there";
                    walk.wrong(section, name, line, what);
                }
            }
        }
        _ => {}
    }
    if let Some(line) = walk.place(section, "etcd_user").filter(|_| user.as_deref().is_some_and(|name| !is_user(name)))
    {
        walk.wrong(section, "etcd_user", line, "a user's name has 1 to 255 characters, and no control characters");
    }
    Some(EtcdConfig {
        endpoints: endpoints.into_iter().map(|found| found.value).collect(),
        user: user.zip(password).map(|(name, password)| EtcdUser { name, password }),
        ca,
        identity: certificate.zip(key).map(|(certificate, key)| EtcdIdentity { certificate, key }),
    })
}

fn is_user(name: &str) -> bool {
    (1..=USER_MAX).contains(&name.len()) && !name.contains(char::is_control)
}

/// Checks that two keys are there together, or neither.
fn together(walk: &mut Walk, section: Section<'_>, keys: [&str; 2]) {
    let [one, other] = keys.map(|key| walk.place(section, key));
    let (key, line, missing) = match (one, other) {
        (Some(line), None) => (keys[0], line, keys[1]),
        (None, Some(line)) => (keys[1], line, keys[0]),
        _ => return,
    };
    walk.wrong(section, key, line, format!("{} is missing: {} and {} belong together", missing, keys[0], keys[1]));
}
