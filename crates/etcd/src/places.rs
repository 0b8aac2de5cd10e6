//! The addresses of the servers. A name is looked up by whoever may do that: threads of a sandbox may not.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::endpoint::Endpoint;
use crate::error::{Error, ErrorKind};
use crate::exchange::Target;

/// A name is looked up again after this time, while nobody answers at its addresses.
const AGAIN: Duration = Duration::from_secs(1);
/// Most addresses of a name.
const ADDRESSES_MAX: usize = 16;

/// The addresses of a name, or the reason why there are none.
pub type Found = Result<Vec<SocketAddr>, String>;
/// Takes the addresses, on any thread.
pub type Answer = Box<dyn FnOnce(Found) + Send>;

/// Looks up names.
pub trait Resolver: Send + Sync {
    /// Begins to look up a host's addresses, and returns without waiting. `answer` is called once, or dropped.
    fn look_up(&self, host: &str, port: u16, answer: Answer);
}

impl<F: Fn(&str, u16, Answer) + Send + Sync> Resolver for F {
    fn look_up(&self, host: &str, port: u16, answer: Answer) {
        self(host, port, answer);
    }
}

struct Place {
    endpoint: Endpoint,
    known: Vec<SocketAddr>,
    is_name: bool,
    /// Nobody has answered at its addresses since they were looked up.
    is_doubtful: bool,
    asking: bool,
    asked_at: Option<Instant>,
    why_not: Option<String>,
}

/// See the module's page.
pub(crate) struct Places {
    places: Mutex<Vec<Place>>,
    found: Notify,
    resolver: Box<dyn Resolver>,
    again: Duration,
}

impl Places {
    pub fn new(endpoints: &[Endpoint], resolver: Box<dyn Resolver>) -> Self {
        let place = |endpoint: &Endpoint| {
            let address = endpoint.host.parse::<IpAddr>().ok();
            let known: Vec<_> = address.map(|address| SocketAddr::new(address, endpoint.port)).into_iter().collect();
            let (endpoint, is_name) = (endpoint.clone(), known.is_empty());
            let (is_doubtful, asking, asked_at, why_not) = (false, false, None, None);
            Place { endpoint, known, is_name, is_doubtful, asking, asked_at, why_not }
        };
        Self { places: Mutex::new(endpoints.iter().map(place).collect()), found: Notify::new(), resolver, again: AGAIN }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Vec<Place>) -> T) -> T {
        work(&mut self.places.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Nobody answers at this address: its name may have others by now.
    pub fn doubt(&self, target: &Target) {
        self.with(|places| {
            let of = places.iter_mut().filter(|place| place.endpoint == target.endpoint);
            of.for_each(|place| place.is_doubtful = true);
        });
    }

    /// Asks for the addresses of names that have none, or at whose addresses nobody answers.
    fn ask(self: &Arc<Self>) {
        let now = Instant::now();
        let wanted: Vec<(usize, String, u16)> = self.with(|places| {
            let is_due = |place: &Place| {
                let is_wanted = place.is_name && (place.known.is_empty() || place.is_doubtful);
                is_wanted && !place.asking && place.asked_at.is_none_or(|at| now.duration_since(at) >= self.again)
            };
            let due = places.iter_mut().enumerate().filter(|(_, place)| is_due(place));
            let due = due.map(|(index, place)| {
                (place.asking, place.asked_at, place.is_doubtful) = (true, Some(now), false);
                (index, place.endpoint.host.clone(), place.endpoint.port)
            });
            due.collect()
        });
        for (index, host, port) in wanted {
            // Who waits for an answer that never comes waits until its time limit.
            let this = Arc::downgrade(self);
            let answer = move |found: Found| {
                let Some(this) = this.upgrade() else { return };
                this.with(|places| places.get_mut(index).map(|place| place.hear(found)));
                this.found.notify_waiters();
            };
            self.resolver.look_up(&host, port, Box::new(answer));
        }
    }

    /// The addresses to try, one of each endpoint first, beginning with endpoint number `turn`. Waits for a name if there is none yet.
    ///
    /// # Errors
    /// No name has an address.
    pub async fn targets(self: &Arc<Self>, turn: usize) -> Result<Vec<Target>, Error> {
        loop {
            let found = self.found.notified();
            self.ask();
            let (targets, errors, is_waiting) = self.with(|places| {
                let count = places.len().max(1);
                let in_turn = |index: usize| places.get((index + turn) % count);
                let target = |index: usize, number: usize| {
                    let place = in_turn(index)?;
                    let address = *place.known.get(number)?;
                    Some(Target { endpoint: place.endpoint.clone(), address })
                };
                let numbers = (0..ADDRESSES_MAX).flat_map(|number| (0..count).map(move |index| (index, number)));
                let targets: Vec<Target> = numbers.filter_map(|(index, number)| target(index, number)).collect();
                let errors: Vec<Error> = places.iter().filter_map(Place::error).collect();
                (targets, errors, places.iter().any(|place| place.asking))
            });
            if !targets.is_empty() {
                return Ok(targets);
            }
            if !is_waiting {
                return Err(Error::all(errors));
            }
            found.await;
        }
    }
}

impl Place {
    fn hear(&mut self, found: Found) {
        self.asking = false;
        match found {
            Ok(known) if known.is_empty() => self.why_not = Some("it has no address".to_owned()),
            Ok(known) => {
                self.known = known.into_iter().take(ADDRESSES_MAX).collect();
                self.why_not = None;
            }
            // The addresses of before may still be right.
            Err(why) => self.why_not = Some(why),
        }
    }

    fn error(&self) -> Option<Error> {
        let why = self.why_not.clone().filter(|_| self.known.is_empty())?;
        Some(Error::new(ErrorKind::Name(why)).at(&self.endpoint.authority()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    /// A system that is asked by hand.
    fn system(endpoints: &[&str], again: Duration) -> (Arc<Places>, Receiver<(String, Answer)>) {
        let (ask, asked) = channel();
        let ask = Mutex::new(ask);
        let resolver = move |host: &str, port: u16, answer: Answer| {
            ask.lock().unwrap().send((format!("{host}:{port}"), answer)).unwrap();
        };
        let endpoints: Vec<Endpoint> = endpoints.iter().map(|text| text.parse().unwrap()).collect();
        (Arc::new(Places { again, ..Places::new(&endpoints, Box::new(resolver)) }), asked)
    }

    fn texts(targets: &[Target]) -> Vec<String> {
        targets.iter().map(Target::text).collect()
    }

    async fn two(again: Duration) -> (Arc<Places>, Receiver<(String, Answer)>, Vec<Target>) {
        let (places, asked) = system(&["http://etcd1:2379"], again);
        let waiting = tokio::spawn({
            let places = Arc::clone(&places);
            async move { places.targets(0).await }
        });
        tokio::task::yield_now().await;
        let (name, answer) = asked.try_recv().unwrap();
        assert_eq!(name, "etcd1:2379");
        answer(Ok(["10.0.0.1:2379", "10.0.0.2:2379"].map(|text| text.parse().unwrap()).to_vec()));
        let targets = waiting.await.unwrap().unwrap();
        assert_eq!(texts(&targets), ["etcd1:2379 at 10.0.0.1:2379", "etcd1:2379 at 10.0.0.2:2379"]);
        (places, asked, targets)
    }

    #[tokio::test]
    async fn a_name_is_looked_up_again_while_nobody_answers_there_and_its_old_addresses_are_tried_meanwhile() {
        let (places, asked, targets) = two(Duration::ZERO).await;
        assert_eq!(places.targets(0).await.unwrap().len(), 2);
        assert!(asked.try_recv().is_err(), "its addresses are good");
        for _ in 0..2 {
            places.doubt(&targets[0]);
            assert_eq!(places.targets(0).await.unwrap().len(), 2);
        }
        let (_, answer) = asked.try_recv().unwrap();
        assert!(asked.try_recv().is_err(), "one question at a time");
        answer(Err("try again".to_owned()));
        assert_eq!(places.targets(0).await.unwrap().len(), 2, "a name server that is gone changes nothing");
    }

    #[tokio::test]
    async fn a_name_is_not_looked_up_more_often_than_it_should() {
        let (places, asked, targets) = two(Duration::from_secs(3600)).await;
        places.doubt(&targets[0]);
        places.targets(0).await.unwrap();
        assert!(asked.try_recv().is_err());
    }

    #[tokio::test]
    async fn each_endpoint_has_its_turn_before_a_second_address_has() {
        let (places, asked) = system(&["http://a:1", "http://10.0.0.9:3"], AGAIN);
        assert_eq!(texts(&places.targets(0).await.unwrap()), ["10.0.0.9:3"], "nobody waits for a slow name");
        asked.recv().unwrap().1(Ok(["10.0.0.1:1", "10.0.0.2:1"].map(|text| text.parse().unwrap()).to_vec()));
        let [a1, a2, b] = ["a:1 at 10.0.0.1:1", "a:1 at 10.0.0.2:1", "10.0.0.9:3"];
        assert_eq!(texts(&places.targets(0).await.unwrap()), [a1, b, a2]);
        assert_eq!(texts(&places.targets(1).await.unwrap()), [b, a1, a2]);
    }

    #[tokio::test]
    async fn a_name_without_an_address_is_told_with_the_remedy() {
        for (found, why) in
            [(Err("Name or service not known".to_owned()), "Name or"), (Ok(Vec::new()), "it has no address")]
        {
            let (places, asked) = system(&["https://a:1"], AGAIN);
            let answers = std::thread::spawn(move || asked.recv().unwrap().1(found));
            let error = places.targets(0).await.unwrap_err().to_string();
            answers.join().unwrap();
            assert!(error.starts_with("a:1: no address was found") && error.contains(why), "{error}");
            assert!(error.contains("see to DNS"), "{error}");
        }
    }
}
