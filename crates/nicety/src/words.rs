//! `nicety man`: pages from the command line's definition, and one of the host file from the table of its keys.

use std::path::Path;
use std::{fs, io};

use clap::{Command, CommandFactory};
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

/// Where the package puts the book, whose pages the help texts call `docs/PAGE.md`.
const BOOK: &str = "/usr/share/doc/nicety/book/";
/// The bottom line of each page, on the left.
const SOURCE: &str = concat!("nicety ", env!("CARGO_PKG_VERSION"));

/// Writes the man page to stdout, or one for each command and that of the host file into a folder.
pub fn man(folder: Option<&Path>) -> Result<(), Failure> {
    // The pages have no command `help`: it would have one for each command again.
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    let Some(folder) = folder else {
        return output::print(&page(&program, &[]).map_err(Failure::with(Exit::Failed))?);
    };
    let failed = |error: io::Error| Failure::new(Exit::Failed, format!("{}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(failed)?;
    write(&program, &[], folder).map_err(failed)?;
    fs::write(folder.join(HOST_FILE_PAGE), host_file().render()).map_err(failed)
}

/// Writes the pages of a command and of those below it.
fn write(command: &Command, above: &[&str], folder: &Path) -> io::Result<()> {
    fs::write(folder.join(Man::new(command.clone()).get_filename()), page(command, above)?)?;
    let above = [above, &[name(command)]].concat();
    command.get_subcommands().filter(|one| !one.is_hide_set()).try_for_each(|one| write(one, &above, folder))
}

/// A command's name in the manual: `nicety-port-add`.
fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// A command's page. `above` are the names of the commands that it is one of, outermost first.
fn page(command: &Command, above: &[&str]) -> io::Result<String> {
    let notes = command.get_after_long_help().or_else(|| command.get_after_help()).map(ToString::to_string);
    // The library would put these notes into one paragraph, their tables too.
    let bare = command.clone().after_help(None::<&'static str>).after_long_help(None::<&'static str>);
    let mut text = Vec::new();
    Man::new(bare).source(SOURCE).manual("Nicety").render(&mut text)?;
    let mut rest = Roff::new();
    sections(&notes.unwrap_or_default(), &mut rest);
    rest.control("SH", ["SEE ALSO"]);
    let mut seen = Vec::new();
    for name in above.iter().rev() {
        seen.extend([bold(*name), roman("(1), ")]);
    }
    seen.extend([bold("nicety-host-file"), roman("(5), the book in "), italic(BOOK)]);
    rest.text(seen);
    Ok((String::from_utf8_lossy(&text) + rest.render().as_str()).replace("docs/", BOOK))
}

/// The text below a command's help, as sections. A line that ends with a colon is a heading if an indented line follows. Indented lines
/// stay as they are: tables, commands. Other lines are a paragraph.
fn sections(help: &str, page: &mut Roff) {
    let (mut is_within_section, mut is_indented) = (false, false);
    let mut lines = help.lines().filter(|line| !line.is_empty()).peekable();
    while let Some(line) = lines.next() {
        let has_table = lines.peek().is_some_and(|next| next.starts_with("  "));
        let table = line.strip_prefix("  ");
        let heading = line.strip_suffix(':').filter(|_| has_table && table.is_none());
        if is_indented && table.is_none() {
            page.control("EE", []);
        } else if !is_indented && table.is_some() {
            page.control("EX", []);
        }
        if let Some(heading) = heading {
            page.control("SH", [section(heading).as_str()]);
        } else if let Some(row) = table {
            page.text([roman(row)]);
        } else if is_within_section {
            if is_indented {
                page.control("PP", []);
            }
            page.text([roman(line)]);
        } else {
            page.control("SH", ["NOTES"]).text([roman(line)]);
        }
        is_within_section = true;
        is_indented = table.is_some();
    }
    if is_indented {
        page.control("EE", []);
    }
}

/// A section's name in a man page (man-pages(7)).
fn section(heading: &str) -> String {
    match heading {
        "Exit codes" => "EXIT STATUS".to_owned(),
        "Example" => "EXAMPLES".to_owned(),
        other => other.to_uppercase(),
    }
}

/// The page of the host file: every table, and the values that each of its keys may have.
fn host_file() -> Roff {
    let mut page = Roff::new();
    page.control("TH", ["nicety-host-file", "5", "", SOURCE, "Nicety"]);
    page.control("SH", ["NAME"]).text([roman("nicety-host-file - the ports, uplinks and switch that a daemon serves")]);
    page.control("SH", ["SYNOPSIS"]).text([italic("/etc/nicety/host.toml")]);
    page.control("SH", ["DESCRIPTION"]).text([
        roman("A TOML file. "),
        bold("nicety serve --check"),
        roman(" names all its mistakes by line, and "),
        bold("nicety apply"),
        roman(" puts a changed file in force while VMs run. A relative path begins at the file's folder."),
    ]);
    page.control("PP", []).text([
        roman("Below each key are the values that it may have. What it does, and its default, is in "),
        italic(BOOK),
        italic("host-file.md"),
        roman("."),
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
        roman("(1), "),
        bold("nicety-serve"),
        roman("(1), "),
        bold("nicety-apply"),
        roman("(1)"),
    ]);
    page
}
