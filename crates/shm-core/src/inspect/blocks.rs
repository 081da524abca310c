//! What the blocks of an arena take, and which of them a participant holds.

use super::members::Occupied;
use super::{Header, Reader};
use crate::chunk::{Chunks, State, Use};
use crate::class::{SLABS, Slab};
use crate::error::Result;
use crate::layout::{
    self, CHUNK, DESCRIPTOR, DESCRIPTORS_STEP, LEASE, LEASES_PER_CHUNK, LEASES_STEP, LINE, WORD,
    descriptor, row,
};
use crate::lease::{Entry, Kind};
use crate::line::Counted;

/// What a chunk's descriptor says.
#[derive(Clone, Copy)]
struct Chunk {
    state: State,
    committed: u64,
    bump: u64,
    /// The word of the run's counted line.
    run: u64,
}

impl Chunk {
    fn slab(&self) -> Option<&'static Slab> {
        match self.state {
            State::Owned(_, Use::Slab(class)) | State::Orphan(Use::Slab(class)) => {
                SLABS.get(class as usize)
            }
            _ => None,
        }
    }

    /// Bytes of the run that begins here.
    fn run(&self) -> Option<u64> {
        match self.state {
            State::Owned(_, Use::Run(count)) | State::Orphan(Use::Run(count)) => {
                Some(self.committed.min(u64::from(count) * CHUNK))
            }
            _ => None,
        }
    }
}

/// All chunks that were ever claimed.
pub(super) struct Blocks<'a> {
    reader: &'a Reader<'a>,
    chunks: Vec<Chunk>,
    start: u64,
}

impl<'a> Blocks<'a> {
    pub(super) fn new(reader: &'a Reader<'a>, header: &Header) -> Result<Self> {
        let mut chunks = Vec::new();
        let mut first = 0;
        while first < header.chunks {
            let count = DESCRIPTORS_STEP.min(header.chunks - first);
            let words = reader.words(Chunks::descriptor(first), count * (DESCRIPTOR / WORD))?;
            let (descriptors, _) = words.as_chunks::<{ (DESCRIPTOR / WORD) as usize }>();
            chunks.extend(descriptors.iter().map(|words| {
                let word = |field: u64| words[(field / WORD) as usize];
                Chunk {
                    state: State::from_word(word(descriptor::STATE)),
                    committed: word(descriptor::COMMITTED),
                    bump: word(descriptor::BUMP),
                    run: word(descriptor::RUN_LINE),
                }
            }));
            first += count;
        }
        Ok(Self {
            reader,
            chunks,
            start: layout::chunks_start(reader.size()),
        })
    }

    fn offset(&self, chunk: usize) -> u64 {
        self.start + chunk as u64 * CHUNK
    }

    /// Bytes of chunks that hold leases.
    pub(super) fn leases(&self) -> u64 {
        let holds_leases = |chunk: &&Chunk| matches!(chunk.state, State::Owned(_, Use::Leases));
        let bytes = self.chunks.iter().filter(holds_leases);
        bytes.map(|chunk| chunk.committed.min(CHUNK)).sum()
    }

    /// Number and bytes of the blocks that somebody holds.
    pub(super) fn live(&self) -> Result<(u64, u64)> {
        let (mut blocks, mut bytes) = (0, 0_u64);
        let mut add = |word: u64, size: u64| {
            if Counted::from_word(word).count > 0 {
                blocks += 1;
                bytes = bytes.saturating_add(size);
            }
        };
        for (index, chunk) in self.chunks.iter().enumerate() {
            if let Some(size) = chunk.run() {
                add(chunk.run, size);
            }
            let Some(slab) = chunk.slab() else { continue };
            let lines = chunk.bump.min(slab.blocks);
            let words = self
                .reader
                .words(self.offset(index) + slab.lines, lines * (LINE / WORD))?;
            for word in words.iter().step_by((LINE / WORD) as usize) {
                add(*word, slab.size);
            }
        }
        Ok((blocks, bytes))
    }

    /// Number and bytes of the blocks that the leases of this participant name.
    pub(super) fn held_by(&self, row: &Occupied) -> Result<(u64, u64)> {
        let (mut blocks, mut bytes) = (0, 0_u64);
        let who = row.member.who;
        let high = row
            .word(row::LEASES_HIGH)
            .min(row::DIRECTORY_WORDS * LEASES_PER_CHUNK);
        for slot in 0..high.div_ceil(LEASES_PER_CHUNK) {
            let Some(number) = row.word(row::DIRECTORY + slot * WORD).checked_sub(1) else {
                continue;
            };
            // Checked, not trusted: it may be that of the row's previous occupant.
            let found = usize::try_from(number).ok();
            let Some((index, chunk)) = found.and_then(|i| Some((i, self.chunks.get(i)?))) else {
                continue;
            };
            if chunk.state != State::Owned(who, Use::Leases) {
                continue;
            }
            let used = (high - slot * LEASES_PER_CHUNK)
                .min(LEASES_PER_CHUNK)
                .min(chunk.committed / LEASE);
            let mut first = 0;
            while first < used {
                let count = LEASES_STEP.min(used - first);
                let at = self.offset(index) + first * LEASE;
                let words = self.reader.words(at, count * (LEASE / WORD))?;
                for word in words.iter().step_by((LEASE / WORD) as usize) {
                    let entry = Entry::from_word(*word);
                    let counts = !matches!(entry.kind, Kind::Free | Kind::Alloc)
                        && !entry.kind.is_in_doubt();
                    if let Some(size) = self
                        .size_of(entry.line)
                        .filter(|_| counts && entry.epoch == who.epoch)
                    {
                        blocks += 1;
                        bytes = bytes.saturating_add(size);
                    }
                }
                first += count;
            }
        }
        Ok((blocks, bytes))
    }

    /// The size of the block that this line heads; `None` for the lines of ends and slots, and for nonsense.
    fn size_of(&self, line: u64) -> Option<u64> {
        let offset = line.checked_mul(LINE)?;
        let Some(within) = offset.checked_sub(self.start) else {
            let within = offset.checked_sub(Chunks::descriptor(0))?;
            let heads = within % DESCRIPTOR == descriptor::RUN_LINE;
            let chunk = self.chunks.get((within / DESCRIPTOR) as usize)?;
            return chunk.run().filter(|_| heads);
        };
        let slab = self.chunks.get((within / CHUNK) as usize)?.slab()?;
        let index = (within % CHUNK).checked_sub(slab.lines)? / LINE;
        (index < slab.blocks).then_some(slab.size)
    }
}
