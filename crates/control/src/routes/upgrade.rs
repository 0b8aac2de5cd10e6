//! Replaces the daemon by another program, under its VMs.

use axum::extract::State;
use nicety_daemon::handover::Upgraded;
use nicety_daemon::handover::give::UpgradeError;
use tracing::info;

use super::super::beside::{Answer, beside};
use super::{Daemon, json, problems, who};
use crate::api::{FORBIDDEN, HALFWAY, NOT_UPGRADED, Problem, UpgradeRequest};
use crate::body::{Changer, Small};

/// Replace the daemon by another program
///
/// All VMs keep running: no connection of theirs is closed, except those of the ports in `without`. Only root, the daemon's user and the socket's owner may name a program. On
/// success the new daemon answers the next request.
#[utoipa::path(post, operation_id = "upgrade", tag = "daemon", path = "/v1/upgrade", request_body = UpgradeRequest, responses(
    (status = 200, description = "Another daemon serves now", body = Upgraded),
    problems::Changing, problems::Bodied, problems::Starting,
))]
pub(crate) async fn upgrade(
    State(served): Daemon,
    Changer(peer): Changer,
    Small(body): Small,
) -> Answer<axum::Json<Upgraded>> {
    let live = served.live()?;
    let UpgradeRequest { program, without } = json(&body)?;
    if program.is_some() && !served.changers.has(peer) {
        return Err(Problem::new(FORBIDDEN, "only root, the daemon's user and the socket's owner may name a program"));
    }
    let asks = who(peer);
    beside(move || {
        let named = program.as_ref().map_or_else(String::new, |program| format!(" to {}", program.display()));
        let alone = if without.is_empty() { String::new() } else { format!(", without {}", without.join(", ")) };
        info!("{asks} upgrades the daemon{named}{alone}");
        let upgraded = live.upgrade(program, &without, &|stops| served.pause(stops));
        if upgraded.as_ref().err().is_none_or(UpgradeError::stands_still) {
            served.end_after_answers(&live);
        }
        match upgraded {
            Ok(upgraded) => Ok(axum::Json(upgraded)),
            Err(why) if why.stands_still() => Err(Problem::new(HALFWAY, why.to_string())),
            Err(why) => Err(Problem::new(NOT_UPGRADED, why.to_string())),
        }
    })
    .await
}
