//! A host file, served until a signal says otherwise.

use std::path::Path;
use std::sync::Arc;

use nicety_adapter::Uplink;
use nicety_switch::Limits;
use nicety_uplink::{
    Capture, CaptureError, CaptureOptions, Null, Paced, Pair, Rate, SocketError, Stream, Tap, TapError,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::info;

use crate::daemon::{Daemon, PortSpec, StartError};
use crate::host::{Host, PortConfig, Role, RomFileError, UplinkConfig, UplinkKind};

/// Why serving ended before it had begun.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A port or a worker.
    #[error(transparent)]
    Start(#[from] StartError),
    /// An option ROM.
    #[error("port {port}: {source}")]
    Rom {
        /// The port.
        port: String,
        /// Why not.
        source: RomFileError,
    },
    /// A tap.
    #[error("the uplink: {0}")]
    Tap(#[from] TapError),
    /// A pair, or a stream.
    #[error("the uplink: {0}")]
    Socket(#[from] SocketError),
    /// A capture.
    #[error("the uplink: {0}")]
    Capture(#[from] CaptureError),
    /// Its pace.
    #[error("the uplink cannot be paced: {0}")]
    Pace(std::io::Error),
    /// Signals cannot be caught.
    #[error("catching signals: {0}")]
    Signals(std::io::Error),
}

/// Bytes of frames that wait for the uplink.
const UPLINK_BUFFER: u32 = 4 << 20;

/// What ended a daemon that had served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(pub i32);

fn spec(config: &PortConfig) -> Result<PortSpec, ServeError> {
    let settings = config.settings().map_err(|source| ServeError::Rom { port: config.name.clone(), source })?;
    Ok(PortSpec {
        name: config.name.clone(),
        entry: config.entry,
        settings,
        socket: config.socket.clone(),
        mapped: config.is_mapped(std::thread::available_parallelism().map_or(1, usize::from)),
        buffer_bytes: u32::try_from(config.buffer.0).unwrap_or(u32::MAX),
    })
}

/// Makes the uplink that a host file names.
fn uplink(config: &UplinkConfig, daemon: &Daemon) -> Result<Box<dyn Uplink>, ServeError> {
    match &config.kind {
        UplinkKind::Tap { name } => paced(Tap::open(name)?, config.rate),
        UplinkKind::Pair { socket, role } => {
            let pair = match role {
                Role::Listen => Pair::listen(socket)?,
                Role::Connect => Pair::connect(socket)?,
            };
            paced(pair, config.rate)
        }
        UplinkKind::Stream { socket, role } => {
            let stream = match role {
                Role::Listen => Stream::listen(socket)?,
                Role::Connect => Stream::connect(socket)?,
            };
            paced(stream, config.rate)
        }
        UplinkKind::Capture { file } => {
            let options = CaptureOptions { interface: "nicety".to_owned(), origin: daemon.epoch(), most_bytes: None };
            paced(Capture::create(file, &options)?, config.rate)
        }
        UplinkKind::Null => paced(Null, config.rate),
    }
}

fn paced<U: Uplink + 'static>(uplink: U, rate: Option<Rate>) -> Result<Box<dyn Uplink>, ServeError> {
    Ok(match rate {
        Some(rate) => Box::new(Paced::new(uplink, rate).map_err(ServeError::Pace)?),
        None => Box::new(uplink),
    })
}

/// Starts what a host file names: all of it, or nothing. What guests do to their ports is recorded in a folder, if one is
/// named.
pub fn start(host: &Host, record: Option<&Path>) -> Result<Daemon, ServeError> {
    let limits = Limits {
        addresses: host.switch.addresses,
        ageing: std::time::Duration::from_secs(host.switch.ageing.0.into()),
    };
    let daemon = Daemon::start(limits, host.daemon.workers)?;
    if let Some(folder) = record {
        daemon.record(folder)?;
    }
    for config in &host.ports {
        daemon.open(spec(config)?)?;
    }
    // The last: a capture, and traces, take the place of older ones, which must not be lost if something else cannot be had.
    if let Some(config) = &host.uplink {
        daemon.open_uplink(config.kind.name(), uplink(config, &daemon)?, UPLINK_BUFFER)?;
    }
    daemon.begin_traces()?;
    Ok(daemon)
}

/// Serves a host file until SIGTERM, SIGINT or SIGHUP; `record` as for [`start`]. `ready` is called when all sockets are
/// there.
pub fn serve(host: &Host, record: Option<&Path>, ready: impl FnOnce(&Arc<Daemon>)) -> Result<Signal, ServeError> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(ServeError::Signals)?;
    let daemon = Arc::new(start(host, record)?);
    ready(&daemon);
    let signal = signals.forever().next().unwrap_or(SIGTERM);
    info!(signal = signal_hook::low_level::signal_name(signal).unwrap_or("?"), "ending");
    daemon.stop();
    Ok(Signal(signal))
}
