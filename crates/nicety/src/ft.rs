//! `nicety ft`: VMs that are copied to twins on other hosts (docs/fault-tolerance.md).

use nicety_control::api::{VmList, WishWord};
use nicety_control::{self as control, Ask, Reply};
use nicety_daemon::protection::VmReport;
use serde_json::json;

use crate::answer::{failure, odd};
use crate::cli::{Ft, FtCommand, Which};
use crate::exit::{Exit, Failure};
use crate::find::socket;
use crate::output;

/// Runs it.
pub fn run(Ft { command }: &Ft) -> Result<(), Failure> {
    match command {
        FtCommand::Status { vm, json, which } => status(vm.as_deref(), *json, which),
        FtCommand::Protect { vm, which } => wish(vm, WishWord::Protect, which),
        FtCommand::Stop { vm, which } => wish(vm, WishWord::Stop, which),
        FtCommand::Failover { vm, which } => wish(vm, WishWord::Failover, which),
    }
}

fn status(wanted: Option<&str>, as_json: bool, which: &Which) -> Result<(), Failure> {
    let mut vms = match control::ask(&socket(which, None)?, Ask::Vms).map_err(failure)? {
        Reply::Vms(VmList { vms }) => vms,
        other => return Err(odd(&other)),
    };
    if let Some(wanted) = wanted {
        let names: Vec<String> = vms.iter().map(|vm| vm.name.clone()).collect();
        vms.retain(|vm| vm.name == wanted);
        if vms.is_empty() {
            let there = if names.is_empty() { "it has none".to_owned() } else { names.join(", ") };
            return Err(Failure::new(Exit::Usage, format!("the host file has no [[vm]] {wanted:?}: {there}")));
        }
    }
    if as_json {
        let all = json!({ "version": control::VERSION, "vms": vms });
        let text = serde_json::to_string_pretty(&all).map_err(Failure::with(Exit::Failed))?;
        return output::print(&(text + "\n"));
    }
    if vms.is_empty() {
        return output::print("the host file has no [[vm]]: docs/fault-tolerance.md says how a VM is protected\n");
    }
    output::print(&vms.iter().map(|vm| format!("{vm}\n")).collect::<String>())
}

fn wish(vm: &str, wish: WishWord, which: &Which) -> Result<(), Failure> {
    match control::ask(&socket(which, None)?, Ask::Wish { name: vm.to_owned(), wish }).map_err(failure)? {
        Reply::Vm(report) => output::print(&done(&report, wish)),
        other => Err(odd(&other)),
    }
}

fn done(report: &VmReport, wish: WishWord) -> String {
    let name = &report.name;
    match wish {
        WishWord::Protect => format!("{name}: a twin is taken again\n"),
        WishWord::Stop => format!("{name}: it goes on here, not protected\n"),
        WishWord::Failover => format!("{name}: the lease is given to the twin, which goes on with it\n"),
    }
}
