//! Stops all workers while another process takes over their ports.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use nicety_vhost_user::NotSaved;

use super::{Daemon, Running};
use crate::run::inbox::Note;
use crate::run::order::{NotFrozen, Order, Part, Without};
use crate::run::port_log::{Kind, PortLog};
use crate::run::rings::{Front, Halt, Standing};

/// The time that the workers have to finish their rounds.
const STOP: Duration = Duration::from_secs(2);
/// The time that changes of VMs' memory have to end.
const SETTLE: Duration = Duration::from_secs(2);
/// The time that a thread has to stop whose front end was disconnected.
const AWAY: Duration = Duration::from_secs(2);
/// The time that workers have to report their flows.
const REPORT: Duration = Duration::from_secs(1);
/// The pause between two looks whether they have ended. The workers serve meanwhile.
const AGAIN: Duration = Duration::from_millis(2);

/// The reason why a front end is disconnected.
const UNWAITED: &str = "the front end is disconnected: it has stopped within a message, or does not read its answers, and an upgrade does \
                        not wait for it";

/// See [`Daemon::loss_without_vm`].
const FRONT_END_LOSES: &str = "its front end is disconnected, frames on their way are lost, and a migration under way has to begin again; \
                               QEMU connects again if its chardev has `reconnect-ms`, else the VM has to be started again";
const VMM_LOSES: &str = "its adapter is gone until the VM is started again, because QEMU does not connect again";

/// All workers stand still. They go on when this is dropped.
#[derive(Debug)]
pub struct Frozen {
    /// Ports that are handed over without their VMs.
    without: Arc<Without>,
    workers: Vec<Sender<Order>>,
    /// Threads of vhost-user ports, by the ports' names.
    halts: Vec<(String, Halt)>,
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.halts.iter().for_each(|(_, halt)| halt.resume());
    }
}

/// When the workers stopped, and the ports that no worker serves alone.
#[derive(Debug)]
pub struct Stopped {
    /// The time at which the workers were told to stop, in nanoseconds of the daemon's clock.
    pub stopped_ns: u64,
    /// The time at which they all stood still.
    pub still_ns: u64,
    /// The ports that speak vhost-user, by their threads.
    pub fronts: Vec<Front>,
}

impl Frozen {
    /// The workers stand still for ever: another process serves their ports now. Connections of VMs that were not handed over are closed.
    pub fn for_ever(self) {
        if !self.without.is_empty() {
            // A thread that does not stand still may hold up the end of this process, and so the end of the connection.
            let without = self.halts.iter().filter(|(name, _)| self.without.contains(name));
            without.for_each(|(_, halt)| halt.disconnect());
            let left = self.ask(Order::Leave);
            let end = Instant::now() + AWAY;
            self.workers.iter().for_each(|_| _ = left.recv_timeout(end.saturating_duration_since(Instant::now())));
        }
        let (reported, end) = (self.ask(|_, done| Order::EndFlows(done)), Instant::now() + REPORT);
        self.workers.iter().for_each(|_| _ = reported.recv_timeout(end.saturating_duration_since(Instant::now())));
        let _never_dropped = ManuallyDrop::new(self);
    }

    /// Whether each port can be handed over now.
    fn check(&self) -> Result<(), String> {
        self.ask(Order::Check).into_iter().try_for_each(|answer| answer.map_err(|why| why.to_string()))
    }

    /// The images of all ports, each when it is made. All workers make theirs at the same time.
    pub fn images(&self) -> Receiver<Result<Part, NotFrozen>> {
        self.ask(Order::Image)
    }

    fn ask<T>(&self, order: impl Fn(Arc<Without>, Sender<T>) -> Order) -> Receiver<T> {
        let (done, answers) = mpsc::channel();
        // A worker that has ended answers nothing: its ports are missing, which the other process finds.
        self.workers.iter().for_each(|orders| _ = orders.send(order(Arc::clone(&self.without), done.clone())));
        answers
    }
}

impl Daemon {
    /// Stops all threads that serve ports, when each can be handed over. The error is a sentence; then all go on.
    /// VMs of the ports `without` are not asked.
    pub(crate) fn freeze(&self, without: &Arc<Without>) -> Result<(Frozen, Stopped), String> {
        let end = Instant::now() + SETTLE;
        loop {
            let (mut frozen, fronts) = self.halt(end, without)?;
            let stopped_ns = self.clock.now().0;
            self.stand_still(&mut frozen)?;
            let still_ns = self.clock.now().0;
            match frozen.check() {
                Ok(()) => {
                    // Workers have written into their guests' memory until now.
                    let fronts = fronts.into_iter().map(Standing::finish).collect();
                    return Ok((frozen, Stopped { stopped_ns, still_ns, fronts }));
                }
                Err(why) if Instant::now() >= end || !why.contains("in progress") => return Err(why),
                Err(_) => {}
            }
            drop(frozen);
            std::thread::sleep(AGAIN);
        }
    }

    /// Stops the threads of vhost-user ports between two messages. They may wait for workers, so they come first.
    fn halt(&self, end: Instant, without: &Arc<Without>) -> Result<(Frozen, Vec<Standing>), String> {
        let of = |running: &Running| Some((Arc::clone(&running.log), running.rings.as_ref()?.halt()));
        let halts: Vec<(Arc<PortLog>, Halt)> = self.ports().values().filter_map(of).collect();
        halts.iter().for_each(|(log, halt)| halt.ask(without.contains(log.port())));
        let named = halts.iter().map(|(log, halt)| (log.port().to_owned(), halt.clone())).collect();
        let frozen = Frozen { without: Arc::clone(without), workers: Vec::new(), halts: named };
        let front = |(log, halt): &(Arc<PortLog>, Halt)| {
            let stands = halt.front(end);
            let stands = match without.contains(log.port()) {
                true => stands.or_else(|| halt.without_front_end(log.port())),
                false => stands.or_else(|| send_away(log, halt)),
            };
            match stands {
                Some(Ok(front)) => Ok(front),
                Some(Err(why)) => Err(format!("port {}: {why}", log.port())),
                None => Err(format!("port {}: its thread has stopped in the middle of a message", log.port())),
            }
        };
        let fronts = halts.iter().map(front).collect::<Result<_, _>>()?;
        Ok((frozen, fronts))
    }

    /// The loss of this port's VM if another process takes over without the port. `None`: there is no such port.
    pub(crate) fn loss_without_vm(&self, name: &str) -> Option<&'static str> {
        let ports = self.ports();
        let running = ports.values().find(|running| running.spec.config.name == name)?;
        Some(if running.rings.is_some() { FRONT_END_LOSES } else { VMM_LOSES })
    }

    /// The time by its clock, in nanoseconds.
    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now().0
    }

    fn stand_still(&self, frozen: &mut Frozen) -> Result<(), String> {
        let (stopped, has_stopped) = mpsc::channel();
        for worker in &self.workers {
            let (order, received) = mpsc::channel();
            worker.inbox.push(Note::Freeze(stopped.clone(), received));
            frozen.workers.push(order);
        }
        let end = Instant::now() + STOP;
        for _ in &self.workers {
            let left = end.saturating_duration_since(Instant::now());
            has_stopped.recv_timeout(left).map_err(|_| "a worker did not stop in time".to_owned())?;
        }
        Ok(())
    }
}

/// Disconnects a front end for which a port's thread waits within a message: it would refuse every upgrade, without end. `None` if the
/// thread does not stand still even then.
fn send_away(log: &PortLog, halt: &Halt) -> Option<Result<Standing, NotSaved>> {
    let (end, mut is_away) = (Instant::now() + AWAY, false);
    loop {
        // One that sends a byte now and then is waited for most of the time.
        if !is_away && halt.send_away() {
            log.say(Kind::Stopped, UNWAITED);
            is_away = true;
        }
        let stands = halt.front(Instant::now() + 10 * AGAIN);
        if stands.is_some() || Instant::now() >= end {
            return stands;
        }
    }
}
