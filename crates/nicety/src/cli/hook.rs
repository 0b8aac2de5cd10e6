//! The words of the commands that VM managers call: `hook`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use nicety_host::Seconds;

use super::Which;

/// Longest time that a hook waits for a daemon: libvirt does nothing else with the domain meanwhile.
const WAIT_MAX: Seconds = Seconds(600);

/// `hook`.
#[derive(Debug, Args)]
pub struct Hook {
    /// The VM manager.
    #[command(subcommand)]
    pub of: HookOf,
}

/// The VM managers.
#[derive(Debug, Subcommand)]
pub enum HookOf {
    /// The hook that libvirt calls for a QEMU domain: adds the domain's ports when it starts, and removes them when it has ended
    Libvirt(HookLibvirt),
}

/// `hook libvirt`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nicety hook libvirt --install --wait 30s
  nicety hook libvirt --remove
Once the hook is installed, libvirt calls it with a domain's name, an operation, and the domain's XML on stdin
(https://libvirt.org/hooks.html). The hook changes only ports that it has made itself. `nicety ports NAME` says who has made a port.")]
pub struct HookLibvirt {
    /// Install the hook: write a script into libvirt's folder of hooks, which calls this program with the other options given here
    #[arg(long, conflicts_with_all = ["remove", "domain"])]
    pub install: bool,
    /// Remove that script
    #[arg(long, conflicts_with = "domain")]
    pub remove: bool,
    /// libvirt's folder of hooks for QEMU; libvirt calls each executable file in it
    #[arg(long, value_name = "DIR", default_value = "/etc/libvirt/hooks/qemu.d")]
    pub hooks: PathBuf,
    /// Wait at most so long (such as 30s; 600s at most) if the daemon does not answer, or if another change must be confirmed or undone
    /// first [default: do not wait]
    #[arg(long, value_name = "TIME", default_value = "0s", hide_default_value = true, value_parser = wait)]
    pub wait: Seconds,
    /// Add ports only for the interfaces whose sockets are in this folder [default: for all of type vhostuser]
    #[arg(long, value_name = "DIR")]
    pub sockets: Option<PathBuf>,
    /// The domain's name; libvirt passes this and the following arguments
    #[arg(required_unless_present_any = ["install", "remove"], requires = "operation")]
    pub domain: Option<String>,
    /// The operation: prepare, start, started, stopped, release, migrate, restore, reconnect or attach
    pub operation: Option<String>,
    /// The part of the operation: begin or end
    pub suboperation: Option<String>,
    /// More from libvirt, such as why the domain ended
    pub extra: Option<String>,
    /// The daemon to ask.
    #[command(flatten)]
    pub which: Which,
}

fn wait(text: &str) -> Result<Seconds, String> {
    let time: Seconds = text.parse().map_err(|error: nicety_host::QuantityError| error.to_string())?;
    if time > WAIT_MAX { Err(format!("at most {WAIT_MAX}")) } else { Ok(time) }
}
