//! Adds, changes and removes ports, groups and uplinks.

use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;

use super::{Answer, CutOff, Daemon, beside, consent_in, json, logged, name_in, problems, values};
use crate::control::api::PortValues;
use crate::control::body::{Changer, Small};
use crate::control::server::{Peer, Served};
use crate::host::List;
use crate::live::Changed;

type Named = Result<Path<String>, PathRejection>;
type Agreed = Result<Query<CutOff>, QueryRejection>;

async fn add(served: Arc<Served>, peer: Peer, list: List, body: &[u8]) -> Answer<(StatusCode, axum::Json<Changed>)> {
    let live = served.live()?;
    let table = values(json(body)?)?.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
    let changed = beside(move || logged(peer, live.add(list, table))).await?;
    Ok((StatusCode::CREATED, axum::Json(changed)))
}

async fn set(
    served: Arc<Served>,
    peer: Peer,
    list: List,
    (path, query): (Named, Agreed),
    body: &[u8],
) -> Answer<axum::Json<Changed>> {
    let live = served.live()?;
    let (name, consent) = (name_in(path)?, consent_in(query)?);
    let values = values(json(body)?)?;
    beside(move || logged(peer, live.set(list, &name, &values, &consent)).map(axum::Json)).await
}

async fn remove(
    served: Arc<Served>,
    peer: Peer,
    list: List,
    (path, query): (Named, Agreed),
) -> Answer<axum::Json<Changed>> {
    let live = served.live()?;
    let (name, consent) = (name_in(path)?, consent_in(query)?);
    beside(move || logged(peer, live.remove(list, &name, &consent)).map(axum::Json)).await
}

/// Add a port
#[utoipa::path(post, path = "/v1/ports", request_body = PortValues, responses(
    (status = 201, body = Changed),
    problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn add_port(
    State(served): Daemon,
    Changer(peer): Changer,
    Small(body): Small,
) -> Answer<(StatusCode, axum::Json<Changed>)> {
    add(served, peer, List::Ports, &body).await
}

/// Change values of a port (RFC 7396): a value that is null gets its default
#[utoipa::path(patch, path = "/v1/ports/{name}", params(("name" = String, Path, description = "Its name"), CutOff), request_body = PortValues, responses(
    (status = 200, body = Changed),
    problems::Named, problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn set_port(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Named,
    query: Agreed,
    Small(body): Small,
) -> Answer<axum::Json<Changed>> {
    set(served, peer, List::Ports, (path, query), &body).await
}

/// Remove a port
#[utoipa::path(delete, path = "/v1/ports/{name}", params(("name" = String, Path, description = "Its name"), CutOff), responses(
    (status = 200, body = Changed),
    problems::Named, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn remove_port(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Named,
    query: Agreed,
) -> Answer<axum::Json<Changed>> {
    remove(served, peer, List::Ports, (path, query)).await
}

/// Add a port group
#[utoipa::path(post, path = "/v1/groups", request_body = PortValues, responses(
    (status = 201, body = Changed),
    problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn add_group(
    State(served): Daemon,
    Changer(peer): Changer,
    Small(body): Small,
) -> Answer<(StatusCode, axum::Json<Changed>)> {
    add(served, peer, List::Groups, &body).await
}

/// Change values of a port group (RFC 7396): a value that is null gets its default
#[utoipa::path(patch, path = "/v1/groups/{name}", params(("name" = String, Path, description = "Its name"), CutOff), request_body = PortValues, responses(
    (status = 200, body = Changed),
    problems::Named, problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn set_group(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Named,
    query: Agreed,
    Small(body): Small,
) -> Answer<axum::Json<Changed>> {
    set(served, peer, List::Groups, (path, query), &body).await
}

/// Remove a port group
#[utoipa::path(delete, path = "/v1/groups/{name}", params(("name" = String, Path, description = "Its name"), CutOff), responses(
    (status = 200, body = Changed),
    problems::Named, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn remove_group(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Named,
    query: Agreed,
) -> Answer<axum::Json<Changed>> {
    remove(served, peer, List::Groups, (path, query)).await
}

/// Add an uplink
#[utoipa::path(post, path = "/v1/uplinks", request_body = PortValues, responses(
    (status = 201, body = Changed),
    problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn add_uplink(
    State(served): Daemon,
    Changer(peer): Changer,
    Small(body): Small,
) -> Answer<(StatusCode, axum::Json<Changed>)> {
    add(served, peer, List::Uplinks, &body).await
}

/// Change values of an uplink (RFC 7396): a value that is null gets its default
#[utoipa::path(patch, path = "/v1/uplinks/{name}", params(("name" = String, Path, description = "Its name"), CutOff), request_body = PortValues, responses(
    (status = 200, body = Changed),
    problems::Named, problems::Bodied, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn set_uplink(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Named,
    query: Agreed,
    Small(body): Small,
) -> Answer<axum::Json<Changed>> {
    set(served, peer, List::Uplinks, (path, query), &body).await
}

/// Remove an uplink
#[utoipa::path(delete, path = "/v1/uplinks/{name}", params(("name" = String, Path, description = "Its name"), CutOff), responses(
    (status = 200, body = Changed),
    problems::Named, problems::Changing, problems::Meant, problems::Starting,
))]
pub(crate) async fn remove_uplink(
    State(served): Daemon,
    Changer(peer): Changer,
    path: Named,
    query: Agreed,
) -> Answer<axum::Json<Changed>> {
    remove(served, peer, List::Uplinks, (path, query)).await
}
