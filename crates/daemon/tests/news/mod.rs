//! Events at the uplink's other end are logged, one line each.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use crate::logged::{Stage, lines_of};
use nicety_adapter::{Batch, Budget, Context, News, Progress};
use nicety_daemon::daemon::JoiningUplink;
use nicety_plane::doubles::{Linked, Traffic};
use rustix::event::{EventfdFlags, eventfd};

/// Discards everything, and reports events when its bell is signalled.
struct End {
    bell: OwnedFd,
    news: Arc<Mutex<Option<News>>>,
}

impl Traffic for End {
    fn fetch(&mut self, _: u16, _: Budget, _: &mut Batch, _: &mut Context<'_>) -> Progress {
        let _not_signalled = rustix::io::read(&self.bell, &mut [0; 8]);
        Progress { more: false, armed: true }
    }

    fn news(&mut self) -> Option<News> {
        self.news.lock().unwrap().take()
    }
}

fn an_uplink_that_nobody_is_at_is_logged_once_and_once_more_when_somebody_is(workers: usize) {
    let stage = Stage::new("news", "e1000", workers);
    let name = format!("up{workers}");
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let news = Arc::new(Mutex::new(None));
    let end = End { bell: bell.try_clone().unwrap(), news: Arc::clone(&news) };
    let end = Linked::new(end).with_bell(bell.try_clone().unwrap());
    stage.daemon.open_uplink(JoiningUplink::new(&name, Box::new(end))).unwrap();
    let happens = |what| {
        *news.lock().unwrap() = Some(what);
        rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
    };
    happens(News::Vacant("tap0 is down".to_owned()));
    stage.until("a line of the log", || lines_of(&name).len() == 1);
    happens(News::Back("tap0 is up".to_owned()));
    stage.until("a second line", || lines_of(&name).len() == 2);
    let lines = lines_of(&name);
    assert!(lines[0].contains("WARN") && lines[0].contains("tap0 is down"), "{lines:?}");
    assert!(lines[1].contains("INFO") && lines[1].contains("tap0 is up"), "{lines:?}");
}

with_one_worker_and_with_two!(an_uplink_that_nobody_is_at_is_logged_once_and_once_more_when_somebody_is);
