//! The last lines of the log for the daemon's page, if it is served.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use nicety_control::{Line, Recent};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use super::journald::Values;

/// Modules whose lines at `info` tell of changes that a person has made.
const CHANGES: [&str; 2] = ["nicety_control::routes", "nicety_daemon::serve::live"];

/// Keeps events. `None`: there is no page.
#[derive(Debug)]
pub struct Kept(pub Option<Arc<Recent>>);

impl<S: Subscriber> Layer<S> for Kept {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some(recent) = &self.0 else { return };
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warn",
            Level::INFO => "info",
            // There are many of them when somebody asks for them.
            Level::DEBUG | Level::TRACE => return,
        };
        let target = event.metadata().target();
        let is_change = level == "info"
            && CHANGES.iter().any(|module| {
                target.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            });
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let mut values = Values::default();
        event.record(&mut values);
        recent.push(Line { unix_ms, level, is_change, text: values.line() });
    }
}

#[cfg(test)]
mod tests {
    use tracing::{debug, info, warn};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn lines_are_kept_as_the_log_has_them_and_changes_are_known_by_their_module() {
        let recent = Arc::<Recent>::default();
        let subscriber = tracing_subscriber::registry().with(Kept(Some(Arc::clone(&recent))));
        tracing::subscriber::with_default(subscriber, || {
            info!(target: "nicety_control::routes::lists", "user 0 reset card nic");
            warn!(target: "nicety_daemon::serve::live", "not kept");
            info!(target: "nicety_daemon::serve::liver", port = "vm1", "attached");
            debug!("much");
        });
        let lines: Vec<_> = recent.lines().into_iter().map(|line| (line.level, line.is_change, line.text)).collect();
        let line = |level, is_change, text: &str| (level, is_change, text.to_owned());
        assert_eq!(
            lines,
            [
                line("info", false, "attached port=\"vm1\""),
                line("warn", false, "not kept"),
                line("info", true, "user 0 reset card nic"),
            ]
        );
    }
}
