//! What suites share whose processes have children of their own and kill them: nothing is in the arena before a round, and
//! afterwards nobody may be left in the process groups that the children noted.

use std::collections::BTreeSet;

use shm_core::Arena;

use super::receipts::Receipts;
use super::suite::{Scene, Worker};
use super::traces::{descriptors, groups};
use crate::Result;

/// A round of such a suite.
#[derive(Debug)]
pub(crate) struct Parents;

impl Scene for Parents {
    fn start(&mut self, _: usize, _: u64) -> Result<Vec<u64>> {
        Ok(Vec::new())
    }

    fn groups(&self, receipts: &Receipts) -> Result<BTreeSet<u32>> {
        groups(receipts)
    }

    fn check(self: Box<Self>, _: &Arena, _: &Receipts) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// Makes the round's arena this process's own, does once what leaves descriptors open for good, such as the supervisor's
/// thread, and tells which are open then.
pub(crate) fn settle_in(worker: &Worker, once: impl FnOnce() -> Result<()>) -> Result<Vec<String>> {
    Arena::install_current(worker.arena.clone())?;
    once()?;
    worker.arena.watch();
    Ok(descriptors())
}
