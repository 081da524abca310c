//! What is known of an item while a process has it: its time card, and the weight that is still its own.

use std::sync::Arc;

use parking_lot::Mutex;
use shm_core::clock::now_ns;
use smallvec::SmallVec;

use crate::error::Result;
use crate::home::Home;
use crate::item::{Item, Member, Portion, share_of};
use crate::ledger::Receipt;
use crate::time_card::{Entry, Outcome, TimeCard};
use crate::wire::Slim;

/// The number of no item.
const BLANK: u64 = u64::MAX;

/// What is known of an item while this process has it. The card goes home when the last who has it lets go.
#[derive(Debug)]
pub(crate) struct Card {
    pub(crate) home: Arc<Home>,
    /// The item's number, which does not change.
    pub(crate) item: u64,
    state: Mutex<CardState>,
}

#[derive(Debug, Default)]
struct CardState {
    card: TimeCard,
    parts: u32,
    /// Which copy of it, of how many.
    copy: (u32, u32),
    /// Whether an output went on under its number.
    goes_on: bool,
    members: SmallVec<[Member; 1]>,
    outputs: u32,
    /// Whether a thread let go of it because it panicked. Where the panic is the process's, its call comes to no end, and
    /// this is unfinished; else it has failed.
    panicked: bool,
    /// The place in the ledger, for a process that may be replaced.
    receipt: Option<Receipt>,
}

impl CardState {
    fn portion(&self) -> Portion {
        let (copy, copies) = self.copy;
        Portion {
            part: self.card.part,
            parts: self.parts,
            copy,
            copies,
        }
    }
}

impl Card {
    pub(crate) fn new(
        home: &Arc<Home>,
        item: &mut Item,
        receipt: Option<Receipt>,
        dequeued: u64,
    ) -> Arc<Self> {
        let card = TimeCard {
            item: item.id,
            part: item.part,
            parents: std::mem::take(&mut item.parents),
            step: home.step,
            rank: home.rank,
            device: home.device,
            enqueued: item.enqueued,
            dequeued,
            ..TimeCard::default()
        };
        Arc::new(Self {
            home: Arc::clone(home),
            item: item.id,
            state: Mutex::new(CardState {
                card,
                parts: item.parts.max(1),
                copy: (item.copy, item.copies),
                goes_on: false,
                members: std::mem::take(&mut item.members).into(),
                outputs: 0,
                panicked: false,
                receipt,
            }),
        })
    }

    /// One of no item yet, to be [filled](Self::fill) with what is slim.
    pub(crate) fn blank(home: &Arc<Home>) -> Arc<Self> {
        let card = TimeCard {
            item: BLANK,
            step: home.step,
            rank: home.rank,
            device: home.device,
            ..TimeCard::default()
        };
        Arc::new(Self {
            home: Arc::clone(home),
            item: BLANK,
            state: Mutex::new(CardState {
                card,
                parts: 1,
                ..CardState::default()
            }),
        })
    }

    /// Makes a [blank](Self::blank) one that of an item, of which it is not said yet when it was taken.
    #[inline]
    pub(crate) fn fill(blank: &mut Arc<Self>, slim: &Slim) {
        let card = match Arc::get_mut(blank) {
            Some(card) => card,
            // Somebody has it, so it is that of another item.
            None => {
                *blank = Self::blank(&blank.home);
                return Self::fill(blank, slim);
            }
        };
        card.item = slim.id;
        let state = card.state.get_mut();
        (state.card.item, state.card.enqueued) = (slim.id, slim.enqueued);
        state.members.push(slim.member());
    }

    /// Notes where what belongs to its item could not be opened.
    #[inline]
    pub(crate) fn checked<R>(&self, opened: Result<R>) -> Result<R> {
        opened.inspect_err(|_| self.edit(|card| card.outcome = Outcome::Failed))
    }

    /// As [`derive`](Self::derive), for the first output of an item that is one with its input: its number, and the
    /// exponent of the weight that goes with it. `None`, and nothing is counted, for any other.
    pub(crate) fn derive_slim(&self) -> Option<(u64, u8)> {
        let state = &mut *self.state.lock();
        let is_first =
            state.outputs == 0 && (state.card.part, state.parts) == (0, 1) && state.copy.1 <= 1;
        let [member] = &mut state.members[..] else {
            return None;
        };
        let id = state.card.item;
        if !is_first || member.root != id || !member.weight.is_power_of_two() {
            return None;
        }
        // A quarter: what is a power of two stays one.
        let mut left = member.weight;
        let share = share_of(&mut left, 1);
        if !share.is_power_of_two() {
            return None;
        }
        member.weight = left;
        state.outputs = 1;
        state.goes_on = true;
        Some((id, share.trailing_zeros() as u8))
    }

    pub(crate) fn edit<R>(&self, change: impl FnOnce(&mut TimeCard) -> R) -> R {
        change(&mut self.state.lock().card)
    }

    /// Number, part and parts, and what this is made of.
    pub(crate) fn identity(&self) -> (u64, u32, u32) {
        let state = self.state.lock();
        (state.card.item, state.card.part, state.parts)
    }

    /// Which portion of its item this is.
    pub(crate) fn portion(&self) -> Portion {
        self.state.lock().portion()
    }

    /// Whether it is noted for a process in the place of this one.
    pub(crate) fn is_in_the_ledger(&self) -> bool {
        self.state.lock().receipt.is_some()
    }

    /// Notes there that the item, as far as it is left, has these slots now.
    pub(crate) fn note_anew(&self, item: Item) {
        let state = &mut *self.state.lock();
        let Portion {
            part,
            parts,
            copy,
            copies,
        } = state.portion();
        if let Some(receipt) = &mut state.receipt {
            receipt.change(&Item {
                id: self.item,
                part,
                parts,
                copy,
                copies,
                parents: state.card.parents.clone(),
                members: state.members.to_vec(),
                ..item
            });
        }
    }

    /// A thread lets go of it because it panics.
    #[cold]
    pub(crate) fn has_panicked(&self) {
        self.state.lock().panicked = true;
    }

    /// An output goes on under its number: the step that restores the order gets that instead of this.
    pub(crate) fn goes_on(&self) {
        self.state.lock().goes_on = true;
    }

    /// Why it has no value beside it, where that is so.
    pub(crate) fn why_without(&self, payload: &[u8]) -> &'static str {
        match (payload, self.home.step) {
            ([], 0) => ": without an iterator a client gives inputs without a value",
            ([], _) => ": the step before set none",
            _ => "",
        }
    }

    /// Counts one more output made of this: how many there were, and the weight that goes with it.
    pub(crate) fn derive(&self) -> (u32, Vec<Member>) {
        let mut state = self.state.lock();
        state.outputs = state.outputs.saturating_add(1);
        let nth = state.outputs;
        let members = state
            .members
            .iter_mut()
            .map(|member| Member {
                root: member.root,
                weight: share_of(&mut member.weight, nth),
            })
            .collect();
        (nth - 1, members)
    }
}

/// What a stage has let go of: an item with all that is left of it.
///
/// A stage that is called may yet say that it failed; then this is unfinished, and stays in the ledger. So it is
/// [noted](Self::note) once that is known.
#[derive(Debug)]
pub(crate) struct LetGo(CardState);

impl LetGo {
    /// No output was made of it, since there was no slot for one, or nobody wants it any more.
    pub(crate) fn is_dropped(&mut self) {
        if self.0.outputs == 0 {
            self.0.card.outcome = Outcome::Dropped;
        }
    }

    /// Notes what became of it.
    pub(crate) fn note(mut self, home: &Home) {
        let state = &mut self.0;
        if state.panicked && state.outputs == 0 {
            state.card.outcome = Outcome::Failed;
        }
        if !state.goes_on {
            home.note_gone(state.card.item, state.portion());
        }
        home.note(Entry {
            card: std::mem::take(&mut state.card),
            ended: std::mem::take(&mut state.members).into_vec(),
        });
        // After the card: killed in between, the item is delivered once more rather than forgotten.
        if let Some(item) = state.receipt.take().and_then(Receipt::take_out) {
            home.give_back(item.shares);
        }
    }
}

impl Drop for LetGo {
    fn drop(&mut self) {
        // Unfinished: whoever supervises the run finds it in the ledger, or counts it as failed.
        if let Some(receipt) = self.0.receipt.take() {
            receipt.leave();
        }
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        if self.item == BLANK {
            return;
        }
        let mut state = std::mem::take(self.state.get_mut());
        if state.card.released == 0 {
            state.card.released = now_ns();
        }
        let let_go = LetGo(state);
        if !self.home.is_failing() {
            self.home.let_go_of(let_go);
        }
    }
}
