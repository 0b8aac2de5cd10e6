//! Starts QEMU so that it cannot outlive us.
//!
//! QEMU is started with `-run-with exit-with-parent=on`, which is prctl(2)'s PR_SET_PDEATHSIG: the kernel ends it when the
//! *thread* that started it ends. So one thread, which lives as long as the process, starts all programs.

use std::{
    io,
    process::{Child, Command},
    sync::{
        OnceLock,
        mpsc::{Sender, channel},
    },
    thread,
};

type Request = (Command, Sender<io::Result<Child>>);

/// Starts a program from the thread that never ends.
pub(super) fn spawn(command: Command) -> io::Result<Child> {
    static STARTER: OnceLock<Sender<Request>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (requests, incoming) = channel::<Request>();
        thread::spawn(move || {
            for (mut command, answer) in incoming {
                // If the requesting thread has gone, the child is killed here.
                if let Err(unheard) = answer.send(command.spawn()) {
                    let _ = unheard.0.and_then(|mut child| child.kill());
                }
            }
        });
        requests
    });
    let (answer, answered) = channel();
    let gone = || io::Error::other("the thread that starts programs is gone");
    starter.send((command, answer)).map_err(|_| gone())?;
    answered.recv().map_err(|_| gone())?
}
