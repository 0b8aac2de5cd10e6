//! One cluster, asked at whichever of its servers answers.
//!
//! The server that answered last is asked first, over the connection that is there already. If it says nothing for a part of the time limit,
//! the next one is asked, too, and the first answer counts. Only calls that may be carried out twice are sent twice. Of the others the
//! connections are raced, and the first one carries the call.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::HeaderValue;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_rustls::TlsConnector;

use crate::error::{Error, ErrorKind};
use crate::exchange::{Call, Connection, Lines, Target};
use crate::places::{Places, Resolver};
use crate::settings::{ENDPOINTS_MAX, Settings, User};
use crate::tls;
use crate::wire::{self, Subject};

/// Time limit to log in: etcd makes a password's check slow on purpose (bcrypt). A call with a shorter limit ends earlier, and the log-in
/// goes on while the runtime does.
pub const LOGIN_MAX: Duration = Duration::from_secs(5);
/// Longest time for which one server alone is asked while there are others.
const STAGGER_MAX: Duration = Duration::from_secs(1);
/// Most addresses that one call tries.
const TRIES_MAX: usize = 16;

pub(crate) struct Shared {
    settings: Settings,
    tls: Option<TlsConnector>,
    places: Arc<Places>,
    /// The address that answered last.
    preferred: Mutex<Option<Target>>,
    /// A connection that waits for its next call.
    idle: Mutex<Option<Connection>>,
    token: Mutex<Option<HeaderValue>>,
    /// The log-in that is under way: whoever needs a token waits for it. It has a task of its own, and so outlives a call that is late:
    /// etcd may need longer for it than a call may take.
    login: Mutex<Option<Login>>,
    /// The endpoint that is tried first when none has answered.
    turn: AtomicUsize,
}

/// Tells the end of a log-in.
type Login = watch::Receiver<Option<Result<HeaderValue, Error>>>;

/// A client. Copies share the connection, the token, and what is known of the servers. Its calls run on the caller's tokio runtime, of one
/// thread or several, with I/O and time.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    limit: Duration,
    end: Option<Instant>,
}

/// A call before it is sent.
pub(crate) struct Question {
    pub path: &'static str,
    pub body: Value,
    /// Whether etcd may carry it out twice.
    pub may_repeat: bool,
    /// Whether it changes nothing, so that its outcome is known without an answer.
    pub only_reads: bool,
    pub needs_leader: bool,
    /// `read the key a`.
    pub what: String,
    pub lease: i64,
}

impl Question {
    pub fn new(path: &'static str, body: Value, what: String) -> Self {
        Self { path, body, may_repeat: true, only_reads: false, needs_leader: true, what, lease: 0 }
    }
}

/// When a call must have ended.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    end: Instant,
    /// The whole time limit, for the sentence.
    limit: Duration,
}

impl Deadline {
    fn of(limit: Duration) -> Self {
        Self { end: Instant::now() + limit, limit }
    }

    fn late(self, at: Option<String>, unknown_outcome: bool) -> Error {
        Error { kind: ErrorKind::Late(self.limit), at, unknown_outcome }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    /// A client of these servers, whose names are looked up by `resolver`. Nothing is sent yet.
    ///
    /// # Errors
    /// [`ErrorKind::Settings`]: certificates or a key that are none, no CA for `https`, no or too many endpoints.
    pub fn new(settings: Settings, resolver: impl Resolver + 'static) -> Result<Self, Error> {
        let count = settings.endpoints.len();
        if count == 0 || count > ENDPOINTS_MAX {
            return Err(Error::new(ErrorKind::Settings(format!(
                "name 1 to {ENDPOINTS_MAX} servers of etcd, not {count}"
            ))));
        }
        let tls = tls::connector(&settings)?;
        let places = Arc::new(Places::new(&settings.endpoints, Box::new(resolver)));
        let limit = settings.limit;
        let (preferred, idle, token) = (Mutex::new(None), Mutex::new(None), Mutex::new(None));
        let (login, turn) = (Mutex::new(None), AtomicUsize::new(0));
        let shared = Arc::new(Shared { settings, tls, places, preferred, idle, token, login, turn });
        Ok(Self { shared, limit, end: None })
    }

    /// The same client with another time limit for its calls.
    pub fn with_limit(&self, limit: Duration) -> Self {
        Self { shared: Arc::clone(&self.shared), limit, end: self.end }
    }

    /// The same client for several calls that share one time limit: none of them lasts beyond this moment.
    pub fn until(&self, end: std::time::Instant) -> Self {
        Self { shared: Arc::clone(&self.shared), limit: self.limit, end: Some(end.into()) }
    }

    pub(crate) fn silence(&self) -> Duration {
        self.shared.settings.silence
    }

    /// Asks, and reads the answer as this type.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, question: Question) -> Result<T, Error> {
        let (may_repeat, only_reads) = (question.may_repeat, question.only_reads);
        let as_user = self.as_user(question, move |shared, call, deadline| async move {
            if may_repeat { shared.ask_all(call, deadline).await } else { shared.ask_one(call, deadline).await }
        });
        let answer = as_user.await;
        let (body, target) =
            answer.map_err(|error| Error { unknown_outcome: error.unknown_outcome && !only_reads, ..error })?;
        wire::parse(&body).map_err(|error| error.at(&target.text()))
    }

    /// Opens a stream, and returns it with its first line.
    pub(crate) async fn open(&self, question: Question) -> Result<(Lines, Vec<u8>), Error> {
        self.as_user(question, |shared, call, deadline| shared.open(call, deadline)).await
    }

    pub(crate) fn subject(&self, what: String, lease: i64) -> Subject {
        let user = self.shared.settings.user.as_ref();
        let user = user.map_or("whoever names no user".to_owned(), |user| format!("the user `{}`", user.name));
        Subject { user, what, lease, needs_root: false }
    }

    /// Does it with a token, and with a new one if etcd has forgotten that: it refuses a call before it changes anything.
    async fn as_user<T, F: Future<Output = Result<T, Error>>>(
        &self,
        question: Question,
        work: impl Fn(Arc<Shared>, Call, Deadline) -> F,
    ) -> Result<T, Error> {
        let mut subject = self.subject(question.what, question.lease);
        subject.needs_root = question.path.starts_with("/v3/auth/");
        let call = |token| Call {
            path: question.path,
            body: Bytes::from(question.body.to_string()),
            token,
            needs_leader: question.needs_leader,
            answer_max: self.shared.settings.answer_max,
            subject: subject.clone(),
        };
        let deadline = Deadline::of(self.limit);
        let deadline = Deadline { end: self.end.map_or(deadline.end, |end| end.min(deadline.end)), ..deadline };
        let token = async || match timeout_at(deadline.end, self.token()).await {
            Ok(token) => token,
            Err(_) => Err(Error::new(ErrorKind::LoggingIn(self.limit))),
        };
        let (first, is_new) = token().await?;
        let had_token = first.is_some();
        let begin = |token| work(Arc::clone(&self.shared), call(token), deadline);
        match begin(first.clone()).await {
            Err(error) if had_token && !is_new && error.any(|kind| matches!(kind, ErrorKind::Token(_))) => {
                self.forget(first.as_ref());
                let (token, _) = token().await?;
                begin(token).await
            }
            done => done,
        }
    }

    /// A token that etcd has forgotten.
    pub(crate) fn forget(&self, token: Option<&HeaderValue>) {
        let mut known = lock(&self.shared.token);
        if known.as_ref() == token {
            *known = None;
        }
    }

    /// The token of the user, and whether it was made just now. `None`: there is no user. Takes [`LOGIN_MAX`] at most.
    pub(crate) async fn token(&self) -> Result<(Option<HeaderValue>, bool), Error> {
        let Some(user) = &self.shared.settings.user else { return Ok((None, false)) };
        if let Some(token) = lock(&self.shared.token).clone() {
            return Ok((Some(token), false));
        }
        let mut login = self.login(user);
        // A task whose runtime has ended says nothing.
        let ended = || Error::new(ErrorKind::Broken("the log-in was given up".to_owned()));
        let done = login.wait_for(Option::is_some).await.map_err(|_| ended())?.clone();
        done.unwrap_or_else(|| Err(ended())).map(|token| (Some(token), true))
    }

    /// The log-in that is under way, or a new one.
    fn login(&self, user: &User) -> Login {
        let mut login = lock(&self.shared.login);
        if let Some(login) = login.as_ref().filter(|login| login.has_changed().is_ok()) {
            return login.clone();
        }
        let call = Call {
            path: "/v3/auth/authenticate",
            body: Bytes::from(json!({ "name": user.name, "password": user.password }).to_string()),
            token: None,
            needs_leader: true,
            answer_max: 64 << 10,
            subject: self.subject("log in".to_owned(), 0),
        };
        let (tell, hear) = watch::channel(None);
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            let done = Arc::clone(&shared).log_in(call).await;
            *lock(&shared.token) = done.as_ref().ok().cloned();
            *lock(&shared.login) = None;
            // Nobody may wait for it any more.
            let _heard = tell.send(Some(done));
        });
        *login = Some(hear.clone());
        hear
    }
}

impl Shared {
    async fn log_in(self: Arc<Self>, call: Call) -> Result<HeaderValue, Error> {
        #[derive(serde::Deserialize)]
        struct Token {
            token: String,
        }
        let (body, target) = self.ask_all(call, Deadline::of(LOGIN_MAX)).await?;
        let Token { token } = wire::parse(&body).map_err(|error| error.at(&target.text()))?;
        let mut token = HeaderValue::try_from(token).map_err(|_| {
            Error::new(ErrorKind::NotEtcd("it answers a token that is none".to_owned())).at(&target.text())
        })?;
        token.set_sensitive(true);
        Ok(token)
    }

    /// Sends the call to one server after the other, and to the next while one is silent. The first answer counts.
    async fn ask_all(self: Arc<Self>, call: Call, deadline: Deadline) -> Result<(Vec<u8>, Target), Error> {
        let (shared, call) = (Arc::clone(&self), Arc::new(call));
        let attempt = move |target: Target| {
            let (shared, call) = (Arc::clone(&shared), Arc::clone(&call));
            async move {
                let mut connection = shared.connect(&target).await?;
                let was_used = connection.was_used();
                let answer = match connection.call(&call).await {
                    // The server may have closed it at the same moment.
                    Err(Error { kind: ErrorKind::Broken(_), .. }) if was_used => {
                        connection = Connection::open(&target, shared.tls.as_ref()).await?;
                        connection.call(&call).await?
                    }
                    answer => answer?,
                };
                shared.keep(connection);
                Ok(answer)
            }
        };
        self.race(deadline, true, attempt).await
    }

    /// Sends the call once.
    async fn ask_one(self: Arc<Self>, call: Call, deadline: Deadline) -> Result<(Vec<u8>, Target), Error> {
        let shared = Arc::clone(&self);
        let connect = move |target: Target| {
            let shared = Arc::clone(&shared);
            async move { shared.connect(&target).await }
        };
        loop {
            let (mut connection, target) = self.race(deadline, false, connect.clone()).await?;
            let was_used = connection.was_used();
            let answer = timeout_at(deadline.end, connection.call(&call)).await;
            match answer.unwrap_or_else(|_| Err(deadline.late(None, true))) {
                Ok(answer) => {
                    self.keep(connection);
                    self.prefer(&target);
                    return Ok((answer, target));
                }
                // The server had closed it, and nothing was sent.
                Err(error) if was_used && !error.unknown_outcome && matches!(error.kind, ErrorKind::Broken(_)) => {}
                Err(error) => {
                    if error.is_of_one_server() {
                        self.doubt(&target);
                    }
                    return Err(error.at(&target.text()));
                }
            }
        }
    }

    async fn open(self: Arc<Self>, call: Call, deadline: Deadline) -> Result<(Lines, Vec<u8>), Error> {
        let (shared, call) = (Arc::clone(&self), Arc::new(call));
        let attempt = move |target: Target| {
            let (shared, call) = (Arc::clone(&shared), Arc::clone(&call));
            async move {
                // It stays open for long, so it is one of its own.
                let connection = Connection::open(&target, shared.tls.as_ref()).await?;
                let mut lines = connection.open_stream(&call).await?;
                let first = lines.next().await?;
                Ok((lines, first))
            }
        };
        self.race(deadline, true, attempt).await.map(|(opened, _)| opened)
    }

    /// The connection that waits, if it goes there, or a new one.
    async fn connect(&self, target: &Target) -> Result<Connection, Error> {
        let idle = lock(&self.idle).take_if(|connection| connection.target == *target);
        if let Some(mut connection) = idle
            && connection.is_usable().await
        {
            return Ok(connection);
        }
        Connection::open(target, self.tls.as_ref()).await
    }

    fn keep(&self, mut connection: Connection) {
        connection.rest();
        *lock(&self.idle) = Some(connection);
    }

    fn prefer(&self, target: &Target) {
        *lock(&self.preferred) = Some(target.clone());
    }

    fn doubt(&self, target: &Target) {
        let was_preferred = lock(&self.preferred).take_if(|preferred| *preferred == *target).is_some();
        if was_preferred {
            self.turn.fetch_add(1, Ordering::Relaxed);
        }
        self.places.doubt(target);
    }

    /// The addresses to try, the one that answered last first.
    async fn targets(&self) -> Result<Vec<Target>, Error> {
        let mut targets = self.places.targets(self.turn.load(Ordering::Relaxed)).await?;
        let preferred = lock(&self.preferred).clone();
        if let Some(index) = preferred.and_then(|preferred| targets.iter().position(|target| *target == preferred)) {
            targets[..=index].rotate_right(1);
        }
        targets.truncate(TRIES_MAX);
        Ok(targets)
    }

    /// Begins an attempt at one address after the other, the next one when the last has failed or is silent for its part of the time. The
    /// first success ends the others. `was_sent`: an attempt that is late may have been carried out.
    async fn race<T, F>(
        &self,
        deadline: Deadline,
        was_sent: bool,
        attempt: impl Fn(Target) -> F,
    ) -> Result<(T, Target), Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let end = deadline.end;
        let targets = match timeout_at(end, self.targets()).await {
            Ok(targets) => targets?,
            Err(_) => return Err(Error::new(ErrorKind::LookingUp)),
        };
        let part = (end.saturating_duration_since(Instant::now()) / targets.len().max(1) as u32).min(STAGGER_MAX);
        let (mut waiting, mut errors) = (targets.into_iter(), Vec::new());
        let (mut attempts, mut under_way) = (JoinSet::new(), Vec::new());
        let mut next_at = Instant::now();
        loop {
            if next_at <= Instant::now() || attempts.is_empty() {
                match waiting.next() {
                    Some(target) => {
                        let work = attempt(target.clone());
                        under_way.push(target.clone());
                        attempts.spawn(async move { (work.await, target) });
                        next_at = Instant::now() + part;
                    }
                    None if attempts.is_empty() => return Err(Error::all(errors)),
                    None => next_at = end,
                }
            }
            let done = tokio::select! {
                Some(done) = attempts.join_next() => done,
                () = sleep_until(next_at.min(end)) => {
                    if Instant::now() < end {
                        continue;
                    }
                    under_way.iter().for_each(|target| self.doubt(target));
                    errors.extend(under_way.iter().map(|target| deadline.late(Some(target.text()), was_sent)));
                    return Err(Error::all(errors));
                }
            };
            // A task that panics is a defect of this crate: the panic goes on here.
            let (result, target) = done.map_err(|error| Error::new(ErrorKind::Broken(error.to_string())))?;
            under_way.retain(|other| *other != target);
            match result {
                Ok(value) => {
                    self.prefer(&target);
                    return Ok((value, target));
                }
                Err(error) => {
                    let error = error.at(&target.text());
                    if !error.is_of_one_server() {
                        return Err(error);
                    }
                    self.doubt(&target);
                    errors.push(error);
                    next_at = Instant::now();
                }
            }
        }
    }
}
