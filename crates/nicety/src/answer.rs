//! Failures of a request to a running daemon.

use nicety_control::{AskError, Reply};

use crate::exit::{Exit, Failure};

/// The failure of a request.
pub fn failure(error: AskError) -> Failure {
    let exit = match &error {
        AskError::Nobody(_) | AskError::Starting(_) => Exit::Missing,
        // The request is wrong; otherwise the daemon could not do it.
        AskError::Refused(problem) if !problem.is_right() && matches!(problem.status, 400 | 404 | 409 | 422) => {
            Exit::Usage
        }
        AskError::NoSocket(_) => Exit::Usage,
        _ => Exit::Failed,
    };
    Failure::new(exit, error)
}

/// The failure for an answer to another request.
pub fn odd(reply: &Reply) -> Failure {
    Failure::new(Exit::Failed, format!("the daemon answered something else: {reply:?}"))
}
