//! A generator of frames at a fixed rate: one process at two ports of another switch than ours (see `offer`).

use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::child::GuestProcess;
use super::program::{GUEST, Program};
use super::words::{Answer, Attach, Offered, Order};
use crate::bench::BenchError;

/// Time limit for it to attach.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A generator at two ports of another switch than ours. Dropping it ends it.
pub struct Generator(GuestProcess);

impl std::fmt::Debug for Generator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Generator").field(&self.0.pid()).finish()
    }
}

impl Generator {
    /// Starts `program`'s hidden generator, and waits until it is attached. `entrance`: words that start it in another network
    /// ([`nicety_guests::Namespace::entrance`]), or none.
    ///
    /// # Errors
    /// It cannot attach.
    pub fn start(
        program: &Program,
        entrance: &[String],
        attach: [Attach; 2],
        cancel: &AtomicBool,
    ) -> Result<Generator, BenchError> {
        let hidden = program.hidden(GUEST);
        let command = match entrance.split_first() {
            None => hidden,
            Some((first, rest)) => {
                let mut entering = Command::new(first);
                entering.args(rest).arg(hidden.get_program()).args(hidden.get_args());
                entering
            }
        };
        let mut process = GuestProcess::start("the generator", command)?;
        process.send_order(&Order::Crowd { attach: attach.into() })?;
        process.expect(TIMEOUT, cancel, |answer| matches!(answer, Answer::Ready).then_some(()))?;
        Ok(Generator(process))
    }

    /// As [`super::Rig::offer`].
    ///
    /// # Errors
    /// The generator fails, or `cancel` became true.
    pub fn offer(
        &mut self,
        wire_bytes: u16,
        a_second: f64,
        duration: Duration,
        cancel: &AtomicBool,
    ) -> Result<Offered, BenchError> {
        self.0.offer(wire_bytes, a_second, duration, cancel)
    }
}
