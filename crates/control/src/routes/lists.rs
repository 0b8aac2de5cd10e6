//! Adds, changes and removes ports, groups, uplinks, teams, mirrors, exports of flows and classes.

use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use nicety_daemon::live::Changed;
use nicety_host::List;
use tracing::info;

use super::super::beside::{Answer, beside};
use super::{CutOff, Daemon, json, logged, name_in, problems, terms_in, values, who};
use crate::api::{CardReset, MALFORMED, NO_SUCH, Problem};
use crate::body::{Changer, Small};
use crate::schemas::{
    CardChange, ClassChange, FlowExportChange, GroupChange, MirrorChange, NewCard, NewClass, NewFlowExport, NewGroup,
    NewMirror, NewPort, NewTeam, NewUplink, PortChange, PortTermsChange, TeamChange, UplinkChange,
};
use crate::served::{Peer, Served};

type Named = Result<Path<String>, PathRejection>;
type Agreed = Result<Query<CutOff>, QueryRejection>;

async fn add(
    served: Arc<Served>,
    peer: Peer,
    list: List,
    query: Agreed,
    body: &[u8],
) -> Answer<(StatusCode, axum::Json<Changed>)> {
    let (live, terms) = (served.live()?, terms_in(peer, query)?);
    let table = values(json(body)?)?.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
    let changed = beside(move || logged(&served, peer, live.add(list, table, terms))).await?;
    Ok((StatusCode::CREATED, axum::Json(changed)))
}

async fn set(
    served: Arc<Served>,
    peer: Peer,
    list: List,
    (name, query): (Answer<String>, Agreed),
    body: &[u8],
) -> Answer<axum::Json<Changed>> {
    let live = served.live()?;
    let (name, terms) = (name?, terms_in(peer, query)?);
    let values = values(json(body)?)?;
    beside(move || logged(&served, peer, live.set(list, &name, &values, terms)).map(axum::Json)).await
}

async fn remove(
    served: Arc<Served>,
    peer: Peer,
    list: List,
    (name, query): (Answer<String>, Agreed),
) -> Answer<axum::Json<Changed>> {
    let live = served.live()?;
    let (name, terms) = (name?, terms_in(peer, query)?);
    beside(move || logged(&served, peer, live.remove(list, &name, terms)).map(axum::Json)).await
}

/// Add a port
#[utoipa::path(post, operation_id = "add_port", tag = "ports", path = "/v1/ports", params(CutOff), request_body = NewPort, responses(
    (status = 201, description = "The changes that were made", body = Changed),
    problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn add_port(
    State(served): Daemon,
    Changer(peer): Changer,
    query: Agreed,
    Small(body): Small,
) -> Answer<(StatusCode, axum::Json<Changed>)> {
    add(served, peer, List::Ports, query, &body).await
}

/// Change a port
///
/// The body is a merge patch (RFC 7396): a key that is `null` gets its default.
#[utoipa::path(patch, operation_id = "change_port", tag = "ports", path = "/v1/ports/{name}", params(("name" = String, Path, description = "Name of the port"), CutOff), request_body = PortChange, responses(
    (status = 200, description = "The changes that were made", body = Changed),
    problems::Named, problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn set_port(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Named,
    query: Agreed,
    Small(body): Small,
) -> Answer<axum::Json<Changed>> {
    set(served, peer, List::Ports, (name_in(path), query), &body).await
}

/// Remove a port
#[utoipa::path(delete, operation_id = "remove_port", tag = "ports", path = "/v1/ports/{name}", params(("name" = String, Path, description = "Name of the port"), CutOff), responses(
    (status = 200, description = "The changes that were made", body = Changed),
    problems::Named, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn remove_port(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Named,
    query: Agreed,
) -> Answer<axum::Json<Changed>> {
    remove(served, peer, List::Ports, (name_in(path), query)).await
}

/// Add a port group
#[utoipa::path(post, operation_id = "add_group", tag = "port groups", path = "/v1/groups", params(CutOff), request_body = NewGroup, responses(
    (status = 201, description = "The changes that were made", body = Changed),
    problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn add_group(
    State(served): Daemon,
    Changer(peer): Changer,
    query: Agreed,
    Small(body): Small,
) -> Answer<(StatusCode, axum::Json<Changed>)> {
    add(served, peer, List::Groups, query, &body).await
}

/// Change a port group
///
/// The body is a merge patch (RFC 7396): a key that is `null` gets its default.
#[utoipa::path(patch, operation_id = "change_group", tag = "port groups", path = "/v1/groups/{name}", params(("name" = String, Path, description = "Name of the port group"), CutOff), request_body = GroupChange, responses(
    (status = 200, description = "The changes that were made", body = Changed),
    problems::Named, problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn set_group(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Named,
    query: Agreed,
    Small(body): Small,
) -> Answer<axum::Json<Changed>> {
    set(served, peer, List::Groups, (name_in(path), query), &body).await
}

/// Remove a port group
#[utoipa::path(delete, operation_id = "remove_group", tag = "port groups", path = "/v1/groups/{name}", params(("name" = String, Path, description = "Name of the port group"), CutOff), responses(
    (status = 200, description = "The changes that were made", body = Changed),
    problems::Named, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn remove_group(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Named,
    query: Agreed,
) -> Answer<axum::Json<Changed>> {
    remove(served, peer, List::Groups, (name_in(path), query)).await
}

/// Add an uplink
#[utoipa::path(post, operation_id = "add_uplink", tag = "uplinks", path = "/v1/uplinks", params(CutOff), request_body = NewUplink, responses(
    (status = 201, description = "The changes that were made", body = Changed),
    problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn add_uplink(
    State(served): Daemon,
    Changer(peer): Changer,
    query: Agreed,
    Small(body): Small,
) -> Answer<(StatusCode, axum::Json<Changed>)> {
    add(served, peer, List::Uplinks, query, &body).await
}

/// Change an uplink
///
/// The body is a merge patch (RFC 7396): a key that is `null` gets its default.
#[utoipa::path(patch, operation_id = "change_uplink", tag = "uplinks", path = "/v1/uplinks/{name}", params(("name" = String, Path, description = "Name of the uplink"), CutOff), request_body = UplinkChange, responses(
    (status = 200, description = "The changes that were made", body = Changed),
    problems::Named, problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn set_uplink(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Named,
    query: Agreed,
    Small(body): Small,
) -> Answer<axum::Json<Changed>> {
    set(served, peer, List::Uplinks, (name_in(path), query), &body).await
}

/// Remove an uplink
#[utoipa::path(delete, operation_id = "remove_uplink", tag = "uplinks", path = "/v1/uplinks/{name}", params(("name" = String, Path, description = "Name of the uplink"), CutOff), responses(
    (status = 200, description = "The changes that were made", body = Changed),
    problems::Named, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn remove_uplink(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Named,
    query: Agreed,
) -> Answer<axum::Json<Changed>> {
    remove(served, peer, List::Uplinks, (name_in(path), query)).await
}

/// Add a card
#[utoipa::path(post, operation_id = "add_card", tag = "cards", path = "/v1/cards", params(CutOff), request_body = NewCard, responses(
    (status = 201, description = "The changes that were made", body = Changed),
    problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn add_card(
    State(served): Daemon,
    Changer(peer): Changer,
    query: Agreed,
    Small(body): Small,
) -> Answer<(StatusCode, axum::Json<Changed>)> {
    add(served, peer, List::Cards, query, &body).await
}

/// Change a card
///
/// The body is a merge patch (RFC 7396): a key that is `null` gets its default.
#[utoipa::path(patch, operation_id = "change_card", tag = "cards", path = "/v1/cards/{name}", params(("name" = String, Path, description = "Name of the card"), CutOff), request_body = CardChange, responses(
    (status = 200, description = "The changes that were made", body = Changed),
    problems::Named, problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn set_card(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Named,
    query: Agreed,
    Small(body): Small,
) -> Answer<axum::Json<Changed>> {
    set(served, peer, List::Cards, (name_in(path), query), &body).await
}

/// Remove a card
#[utoipa::path(delete, operation_id = "remove_card", tag = "cards", path = "/v1/cards/{name}", params(("name" = String, Path, description = "Name of the card"), CutOff), responses(
    (status = 200, description = "The changes that were made", body = Changed),
    problems::Named, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn remove_card(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Named,
    query: Agreed,
) -> Answer<axum::Json<Changed>> {
    remove(served, peer, List::Cards, (name_in(path), query)).await
}

/// Reset a card
///
/// The driver of each of its functions is told, and resets its function.
#[utoipa::path(post, operation_id = "reset_card", tag = "cards", path = "/v1/cards/{name}/reset", params(("name" = String, Path, description = "Name of the card")), responses(
    (status = 200, description = "The card was reset", body = CardReset),
    problems::Named, problems::Changing, problems::Starting,
))]
pub(crate) async fn reset_card(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Named,
) -> Answer<axum::Json<CardReset>> {
    let (live, name) = (served.live()?, name_in(path)?);
    beside(move || {
        if !live.daemon().reset_card(&name) {
            return Err(Problem::new(NO_SUCH, format!("there is no card {name:?}")));
        }
        info!("{} reset card {name}", who(peer));
        Ok(axum::Json(CardReset { name }))
    })
    .await
}

/// Add a team
///
/// Its uplinks are there already. Those of other teams, or that are ports by themselves, are closed and opened as its members.
#[utoipa::path(post, operation_id = "add_team", tag = "teams", path = "/v1/teams", params(CutOff), request_body = NewTeam, responses(
    (status = 201, description = "The changes that were made", body = Changed),
    problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn add_team(
    State(served): Daemon,
    Changer(peer): Changer,
    query: Agreed,
    Small(body): Small,
) -> Answer<(StatusCode, axum::Json<Changed>)> {
    add(served, peer, List::Teams, query, &body).await
}

/// Change a team
///
/// The body is a merge patch (RFC 7396): a key that is `null` gets its default.
#[utoipa::path(patch, operation_id = "change_team", tag = "teams", path = "/v1/teams/{name}", params(("name" = String, Path, description = "Name of the team"), CutOff), request_body = TeamChange, responses(
    (status = 200, description = "The changes that were made", body = Changed),
    problems::Named, problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn set_team(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Named,
    query: Agreed,
    Small(body): Small,
) -> Answer<axum::Json<Changed>> {
    set(served, peer, List::Teams, (name_in(path), query), &body).await
}

/// Remove a team, and its uplinks
#[utoipa::path(delete, operation_id = "remove_team", tag = "teams", path = "/v1/teams/{name}", params(("name" = String, Path, description = "Name of the team"), CutOff), responses(
    (status = 200, description = "The changes that were made", body = Changed),
    problems::Named, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn remove_team(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Named,
    query: Agreed,
) -> Answer<axum::Json<Changed>> {
    remove(served, peer, List::Teams, (name_in(path), query)).await
}

/// Add a mirror
///
/// The port that gets the copies gets nothing else from now on, and what comes from it is dropped.
#[utoipa::path(post, operation_id = "add_mirror", tag = "mirrors", path = "/v1/mirrors", params(CutOff), request_body = NewMirror, responses(
    (status = 201, description = "The changes that were made", body = Changed),
    problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn add_mirror(
    State(served): Daemon,
    Changer(peer): Changer,
    query: Agreed,
    Small(body): Small,
) -> Answer<(StatusCode, axum::Json<Changed>)> {
    add(served, peer, List::Mirrors, query, &body).await
}

/// Change a mirror
///
/// The body is a merge patch (RFC 7396): a key that is `null` gets its default.
#[utoipa::path(patch, operation_id = "change_mirror", tag = "mirrors", path = "/v1/mirrors/{name}", params(("name" = String, Path, description = "Name of the mirror"), CutOff), request_body = MirrorChange, responses(
    (status = 200, description = "The changes that were made", body = Changed),
    problems::Named, problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn set_mirror(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Named,
    query: Agreed,
    Small(body): Small,
) -> Answer<axum::Json<Changed>> {
    set(served, peer, List::Mirrors, (name_in(path), query), &body).await
}

/// Remove a mirror
#[utoipa::path(delete, operation_id = "remove_mirror", tag = "mirrors", path = "/v1/mirrors/{name}", params(("name" = String, Path, description = "Name of the mirror"), CutOff), responses(
    (status = 200, description = "The changes that were made", body = Changed),
    problems::Named, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn remove_mirror(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Named,
    query: Agreed,
) -> Answer<axum::Json<Changed>> {
    remove(served, peer, List::Mirrors, (name_in(path), query)).await
}

/// Add an export of flows
///
/// Its collector is reached from now on, as soon as it can be. No port's frames are lost or delayed.
#[utoipa::path(post, operation_id = "add_flow_export", tag = "flow exports", path = "/v1/flow_exports", params(CutOff), request_body = NewFlowExport, responses(
    (status = 201, description = "The changes that were made", body = Changed),
    problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn add_flow_export(
    State(served): Daemon,
    Changer(peer): Changer,
    query: Agreed,
    Small(body): Small,
) -> Answer<(StatusCode, axum::Json<Changed>)> {
    add(served, peer, List::FlowExports, query, &body).await
}

/// Change an export of flows
///
/// The body is a merge patch (RFC 7396): a key that is `null` gets its default. With other ports alone the session with the collector goes on.
#[utoipa::path(patch, operation_id = "change_flow_export", tag = "flow exports", path = "/v1/flow_exports/{name}", params(("name" = String, Path, description = "Name of the export"), CutOff), request_body = FlowExportChange, responses(
    (status = 200, description = "The changes that were made", body = Changed),
    problems::Named, problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn set_flow_export(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Named,
    query: Agreed,
    Small(body): Small,
) -> Answer<axum::Json<Changed>> {
    set(served, peer, List::FlowExports, (name_in(path), query), &body).await
}

/// Remove an export of flows
///
/// Flows that were counted are told first.
#[utoipa::path(delete, operation_id = "remove_flow_export", tag = "flow exports", path = "/v1/flow_exports/{name}", params(("name" = String, Path, description = "Name of the export"), CutOff), responses(
    (status = 200, description = "The changes that were made", body = Changed),
    problems::Named, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn remove_flow_export(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Named,
    query: Agreed,
) -> Answer<axum::Json<Changed>> {
    remove(served, peer, List::FlowExports, (name_in(path), query)).await
}

/// The name of a class, by its uplink's or team's and its own.
fn class_in(path: InUplink) -> Answer<String> {
    let name = path.map(|Path((uplink, name))| format!("{uplink}/{name}"));
    name.map_err(|rejection| Problem::new(MALFORMED, rejection.body_text()))
}

type InUplink = Result<Path<(String, String)>, PathRejection>;

/// Add a class of I/O control
#[utoipa::path(post, operation_id = "add_class", tag = "classes", path = "/v1/classes", params(CutOff), request_body = NewClass, responses(
    (status = 201, description = "The changes that were made", body = Changed),
    problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn add_class(
    State(served): Daemon,
    Changer(peer): Changer,
    query: Agreed,
    Small(body): Small,
) -> Answer<(StatusCode, axum::Json<Changed>)> {
    add(served, peer, List::Classes, query, &body).await
}

/// Change a class of I/O control
///
/// The body is a merge patch (RFC 7396): a key that is `null` gets its default.
#[utoipa::path(patch, operation_id = "change_class", tag = "classes", path = "/v1/classes/{uplink}/{name}", params(("uplink" = String, Path, description = "Name of the uplink or team"), ("name" = String, Path, description = "Name of the class"), CutOff), request_body = ClassChange, responses(
    (status = 200, description = "The changes that were made", body = Changed),
    problems::Named, problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn set_class(
    State(served): Daemon,
    Changer(peer): Changer,
    path: InUplink,
    query: Agreed,
    Small(body): Small,
) -> Answer<axum::Json<Changed>> {
    set(served, peer, List::Classes, (class_in(path), query), &body).await
}

/// Remove a class of I/O control
#[utoipa::path(delete, operation_id = "remove_class", tag = "classes", path = "/v1/classes/{uplink}/{name}", params(("uplink" = String, Path, description = "Name of the uplink or team"), ("name" = String, Path, description = "Name of the class"), CutOff), responses(
    (status = 200, description = "The changes that were made", body = Changed),
    problems::Named, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn remove_class(
    State(served): Daemon,
    Changer(peer): Changer,
    path: InUplink,
    query: Agreed,
) -> Answer<axum::Json<Changed>> {
    remove(served, peer, List::Classes, (class_in(path), query)).await
}

/// Change a port's terms inside a class
///
/// The body is a merge patch (RFC 7396): a term that is `null` is that of the class's other ports.
#[utoipa::path(patch, operation_id = "change_port_terms", tag = "classes", path = "/v1/classes/{uplink}/{name}/ports/{port}", params(("uplink" = String, Path, description = "Name of the uplink or team"), ("name" = String, Path, description = "Name of the class"), ("port" = String, Path, description = "Name of the port"), CutOff), request_body = PortTermsChange, responses(
    (status = 200, description = "The changes that were made", body = Changed),
    problems::Named, problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn set_port_terms(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Result<Path<(String, String, String)>, PathRejection>,
    query: Agreed,
    Small(body): Small,
) -> Answer<axum::Json<Changed>> {
    let live = served.live()?;
    let Path((uplink, name, port)) = path.map_err(|rejection| Problem::new(MALFORMED, rejection.body_text()))?;
    let (class, terms) = (format!("{uplink}/{name}"), terms_in(peer, query)?);
    let values = values(json(&body)?)?;
    beside(move || logged(&served, peer, live.set_port_terms(&class, &port, &values, terms)).map(axum::Json)).await
}
