//! A guest's process, seen from the bench. Dropping it ends the process.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::words::{Answer, Offered, Order};
use crate::bench::BenchError;

/// Interval at which a waiting bench checks for cancellation.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time limit for a process to end by itself.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Time limit beyond the duration of an offer.
const OFFER_SLACK: Duration = Duration::from_secs(10);

/// A guest's process (see the module's page).
pub(super) struct GuestProcess {
    name: String,
    child: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<Answer>,
}

impl GuestProcess {
    /// Starts a guest.
    pub(super) fn start(name: &str, mut command: Command) -> Result<GuestProcess, BenchError> {
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).spawn();
        let mut child = started.map_err(|error| BenchError::Fatal(format!("starting {name}: {error}")))?;
        let (orders, output) = (child.stdin.take(), child.stdout.take());
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            let lines = output.map(BufReader::new).into_iter().flat_map(BufRead::lines).map_while(Result::ok);
            for line in lines {
                let answer = serde_json::from_str(&line).unwrap_or(Answer::Failed(line));
                if sender.send(answer).is_err() {
                    break;
                }
            }
        });
        Ok(GuestProcess { name: name.to_owned(), child, orders, answers })
    }

    /// The process ID.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends an order.
    pub(super) fn send_order(&mut self, order: &Order) -> Result<(), BenchError> {
        let mut line = serde_json::to_vec(order).map_err(|error| BenchError::Fatal(error.to_string()))?;
        line.push(b'\n');
        let written = self.orders.as_mut().map(|orders| orders.write_all(&line));
        match written {
            Some(Ok(())) => Ok(()),
            _ => Err(self.gone()),
        }
    }

    /// Waits for the `wanted` answer. Another one is a failure.
    pub(super) fn expect<T>(
        &mut self,
        most: Duration,
        cancel: &AtomicBool,
        wanted: impl Fn(Answer) -> Option<T>,
    ) -> Result<T, BenchError> {
        let answer = self.receive_answer(most, cancel)?;
        wanted(answer).ok_or_else(|| BenchError::Failed("a guest gave another answer than was asked for".to_owned()))
    }

    /// Orders a process at two ports to offer frames.
    pub(super) fn offer(
        &mut self,
        wire_bytes: u16,
        a_second: f64,
        duration: Duration,
        cancel: &AtomicBool,
    ) -> Result<Offered, BenchError> {
        self.send_order(&Order::Offer { wire_bytes, a_second, seconds: duration.as_secs_f64() })?;
        self.expect(duration + OFFER_SLACK, cancel, |answer| match answer {
            Answer::Offered(offered) => Some(offered),
            _ => None,
        })
    }

    /// Waits for an answer.
    fn receive_answer(&mut self, most: Duration, cancel: &AtomicBool) -> Result<Answer, BenchError> {
        let give_up = Instant::now() + most;
        loop {
            match self.answers.recv_timeout(POLL_INTERVAL) {
                Ok(Answer::Failed(why)) => return Err(BenchError::Failed(format!("{}: {why}", self.name))),
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(self.gone()),
                Err(RecvTimeoutError::Timeout) if cancel.load(Ordering::Relaxed) => return Err(BenchError::Cancelled),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= give_up => {
                    return Err(BenchError::Failed(format!("{} does not answer", self.name)));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn gone(&mut self) -> BenchError {
        // A last `Failed` answer says more than "has ended".
        while let Ok(answer) = self.answers.try_recv() {
            if let Answer::Failed(why) = answer {
                return BenchError::Failed(format!("{}: {why}", self.name));
            }
        }
        BenchError::Failed(format!("{} has ended", self.name))
    }
}

impl Drop for GuestProcess {
    fn drop(&mut self) {
        drop(self.orders.take());
        reap(&mut self.child);
    }
}

/// Waits `TIMEOUT` for a process that was asked to end, then kills it.
pub(super) fn reap(child: &mut Child) {
    let give_up = Instant::now() + TIMEOUT;
    while Instant::now() < give_up {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    // The process may have ended meanwhile; then there is nothing to do.
    let _ended = child.kill();
    let _status = child.wait();
}
