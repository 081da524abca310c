//! Who is in the way when memory is to be given back: who holds tensors, has memory open, or has work there that is not done.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use shm_core::word::Owner;

use crate::hub::Hub;
use crate::ledger;
use crate::place::Place;
use crate::pool::Pool;
use crate::stuck;

/// What is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Somebody may still do something about it.
    InWork,
    /// All of it is on devices of which this process gives nothing back any more, and others have nothing to do there.
    Here,
    /// As that; or those in the way are processes that can do nothing about it before they end.
    Elsewhere,
}

/// How somebody is in the way.
#[derive(Debug, Default)]
struct Way {
    tensors: u64,
    bytes: u64,
    has_open: bool,
    works: bool,
    /// For whom a device stands still there, if that is why.
    behind: Option<String>,
}

impl Way {
    fn told(&self) -> String {
        let mut what = Vec::new();
        if self.tensors > 0 {
            what.push(format!(
                "holds {} tensors of {} bytes",
                self.tensors, self.bytes
            ));
        } else if self.has_open {
            what.push("has memory of it open".to_owned());
        }
        if self.works {
            what.push("has work on it that is not done".to_owned());
        }
        let why = match &self.behind {
            Some(dead) if self.tensors == 0 => format!(
                ", and cannot {} before it ends: a stream there waits for {dead}, which died before its work was done",
                if self.has_open { "close it" } else { "do it" }
            ),
            Some(dead) => format!(
                ", some of which it may have to keep until it ends: a stream there waits for {dead}, which died before its work was done"
            ),
            _ => String::new(),
        };
        format!("{}{why}", what.join(" and "))
    }
}

/// By whom; nobody has what is in messages.
type Ways = HashMap<Option<Owner>, Way>;

impl Hub {
    /// Whether waiting for what is left is of any use.
    pub(crate) fn what_is_left(&self) -> Rest {
        let is_held = |pool: &Arc<Mutex<Pool>>| pool.lock().is_any_held();
        if self.pools().iter().any(is_held) {
            return Rest::InWork;
        }
        self.look_at_memories(&mut Ways::new())
    }

    /// Who holds tensors of this process, has its memory open or work there: one line each.
    pub(crate) fn who_is_in_the_way(&self) -> Vec<String> {
        let mut ways = Ways::new();
        for pool in self.pools() {
            note_holders(&pool, &mut ways);
        }
        self.look_at_memories(&mut ways);
        let lines = ways.iter().map(|(who, way)| self.line(*who, way));
        let mut lines: Vec<_> = lines.collect();
        lines.sort();
        lines
    }

    fn look_at_memories(&self, ways: &mut Ways) -> Rest {
        let memories: Vec<_> = self.memories.lock().values().cloned().collect();
        let Ok(station) = self.station() else {
            return Rest::InWork;
        };
        let mut all = Rest::Here;
        for memory in memories {
            let device = memory.device;
            let place = Place::Home(memory.clone(), station.clone());
            let (mut others, mut can_be_helped) = (false, false);
            let mut note = |who: Owner, is_lost: bool, note: fn(&mut Way)| {
                let way = ways.entry(Some(who)).or_default();
                note(way);
                let behind = ledger::stuck_for(&self.arena, who, device);
                can_be_helped |= !is_lost && behind.is_none();
                others = true;
                way.behind = way.behind.take().or(behind);
            };
            for holder in memory.holders() {
                note(holder, false, |way| way.has_open = true);
            }
            let mut is_left_alone = true;
            for index in 0..memory.count {
                let Ok(working) = place.working(index, self.driver) else {
                    return Rest::InWork;
                };
                for (who, is_lost) in working {
                    is_left_alone &= is_lost;
                    if who != self.arena.me() {
                        note(who, is_lost, |way| way.works = true);
                    }
                }
            }
            let rest = if stuck::is_known(device) && is_left_alone {
                Rest::Here
            } else if others && !can_be_helped && is_left_alone {
                Rest::Elsewhere
            } else {
                Rest::InWork
            };
            all = match (all, rest) {
                (Rest::InWork, _) | (_, Rest::InWork) => Rest::InWork,
                (Rest::Here, Rest::Here) => Rest::Here,
                (Rest::Elsewhere, _) | (_, Rest::Elsewhere) => Rest::Elsewhere,
            };
        }
        all
    }

    fn line(&self, who: Option<Owner>, way: &Way) -> String {
        let Some(owner) = who else {
            return format!(
                "messages that nobody has received: {} tensors of {} bytes",
                way.tensors, way.bytes
            );
        };
        if owner == self.arena.me() {
            return format!("this process itself {}", way.told());
        }
        let record = self.arena.record_of(owner);
        let (pid, name) = record.map_or((0, String::new()), |record| (record.pid, record.name));
        format!("process {pid} {name} {}", way.told())
    }
}

fn note_holders(pool: &Mutex<Pool>, ways: &mut Ways) {
    let held = pool.lock().held();
    for (token, bytes) in held {
        let holders = token.holders();
        let keys: Vec<_> = if holders.is_empty() {
            vec![None]
        } else {
            holders.into_iter().map(Some).collect()
        };
        for key in keys {
            let way = ways.entry(key).or_default();
            way.tensors += 1;
            way.bytes += bytes;
        }
    }
}
