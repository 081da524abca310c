//! A look at all cells, for who has to know for certain that nothing is there.

use core::sync::atomic::Ordering::Acquire;

use super::{CellArray, Cells};
use crate::sync::Atomic64;
use crate::word::{self, CellState};

impl<A: CellArray> Cells<A> {
    /// Whether no cell has a message, nor anybody a cell in hand, whatever head and tail say: a death may leave those behind,
    /// and what was handed back lies below the head.
    ///
    /// No picture of one moment: what comes into a cell behind the scan's back is not seen.
    pub fn are_all_free(&self) -> bool {
        (0..self.0.capacity()).all(|index| {
            // Acquire pairs with the swap that freed the cell: what its taker did before comes with it.
            let seen = self.0.word(index).load(Acquire);
            matches!(
                word::decode(seen),
                CellState::Free { .. } | CellState::Closed { .. }
            )
        })
    }
}
