//! Guest memory: regions that can change while frames are in flight, with permissions and bounded copies.
//!
//! A [`Map`] is an immutable snapshot of what a device may access: guest-physical (bus) addresses mapped to regions, which are
//! mapped here or known but [absent](Fault::Absent). Adding or removing a region makes a new map, which shares the unchanged rest
//! with the old one. A batch in flight holds the old map, and keeps only its mappings alive.
//!
//! While a guest migrates, its map has a [`DirtyLog`]: translations for writing are noted, and logged after the call.
//!
//! Guest memory can change at any time. Nothing here ever makes a Rust reference to it: bytes are copied in or out, with bounds checked
//! against the region. Read a value once and use the copy.
//!
//! `unsafe` is limited to this crate: the signal guard (`guard.rs`), mapping (`mapping.rs`), touching (`touch.rs`), hints, the log
//! of written pages (`dirty_log.rs`), and the presence of pages (`presence.rs`). Other crates forbid it.

#[cfg(feature = "count")]
mod blocks;
mod copy;
#[cfg(feature = "count")]
pub mod count;
mod dirty_log;
mod error;
mod files;
mod guard;
mod map;
mod mapping;
mod misses;
mod origin;
mod pages;
mod prefetch;
mod presence;
mod refusals;
mod region;
mod span;
mod tape;
mod target;
mod touch;
mod translator;
mod tree;
mod window;

pub use copy::{CopySum, copy, copy_sum};
pub use dirty_log::DirtyLog;
pub use error::{MAX_BYTES, MappingError};
pub use files::{Files, Piece, limit_files};
pub use guard::damages;
pub use map::{Absent, Fault, MAX_REGIONS, Map, MapError, Place, RegionView};
pub use mapping::{Mapping, shared_file};
pub use misses::{Miss, Misses};
pub use prefetch::{Touch, prefetch};
pub use refusals::{Refusal, Refusals, Refused};
pub use region::Rights;
pub use span::Span;
pub use tape::{Tape, Taped};
pub use target::Target;
pub use translator::{Readable, Translator};
pub use window::{Window, WindowPlace, full_barrier};
