//! The limit of open files. Each port needs a few, and its VM passes one for each memory file and each interrupt. No VM may pass
//! so many memory files that others lack descriptors. The usual soft limit of 1024 is for programs that use select(2); this one
//! does not (getrlimit(2), RLIMIT_NOFILE).

use std::sync::Once;

use nicety_adapter::count;
use nicety_memory::limit_files;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Descriptors of the daemon itself: standard streams, log, uplink, control socket and its client.
const OWN: u64 = 16;
/// Descriptors of each worker.
const WORKER: u64 = 2;
/// Most descriptors of each port before a VM connects: a socket, a thread's eventfd, two files of a mapped page, the journal's file.
const PORT: u64 = 5;
/// Descriptors of each VM: QEMU passes a memory file or two, and an eventfd or two per queue.
const VM: u64 = 32;
/// Memory files that each VM may share at least: QEMU has one per memory backend.
const VM_FILES: u64 = 8;

/// The limit is too low for this many ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} {least} open files, {ample} with a VM at each, and this process may have {limit}: raise the hard limit \
     (`ulimit -Hn`; systemd: LimitNOFILE=), or serve fewer ports",
    need(*ports)
)]
pub struct TooFew {
    ports: usize,
    least: u64,
    ample: u64,
    limit: u64,
}

/// Raises the limit as far as this process may. Fails if the limit is too low for the ports; warns if it is too low for their
/// VMs.
pub fn provide(ports: usize, workers: usize) -> Result<(), TooFew> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = current == maximum || setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
    // If the limit cannot be raised, the current one counts.
    let limit = if raised { maximum } else { current };
    let limit = limit.unwrap_or(u64::MAX);
    limit_files(files_per_vm(ports, workers, limit));
    judge(ports, workers, limit)
}

/// Memory files that each VM may share, so that enough descriptors remain for all VMs.
fn files_per_vm(ports: usize, workers: usize, limit: u64) -> usize {
    let per_vm = limit.saturating_sub(ample(ports, workers)) / (ports as u64).max(1);
    usize::try_from(per_vm.max(VM_FILES)).unwrap_or(usize::MAX)
}

fn least(ports: usize, workers: usize) -> u64 {
    OWN + workers as u64 * WORKER + ports as u64 * PORT
}

fn ample(ports: usize, workers: usize) -> u64 {
    least(ports, workers) + ports as u64 * VM
}

/// Warns once that some VMMs' descriptors stay open, because closing them would block (`nicety_peer::PeerFd`).
pub(crate) fn warn_left_open() {
    static TOLD: Once = Once::new();
    let left = nicety_peer::left_open();
    if left > 0 {
        TOLD.call_once(|| {
            warn!(
                "{left} files that a VM has sent stay open: closing {} others still waits for whoever answers for them (FUSE?); end \
                 that VM before the daemon runs out of files",
                nicety_peer::CLOSING_MAX
            )
        });
    }
}

fn need(ports: usize) -> String {
    format!("{} {}", count(ports as u64, "port"), if ports == 1 { "needs" } else { "need" })
}

fn judge(ports: usize, workers: usize, limit: u64) -> Result<(), TooFew> {
    let (least, ample) = (least(ports, workers), ample(ports, workers));
    if limit < least {
        return Err(TooFew { ports, least, ample, limit });
    }
    if limit < ample {
        let ports = count(ports as u64, "port");
        warn!("{ports} with a VM at each may need {ample} open files, and this process may have {limit}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_ports_need_more_than_a_thousand_files_and_the_sentence_says_how_to_get_them() {
        assert_eq!(judge(1023, 1, 1 << 20), Ok(()));
        assert_eq!(judge(1023, 1, 6000), Ok(()), "enough for the ports");
        assert_eq!(judge(3, 1, 1024), Ok(()));
        let message = judge(1023, 1, 1024).unwrap_err().to_string();
        let start =
            "1023 ports need 5133 open files, 37869 with a VM at each, and this process may have 1024: raise the hard";
        assert!(message.starts_with(start), "{message}");
        let one = judge(1, 1, 8).unwrap_err().to_string();
        assert!(one.starts_with("1 port needs 23 open files, 55 with a VM at each, "), "{one}");
    }

    #[test]
    fn what_all_vms_bring_fits_however_many_memory_files_one_shares() {
        assert_eq!(files_per_vm(2, 1, 600), 254);
        assert_eq!(files_per_vm(1023, 2, 1 << 20), 987);
        for (ports, limit) in [(1, 128), (3, 1024), (20, 1024), (1023, 65_536)] {
            assert!(ample(ports, 1) + ports as u64 * files_per_vm(ports, 1, limit) as u64 <= limit, "{ports} ports");
        }
        assert_eq!(files_per_vm(100, 1, 1024), 8, "told at the start: see `judge`");
    }

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_one() {
        let hard = getrlimit(Resource::Nofile).maximum;
        provide(1, 1).unwrap();
        assert_eq!(getrlimit(Resource::Nofile), Rlimit { current: hard, maximum: hard });
    }
}
