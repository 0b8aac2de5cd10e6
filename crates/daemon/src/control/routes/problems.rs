//! The problems that a request may be answered with, for the OpenAPI document: sets that handlers put together.

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
    /// What the path names is no name, or nothing has it.
    Named [400, 404];
    /// The body is not what is wanted, or too long.
    Bodied [400, 413];
    /// What the body says cannot be.
    Meant [422];
    /// The user may not change this; it cannot be changed now; it went wrong halfway.
    Changing [403, 409, 500];
}
