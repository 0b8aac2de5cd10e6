//! Levels of the log, from NICETY_LOG.
//!
//! Not tracing-subscriber's `EnvFilter`: it accepts an unknown name as a target that never logs.

use std::collections::BTreeSet;
use std::env::VarError;

use nicety_host::did_you_mean;
use tracing_subscriber::filter::{LevelFilter, Targets};

use crate::exit::{Exit, Failure};

const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// The crates that log. The first name begins the others: it selects all.
const PARTS: [&str; 4] = ["nicety", "nicety_control", "nicety_daemon", "nicety_sandbox"];

/// Levels that the environment requests.
pub fn asked() -> Result<Targets, Failure> {
    let (asked, read) = match std::env::var("NICETY_LOG") {
        Err(VarError::NotPresent) => return Ok(usual()),
        Ok(words) if words.is_empty() => return Ok(usual()),
        Ok(words) => (words.clone(), read(&words)),
        Err(VarError::NotUnicode(words)) => (words.display().to_string(), Err("it is not UTF-8".to_owned())),
    };
    read.map_err(|why| Failure::new(Exit::Usage, format!("NICETY_LOG={asked}: {why} (such as: info)")))
}

fn usual() -> Targets {
    Targets::new().with_default(LevelFilter::INFO)
}

/// Parses a general level, and levels of single parts.
fn read(words: &str) -> Result<Targets, String> {
    let mut filter = usual();
    let mut named = BTreeSet::new();
    for word in words.split(',').map(str::trim) {
        let (part, level) = match word.split_once('=') {
            Some((part, level)) => (Some(part_of(part.trim())?), level_of(level.trim())?),
            None => (None, level_of(word)?),
        };
        if !named.insert(part) {
            return Err(format!(
                "{} is there twice",
                part.map_or_else(|| "a level".to_owned(), |part| format!("{part:?}"))
            ));
        }
        filter = match part {
            Some(part) => filter.with_target(part, level),
            None => filter.with_default(level),
        };
    }
    Ok(filter)
}

fn level_of(word: &str) -> Result<LevelFilter, String> {
    if let Some((_, level)) = LEVELS.iter().find(|(name, _)| word.eq_ignore_ascii_case(name)) {
        return Ok(*level);
    }
    let names = LEVELS.map(|(name, _)| name);
    let meant = match PARTS.contains(&word) {
        true => format!("; did you mean \"{word}=debug\"?"),
        false => did_you_mean(word, names),
    };
    Err(format!("{word:?} is no level{meant}; there are: {}", names.join(", ")))
}

fn part_of(word: &str) -> Result<&'static str, String> {
    PARTS.into_iter().find(|part| *part == word).ok_or_else(|| {
        format!("nothing is logged as {word:?}{}; there are: {}", did_you_mean(word, PARTS), PARTS.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tracing::Level;

    use super::*;

    #[test]
    fn every_crate_that_logs_is_a_part() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut logging = Vec::new();
        for folder in std::fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path()) {
            let Ok(manifest) = std::fs::read_to_string(folder.join("Cargo.toml")) else { continue };
            let needs = manifest.split("[dependencies]").nth(1).unwrap_or("").split("\n[").next().unwrap_or("");
            if needs.lines().any(|line| line.starts_with("tracing.") || line.starts_with("log.")) {
                let name = manifest.lines().find_map(|line| line.strip_prefix("name = ")).unwrap();
                logging.push(name.trim_matches('"').replace('-', "_"));
            }
        }
        logging.sort();
        assert_eq!(logging, PARTS);
    }

    #[test]
    fn each_part_logs_as_much_as_it_is_asked_for() {
        const SERVE: &str = "nicety::serve";
        const WORKER: &str = "nicety_daemon::run::worker";
        for (words, serve, worker) in [
            ("info", Level::INFO, Level::INFO),
            (" info", Level::INFO, Level::INFO),
            ("WARN ", Level::WARN, Level::WARN),
            ("warn, nicety_daemon = debug", Level::WARN, Level::DEBUG),
            ("nicety_daemon=trace", Level::INFO, Level::TRACE),
            ("nicety_control=trace", Level::INFO, Level::INFO),
            ("nicety=debug", Level::DEBUG, Level::DEBUG),
            ("nicety_daemon=error,nicety=debug,trace", Level::DEBUG, Level::ERROR),
        ] {
            let filter = read(words).unwrap();
            for (target, most) in [(SERVE, serve), (WORKER, worker)] {
                for level in [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE] {
                    assert_eq!(filter.would_enable(target, &level), level <= most, "{words:?} {target} {level}");
                }
            }
        }
        assert!(!read("off").unwrap().would_enable(WORKER, &Level::ERROR));
    }
}
