//! Catches a panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code that may panic; the error is the panic message. The caller must treat everything it touched as half changed.
pub fn caught<R>(act: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(act)).map_err(|payload| words(payload.as_ref()))
}

/// The message of a panic.
#[cold]
fn words(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
}
