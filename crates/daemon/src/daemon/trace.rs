//! The path of a frame, in words.

use super::Daemon;
use crate::observe::trace::{FrameTrace, Words};
use nicety_adapter::count;
use nicety_plane::TraceError;

impl Daemon {
    /// The path of a frame that comes in from a port or an uplink now. Changes nothing. `None` if there is no such port.
    pub fn trace(&self, port: &str, frame: &[u8]) -> Option<Result<FrameTrace, String>> {
        let views = self.views();
        let view = views.iter().find(|view| view.name == port)?;
        let now = self.clock.now();
        Some(match self.plane.trace(view.id, frame, now) {
            Ok(trace) => Ok(Words { views: &views, from: view, frame, now }.of(&trace)),
            Err(TraceError::Missing) => return None,
            Err(TraceError::Length(bytes)) => Err(format!("a frame of {} is none", count(bytes as u64, "byte"))),
            Err(TraceError::Memory(error)) => Err(error.to_string()),
        })
    }
}
