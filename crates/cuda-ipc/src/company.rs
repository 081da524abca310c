//! Streams that wait for one another without being told, and what they wait for.
//!
//! CUDA orders some streams by itself: what is put into its legacy default stream comes after all that the *blocking* streams
//! of the device were given before, and what they are given next comes after that. Nobody is asked and nobody told, so what
//! one of these streams waits for, any of them may wait for. They have it in common, in a company: a thread that is about to
//! wait for one of them looks at all of it, and all of them are lost together. Only streams that somebody else made are
//! blocking ([`Stream::from_raw`](crate::Stream::from_raw)); each other stream is a company by itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use shm_core::Arena;
use shm_core::word::Owner;
use smallvec::SmallVec;

use crate::awaits::Awaits;
use crate::device::Device;
use crate::doubt::Doubt;
use crate::driver::check_not_forked;
use crate::error::{Error, Result};
use crate::ledger;
use crate::sabotage;
use crate::stuck;
use crate::waiting::{Awaited, Entry, List, Member};

/// What streams wait for that may wait for one another.
#[derive(Debug)]
pub(crate) struct Company {
    device: Device,
    pub(crate) list: Mutex<List>,
    /// Held to add something; and, shared, by threads that wait for one of the streams in the driver.
    calm: RwLock<()>,
    lost: AtomicBool,
    members: Mutex<SmallVec<[Member; 1]>>,
}

/// No stream of a company gets anything more to wait for as long as it is held, or one.
#[derive(Debug)]
pub(crate) struct Calm<'a> {
    _held: RwLockReadGuard<'a, ()>,
}

impl Company {
    /// Of a stream that waits for nothing that it is not told to.
    pub(crate) fn alone(device: Device) -> Arc<Self> {
        Arc::new(Self {
            device,
            list: Mutex::default(),
            calm: RwLock::new(()),
            lost: AtomicBool::new(false),
            members: Mutex::default(),
        })
    }

    /// That of the blocking streams of a device, and its legacy default stream.
    pub(crate) fn of_blocking(device: Device) -> Arc<Self> {
        static ALL: Mutex<Vec<Arc<Company>>> = Mutex::new(Vec::new());
        let mut all = ALL.lock();
        if let Some(known) = all.iter().find(|one| one.device == device) {
            return known.clone();
        }
        let made = Self::alone(device);
        all.push(made.clone());
        made
    }

    /// One more stream, which may wait for all that these wait for.
    pub(crate) fn join(&self, stream: &Arc<Awaits>) -> Result<()> {
        let member = Member {
            stream: Arc::downgrade(stream),
            number: stream.number,
        };
        let mut members = self.members.lock();
        self.list.lock().join(&member)?;
        if self.is_lost()
            && let Some(arena) = stuck::arena()
        {
            ledger::set_lost(arena, member.number, ledger::recorded(member.number));
        }
        members.push(member);
        Ok(())
    }

    /// Nobody has the stream any more, and all that it had to do is done.
    pub(crate) fn leave(&self, stream: &Weak<Awaits>) {
        let mut members = self.members.lock();
        let gone = members.iter().position(|member| member.is(stream));
        if let Some(gone) = gone.map(|at| members.remove(at)) {
            self.list.lock().leave(&gone);
        }
    }

    /// Whether it is known that none of the streams will ever go on.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// That none will ever go on, as an error.
    fn loss(&self, arena: Option<&Arena>) -> Error {
        let dead = self.list.lock().dead;
        let name = match (dead, arena.or(stuck::arena())) {
            (Some(dead), Some(arena)) => ledger::name_of(arena, dead),
            _ => "a process".to_owned(),
        };
        crate::doubt::lost_stream(self.device, &name)
    }

    /// Adds what the stream `told` is made to wait for by `wait`.
    pub(crate) fn add(
        &self,
        told: &Weak<Awaits>,
        all: impl IntoIterator<Item = Awaited>,
        wait: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        // First: whoever waits there keeps nobody from looking at these streams.
        let _giving_back = crate::rest::pass(self.device);
        let _calm = self.calm.write();
        // All of it before the stream waits: whoever looks meanwhile sees rather too much.
        for one in all {
            let members = self.members.lock();
            self.list.lock().put(&members, told, one)?;
        }
        wait()
    }

    /// Nothing is being added as long as it is held; none if somebody does. Who is about to, and waits for a thread that waits for
    /// one of the streams, does not yet: that may take as long as the streams have something to do.
    pub(crate) fn try_hold_shared(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.calm.try_read_recursive()
    }

    /// What the streams wait for.
    pub(crate) fn all(&self) -> Vec<Awaited> {
        let list = self.list.lock();
        let entries = list.events.values();
        entries.map(|entry| entry.awaited.clone()).collect()
    }

    /// Whether they wait for nothing that is not of their own.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.lock().events.is_empty()
    }

    /// What has those names is over, for whichever stream.
    fn remove(&self, serials: &[u64]) {
        let is_over = |entry: &Entry| serials.contains(&entry.awaited.serial);
        self.list.lock().remove(is_over);
    }

    /// They wait for that process, which is dead or waits for the dead, and will for ever.
    pub(crate) fn lose(&self, arena: &Arena, dead: Owner) {
        // What was recorded before one came to wait happens all the same.
        let all = self.all().into_iter();
        let over = all.filter(|one| one.has_happened().unwrap_or(false));
        let over: Vec<_> = over.map(|one| one.serial).collect();
        self.remove(&over);
        let members = self.members.lock();
        let mut list = self.list.lock();
        list.dead.get_or_insert(dead);
        let since = members
            .iter()
            .map(|one| (one.number, list.since(one.number)));
        let since: SmallVec<[(u8, u64); 1]> = since.collect();
        drop(list);
        self.lost.store(true, Ordering::Release);
        for (number, since) in since {
            ledger::set_lost(arena, number, since);
        }
        drop(members);
        stuck::note(self.device, dead, arena);
    }

    /// Fails when one waits for somebody who is dead and had not finished. Waits for what the dead left, but not for the
    /// living; costs a look at a word or two when nobody died.
    ///
    /// # Errors
    /// `WriterGone`.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_lost() {
            return Err(self.loss(None));
        }
        if sabotage::is("refusal") {
            return Ok(());
        }
        let doubtful: SmallVec<[(Awaited, Member); 4]> = {
            let list = self.list.lock();
            let Some(any) = list.events.values().next() else {
                return Ok(());
            };
            let arena = &any.awaited.arena;
            if !list
                .sources
                .iter()
                .any(|source| source.record.is_doubtful(arena))
            {
                return Ok(());
            }
            let all = list.events.values();
            all.filter(|entry| entry.awaited.record.is_doubtful(arena))
                .map(|entry| (entry.awaited.clone(), entry.told.clone()))
                .collect()
        };
        for (one, told) in doubtful {
            self.wait_out(one, &told, None)?;
        }
        Ok(())
    }

    /// Waits until they wait for nobody else, and keeps it so until the guard is dropped; none if that has not come `until`
    /// then.
    ///
    /// # Errors
    /// `WriterGone`; the streams are of no use any more then.
    pub(crate) fn calm(&self, until: Option<Instant>) -> Result<Option<Calm<'_>>> {
        check_not_forked()?;
        loop {
            if self.is_lost() {
                return Err(self.loss(None));
            }
            // One at a time, so that others can add theirs meanwhile.
            let next = {
                let list = self.list.lock();
                let any = list.events.values().next();
                any.map(|entry| (entry.awaited.clone(), entry.told.clone()))
            };
            let Some((one, told)) = next else {
                let held = self.calm.read();
                if self.is_empty() && !self.is_lost() {
                    return Ok(Some(Calm { _held: held }));
                }
                continue;
            };
            if !self.wait_out(one, &told, until)? {
                return Ok(None);
            }
        }
    }

    /// Waits for one thing that a stream was told to wait for; whether it is over.
    fn wait_out(&self, one: Awaited, told: &Member, until: Option<Instant>) -> Result<bool> {
        let begun = Instant::now();
        let mut doubt = one.doubt.clone();
        let mut pause = Duration::from_micros(20);
        let is_it = |it: &Entry| it.awaited.serial == one.serial && it.told.is(&told.stream);
        let is_there = || self.list.lock().events.values().any(is_it);
        let has_passed = || match told.stream.upgrade() {
            Some(stream) => stream.has_passed(),
            None => Ok(false),
        };
        while !one.has_happened()? {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let is_slow = begun.elapsed() > Duration::from_millis(50);
            if (is_slow || left == Some(Duration::ZERO)) && has_passed()? && !is_there() {
                return Ok(true);
            }
            if let Some(dead) = doubt.look(&one.arena, &one.record) {
                // Seen once more: this thread may have slept since.
                if one.has_happened()? || has_passed()? && !is_there() {
                    break;
                }
                self.lose(&one.arena, dead);
                return Err(self.loss(Some(&one.arena)));
            }
            if left == Some(Duration::ZERO) {
                self.keep_doubt(one.serial, &doubt);
                return Ok(false);
            }
            std::thread::sleep(left.map_or(pause, |left| pause.min(left)));
            pause = (pause * 2).min(Duration::from_millis(2));
        }
        self.remove(&[one.serial]);
        Ok(true)
    }

    pub(crate) fn keep_doubt(&self, serial: u64, doubt: &Doubt) {
        let mut list = self.list.lock();
        let all = list.events.values_mut();
        for same in all.filter(|entry| entry.awaited.serial == serial) {
            same.awaited.doubt = doubt.clone();
        }
    }
}
