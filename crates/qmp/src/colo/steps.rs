//! The commands of an end, and what their refusal means (qapi/migration.json, qapi/yank.json).

use std::time::Duration;

use serde_json::{Value, json};

use super::news::Settings;
use crate::{Command, Failure};

/// Polling interval while an end fails over.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A command of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// `events` brings MIGRATION, without which `query-migrate` would have to be asked again and again.
    Capabilities,
    Delay,
    ChangeDelay,
    Incoming,
    Migrate,
    /// The same as [`Ask::Yank`], as a step of its own. Not `migrate_cancel`: if COLO begins at that moment, the status stays `cancelling`
    /// for ever, and QEMU then refuses `x-colo-lost-heartbeat` and each further migration (tried with 11.1.3).
    Cancel,
    LostHeartbeat,
    Yank,
    MigrationStatus,
    RunStatus,
    Mode,
    Cause,
    Release,
    Quit,
}

impl Ask {
    pub(super) fn name(self) -> &'static str {
        match self {
            Ask::Capabilities | Ask::Release => "migrate-set-capabilities",
            Ask::Delay | Ask::ChangeDelay => "migrate-set-parameters",
            Ask::Incoming => "migrate-incoming",
            Ask::Migrate => "migrate",
            Ask::LostHeartbeat => "x-colo-lost-heartbeat",
            Ask::Cancel | Ask::Yank => "yank",
            Ask::MigrationStatus | Ask::Cause => "query-migrate",
            Ask::RunStatus => "query-status",
            Ask::Mode => "query-colo-status",
            Ask::Quit => "quit",
        }
    }

    pub(super) fn command(self, settings: &Settings) -> Command {
        let arguments = match self {
            // x-colo alone is refused.
            Ask::Capabilities => capabilities(&["return-path", "events", "x-colo"], true),
            Ask::Release => capabilities(&["x-colo"], false),
            Ask::Delay | Ask::ChangeDelay => json!({"x-checkpoint-delay": settings.delay_ms}),
            // So that QEMU stays, and tells why, if it cannot load what comes.
            Ask::Incoming => json!({"uri": settings.uri, "exit-on-error": false}),
            Ask::Migrate => json!({"uri": settings.uri}),
            Ask::Cancel | Ask::Yank => json!({"instances": [{"type": "migration"}]}),
            _ => json!({}),
        };
        Command { is_out_of_band: self.name() == "yank", ..Command::new(self.name(), arguments) }
    }
}

fn capabilities(names: &[&str], state: bool) -> Value {
    let all: Vec<Value> = names.iter().map(|name| json!({"capability": name, "state": state})).collect();
    json!({"capabilities": all})
}

/// A sentence for a person.
pub(super) fn refused(ask: Ask, settings: &Settings, failure: &Failure) -> String {
    let uri = &settings.uri;
    match ask {
        Ask::Capabilities => format!("QEMU refuses the capabilities x-colo, return-path and events: {failure}"),
        Ask::Delay => format!("QEMU refuses a delay of {} ms between checkpoints: {failure}", settings.delay_ms),
        Ask::Incoming => format!("QEMU does not listen at {uri}: {failure}; start the secondary with -incoming defer"),
        Ask::Migrate => format!("QEMU does not send the VM to {uri}: {failure}"),
        Ask::LostHeartbeat => format!("QEMU does not go on alone: {failure}"),
        other => format!("QEMU refuses {}: {failure}", other.name()),
    }
}
