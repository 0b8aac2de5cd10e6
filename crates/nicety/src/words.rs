//! `nicety man`: pages from the command line's definition, and one of the host file from the table of its keys.

use std::path::Path;

use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};
use nicety_host::{KINDS, Kind};

use crate::cli::Cli;
use crate::exit::{Exit, Failure};
use crate::output;

/// File name of the host file's page.
const HOST_FILE_PAGE: &str = "nicety-host-file.5";
const EXAMPLE: &str = "\
[uplink]
kind = \"tap\"
name = \"tap0\"

[[port]]
name = \"vm1\"
adapter = \"vmxnet3\"
mac = \"52:54:00:12:34:01\"
socket = \"vm1.sock\"";

/// Writes the man page to stdout, or one for each command and that of the host file into a folder.
pub fn man(folder: Option<&Path>) -> Result<(), Failure> {
    if let Some(folder) = folder {
        let failed = |error: std::io::Error| Failure::new(Exit::Failed, format!("{}: {error}", folder.display()));
        std::fs::create_dir_all(folder).map_err(failed)?;
        clap_mangen::generate_to(Cli::command(), folder).map_err(failed)?;
        return std::fs::write(folder.join(HOST_FILE_PAGE), host_file().to_roff()).map_err(failed);
    }
    let mut text = Vec::new();
    Man::new(Cli::command()).render(&mut text).map_err(Failure::with(Exit::Failed))?;
    output::print(&String::from_utf8_lossy(&text))
}

/// The page of the host file: every table, and the values that each of its keys may have.
fn host_file() -> Roff {
    let mut page = Roff::new();
    page.control("TH", ["nicety-host-file", "5", "", "nicety"]);
    page.control("SH", ["NAME"]).text([roman("nicety-host-file - the ports, uplinks and switch that a daemon serves")]);
    page.control("SH", ["SYNOPSIS"]).text([italic("/etc/nicety/host.toml")]);
    page.control("SH", ["DESCRIPTION"]).text([
        roman("A TOML file. "),
        bold("nicety serve --check"),
        roman(" names all its mistakes by line, and "),
        bold("nicety apply"),
        roman(" puts a changed file in force while VMs run. A relative path begins at the file's folder."),
    ]);
    for Kind { heading, keys, .. } in KINDS {
        page.control("SS", [*heading]);
        for key in *keys {
            let required = if key.required { " (required)" } else { "" };
            page.control("TP", []).text([bold(key.name), roman(required)]).text([roman(key.allowed)]);
        }
    }
    page.control("SH", ["EXAMPLE"]).control("EX", []);
    for line in EXAMPLE.lines() {
        page.text([roman(line)]);
    }
    page.control("EE", []);
    page.control("SH", ["SEE ALSO"]).text([
        bold("nicety"),
        roman("(1); "),
        italic("/usr/share/doc/nicety/book/host-file.md"),
        roman(" explains every key."),
    ]);
    page
}
