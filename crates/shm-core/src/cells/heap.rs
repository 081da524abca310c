//! Cells in this process's own memory, for the unit tests.

use std::sync::atomic::AtomicU64;

use super::{CellArray, PAYLOAD_WORDS};
use crate::sync::Shared;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Cell {
    word: AtomicU64,
    payload: [AtomicU64; PAYLOAD_WORDS],
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(AtomicU64);

/// An array of cells on the heap.
#[derive(Debug)]
pub(crate) struct HeapCells {
    cells: Vec<Cell>,
    tail: Line,
    head: Line,
    orphan_epoch: Line,
    closed: Line,
}

impl HeapCells {
    pub(crate) fn zeroed(capacity: u64) -> Self {
        Self {
            cells: (0..capacity).map(|_| Cell::default()).collect(),
            tail: Line::default(),
            head: Line::default(),
            orphan_epoch: Line::default(),
            closed: Line::default(),
        }
    }
}

impl CellArray for &HeapCells {
    type M = Shared;

    fn capacity(&self) -> u64 {
        self.cells.len() as u64
    }
    fn word(&self, index: u64) -> &AtomicU64 {
        &self.cells[index as usize].word
    }
    fn payload(&self, index: u64) -> &[AtomicU64; PAYLOAD_WORDS] {
        &self.cells[index as usize].payload
    }
    fn tail(&self) -> &AtomicU64 {
        &self.tail.0
    }
    fn head(&self) -> &AtomicU64 {
        &self.head.0
    }
    fn orphan_epoch(&self) -> &AtomicU64 {
        &self.orphan_epoch.0
    }
    fn closed(&self) -> &AtomicU64 {
        &self.closed.0
    }
}
