//! The problems that may answer a request, for the OpenAPI document. Handlers combine these sets.

use std::collections::BTreeMap;

use utoipa::openapi::{Content, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{IntoResponses, ToSchema as _};

use crate::control::api::Problem;

/// Problems with these status codes.
fn with(codes: &[u16]) -> BTreeMap<String, RefOr<Response>> {
    let content = || Content::new(Some(Ref::from_schema_name(Problem::name())));
    let problem = || ResponseBuilder::new().content("application/problem+json", content()).build();
    codes.iter().map(|code| (code.to_string(), problem().into())).collect()
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
    /// The body is malformed, or too long.
    Bodied [400, 413];
    /// The body's values are impossible.
    Meant [422];
    /// The user may not change this; it cannot be changed now; or it failed halfway.
    Changing [403, 409, 500];
}
