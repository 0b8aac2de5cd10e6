//! The rig of every method. It boots guests for a run, warms them up, has the method measure, and ends them. A method gives it a
//! [`Measurement`]: its layout and its loop.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nicety_guests::Accel;

use super::{Load, Subject, Taken};
use crate::bench::BenchError;

/// A method's guests, ready to run. It leaves no process, socket or file behind when it is dropped.
pub trait Rig {
    /// One run. After a failure the next run boots other guests.
    ///
    /// # Errors
    /// [`BenchError::Cancelled`] soon after `stop` becomes true. A guest that stops answering gives an error with the last lines of its
    /// console.
    fn run(&mut self, round: u32, subject: &Subject, load: &Load, stop: &AtomicBool) -> Result<Taken, BenchError>;

    /// The accelerator of guests in QEMU, if there are some.
    fn accelerator(&self) -> Option<Accel> {
        None
    }

    /// Facts for the report, a sentence each: kernels, versions, whose processor time is counted.
    fn notes(&self) -> Vec<String>;
}

/// A run as its method sees it.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a, L> {
    /// The round, counted from 0.
    pub round: u32,
    /// The row.
    pub subject: &'a Subject,
    /// The load.
    pub load: &'a Load,
    /// The load, taken apart.
    pub layout: L,
    /// Becomes true when the person stops.
    pub stop: &'a AtomicBool,
}

impl<L> Run<'_, L> {
    /// Duration of the measurement.
    pub fn duration(&self) -> Duration {
        Duration::from_secs(self.load.seconds.into())
    }
}

/// The time after which guests are ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stay {
    /// For one run.
    Run,
    /// While round and subject are the same.
    Subject,
    /// Until a native run or a failure.
    Study,
}

/// A method's part of its rig. Errors are those of [`Rig::run`]. After an error the rig ends the guests.
pub trait Measurement {
    /// A load, taken apart: what guests must be laid out for, and what they do.
    type Layout: Copy;
    /// The guests that stand, with what serves them.
    type Guests;
    /// The time after which they are ended.
    const STAY: Stay = Stay::Subject;

    /// The layout of the load with this name.
    fn layout(load: &str) -> Option<Self::Layout>;

    /// Whether guests that stand for one layout serve another too.
    fn serves(standing: Self::Layout, wanted: Self::Layout) -> bool {
        let _ = (standing, wanted);
        true
    }

    /// The result of a run for which no guest is asked.
    fn skips(&self, run: &Run<'_, Self::Layout>) -> Option<Taken> {
        let _ = run;
        None
    }

    /// Boots guests.
    fn boot(&mut self, run: &Run<'_, Self::Layout>) -> Result<Self::Guests, BenchError>;

    /// Does once, after the boot, what is slow only the first time, and starts what stays from run to run.
    fn warm(&mut self, guests: &mut Self::Guests, run: &Run<'_, Self::Layout>) -> Result<(), BenchError> {
        let _ = (guests, run);
        Ok(())
    }

    /// Measures.
    fn measure(&mut self, guests: &mut Self::Guests, run: &Run<'_, Self::Layout>) -> Result<Taken, BenchError>;

    /// Measures the same programs without a virtual machine, in methods that have the row [`super::NATIVE`].
    fn natively(&mut self, run: &Run<'_, Self::Layout>) -> Result<Taken, BenchError> {
        let _ = run;
        Err(BenchError::Impossible("this method needs a virtual machine".to_owned()))
    }

    /// Ends guests and what serves them.
    fn end(&mut self, guests: Self::Guests) -> Result<(), BenchError> {
        drop(guests);
        Ok(())
    }

    /// As [`Rig::accelerator`].
    fn accelerator(&self) -> Option<Accel> {
        None
    }

    /// As [`Rig::notes`].
    fn notes(&self) -> Vec<String>;
}

/// The rig of a measurement.
pub(super) fn rig<M: Measurement + 'static>(measurement: M) -> Box<dyn Rig> {
    Box::new(Kept { measurement, standing: None })
}

/// A measurement with the guests that stand from run to run.
struct Kept<M: Measurement> {
    measurement: M,
    standing: Option<Standing<M>>,
}

/// Guests, and the run for which they were booted.
struct Standing<M: Measurement> {
    round: u32,
    subject: Subject,
    layout: M::Layout,
    guests: M::Guests,
}

impl<M: Measurement> Standing<M> {
    fn fits(&self, run: &Run<'_, M::Layout>) -> bool {
        let stays = match M::STAY {
            Stay::Run => false,
            Stay::Subject => self.round == run.round && self.subject == *run.subject,
            Stay::Study => true,
        };
        stays && M::serves(self.layout, run.layout)
    }
}

impl<M: Measurement> Kept<M> {
    fn in_guests(&mut self, run: &Run<'_, M::Layout>) -> Result<Taken, BenchError> {
        if let Some(skipped) = self.measurement.skips(run) {
            return Ok(skipped);
        }
        if !self.standing.as_ref().is_some_and(|standing| standing.fits(run)) {
            self.end()?;
            let guests = self.measurement.boot(run)?;
            let standing = Standing { round: run.round, subject: run.subject.clone(), layout: run.layout, guests };
            let guests = &mut self.standing.insert(standing).guests;
            self.measurement.warm(guests, run)?;
        }
        let gone = || BenchError::Failed("the guests have gone".to_owned());
        let taken = self.measurement.measure(&mut self.standing.as_mut().ok_or_else(gone)?.guests, run)?;
        if M::STAY == Stay::Run {
            self.end()?;
        }
        Ok(taken)
    }

    fn end(&mut self) -> Result<(), BenchError> {
        self.standing.take().map_or(Ok(()), |standing| self.measurement.end(standing.guests))
    }
}

impl<M: Measurement> Rig for Kept<M> {
    fn run(&mut self, round: u32, subject: &Subject, load: &Load, stop: &AtomicBool) -> Result<Taken, BenchError> {
        let missing = || BenchError::Fatal(format!("there is no load {}", load.name));
        let layout = M::layout(&load.name).ok_or_else(missing)?;
        let run = Run { round, subject, load, layout, stop };
        let taken = if subject.is_native() {
            // Guests' processes would take part of the machine.
            match self.end().and_then(|()| self.measurement.natively(&run)) {
                // A system that allows no network namespaces still measures its guests: the row says why it is empty.
                Err(BenchError::Impossible(why)) => Ok(Taken::marked(why)),
                taken => taken,
            }
        } else {
            self.in_guests(&run)
        };
        if taken.is_err() {
            // A guest that failed to answer once is not asked again. An error of ending it has the same cause, so it is dropped.
            let _ = self.end();
        }
        taken
    }

    fn accelerator(&self) -> Option<Accel> {
        self.measurement.accelerator()
    }

    fn notes(&self) -> Vec<String> {
        self.measurement.notes()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::method::Server;

    /// Says what the rig has it do. The load's name is its layout.
    struct Told(Rc<RefCell<Vec<String>>>);

    impl Measurement for Told {
        type Layout = char;
        type Guests = String;

        fn layout(load: &str) -> Option<char> {
            load.chars().next()
        }

        fn serves(standing: char, wanted: char) -> bool {
            standing == wanted
        }

        fn boot(&mut self, run: &Run<'_, char>) -> Result<String, BenchError> {
            let guests = format!("{} {}", run.subject.adapter, run.layout);
            self.0.borrow_mut().push(format!("boot {guests}"));
            Ok(guests)
        }

        fn measure(&mut self, _: &mut String, run: &Run<'_, char>) -> Result<Taken, BenchError> {
            self.0.borrow_mut().push(format!("measure {}", run.load.name));
            let fails = run.load.name.ends_with("fails");
            if fails { Err(BenchError::Failed(String::new())) } else { Ok(Taken::default()) }
        }

        fn end(&mut self, guests: String) -> Result<(), BenchError> {
            self.0.borrow_mut().push(format!("end {guests}"));
            Ok(())
        }

        fn notes(&self) -> Vec<String> {
            Vec::new()
        }
    }

    #[test]
    fn guests_stand_until_another_round_subject_or_layout_a_failure_or_a_native_run() {
        let told = Rc::<RefCell<Vec<String>>>::default();
        let mut rig = rig(Told(Rc::clone(&told)));
        let mut run = |round, subject: &Subject, load: &str| {
            let load = Load { name: load.to_owned(), title: String::new(), seconds: 1, commands: Vec::new() };
            let taken = rig.run(round, subject, &load, &AtomicBool::new(false));
            (taken.map(|taken| taken.marks), told.borrow_mut().drain(..).collect::<Vec<_>>().join(", "))
        };
        let [one, two] = ["one", "two"].map(|name| Subject::new(name, Server::Nicety));
        assert_eq!(run(0, &one, "a").1, "boot one a, measure a");
        assert_eq!(run(0, &one, "a again").1, "measure a again");
        assert_eq!(run(0, &one, "b").1, "end one a, boot one b, measure b");
        assert_eq!(run(1, &one, "b").1, "end one b, boot one b, measure b");
        assert_eq!(run(1, &two, "b fails").1, "end one b, boot two b, measure b fails, end two b");
        assert_eq!(run(1, &two, "b").1, "boot two b, measure b");
        let mark = vec!["this method needs a virtual machine".to_owned()];
        assert_eq!(run(1, &Subject::native(), "b"), (Ok(mark), "end two b".to_owned()));
        assert_eq!(run(1, &two, "").0, Err(BenchError::Fatal("there is no load ".to_owned())));
    }
}
