//! The program as a person meets it: output, messages, exit codes.

mod compare;
mod daemon;
mod host_file;
mod log;
mod other_file;
mod scratch;
mod words;
