//! Inputs that belong together: the segments of one item, and batches.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::input::Input;
use crate::pool::OutputSlot;

/// Holds segments until all of their item are there.
///
/// A segment that has to wait for others is copied and its slot given back, so that a few slots suffice however the
/// segments come; the last of an item stays where it is. [`in_place`](Self::in_place) copies none. What still waits when this
/// is dropped never came whole, and counts as [`Incomplete`](crate::Outcome::Incomplete).
#[derive(Debug, Default)]
pub struct Parts {
    waiting: HashMap<u64, Vec<Input>>,
    in_place: bool,
}

impl Parts {
    /// Without any.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same without copies: what waits keeps its slot. The step before then needs as many slots as there can be
    /// segments of unfinished items.
    #[must_use]
    pub fn in_place() -> Self {
        let mut parts = Self::new();
        parts.in_place = true;
        parts
    }

    /// Takes a segment. All of its item, in order, once they are there; an item that was not divided at once.
    ///
    /// # Errors
    /// When there is no room for a copy.
    pub fn push(&mut self, input: Input) -> Result<Option<Vec<Input>>> {
        let (_, parts) = input.part();
        self.push_of(input, parts)
    }

    /// The same where it is known from elsewhere how many segments there are.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_of(&mut self, mut input: Input, parts: u32) -> Result<Option<Vec<Input>>> {
        let item = input.item();
        if parts <= 1 {
            return Ok(Some(vec![input]));
        }
        let waiting = self.waiting.entry(item).or_default();
        // A segment that was delivered twice is let go.
        if waiting.iter().any(|other| other.part() == input.part()) {
            return Ok(None);
        }
        if waiting.len() + 1 < parts as usize {
            if !self.in_place {
                input.detach()?;
            }
            input.waits_for_parts(true);
            waiting.push(input);
            return Ok(None);
        }
        let mut whole = self.waiting.remove(&item).unwrap_or_default();
        whole.iter().for_each(|input| input.waits_for_parts(false));
        whole.push(input);
        whole.sort_by_key(Input::part);
        Ok(Some(whole))
    }

    /// Items that are not whole yet.
    #[must_use]
    pub fn incomplete(&self) -> usize {
        self.waiting.len()
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        for segment in self.waiting.values().flatten() {
            segment.waits_for_parts(false);
            segment.is_incomplete();
        }
    }
}

/// Holds inputs until there are so many, or the first has waited so long.
#[derive(Debug)]
pub struct Batch {
    size: usize,
    patience: Option<Duration>,
    waiting: Vec<Input>,
    since: Instant,
}

impl Batch {
    /// Batches of `size` inputs; smaller ones when the first of them has waited for `patience`.
    #[must_use]
    pub fn new(size: usize, patience: Option<Duration>) -> Self {
        Self {
            size: size.max(1),
            patience,
            waiting: Vec::new(),
            since: Instant::now(),
        }
    }

    /// Takes an input. A batch, if it is full now.
    pub fn push(&mut self, input: Input) -> Option<Vec<Input>> {
        if self.waiting.is_empty() {
            self.since = Instant::now();
        }
        self.waiting.push(input);
        (self.waiting.len() >= self.size).then(|| self.take())
    }

    /// When what waits has waited long enough: what a stage answers in [`wake_at`](crate::Stage::wake_at).
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        if self.waiting.is_empty() {
            return None;
        }
        self.since.checked_add(self.patience?)
    }

    /// What waits, however little it is.
    pub fn take(&mut self) -> Vec<Input> {
        std::mem::take(&mut self.waiting)
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// Copies the tensors of these inputs into a slot, one behind the other along the first dimension.
///
/// # Errors
/// When they do not fit.
pub(crate) fn concatenate(inputs: &[Input], slot: &mut OutputSlot) -> Result<()> {
    for tensor in 0..slot.specs().len() {
        let mut at = 0;
        let mut shape: Option<Vec<usize>> = None;
        for input in inputs {
            for part in 0..input.slots() {
                let of_part = input.shape_in(part, tensor)?;
                // Without dimensions there is nothing to put it behind: the first stands for all.
                if shape.is_some() && of_part.is_empty() {
                    continue;
                }
                at += slot.copy_in(tensor, at, input, part)?;
                match &mut shape {
                    None => shape = Some(of_part.to_vec()),
                    Some(shape) => shape[0] += of_part[0],
                }
            }
        }
        if let Some(shape) = shape {
            slot.set_shape(tensor, &shape)?;
        }
    }
    Ok(())
}
