//! `nicety choose`: which adapter for a guest, from the registry's facts and the lab's results on this machine.

use nicety_adapters::REGISTRY;
use nicety_lab::choose::{self, Wishes};
use nicety_lab::host::Host;
use nicety_lab::report;

use crate::cli::{self, Choose};
use crate::exit::{Exit, Failure};
use crate::output;

/// Runs it.
pub fn run(args: &Choose) -> Result<(), Failure> {
    let wishes = Wishes {
        system: match args.system {
            cli::System::Linux => choose::System::Linux,
            cli::System::Windows => choose::System::Windows,
        },
        version: args.version.clone(),
        in_box: args.in_box,
        network_boot: args.network_boot,
        migrates: args.migrates,
        segmentation: args.segmentation,
        prefer: match args.prefer {
            cli::Prefer::Throughput => choose::Prefer::Throughput,
            cli::Prefer::Latency => choose::Prefer::Latency,
            cli::Prefer::Cpu => choose::Prefer::Processor,
        },
    };
    let studies = report::study::studies(&args.results);
    let choice = choose::choose(&wishes, REGISTRY, &studies, &Host::here());
    let choice = choice.map_err(|error| Failure::new(Exit::Usage, format!("--version: {error}")))?;
    let mut text = choice.adapter.as_ref().map_or("No adapter fits.\n".to_owned(), |name| format!("Take {name}.\n"));
    for sentence in choice.why.iter().chain(&choice.measured) {
        text += &format!("  {sentence}\n");
    }
    if !choice.others.is_empty() {
        text += "\nThese do not fit:\n";
        let rows: Vec<Vec<String>> =
            choice.others.iter().map(|(name, why)| vec![format!("  {name}"), why.clone()]).collect();
        text += &output::columns(&rows);
    }
    output::print(&text)?;
    if choice.adapter.is_some() { Ok(()) } else { Err(Failure::new(Exit::Failed, "no adapter fits these wishes")) }
}
