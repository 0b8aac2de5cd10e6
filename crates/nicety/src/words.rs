//! `nicety completions` and `nicety man`: generated from the command line's definition.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::Cli;
use crate::exit::{Exit, Failure};
use crate::output;

/// Writes a shell's completions to stdout.
pub fn completions(shell: Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "nicety", &mut text);
    output::print(&String::from_utf8_lossy(&text))
}

/// Writes the man page to stdout, or one for each command into a folder.
pub fn man(folder: Option<&Path>) -> Result<(), Failure> {
    if let Some(folder) = folder {
        let failed = |error: std::io::Error| Failure::new(Exit::Failed, format!("{}: {error}", folder.display()));
        std::fs::create_dir_all(folder).map_err(failed)?;
        return clap_mangen::generate_to(Cli::command(), folder).map_err(failed);
    }
    let mut text = Vec::new();
    Man::new(Cli::command()).render(&mut text).map_err(Failure::with(Exit::Failed))?;
    output::print(&String::from_utf8_lossy(&text))
}
