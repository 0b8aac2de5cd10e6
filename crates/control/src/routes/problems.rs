//! The problems that may answer a request, for the OpenAPI document. Handlers combine these sets.

use std::collections::BTreeMap;

use utoipa::openapi::{Content, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{IntoResponses, ToSchema as _};

use crate::api::Problem;

/// Problems with these status codes.
fn with(codes: &[u16]) -> BTreeMap<String, RefOr<Response>> {
    let content = || Content::new(Some(Ref::from_schema_name(Problem::name())));
    let problem = |code: u16| {
        let response = ResponseBuilder::new().description(description(code));
        response.content("application/problem+json", content()).build()
    };
    codes.iter().map(|&code| (code.to_string(), problem(code).into())).collect()
}

/// The meaning of a status code in this API.
fn description(code: u16) -> &'static str {
    match code {
        400 => "The request is malformed.",
        403 => "The user may read, and not change.",
        404 => "There is nothing of this name.",
        408 => "The request did not arrive in time.",
        409 => "The daemon refuses it now: the name is taken, a VM would be cut off, or the machine lacks something.",
        413 => "The body is too long.",
        422 => "The values do not fit each other, or the rest of the configuration.",
        500 => "Only a part was done, or a defect of the daemon ended the request.",
        _ => "The daemon is starting, busy with another host file, or does not know the user's groups now.",
    }
}

macro_rules! problems {
    ($($(#[$doc:meta])* $name:ident $codes:expr;)*) => {
        $($(#[$doc])*
        pub(super) struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                with(&$codes)
            }
        })*
    };
}

problems! {
    /// The daemon is still starting.
    Starting [503];
    /// The path's name is invalid, or unknown.
    Named [400, 404];
    /// The body is malformed, late or too long.
    Bodied [400, 408, 413];
    /// The body's values are impossible.
    Meant [422];
    /// The user may not change this; it cannot be changed now; or it failed halfway.
    Changing [403, 409, 500];
    /// The user may not read frames; or it cannot be done now.
    Capturing [403, 409];
    /// The daemon serves no host file.
    Refusing [409];
    /// A defect of the daemon.
    Failing [500];
}
