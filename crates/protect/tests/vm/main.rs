//! Two hosts, two QEMUs, a link, a lease: seeded histories in which each of them is cut, killed and started again at random instants.
//!
//! A VM's state is a counter. It sends its counter's value all the time, so what is outside says which state it was sent from.

mod role;

use std::collections::{BTreeSet, VecDeque};

use nicety_adapter::Time;
use nicety_lease::Keeper;
use nicety_protect::{Action, Death, Kept, Loads, Message, Owner, Pairing, Run, Stage, Terms, Twin, TwinStage};
use role::Role;

const MS: u64 = 1_000_000;
/// Ports of the VM: one closes and loads a moment after the other.
const PORTS: usize = 2;

/// A random number generator (SplitMix64): the same seed gives the same history.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Incoming,
    /// Runs the copy of this protection.
    Copy(Option<Pairing>),
    Owns,
}

/// A QEMU, which goes on when its host's daemon is killed.
#[derive(Debug)]
struct Qemu {
    run: Run,
    mode: Mode,
    value: u64,
    /// At the owner: the stream is there, and the next copy's time. QEMU itself does not notice that it is broken before that.
    stream: Option<(Pairing, u64)>,
    /// Going alone takes until then.
    alone_at: Option<u64>,
    /// Loading takes until then: the epoch and its value.
    loading: Option<(u64, u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Gate {
    Open,
    Armed,
    Shut,
    Mute,
}

/// A daemon with what it forgets when it is killed.
struct Daemon {
    run: Run,
    role: Role,
    gate: Gate,
    current: u64,
    held: VecDeque<(u64, u64)>,
    /// Epochs up to this one leave when the port has its turn, until then.
    released: (u64, Time),
    loads: Loads,
    /// Answers on their way: when, number, what.
    answers: VecDeque<(u64, u32, Option<nicety_lease::Answer>)>,
    /// The stream ended, and its machine is told then.
    lost_at: Option<u64>,
}

impl Daemon {
    fn new(qemu: &Qemu, terms: Terms) -> Self {
        let role = if qemu.mode == Mode::Incoming {
            Role::Twin(Twin::new(qemu.run, terms))
        } else {
            Role::Owner(Owner::new(qemu.run, terms))
        };
        let gate = if qemu.mode == Mode::Incoming { Gate::Mute } else { Gate::Shut };
        let loads = Loads::new(PORTS);
        Self {
            run: qemu.run,
            role,
            gate,
            current: 1,
            held: VecDeque::new(),
            released: (0, Time::ZERO),
            loads,
            answers: VecDeque::new(),
            lost_at: None,
        }
    }
}

struct Host {
    qemu: Option<Qemu>,
    daemon: Option<Daemon>,
    /// The daemon is being replaced: when the next one is there, and what it goes on with.
    next: Option<(u64, Kept, Daemon)>,
    /// When they are started again.
    qemu_at: u64,
    daemon_at: u64,
    /// Reaches the third party.
    reaches: bool,
    /// To the other host: each with the time of its arrival.
    out: VecDeque<(u64, Message)>,
    stream: VecDeque<(u64, Pairing, u64, u64)>,
    is_up: bool,
    /// The whole host stands still until then, and goes on as if nothing had been.
    frozen_until: u64,
}

struct World {
    seed: u64,
    now: u64,
    random: Random,
    hosts: [Host; 2],
    lease: Keeper,
    terms: Terms,
    last_run: u64,
    /// Outside: the highest value, who sent it, and who may not send any more.
    highest: u64,
    speaker: Option<Run>,
    silenced: BTreeSet<Run>,
    takeovers: u32,
    protections: u32,
    /// Protections that went on in a daemon that has replaced another one.
    continued: u32,
    /// Each event, for a failure's message.
    story: Vec<String>,
}

impl World {
    fn new(seed: u64) -> Self {
        let terms = Terms::default();
        let host = || Host {
            qemu: None,
            daemon: None,
            next: None,
            qemu_at: 0,
            daemon_at: 0,
            reaches: true,
            out: VecDeque::new(),
            stream: VecDeque::new(),
            is_up: true,
            frozen_until: 0,
        };
        let lease = Keeper::new(terms.lease.as_nanos() as u64);
        let mut world = Self {
            seed,
            now: 0,
            random: Random(seed),
            hosts: [host(), host()],
            lease,
            terms,
            last_run: 0,
            highest: 0,
            speaker: None,
            silenced: BTreeSet::new(),
            takeovers: 0,
            protections: 0,
            continued: 0,
            story: Vec::new(),
        };
        world.start(0, Mode::Owns);
        world.start(1, Mode::Incoming);
        world
    }

    fn tell(&mut self, what: String) {
        self.story.push(format!("{:>6} ms  {what}", self.now / MS));
    }

    #[track_caller]
    fn fail(&self, why: &str) -> ! {
        let from = self.story.len().saturating_sub(60);
        panic!("seed {}: {why}\n{}", self.seed, self.story[from..].join("\n"));
    }

    fn time(&self) -> Time {
        Time(self.now)
    }

    /// Starts a QEMU, and a daemon if there is none.
    fn start(&mut self, at: usize, mode: Mode) {
        self.last_run += 1;
        let run = nicety_lease::NodeId(self.last_run);
        self.tell(format!("host {at}: QEMU {run:?} {mode:?}"));
        let qemu = Qemu { run, mode, value: self.highest, stream: None, alone_at: None, loading: None };
        self.hosts[at].daemon = Some(Daemon::new(&qemu, self.terms));
        self.hosts[at].qemu = Some(qemu);
    }

    /// Both hosts see the link end, as far as it carries that.
    fn hang(&mut self) {
        // What the QEMUs' sockets have stays there while the stream stands still.
        let is_still = self.is_still();
        for at in 0..2 {
            self.hosts[at].out.clear();
            if is_still {
                continue;
            }
            self.hosts[at].stream.clear();
            let late = self.random.below(20) * MS;
            let now = self.now;
            let hears = self.hosts[1 - at].is_up;
            let daemon = self.hosts[at].daemon.as_mut();
            // One that waits for the other host's next daemon is not lost with the line.
            if let Some(daemon) = daemon.filter(|daemon| hears && !daemon.role.is_paused()) {
                daemon.lost_at = Some(now + late);
            }
        }
    }

    fn emit(&mut self, run: Run, value: u64) {
        if self.silenced.contains(&run) {
            self.fail(&format!("{run:?} sends {value}, and another one owns the VM"));
        }
        if value < self.highest {
            self.fail(&format!("{run:?} says {value}, and {} is outside", self.highest));
        }
        if self.speaker != Some(run) {
            self.silenced.extend(self.speaker);
            self.speaker = Some(run);
            self.tell(format!("{run:?} speaks, from {value}"));
        }
        self.highest = self.highest.max(value);
    }

    fn drain(&mut self, at: usize) {
        let Some(daemon) = &mut self.hosts[at].daemon else { return };
        let run = self.hosts[at].qemu.as_ref().map(|qemu| qemu.run);
        let mut leave = Vec::new();
        while daemon.gate == Gate::Open && !daemon.held.is_empty() {
            leave.extend(daemon.held.pop_front());
        }
        if let Some(run) = run {
            leave.into_iter().for_each(|(_, value)| self.emit(run, value));
        }
    }

    /// The port has a turn: what was released leaves.
    fn send(&mut self, at: usize) {
        let time = self.time();
        let Host { daemon: Some(daemon), qemu: Some(qemu), .. } = &mut self.hosts[at] else { return };
        let (epoch, until) = daemon.released;
        if daemon.gate != Gate::Shut || time >= until {
            return;
        }
        let run = qemu.run;
        let count = daemon.held.iter().take_while(|(of, _)| *of <= epoch).count();
        let leave: Vec<_> = daemon.held.drain(..count).collect();
        leave.into_iter().for_each(|(_, value)| self.emit(run, value));
    }

    fn actions(&mut self, at: usize) {
        loop {
            let Some(daemon) = &mut self.hosts[at].daemon else { return };
            let action = match &mut daemon.role {
                Role::Owner(owner) => owner.action(),
                Role::Twin(twin) => twin.action(),
            };
            let Some(action) = action else { break };
            self.act(at, action);
        }
        self.drain(at);
    }

    fn act(&mut self, at: usize, action: Action) {
        let now = self.now;
        if !matches!(action, Action::Send(Message::Alive | Message::Loaded(..)) | Action::Release(..) | Action::Ask(..))
        {
            self.tell(format!("host {at}: {action:?}"));
        }
        let late = (1 + self.random.below(5)) * MS;
        match action {
            Action::Ask(number, request) => {
                let reaches = self.hosts[at].reaches;
                let Some(who) = self.hosts[at].daemon.as_ref().map(|daemon| daemon.run) else { return };
                // A request may be carried out, and its answer lost.
                let is_heard = reaches && self.random.below(50) > 0;
                let is_answered = self.random.below(50) > 0;
                let answer = is_heard.then(|| self.lease.ask(who, request, now)).filter(|_| is_answered);
                if !matches!(request, nicety_lease::Request::Renew) && answer.is_some() {
                    self.tell(format!("host {at}: {who:?} asks {request:?}: {answer:?}"));
                }
                if let Some(daemon) = &mut self.hosts[at].daemon {
                    daemon.answers.push_back((now + late, number, answer));
                }
            }
            Action::Send(message) => self.hosts[at].out.push_back((now + MS, message)),
            Action::Arm(_) => self.gate(at, Gate::Armed),
            Action::Shut => self.gate(at, Gate::Shut),
            Action::Mute(_) => self.gate(at, Gate::Mute),
            Action::Open => self.gate(at, Gate::Open),
            Action::Release(epoch, until) => {
                if let Some(daemon) = &mut self.hosts[at].daemon {
                    daemon.released = (epoch, until);
                }
            }
            Action::Copy(pairing) => {
                self.hosts[1 - at].stream.clear();
                self.hosts[at].stream.clear();
                if let Some(qemu) = &mut self.hosts[at].qemu {
                    qemu.stream = Some((pairing, now + 200 * MS));
                }
            }
            Action::Listen(pairing) => {
                let time = self.time();
                let Some(host) = self.hosts.get_mut(at) else { return };
                if let Some(Daemon { role: Role::Twin(twin), loads, .. }) = &mut host.daemon {
                    *loads = Loads::new(PORTS);
                    twin.listens(pairing, time);
                }
                if let Some(qemu) = &mut host.qemu {
                    qemu.mode = Mode::Copy(None);
                }
            }
            Action::GoAlone => {
                if let Some(qemu) = &mut self.hosts[at].qemu {
                    // A copy whose load is under way is finished first.
                    qemu.alone_at = Some(now + late);
                    qemu.stream = None;
                }
            }
            Action::End => {
                let when = now + 300 * MS;
                if self.hosts[at].qemu.take().is_some() {
                    self.hosts[at].qemu_at = when;
                }
                // A machine that has ended is replaced with the next QEMU.
                if let Some(daemon) = &mut self.hosts[at].daemon {
                    daemon.held.clear();
                }
            }
            Action::Hang(_) => self.hang(),
        }
    }

    fn gate(&mut self, at: usize, gate: Gate) {
        if let Some(daemon) = &mut self.hosts[at].daemon {
            if gate == Gate::Armed {
                (daemon.current, daemon.released) = (1, (0, Time::ZERO));
            }
            if gate == Gate::Shut {
                daemon.released.1 = Time::ZERO;
            }
            daemon.gate = gate;
        }
    }

    fn work(&mut self, at: usize) {
        let now = self.now;
        // The VM works, and sends what it counts.
        let Some(qemu) = &mut self.hosts[at].qemu else { return };
        if matches!(qemu.mode, Mode::Owns | Mode::Copy(Some(_))) && qemu.loading.is_none() {
            qemu.value += 1;
        }
        let (run, value, mode) = (qemu.run, qemu.value, qemu.mode);
        let mut sent = None;
        if let Some(daemon) =
            self.hosts[at].daemon.as_mut().filter(|_| matches!(mode, Mode::Owns | Mode::Copy(Some(_))))
        {
            match daemon.gate {
                Gate::Open | Gate::Armed => sent = Some(value),
                Gate::Shut => daemon.held.push_back((daemon.current, value)),
                Gate::Mute => {}
            }
        }
        if let Some(value) = sent {
            self.emit(run, value);
        }
        // Workers have more to do.
        if self.random.below(12) == 0 {
            self.send(at);
        }
        self.copy(at);
        self.load(at);
        let time = self.time();
        let host = &mut self.hosts[at];
        if let (Some(qemu), Some(daemon)) = (&mut host.qemu, &mut host.daemon)
            && qemu.alone_at.is_some_and(|when| now >= when && qemu.loading.is_none())
            && let Role::Owner(owner) = &mut daemon.role
        {
            (qemu.mode, qemu.alone_at) = (Mode::Owns, None);
            owner.went_alone();
            owner.tick(time);
        }
        self.actions(at);
    }

    /// The owner's QEMU makes a copy.
    fn copy(&mut self, at: usize) {
        let now = self.now;
        let time = self.time();
        let link = self.hosts[0].is_up && self.hosts[1].is_up;
        let late = (2 + self.random.below(15)) * MS;
        let host = &mut self.hosts[at];
        let Some(Qemu { stream: Some((pairing, when)), value, .. }) = &mut host.qemu else { return };
        if now < *when {
            return;
        }
        let (pairing, value) = (*pairing, *value);
        *when = now + 50 * MS;
        let Some(daemon) = &mut host.daemon else { return };
        let Role::Owner(owner) = &mut daemon.role else { return };
        if owner.pairing() != Some(pairing) {
            return;
        }
        if daemon.gate == Gate::Armed {
            daemon.gate = Gate::Shut;
        }
        let epoch = daemon.current;
        daemon.current += 1;
        owner.closed(pairing, epoch, time);
        if link {
            owner.moved(time);
            host.stream.push_back((now + late, pairing, epoch, value));
        }
    }

    /// The twin's QEMU loads a copy.
    fn load(&mut self, at: usize) {
        let now = self.now;
        let time = self.time();
        if let Some((when, pairing, epoch, value)) = self.hosts[1 - at].stream.front().copied()
            && now >= when
            && !self.is_still()
            && self.hosts[1 - at].is_up
            && self.hosts[at].is_up
        {
            self.hosts[1 - at].stream.pop_front();
            let ours = match self.hosts[at].daemon.as_ref().map(|daemon| &daemon.role) {
                Some(Role::Twin(twin)) => twin.pairing(),
                _ => None,
            };
            if let Some(qemu) = &mut self.hosts[at].qemu
                && ours == Some(pairing)
                && matches!(qemu.mode, Mode::Copy(_))
            {
                qemu.loading = Some((now + 4 * MS, epoch, value));
                qemu.mode = Mode::Copy(Some(pairing));
            }
        }
        let host = &mut self.hosts[at];
        let Some(qemu) = &mut host.qemu else { return };
        let Some((when, epoch, value)) = qemu.loading else { return };
        if now < when {
            return;
        }
        qemu.loading = None;
        qemu.value = value;
        let (Some(Daemon { role, loads, .. }), Mode::Copy(Some(pairing))) = (&mut host.daemon, qemu.mode) else {
            return;
        };
        (0..PORTS).for_each(|port| loads.loaded(port, epoch, true));
        (0..PORTS).for_each(|port| loads.port_runs(port));
        if let (Some(epoch), Role::Twin(twin)) = (loads.whole(), role) {
            twin.loaded(pairing, epoch, time);
        }
    }

    fn carry(&mut self, at: usize) {
        let now = self.now;
        let time = self.time();
        // Messages.
        while let Some((when, message)) = self.hosts[1 - at].out.front().copied() {
            if now < when || !self.hosts[0].is_up || !self.hosts[1].is_up {
                break;
            }
            self.hosts[1 - at].out.pop_front();
            match self.hosts[at].daemon.as_mut().map(|daemon| &mut daemon.role) {
                Some(Role::Owner(owner)) => owner.heard(message, time),
                Some(Role::Twin(twin)) => twin.heard(message, time),
                None => {}
            }
            self.actions(at);
        }
        // Answers.
        while let Some(daemon) = &mut self.hosts[at].daemon
            && daemon.answers.front().is_some_and(|(when, ..)| now >= *when)
        {
            let Some((_, number, answer)) = daemon.answers.pop_front() else { break };
            match &mut daemon.role {
                Role::Owner(owner) => owner.answered(number, answer, time),
                Role::Twin(twin) => {
                    if let Some(owner) = twin.answered(number, answer, time) {
                        daemon.role = Role::Owner(owner);
                        daemon.lost_at = None;
                        self.takeovers += 1;
                        self.tell(format!("host {at} takes over"));
                    }
                }
            }
            self.actions(at);
        }
        let Some(daemon) = &mut self.hosts[at].daemon else { return };
        if daemon.lost_at.take_if(|when| now >= *when).is_some() {
            match &mut daemon.role {
                Role::Owner(owner) => owner.lost("the link was cut", time),
                Role::Twin(twin) => twin.lost(time),
            }
        }
        if let Role::Owner(owner) = &mut daemon.role
            && self.hosts[at].qemu.is_some()
        {
            owner.spoke(time);
        }
        match &mut daemon.role {
            Role::Owner(owner) => owner.tick(time),
            Role::Twin(twin) => twin.tick(time),
        }
        self.actions(at);
    }

    fn meet(&mut self) {
        if self.hosts.iter().any(|host| !host.is_up || self.now < host.frozen_until) {
            return;
        }
        self.rejoin();
        let time = self.time();
        for at in 0..2 {
            let peer = match self.hosts[1 - at].daemon.as_ref().map(|daemon| &daemon.role) {
                Some(Role::Twin(twin)) if twin.stage() == TwinStage::Offers => {
                    self.hosts[1 - at].qemu.as_ref().map(|qemu| qemu.run)
                }
                _ => None,
            };
            let (Some(peer), Some(Daemon { role: Role::Owner(owner), .. })) = (peer, &mut self.hosts[at].daemon) else {
                continue;
            };
            if owner.wants_twin(time) {
                let pairing = Pairing(self.random.next() | 1);
                owner.offered(peer, pairing, time);
                self.protections += 1;
                for host in &mut self.hosts {
                    host.out.clear();
                    host.stream.clear();
                }
                for host in &mut self.hosts {
                    if let Some(daemon) = &mut host.daemon {
                        daemon.lost_at = None;
                    }
                }
                self.actions(at);
            }
        }
    }

    fn kill_qemu(&mut self, at: usize) {
        let time = self.time();
        if self.hosts[at].qemu.is_none() {
            return;
        }
        self.tell(format!("host {at}: QEMU is killed"));
        let restart = self.now + 200 * MS;
        let host = &mut self.hosts[at];
        host.qemu = None;
        host.qemu_at = restart;
        if let Some(daemon) = &mut host.daemon {
            match &mut daemon.role {
                Role::Owner(owner) => owner.died(Death::Sudden, time),
                Role::Twin(twin) => twin.died(),
            }
        }
        self.actions(at);
    }

    /// Whether a daemon is being replaced.
    fn is_still(&self) -> bool {
        self.hosts
            .iter()
            .any(|host| host.next.is_some() || host.daemon.as_ref().is_some_and(|daemon| daemon.role.is_paused()))
    }

    fn kept(&self, at: usize) -> Option<Kept> {
        self.hosts[at].daemon.as_ref().filter(|daemon| !daemon.role.is_paused())?.role.kept()
    }

    /// Another daemon goes on with the protection, which stands still meanwhile.
    fn replace(&mut self, at: usize) {
        let (now, time) = (self.now, self.time());
        let is_well = self.hosts.iter().all(|host| host.is_up && now >= host.frozen_until);
        let (Some(kept), Some(theirs)) = (self.kept(at), self.kept(1 - at)) else { return };
        if !is_well || kept.pairing() != theirs.pairing() {
            return;
        }
        let Some(daemon) = self.hosts[at].daemon.take() else { return };
        self.tell(format!("host {at}: the daemon is replaced"));
        self.hosts[at].next = Some((now + (5 + self.random.below(400)) * MS, kept, daemon));
        if let Some(daemon) = &mut self.hosts[1 - at].daemon {
            daemon.role.pause(time);
        }
        self.hang();
    }

    /// The next daemon is there.
    fn go_on(&mut self, at: usize) {
        let (now, time, terms) = (self.now, self.time(), self.terms);
        let Some((_, kept, old)) = self.hosts[at].next.take_if(|(when, ..)| now >= *when) else { return };
        let (run, closed) = (old.run, old.current - 1);
        let owner = Owner::again(run, terms, kept, closed, time).map(Role::Owner);
        let Some(role) = owner.or_else(|| Twin::again(run, terms, kept, time).map(Role::Twin)) else { return };
        let (released, loads, answers) = ((old.released.0, Time::ZERO), Loads::new(PORTS), VecDeque::new());
        self.tell(format!("host {at}: the next daemon goes on: {role:?}"));
        let mut daemon = Daemon { role, released, loads, answers, lost_at: None, ..old };
        if self.hosts[at].qemu.as_ref().is_none_or(|qemu| qemu.run != run) {
            match &mut daemon.role {
                Role::Owner(owner) => owner.died(Death::Sudden, time),
                Role::Twin(twin) => twin.died(),
            }
        }
        self.hosts[at].daemon = Some(daemon);
        self.actions(at);
    }

    /// Both speak to each other again.
    fn rejoin(&mut self) {
        let time = self.time();
        let [one, other] = &self.hosts;
        let pairing = |host: &Host| Some(host.daemon.as_ref()?.role.kept()?.pairing());
        let is_paused = |host: &Host| host.daemon.as_ref().is_some_and(|daemon| daemon.role.is_paused());
        if pairing(one).is_none() || pairing(one) != pairing(other) || !(is_paused(one) && is_paused(other)) {
            return;
        }
        self.continued += 1;
        self.tell("the protection goes on".to_owned());
        for host in &mut self.hosts {
            host.daemon.iter_mut().for_each(|daemon| daemon.role.rejoined(time));
        }
    }

    fn kill_daemon(&mut self, at: usize) {
        self.tell(format!("host {at}: the daemon is killed"));
        self.hosts[at].daemon = None;
        self.hosts[at].next = None;
        self.hosts[at].daemon_at = self.now + (50 + self.random.below(300)) * MS;
        self.hang();
    }

    fn disturb(&mut self) {
        let at = self.random.below(2) as usize;
        match self.random.below(11) {
            7 | 8 => self.replace(at),
            0 => {
                self.hosts[at].is_up = !self.hosts[at].is_up;
                let up = self.hosts[at].is_up;
                self.tell(format!("host {at}: link up {up}"));
                if !up && self.random.below(2) == 0 {
                    self.hang();
                }
            }
            1 => {
                self.hosts[at].reaches = !self.hosts[at].reaches;
                let reaches = self.hosts[at].reaches;
                self.tell(format!("host {at}: reaches the lease {reaches}"));
            }
            2 => self.kill_qemu(at),
            3 => self.kill_daemon(at),
            4 => {
                self.tell(format!("host {at} dies"));
                self.hosts[at].qemu = None;
                self.hosts[at].qemu_at = self.now + 500 * MS;
                self.kill_daemon(at);
                self.hosts[at].daemon_at = self.now + 500 * MS;
            }
            5 => {
                self.tell(format!("host {at} stands still"));
                self.hosts[at].frozen_until = self.now + self.random.below(3000) * MS;
            }
            6 => {
                let time = self.time();
                if let Some(Daemon { role: Role::Owner(owner), .. }) = &mut self.hosts[at].daemon
                    && owner.fail_over(time)
                {
                    self.tell(format!("host {at}: is to hand over"));
                    self.actions(at);
                }
            }
            // It has time to be protected.
            _ => {}
        }
    }

    /// Starts what is due.
    fn restart(&mut self) {
        for at in 0..2 {
            self.go_on(at);
            if self.hosts[at].qemu.is_none() && self.now >= self.hosts[at].qemu_at {
                // A daemon that still has to give a lease back does that first.
                let is_busy = matches!(&self.hosts[at].daemon, Some(Daemon { role: Role::Owner(owner), .. }) if matches!(owner.stage(), Stage::Leaving { .. }));
                if !is_busy && self.hosts[at].daemon.is_some() {
                    self.start(at, Mode::Incoming);
                }
            }
            let is_due = self.hosts[at].next.is_none() && self.now >= self.hosts[at].daemon_at;
            if self.hosts[at].daemon.is_none() && is_due {
                match &self.hosts[at].qemu {
                    // A stale copy: its mark says so, and it ends.
                    Some(qemu) if matches!(qemu.mode, Mode::Copy(_)) => {
                        self.hosts[at].qemu = None;
                        self.start(at, Mode::Incoming);
                    }
                    Some(qemu) => {
                        let daemon = Daemon::new(qemu, self.terms);
                        self.hosts[at].daemon = Some(daemon);
                        if let Some(qemu) = &mut self.hosts[at].qemu {
                            qemu.stream = None;
                        }
                        self.tell(format!("host {at}: the daemon begins anew"));
                    }
                    None => self.start(at, Mode::Incoming),
                }
            }
        }
        // Neither host has the VM any more: that ends this history's VM. Somebody begins another one.
        let has = |host: &Host| {
            let owns = host.qemu.as_ref().is_some_and(|qemu| qemu.mode == Mode::Owns);
            let asks = matches!(&host.daemon, Some(Daemon { role: Role::Twin(twin), .. }) if matches!(twin.stage(), TwinStage::Copied { .. } | TwinStage::Asks { .. }));
            let takes = host.qemu.as_ref().is_some_and(|qemu| qemu.alone_at.is_some());
            owns || asks || takes
        };
        if !self.hosts.iter().any(has) && self.hosts.iter().all(|host| host.qemu.is_some() && host.daemon.is_some()) {
            self.tell("the VM is begun anew".to_owned());
            self.lease.lease = nicety_lease::Lease::default();
            self.silenced.extend(self.speaker.take());
            self.hosts[0].qemu = None;
            self.start(0, Mode::Owns);
        }
    }

    fn run(&mut self, until: u64, is_calm: bool) {
        let mut next = self.now + self.random.below(1000) * MS;
        while self.now < until {
            self.now += MS;
            if !is_calm && self.now >= next {
                self.disturb();
                next = self.now + (20 + self.random.below(1500)) * MS;
            }
            self.restart();
            self.meet();
            for at in 0..2 {
                if self.now >= self.hosts[at].frozen_until {
                    self.carry(at);
                    self.work(at);
                }
            }
        }
    }

    fn is_protected(&self) -> bool {
        self.hosts.iter().any(|host| {
            matches!(&host.daemon, Some(Daemon { role: Role::Owner(owner), .. }) if matches!(owner.stage(), Stage::Protected { .. }))
        })
    }
}

#[test]
fn nothing_that_left_is_forgotten_no_two_own_the_vm_and_it_is_protected_again() {
    let (mut takeovers, mut protections, mut continued) = (0, 0, 0);
    for seed in 1..=500 {
        let mut world = World::new(seed);
        world.run(15_000 * MS, false);
        for host in &mut world.hosts {
            (host.is_up, host.reaches) = (true, true);
        }
        let now = world.now;
        world.run(now + 6_000 * MS, true);
        if !world.is_protected() {
            world.fail("it is not protected again although all is well");
        }
        takeovers += world.takeovers;
        protections += world.protections;
        continued += world.continued;
    }
    let all =
        format!("{takeovers} takeovers, {protections} protections, of which {continued} went on in another daemon");
    println!("{all}");
    assert!(takeovers > 300 && protections > 1000 && continued > 200, "{all}");
}
