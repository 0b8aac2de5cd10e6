//! The same programs without a virtual machine: between two network namespaces, joined by a veth pair.

use std::{path::Path, process::Command, sync::atomic::AtomicBool, time::Duration};

use nicety_guests::{Error, Folder, Namespace, Process, Root};

use super::{
    veth::{self, Tc, Veth},
    wait::{Watch, wait},
};
use crate::rate::Rate;

/// The near end's address.
pub const NEAR: &str = "10.9.4.1";
/// The far end's address.
pub const FAR: &str = "10.9.4.2";
/// Time limit of the namespaces' own commands.
const SLACK: Duration = Duration::from_secs(10);

/// Two namespaces (see the module's page). Dropping it ends every program in them.
#[derive(Debug)]
pub struct Native {
    namespace: Namespace,
    veth: Veth,
    folder: Folder,
    logs: u32,
}

impl Native {
    /// Makes both namespaces and the link, which has no limit.
    ///
    /// # Errors
    /// Those of [`Namespace::open`]; it names its remedy.
    pub fn open(root: &Root) -> Result<Native, Error> {
        let mut namespace = Namespace::open(root)?;
        let veth = Veth::open(&mut namespace, root, &format!("{FAR}/24"))?;
        namespace.run(&format!("ip addr add {NEAR}/24 dev {}", veth::NEAR), SLACK)?;
        Ok(Native { namespace, veth, folder: Folder::new()?, logs: 0 })
    }

    /// Limits the link in both directions.
    ///
    /// # Errors
    /// Those of [`Veth::pace`].
    pub fn pace(&mut self, tc: &Tc, rate: Rate) -> Result<(), Error> {
        self.veth.pace(&mut self.namespace, tc, rate)
    }

    /// Starts a server at the far end, whose output goes to `log`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn serve(&mut self, command: &Command, log: &Path) -> Result<Process, Error> {
        self.namespace.start(&self.veth.at_far_end(command), log)
    }

    /// A folder for files of the programs.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Runs a program at the near end, and returns its output and duration.
    ///
    /// # Errors
    /// It does not end within `limit`, `watch` objects, or `stop` became true.
    pub fn run(
        &mut self,
        command: &Command,
        limit: Duration,
        stop: &AtomicBool,
        watch: Watch<'_>,
    ) -> Result<(String, Duration), Error> {
        self.logs += 1;
        let log = self.folder.path().join(format!("log{}", self.logs));
        let process = self.namespace.start(command, &log)?;
        let doing = format!("`{}` without a virtual machine", command.get_program().display());
        wait(&mut self.namespace, (process, &log), &doing, limit, stop, watch)
    }
}
