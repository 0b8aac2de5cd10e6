//! The client for a thread that waits: a runtime of its own, which runs while a call does.

use std::future::Future;
use std::io;

use tokio::runtime::{Builder, Runtime};

use crate::client::Client;
use crate::error::Error;
use crate::keys::{Found, Keys, Txn, TxnAnswer};

/// See the module's page.
pub struct Blocking {
    runtime: Runtime,
    client: Client,
}

impl Blocking {
    /// For this client.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn new(client: Client) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        Ok(Self { runtime, client })
    }

    /// Waits for any calls of the client, each of which has its time limit.
    pub fn wait<T, F: Future<Output = T>>(&self, calls: impl FnOnce(Client) -> F) -> T {
        self.runtime.block_on(calls(self.client.clone()))
    }

    /// [`Client::range`].
    ///
    /// # Errors
    /// As there.
    pub fn range(&self, keys: &Keys, limit: u32) -> Result<Found, Error> {
        self.runtime.block_on(self.client.range(keys, limit))
    }

    /// [`Client::txn`].
    ///
    /// # Errors
    /// As there.
    pub fn txn(&self, txn: &Txn) -> Result<TxnAnswer, Error> {
        self.runtime.block_on(self.client.txn(txn))
    }
}
