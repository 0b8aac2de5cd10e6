//! Etcd's endpoints, and the user and certificate for its calls.

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use crate::endpoint::Endpoint;

/// Most bytes of a file of certificates or of a key.
const PEM_MAX: u64 = 1 << 20;
/// Most endpoints of a cluster. etcd recommends at most 7 members (etcd's FAQ, "What is maximum cluster size?").
pub const ENDPOINTS_MAX: usize = 16;
/// Usual time limit of a call.
pub const LIMIT: Duration = Duration::from_secs(5);
/// Usual limit of an answer, in bytes.
pub const ANSWER_MAX: usize = 8 << 20;
/// Usual time after which a silent watch asks whether etcd is still there.
pub const SILENCE: Duration = Duration::from_secs(10);

/// Certificates or a key as text (RFC 7468), and where they come from.
#[derive(Clone)]
pub struct Pem {
    /// The file's name, for messages.
    pub name: String,
    /// The text.
    pub text: Vec<u8>,
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may be a private key.
        write!(f, "Pem({:?}, {} bytes)", self.name, self.text.len())
    }
}

impl Pem {
    /// Reads a regular file of at most 1 MiB.
    ///
    /// # Errors
    /// For a person, with the file's name.
    pub fn read(path: &Path) -> Result<Self, String> {
        let name = path.display().to_string();
        let wrong = |why: &dyn fmt::Display| format!("{name}: {why}");
        // A pipe would wait for its writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| wrong(&std::io::Error::from(errno)))?;
        let file = std::fs::File::from(file);
        let found = file.metadata().map_err(|error| wrong(&error))?;
        if !found.is_file() {
            return Err(wrong(&"this is no regular file: name a file in PEM format"));
        }
        let mut text = Vec::new();
        file.take(PEM_MAX + 1).read_to_end(&mut text).map_err(|error| wrong(&error))?;
        if text.len() as u64 > PEM_MAX {
            return Err(wrong(&format_args!("more than {PEM_MAX} bytes: name a file of certificates in PEM format")));
        }
        Ok(Self { name, text })
    }
}

/// The client's certificate, for an etcd that asks for one (`--client-cert-auth`).
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate, and those between it and the CA.
    pub certificates: Pem,
    /// Its private key: PKCS #8, PKCS #1 or SEC 1.
    pub key: Pem,
}

/// A user of etcd ("Role-based access control").
#[derive(Clone)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its password.
    pub password: String,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "User({:?})", self.name)
    }
}

/// See each field. [`Settings::new`] has the usual limits.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Servers of one cluster, 1 to [`ENDPOINTS_MAX`]. Whichever is asked, the answer is that of a majority.
    pub endpoints: Vec<Endpoint>,
    /// CAs, one of which has signed the server's certificate. `https` needs it: the machine's own CAs are not asked.
    pub ca: Option<Pem>,
    /// A certificate of this client.
    pub identity: Option<Identity>,
    /// The user for all calls.
    pub user: Option<User>,
    /// Time limit of a call with all that it does: looking a name up, logging in, connecting, and asking again.
    pub limit: Duration,
    /// Most bytes of an answer, and of one message of a watch.
    pub answer_max: usize,
    /// A watch that hears nothing for so long opens its stream anew, and so learns whether etcd is still there.
    pub silence: Duration,
}

impl Settings {
    /// Those for these servers: no TLS files, no user, [`LIMIT`], [`ANSWER_MAX`], [`SILENCE`].
    pub fn new(endpoints: Vec<Endpoint>) -> Self {
        let (ca, identity, user) = (None, None, None);
        Self { endpoints, ca, identity, user, limit: LIMIT, answer_max: ANSWER_MAX, silence: SILENCE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_certificates_is_regular_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let big = folder.path().join("big");
        std::fs::File::create(&big).unwrap().set_len(PEM_MAX + 1).unwrap();
        assert!(Pem::read(&big).unwrap_err().contains("more than 1048576 bytes"));
        assert!(Pem::read(folder.path()).unwrap_err().contains("no regular file"));
        assert!(Pem::read(Path::new("/dev/zero")).unwrap_err().contains("no regular file"));
        assert!(Pem::read(&folder.path().join("none")).unwrap_err().contains("No such file"));
    }
}
