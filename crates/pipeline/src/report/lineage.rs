//! Which of the client's inputs an item was made of: a batch of many, one of several outputs of one.

use std::collections::{HashMap, HashSet};

use super::read::Run;

/// The inputs that each item with a number of its own came from.
#[derive(Debug, Default)]
pub(super) struct Lineage(HashMap<u64, Vec<u64>>);

impl Lineage {
    /// From the time cards: that of an item in the step that got it first names what it was made of.
    pub(super) fn of(run: &Run) -> Self {
        let mut parents: HashMap<u64, &[u64]> = HashMap::new();
        for card in run.cards.iter().filter(|card| !card.parent.is_empty()) {
            parents.insert(card.item, &card.parent);
        }
        let roots = parents.keys().map(|&item| (item, roots(item, &parents)));
        Self(roots.collect())
    }

    /// The inputs that an item came from: itself, where it is one.
    pub(super) fn roots<'a>(&'a self, item: &'a u64) -> &'a [u64] {
        let known = self.0.get(item).map(Vec::as_slice);
        known.unwrap_or(std::slice::from_ref(item))
    }
}

/// Up to where nothing is said of parents. A file may say anything, also that an item was made of itself.
fn roots(item: u64, parents: &HashMap<u64, &[u64]>) -> Vec<u64> {
    let mut seen = HashSet::from([item]);
    let mut next = vec![item];
    let mut roots = Vec::new();
    while let Some(item) = next.pop() {
        match parents.get(&item) {
            None => roots.push(item),
            Some(of_it) => next.extend(of_it.iter().filter(|&&one| seen.insert(one))),
        }
    }
    roots
}

/// From when an input was offered to when the last of what was made of it was done with, in the last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) offered: u64,
    pub(super) done: u64,
}

/// The ways of all inputs of which something has come out of the last step.
pub(super) fn ways(run: &Run, lineage: &Lineage) -> HashMap<u64, Way> {
    let Some(last) = run.steps.last() else {
        return HashMap::new();
    };
    let mut offered: HashMap<u64, u64> = HashMap::new();
    let mut done: HashMap<u64, u64> = HashMap::new();
    for card in run.cards.iter().filter(|card| card.is_ok()) {
        // What was made on the way is offered to its step only: that is not where its inputs' time begins.
        if lineage.roots(&card.item) == [card.item] {
            let first = offered.entry(card.item).or_insert(card.enqueued);
            *first = (*first).min(card.enqueued);
        }
        if card.step == last.name {
            for &root in lineage.roots(&card.item) {
                let latest = done.entry(root).or_insert(0);
                *latest = (*latest).max(card.done());
            }
        }
    }
    let known = done.into_iter().filter_map(|(root, done)| {
        let offered = *offered.get(&root)?;
        Some((root, Way { offered, done }))
    });
    known.collect()
}
