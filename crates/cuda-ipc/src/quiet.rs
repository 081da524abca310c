//! Whether those who used a block are done with it, and who is not: asked of the driver, without waiting.

use shm_core::word::Owner;
use smallvec::SmallVec;

use crate::driver::Driver;
use crate::error::Result;
use crate::layout::block;
use crate::ledger;
use crate::mark::Mark;
use crate::place::Place;

impl Place {
    /// Whether everything that was said of the block has happened.
    pub(crate) fn is_quiet(&self, index: u32, driver: &dyn Driver) -> Result<bool> {
        let words = std::iter::once(block::READY).chain(block::RELEASES);
        for word in words {
            let mark = self.mark(index, word);
            if let Mark::Kept(who, _) = mark
                && self.object().arena().is_present(who)
            {
                return Ok(false);
            }
            if let Mark::Recorded(id, by) | Mark::Joint(id, by) = mark
                && self.object().arena().is_present(by.who)
                && !driver.has_happened(self.event(id)?.raw()?)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whose work on the block is not done, and of each whether it waits in a stream that is lost.
    pub(crate) fn working(
        &self,
        index: u32,
        driver: &dyn Driver,
    ) -> Result<SmallVec<[(Owner, bool); 1]>> {
        let arena = self.object().arena();
        let mut working = SmallVec::new();
        for word in std::iter::once(block::READY).chain(block::RELEASES) {
            match self.mark(index, word) {
                Mark::Recorded(id, by) | Mark::Joint(id, by)
                    if arena.is_present(by.who)
                        && !driver.has_happened(self.event(id)?.raw()?)? =>
                {
                    working.push((by.who, ledger::is_lost(arena, by.who, by.stream)));
                }
                Mark::Kept(who, _) if arena.is_present(who) => working.push((who, true)),
                _ => {}
            }
        }
        Ok(working)
    }
}
