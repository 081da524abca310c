//! Selectors: which of a group's queues an output goes into.

use crate::item::Item;

/// What a selector sees of an output: its tensors are written, nobody has it yet.
#[derive(Debug)]
pub struct Outgoing<'a> {
    item: &'a Item,
    waiting: Vec<u64>,
}

impl<'a> Outgoing<'a> {
    pub(crate) fn new(item: &'a Item, waiting: Vec<u64>) -> Self {
        Self { item, waiting }
    }

    /// The valid shape of tensor `index`, if there is one.
    #[must_use]
    pub fn shape(&self, index: usize) -> Option<&[usize]> {
        let views = &self.item.shares.first()?.views;
        views.get(index).map(|view| &*view.shape)
    }

    /// Valid rows of the first tensor: the length of its first dimension.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.item
            .shares
            .iter()
            .filter_map(|share| share.views.first()?.shape.first())
            .sum()
    }

    /// Valid elements of all tensors.
    #[must_use]
    pub fn elements(&self) -> usize {
        let shapes = self.item.shares.iter().flat_map(|share| &share.views);
        shapes
            .map(|view| view.shape.iter().product::<usize>())
            .sum()
    }

    /// The item's number in the run.
    #[must_use]
    pub fn item(&self) -> u64 {
        self.item.id
    }

    /// The number that the stage gave it.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.item.sequence
    }

    /// The word that the stage gave it.
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.item.tag
    }

    /// The value beside the tensors, in postcard.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.item.payload
    }

    /// Items on their way through each of the queues.
    #[must_use]
    pub fn waiting(&self) -> &[u64] {
        &self.waiting
    }
}

/// Which of a group's queues an output goes into.
pub trait Selector: 'static {
    /// Makes a selector for so many queues, at least 1.
    fn new(queues: usize) -> Self
    where
        Self: Sized;

    /// The index of a queue. One that there is not counts as the last.
    fn select(&mut self, output: &Outgoing<'_>) -> usize;
}

/// One queue after the other.
#[derive(Debug)]
pub struct RoundRobin {
    queues: usize,
    next: usize,
}

impl Selector for RoundRobin {
    fn new(queues: usize) -> Self {
        Self { queues, next: 0 }
    }

    fn select(&mut self, _: &Outgoing<'_>) -> usize {
        let selected = self.next % self.queues.max(1);
        self.next = selected + 1;
        selected
    }
}

/// By the number of valid rows: the largest seen so far is divided evenly among the queues, small outputs go into the
/// first, large ones into the last.
#[derive(Debug)]
pub struct BySize {
    queues: usize,
    largest: usize,
}

impl Selector for BySize {
    fn new(queues: usize) -> Self {
        Self { queues, largest: 0 }
    }

    fn select(&mut self, output: &Outgoing<'_>) -> usize {
        let size = output.elements();
        self.largest = self.largest.max(size);
        (size.saturating_sub(1) * self.queues) / self.largest.max(1)
    }
}

/// The queue with the fewest items on their way; of several the first.
#[derive(Debug)]
pub struct LeastLoaded;

impl Selector for LeastLoaded {
    fn new(_: usize) -> Self {
        Self
    }

    fn select(&mut self, output: &Outgoing<'_>) -> usize {
        let waiting = output.waiting().iter().enumerate();
        waiting
            .min_by_key(|(_, waiting)| **waiting)
            .map_or(0, |(index, _)| index)
    }
}

/// The names of those that every pipeline has.
pub(crate) const BUILT_IN: [&str; 3] = ["round_robin", "by_size", "least_loaded"];

/// A selector that every pipeline has, by its name in configurations; RnB's has the name that it has there.
pub(crate) fn built_in(name: &str, queues: usize) -> Option<Box<dyn Selector>> {
    Some(match name {
        "round_robin" | "selector.RoundRobinSelector" => Box::new(RoundRobin::new(queues)),
        "by_size" => Box::new(BySize::new(queues)),
        "least_loaded" => Box::new(LeastLoaded::new(queues)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::View;

    fn select(selector: &mut dyn Selector, rows: &[usize], waiting: &[u64]) -> Vec<usize> {
        let memory = shm_core::ExclusiveBytes::zeros(64).unwrap().freeze();
        rows.iter()
            .map(|&rows| {
                let view = View {
                    start: 0,
                    shape: vec![rows],
                };
                let share = crate::item::Share {
                    rank: 0,
                    slot: 0,
                    turn: 0,
                    memory: crate::device::Memory::Host(memory.clone()),
                    views: vec![view],
                };
                let item = Item {
                    shares: vec![share],
                    ..Item::default()
                };
                selector.select(&Outgoing::new(&item, waiting.to_vec()))
            })
            .collect()
    }

    #[test]
    fn each_selector_does_what_its_name_says() {
        let mut turn = built_in("selector.RoundRobinSelector", 3).unwrap();
        assert_eq!(select(&mut *turn, &[1; 5], &[]), [0, 1, 2, 0, 1]);
        let mut size = built_in("by_size", 2).unwrap();
        assert_eq!(select(&mut *size, &[15, 1, 7, 8, 15], &[]), [1, 0, 0, 0, 1]);
        let mut load = built_in("least_loaded", 3).unwrap();
        assert_eq!(select(&mut *load, &[1], &[4, 1, 1]), [1]);
        assert!(built_in("mine", 1).is_none());
    }
}
