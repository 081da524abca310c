//! What is known of an item while a process has it: its time card, and the weight that is still its own.

use std::sync::Arc;

use parking_lot::Mutex;
use shm_core::clock::now_ns;
use smallvec::{SmallVec, smallvec};

use crate::home::Home;
use crate::item::{Item, Member, share_of};
use crate::time_card::{Entry, TimeCard};
use crate::wire::Slim;

/// What is known of an item while this process has it. The card goes home when the last who has it lets go.
#[derive(Debug)]
pub(crate) struct Card {
    pub(crate) home: Arc<Home>,
    /// The item's number, which does not change.
    pub(crate) item: u64,
    state: Mutex<CardState>,
}

#[derive(Debug)]
struct CardState {
    card: TimeCard,
    parts: u32,
    members: SmallVec<[Member; 1]>,
    outputs: u32,
    /// The place in the ledger, for a process that may be replaced.
    receipt: Option<crate::ledger::Receipt>,
}

impl Card {
    pub(crate) fn new(
        home: &Arc<Home>,
        item: &mut Item,
        receipt: Option<crate::ledger::Receipt>,
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
                members: std::mem::take(&mut item.members).into(),
                outputs: 0,
                receipt,
            }),
        })
    }

    /// The same for what is slim.
    pub(crate) fn of_slim(home: &Arc<Home>, slim: &Slim, dequeued: u64) -> Arc<Self> {
        let card = TimeCard {
            item: slim.id,
            step: home.step,
            rank: home.rank,
            device: home.device,
            enqueued: slim.enqueued,
            dequeued,
            ..TimeCard::default()
        };
        Arc::new(Self {
            home: Arc::clone(home),
            item: slim.id,
            state: Mutex::new(CardState {
                card,
                parts: 1,
                members: smallvec![slim.member()],
                outputs: 0,
                receipt: None,
            }),
        })
    }

    /// As [`derive`](Self::derive), for the first output of an item that is one with its input: its number, and the
    /// exponent of the weight that goes with it. `None`, and nothing is counted, for any other.
    pub(crate) fn derive_slim(&self) -> Option<(u64, u8)> {
        let state = &mut *self.state.lock();
        let is_first = state.outputs == 0 && (state.card.part, state.parts) == (0, 1);
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

impl Drop for Card {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        if self.home.is_failing() {
            // Unfinished: whoever supervises the run finds it in the ledger, or counts it as failed.
            if let Some(receipt) = state.receipt.take() {
                receipt.leave();
            }
            return;
        }
        if state.card.released == 0 {
            state.card.released = now_ns();
        }
        if state.outputs == 0 {
            self.home
                .note_gone(state.card.item, state.card.part, state.parts);
        }
        self.home.note(Entry {
            card: std::mem::take(&mut state.card),
            ended: std::mem::take(&mut state.members).into_vec(),
        });
        // After the card: killed in between, the item is delivered once more rather than forgotten.
        state.receipt = None;
    }
}
