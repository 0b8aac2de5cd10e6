//! `nicety fabric`: one switch on many hosts (docs/fabric.md). `status` asks the daemon. The other commands ask etcd, and need none.

mod certificates;
mod claims;
mod edit;
mod entries;
mod hosts;
mod rights;
mod secret;
mod status;
mod store;

use std::path::Path;

use nicety_daemon::whole::Whole;

use crate::cli::{Fabric, FabricClassCommand, FabricCommand, FabricGroupCommand, FabricPortCommand};
use crate::exit::{Exit, Failure};
use crate::output;
use entries::{CLASSES, GROUPS};
use store::Store;

/// Runs it.
pub fn run(Fabric { command }: &Fabric) -> Result<(), Failure> {
    match command {
        FabricCommand::Status { json, which } => status::show(*json, which),
        FabricCommand::Init { into, store } => hosts::init(&Store::open(store)?, into.as_deref()),
        FabricCommand::Join { name, address, mtu, into, store } => {
            hosts::join(&Store::open(store)?, name, (*address, *mtu), into.as_deref())
        }
        FabricCommand::Leave { options } => hosts::leave(&Store::open(&options.store)?, options.yes),
        FabricCommand::Forget { name, options } => hosts::forget(&Store::open(&options.store)?, name, options.yes),
        FabricCommand::Group(group) => match &group.command {
            FabricGroupCommand::List { json, store } => entries::list_groups(&Store::open(store)?, *json),
            FabricGroupCommand::Add { name, values, options } => {
                edit::change(options, None, |text| entries::added(text, &GROUPS, name, values))
            }
            FabricGroupCommand::Set { name, values, options } => {
                edit::change(options, None, |text| entries::set(text, &GROUPS, name, values))
            }
            FabricGroupCommand::Remove { name, options } => {
                edit::change(options, None, |text| entries::removed(text, &GROUPS, name))
            }
        },
        FabricCommand::Class(class) => match &class.command {
            FabricClassCommand::List { json, store } => entries::list_classes(&Store::open(store)?, *json),
            FabricClassCommand::Add { name, values, options } => {
                edit::change(options, None, |text| entries::added(text, &CLASSES, name, values))
            }
            FabricClassCommand::Set { name, values, options } => {
                edit::change(options, None, |text| entries::set(text, &CLASSES, name, values))
            }
            FabricClassCommand::Remove { name, options } => {
                edit::change(options, None, |text| entries::removed(text, &CLASSES, name))
            }
        },
        FabricCommand::Port(port) => match &port.command {
            FabricPortCommand::List { group, json, store } => claims::list(&Store::open(store)?, group.as_ref(), *json),
        },
        FabricCommand::Where { mac, json, store } => claims::find(&Store::open(store)?, *mac, *json),
        FabricCommand::Export { into, store } => export(&Store::open(store)?, into.as_deref()),
        FabricCommand::Plan { file, store } => edit::plan(&Store::open(store)?, file),
        FabricCommand::Apply { file, based_on, options } => edit::apply(file, *based_on, options),
        FabricCommand::Edit { options } => edit::edit(options),
        FabricCommand::Certificates { folder, etcd } => certificates::make(folder, etcd),
    }
}

fn export(store: &Store, into: Option<&Path>) -> Result<(), Failure> {
    let basis = store.basis()?;
    let text = &basis.config.text;
    match into {
        None => output::print(text)?,
        Some(file) => {
            let written = Whole::begin_like(file).and_then(|whole| whole.finish(text.as_bytes()));
            written.map_err(|error| Failure::new(Exit::Failed, format!("{}: {error}", file.display())))?;
        }
    }
    output::tell(format_args!(
        "note: this is version {0}; `nicety fabric apply --based-on {0}` does nothing if there is a newer one",
        basis.version
    ));
    Ok(())
}
