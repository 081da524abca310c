//! What a round and its processes say to each other while they work: words in the arena, under a name.

use shm_core::{AliasedTensor, Arena, Tensor};

use crate::Result;

const NAME: &str = "control";
/// Not 0 once the processes are to stop.
const STOP: usize = 0;
/// Messages taken so far, or whatever the suite counts.
const MESSAGES: usize = 1;
/// Kills that processes of the crew dealt to their own children.
const KILLS: usize = 2;
/// Children that they stopped.
const STOPPED: usize = 3;
/// Children that killed themselves at a label.
const AT_LABELS: usize = 4;
/// From here on, one word a place in the crew: steps so far.
const STEPS: usize = 5;

#[derive(Clone, Debug)]
pub(crate) struct Control(AliasedTensor<u64>);

impl Control {
    pub(crate) fn create(arena: &Arena, crew: usize) -> Result<Control> {
        let words = Tensor::zeros_in(arena, STEPS + crew)?.alias();
        arena.publish(NAME, &words)?;
        Ok(Control(words))
    }

    pub(crate) fn open(arena: &Arena) -> Result<Control> {
        Ok(Control(arena.open(NAME)?))
    }

    /// Takes the name away.
    pub(crate) fn remove(self, arena: &Arena) -> Result<()> {
        Ok(arena.unpublish(NAME)?)
    }

    pub(crate) fn stop(&self) -> Result<()> {
        Ok(self.0.store(&[STOP], 1)?)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.0.load(&[STOP]).is_ok_and(|word| word != 0)
    }

    /// One step further.
    pub(crate) fn step(&self, slot: usize) -> Result<()> {
        self.0.fetch_add(&[STEPS + slot], 1)?;
        Ok(())
    }

    pub(crate) fn steps(&self, slot: usize) -> u64 {
        self.0.load(&[STEPS + slot]).unwrap_or(0)
    }

    /// A message came.
    pub(crate) fn message(&self) -> Result<()> {
        self.0.fetch_add(&[MESSAGES], 1)?;
        Ok(())
    }

    /// A child is killed, by its parent or by itself.
    pub(crate) fn kill(&self) -> Result<()> {
        self.0.fetch_add(&[KILLS], 1)?;
        Ok(())
    }

    pub(crate) fn kills(&self) -> u64 {
        self.0.load(&[KILLS]).unwrap_or(0)
    }

    /// A child has killed itself at a label.
    pub(crate) fn kill_at_label(&self) -> Result<()> {
        self.0.fetch_add(&[AT_LABELS], 1)?;
        self.kill()
    }

    pub(crate) fn kills_at_labels(&self) -> u64 {
        self.0.load(&[AT_LABELS]).unwrap_or(0)
    }

    /// A child is stopped.
    pub(crate) fn child_stopped(&self) -> Result<()> {
        self.0.fetch_add(&[STOPPED], 1)?;
        Ok(())
    }

    pub(crate) fn children_stopped(&self) -> u64 {
        self.0.load(&[STOPPED]).unwrap_or(0)
    }

    pub(crate) fn messages(&self) -> u64 {
        self.0.load(&[MESSAGES]).unwrap_or(0)
    }
}
