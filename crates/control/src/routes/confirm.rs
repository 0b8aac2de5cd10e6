//! Confirms the change that waits, or undoes it.

use axum::extract::State;
use nicety_daemon::live::confirm::{Settled, Undo};

use super::super::beside::{Answer, beside};
use super::{Daemon, problems, who};
use crate::body::Changer;

/// Confirm the change that waits
///
/// From now on a restart of the daemon serves it too.
#[utoipa::path(post, operation_id = "confirm", tag = "host file", path = "/v1/confirm", responses(
    (status = 200, description = "The change that was confirmed", body = Settled),
    problems::Changing, problems::Starting,
))]
pub(crate) async fn confirm(State(served): Daemon, Changer(peer): Changer) -> Answer<axum::Json<Settled>> {
    let live = served.live()?;
    beside(move || {
        let settled = live.confirm(&who(peer));
        served.waits.notify_one();
        Ok(axum::Json(settled?))
    })
    .await
}

/// Undo the change that waits to be confirmed
#[utoipa::path(post, operation_id = "undo", tag = "host file", path = "/v1/undo", responses(
    (status = 200, description = "The change that was undone", body = Settled),
    problems::Changing, problems::Starting,
))]
pub(crate) async fn undo(State(served): Daemon, Changer(peer): Changer) -> Answer<axum::Json<Settled>> {
    let live = served.live()?;
    beside(move || {
        let settled = live.undo(Undo::By(&who(peer)));
        served.waits.notify_one();
        Ok(axum::Json(settled?))
    })
    .await
}
