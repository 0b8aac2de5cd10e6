//! A study: one method carried out on this machine. [`Options`] give its [`Plan`](crate::plan::Plan), its [`results`] keeps them on disk as they
//! come, [`run()`] makes them, and [`figures`] reads medians and ratios from them. [`crate::report::study`] makes the page.

pub mod bootstrap;
pub mod diff;
pub mod figures;
pub mod here;
pub mod lock;
pub mod options;
pub mod parts;
pub mod results;
mod walk;

pub use here::Here;
pub use lock::{Lock, LockError};
pub use options::{Options, PlanError};
pub use results::{Head, Results, ResultsError, Study};
pub use walk::{End, WalkError, run};
