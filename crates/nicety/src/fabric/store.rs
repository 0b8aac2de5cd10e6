//! A fabric's keys in etcd: how it is asked, and its errors.

use nicety_daemon::fabric::store::{self, entry};
use nicety_etcd::{Answer, Blocking, Client, Error, ErrorKind, Keys as Range, Op, OpAnswer, Txn};
use nicety_fabric::{Basis, Entry, Key, Keys, Name, Terms, Transaction};
use nicety_host::{EtcdConfig, EtcdIdentity, EtcdUser, FabricConfig, Host, ReadError};
use nicety_names::Names;

use crate::cli::{self, HOST_FILE};
use crate::exit::{Exit, Failure};

/// The fabric that a command is about.
pub struct Store {
    etcd: Blocking,
    /// Its name.
    pub fabric: Name,
    /// Its keys.
    pub keys: Keys,
    /// The terms on which etcd is asked.
    pub config: EtcdConfig,
    /// The host file's table.
    pub file: Option<FabricConfig>,
}

/// The failure of a call.
pub fn failure(error: Error) -> Failure {
    use ErrorKind::{
        Broken, Connect, Denied, Late, LoggingIn, Login, LookingUp, Name, NoMajority, NotRoot, Settings, Tls,
    };
    let is_away = |kind: &ErrorKind| {
        matches!(kind, Name(_) | LookingUp | Connect(_) | NoMajority(_) | Late(_) | LoggingIn(_) | Broken(_))
    };
    let is_wrong = |kind: &ErrorKind| matches!(kind, Settings(_) | Login(_) | Denied { .. } | NotRoot { .. } | Tls(_));
    let exit = match &error {
        error if error.any(is_wrong) => Exit::Usage,
        error if error.unknown_outcome => Exit::Failed,
        error if error.any(is_away) => Exit::Missing,
        _ => Exit::Failed,
    };
    let mut message = format!("etcd: {error}");
    if error.any(|kind| matches!(kind, Login(_) | Denied { .. } | NotRoot { .. })) {
        message.push_str(" (--user NAME --password FILE)");
    }
    if error.unknown_outcome && exit == Exit::Failed {
        message.push_str("; it may have been done all the same: look before you do it again");
    }
    Failure::new(exit, message)
}

/// The table of the host file that is named, or is in this folder.
fn table(args: &cli::Store) -> Result<Option<FabricConfig>, Failure> {
    let is_needed = args.host_file.is_some() || args.fabric.is_none() || args.etcd.is_empty();
    let path = args.host_file.as_deref().unwrap_or(HOST_FILE.as_ref());
    match Host::read(path) {
        Ok(host) if host.fabric.is_none() && args.host_file.is_some() => {
            let what = format!("{} has no [fabric]: docs/fabric.md shows one", path.display());
            Err(Failure::new(Exit::Usage, what))
        }
        Ok(host) => Ok(host.fabric),
        Err(ReadError::Missing { .. }) if args.host_file.is_none() => Ok(None),
        Err(_) if !is_needed => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Store {
    /// By the command line, and by the host file for what is not there. Nothing is asked yet.
    pub fn open(args: &cli::Store) -> Result<Self, Failure> {
        let usage = |what: String| Failure::new(Exit::Usage, what);
        let file = table(args)?;
        let known = file.as_ref().map(|file| &file.etcd);
        let name = file.as_ref().and_then(|file| Name::new(&file.name).ok());
        let fabric = args.fabric.clone().or(name).ok_or_else(|| {
            usage(format!("which fabric? Name it by --fabric, or a host file with a [fabric] by --host ({HOST_FILE})"))
        })?;
        let endpoints = match known {
            _ if !args.etcd.is_empty() => args.etcd.clone(),
            Some(known) => known.endpoints.clone(),
            None => return Err(usage("where is etcd? Name its servers by --etcd https://HOST:2379".to_owned())),
        };
        let user = args.user.clone().zip(args.password.clone()).map(|(name, password)| EtcdUser { name, password });
        let identity = args.certificate.clone().zip(args.key.clone());
        let identity = identity.map(|(certificate, key)| EtcdIdentity { certificate, key });
        let config = EtcdConfig {
            endpoints,
            user: user.or_else(|| known?.user.clone()),
            ca: args.ca.clone().or_else(|| known?.ca.clone()),
            identity: identity.or_else(|| known?.identity.clone()),
        };
        let names = Names::start().map_err(Failure::with(Exit::Failed))?;
        let resolver = move |host: &str, port: u16, answer: Answer| names.look_up(host, port, answer);
        let client = Client::new(config.settings().map_err(usage)?, resolver).map_err(failure)?;
        let etcd = Blocking::new(client).map_err(Failure::with(Exit::Failed))?;
        Ok(Self { etcd, keys: Keys::new(&fabric), fabric, config, file })
    }

    /// Whether etcd is asked as a user. Without one it answers only while it has no users.
    pub fn has_user(&self) -> bool {
        self.config.user.is_some()
    }

    /// Waits for calls of the client.
    pub fn wait<T, F: Future<Output = Result<T, Error>>>(&self, calls: impl FnOnce(Client) -> F) -> Result<T, Failure> {
        self.etcd.wait(calls).map_err(failure)
    }

    /// What a change is made from: both parts at one revision. `None`: there is no such fabric yet.
    pub fn look(&self) -> Result<Option<Basis>, Failure> {
        let config = Range::one(self.keys.text(&Key::Config));
        let reads = vec![Op::Range(config), Op::Range(Range::prefix(self.keys.freed()))];
        let txn = Txn { then: reads, may_repeat: true, ..Txn::default() };
        let answer = self.etcd.txn(&txn).map_err(failure)?;
        let found = answer.answers.into_iter().map(|answer| match answer {
            OpAnswer::Range(found) => found.values.into_iter().map(entry).collect(),
            OpAnswer::Put | OpAnswer::Delete(_) => Vec::new(),
        });
        let mut found = found.collect::<Vec<Vec<Entry>>>().into_iter();
        let (config, freed) = (found.next().unwrap_or_default(), found.next().unwrap_or_default());
        let basis = Basis::read(&self.keys, config.first(), &freed).map_err(Failure::with(Exit::Failed))?;
        Ok((basis.version != 0).then_some(basis))
    }

    /// The same of a fabric that must be there.
    pub fn basis(&self) -> Result<Basis, Failure> {
        self.look()?.ok_or_else(|| {
            let what = format!("etcd has no fabric {:?}: `nicety fabric init` makes it", self.fabric.as_str());
            Failure::new(Exit::Usage, what)
        })
    }

    /// All keys that begin so, at one revision.
    pub fn all(&self, prefix: &str) -> Result<Vec<Entry>, Failure> {
        let keys = Range::prefix(prefix);
        let found = self.wait(|client| async move { store::read(&client, keys).await })?;
        Ok(found.entries)
    }

    /// A lease for identifiers that are given up.
    pub fn grant_reuse(&self) -> Result<i64, Failure> {
        let lease = self.wait(|client| async move { client.grant(Terms::default().reuse()).await })?;
        Ok(lease.id)
    }

    /// Carries out a transaction. Returns the revision afterwards, or nothing if a comparison failed.
    pub fn transact(&self, transaction: Transaction) -> Result<Option<i64>, Failure> {
        let done = self.wait(|client| async move { store::transact(&client, transaction).await })?;
        Ok(done.is_done.then_some(done.revision))
    }
}
