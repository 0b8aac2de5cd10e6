//! Counts beside those of single ports: of uplinks that have left a team, and of I/O control's classes.

use nicety_adapter::{PortId, QueueCounters};
use nicety_plane::{ClassState, State};

use super::Daemon;
use crate::run::image::{ClassImage, CountsImage};

/// Counts of what uplinks have carried.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// Came in.
    pub transmit: QueueCounters,
    /// Went out.
    pub receive: QueueCounters,
    /// I/O control's classes of what went out.
    pub outward: Vec<ClassState>,
    /// The classes of frames that came in.
    pub inward: Vec<ClassState>,
}

impl Counts {
    pub fn add(&mut self, State { counters, classes, inward_classes, .. }: State) {
        self.transmit.add_all(counters.transmitted());
        self.receive.add_all(counters.taken());
        classes.into_iter().for_each(|class| class.add_to(&mut self.outward));
        inward_classes.into_iter().for_each(|class| class.add_to(&mut self.inward));
    }

    fn image(&self, port: PortId) -> CountsImage {
        let Self { transmit, receive, outward, inward } = self;
        let carried = [transmit, receive].map(|counts| (counts.packets, counts.frames, counts.bytes));
        let classes = [outward, inward].map(|classes| classes.iter().map(ClassImage::of).collect());
        CountsImage { port: port.0, carried, classes }
    }

    fn of(CountsImage { port: _, carried, classes }: &CountsImage) -> Self {
        let [transmit, receive] = carried.map(|(packets, frames, bytes)| QueueCounters { packets, frames, bytes });
        let [outward, inward] = classes.each_ref().map(|classes| classes.iter().map(ClassImage::state).collect());
        Self { transmit, receive, outward, inward }
    }
}

impl Daemon {
    /// The counts of all teams' former members and of all uplinks' classes, for [`Daemon::count_again`]. Call it while the workers stand
    /// still.
    pub(crate) fn counts(&self) -> Vec<CountsImage> {
        let classes_of = |running: &super::RunningUplink| {
            let State { classes: outward, inward_classes: inward, .. } = running.port.state();
            Counts { outward, inward, ..Counts::default() }.image(running.port.id())
        };
        let mut all: Vec<CountsImage> = self.uplinks().iter().map(classes_of).collect();
        all.extend(self.teams().iter().map(|team| team.gone.image(team.id)));
        all
    }

    /// Counts on from another daemon's counts. Call it when the uplinks have their I/O control, and before they are served.
    pub(crate) fn count_again(&self, counts: &[CountsImage]) {
        let of = |id: PortId| counts.iter().find(|counts| counts.port == id.0).map(Counts::of);
        for running in self.uplinks().iter() {
            if let Some(Counts { outward, inward, .. }) = of(running.port.id()) {
                running.port.count_classes_on(&outward, &inward);
            }
        }
        for team in self.teams().iter_mut() {
            team.gone = of(team.id).unwrap_or_default();
        }
    }
}
