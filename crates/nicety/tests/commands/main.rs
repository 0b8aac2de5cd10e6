//! The program as a person meets it: output, messages, exit codes.

mod book;
mod compare;
mod daemon;
mod discover;
mod extcap;
mod host_file;
mod live;
mod log;
mod other_file;
mod pages;
mod schemathesis;
mod scratch;
mod top;
mod trace;
mod words;
