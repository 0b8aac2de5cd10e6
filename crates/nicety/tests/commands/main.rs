//! The program from a person's point of view: output, messages, exit codes.

mod book;
mod book_lines;
mod compare;
mod daemon;
mod discover;
mod extcap;
mod ft;
mod functions;
mod hook;
mod host_file;
mod lab;
mod live;
mod log;
mod openapi_client;
mod other_file;
mod pages;
mod prometheus;
mod python;
mod sandbox;
mod schemathesis;
mod scratch;
mod shark;
mod supervised;
mod top;
mod trace;
mod words;
