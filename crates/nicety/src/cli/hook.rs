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
    /// Be libvirt's hook for QEMU: add the ports of a domain when it starts, remove them when it has ended
    Libvirt(HookLibvirt),
}

/// `hook libvirt`.
#[derive(Debug, Args)]
#[command(after_help = "\
  nicety hook libvirt --install --wait 30s
  nicety hook libvirt --remove
libvirt then calls it by a script in its folder of hooks, with a domain's name, an operation and the domain's XML on stdin
(https://libvirt.org/hooks.html). It changes only ports that it has made itself: `nicety ports NAME` says who has made a port.")]
pub struct HookLibvirt {
    /// Write the script into libvirt's folder of hooks. It calls this program with the other options of this command
    #[arg(long, conflicts_with_all = ["remove", "domain"])]
    pub install: bool,
    /// Remove the script
    #[arg(long, conflicts_with = "domain")]
    pub remove: bool,
    /// libvirt's folder of hooks for QEMU, in which each executable file is called
    #[arg(long, value_name = "DIR", default_value = "/etc/libvirt/hooks/qemu.d")]
    pub hooks: PathBuf,
    /// Wait for so long for a daemon that does not answer, or for a change that must be confirmed or undone first, such as 30s, 600s at
    /// most [default: not at all]
    #[arg(long, value_name = "TIME", default_value = "0s", hide_default_value = true, value_parser = wait)]
    pub wait: Seconds,
    /// Only the interfaces whose sockets are in this folder [default: all of type vhostuser]
    #[arg(long, value_name = "DIR")]
    pub sockets: Option<PathBuf>,
    /// The domain's name
    #[arg(required_unless_present_any = ["install", "remove"], requires = "operation")]
    pub domain: Option<String>,
    /// prepare, start, started, stopped, release, migrate, restore, reconnect or attach
    pub operation: Option<String>,
    /// begin or end
    pub suboperation: Option<String>,
    /// What else libvirt says: why the domain ended, say
    pub extra: Option<String>,
    /// The daemon to ask.
    #[command(flatten)]
    pub which: Which,
}

fn wait(text: &str) -> Result<Seconds, String> {
    let time: Seconds = text.parse().map_err(|error: nicety_host::QuantityError| error.to_string())?;
    if time > WAIT_MAX { Err(format!("at most {WAIT_MAX}")) } else { Ok(time) }
}
