//! Links between two ends, what stands between them, and peers that are none.

mod ends;
mod outside;
mod proxied;
mod refusals;
mod streams;
