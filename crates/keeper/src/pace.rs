//! Daemons run before VMs' own threads while VMs stand still. Otherwise that time is twice as long on a busy machine (docs/adr/0026).
//!
//! The keeper has a low nice value (sched(7)) all the time: it sleeps until something is to be done at once. A daemon has it while VMs
//! wait for it, that is from its start in the place of a killed one, or from the old daemon's word that it stops, until one serves. That
//! word counts only while an heir runs that the keeper has started, and only for a time: the daemon may be compromised.
//! Without the right (RLIMIT_NICE, CAP_SYS_NICE) nothing is changed. Processes of other control groups are not affected, nor those of other
//! sessions where autogroup is on (sched(7)).

use std::sync::atomic::{AtomicI32, Ordering};

use rustix::process::{Pid, getpriority_process, setpriority_process};

/// The nice value of those for which VMs wait, the lowest that there is. With -10 (Open vSwitch's, ovs-ctl(8)) six busy threads of VMs
/// still had two fifths of a processor: each has a ninth of the daemon's weight (sched(7)), and with this one an eighty-seventh.
const HURRIED: i32 = -20;
/// Looks at a process's threads. A thread that is started between two looks has the value of the one that starts it.
const LOOKS: usize = 4;

/// The value with which this process was started. Threads that close descriptors have it.
static USUAL: AtomicI32 = AtomicI32::new(0);

/// Nice values of this process and of the daemons.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// The value with which this process was started, and with which daemons serve.
    usual: i32,
}

impl Pace {
    /// Gives this process the low value. Processes that it starts inherit it.
    pub fn begin() -> Self {
        let usual = getpriority_process(None).unwrap_or(0);
        USUAL.store(usual, Ordering::Relaxed);
        if HURRIED < usual {
            // It may not be allowed: then all stays as it is.
            let _ = setpriority_process(None, HURRIED);
        }
        Self { usual }
    }

    /// VMs wait for this process.
    pub fn hurry(&self, process: u32) {
        set(process, self.usual.min(HURRIED));
    }

    /// No VM waits for this process.
    pub fn calm(&self, process: u32) {
        set(process, self.usual);
    }
}

/// No VM waits for this thread.
pub(crate) fn calm_this_thread() {
    let usual = USUAL.load(Ordering::Relaxed);
    if getpriority_process(None).is_ok_and(|now| now < usual) {
        // Linux's nice values are threads' (setpriority(2)).
        let _ = setpriority_process(None, usual);
    }
}

/// Gives all threads of a process a nice value, as far as that is allowed. The process may have ended.
fn set(process: u32, nice: i32) {
    for _ in 0..LOOKS {
        let others = threads(process).filter(|thread| getpriority_process(Some(*thread)).is_ok_and(|now| now != nice));
        // Each of them is set: `any` would stop at the first.
        if others.filter(|thread| setpriority_process(Some(*thread), nice).is_ok()).count() == 0 {
            return;
        }
    }
}

/// The threads of a process (proc(5)).
fn threads(process: u32) -> impl Iterator<Item = Pid> {
    let entries = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}
