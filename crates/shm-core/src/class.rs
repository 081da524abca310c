//! Size classes of slabs: 64 bytes to 256 KiB in steps of at most a quarter.
//!
//! A slab chunk holds, in this order: a bitmap of blocks that others freed (a hint for the owner), the counted
//! line of each block, and the blocks. The lines lie apart from the blocks, so nobody who writes beyond a
//! tensor's neighbour meets one, and a chunk's lines can be scanned without touching payload.

use crate::layout::{CHUNK, LINE, PAGE};

/// Number of size classes.
pub(crate) const CLASSES: usize = 44;
/// Largest block that lives in a slab; larger ones are runs of chunks.
pub(crate) const LARGEST: u64 = size_of_class(CLASSES as u32 - 1);

/// Bytes of a block of `class`.
pub(crate) const fn size_of_class(class: u32) -> u64 {
    if class < 4 {
        (class as u64 + 1) * LINE
    } else {
        let step = (class - 4) % 4;
        let doubling = (class - 4) / 4;
        ((5 + step as u64) * LINE) << doubling
    }
}

/// The smallest class whose blocks hold `bytes`, if one does.
pub(crate) fn class_of_size(bytes: u64) -> Option<u32> {
    if bytes > LARGEST {
        return None;
    }
    let lines = bytes.div_ceil(LINE).max(1);
    if lines <= 4 {
        return Some(lines as u32 - 1);
    }
    // Between 4 << d and 8 << d lines there are four classes, 1 << d lines apart.
    let doubling = 63 - (lines - 1).leading_zeros() - 2;
    let step = (lines - 1) >> doubling; // 4..=7
    Some(4 + doubling * 4 + (step as u32 - 4))
}

/// Where things lie in a slab chunk of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slab {
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    /// Offset of the first counted line within the chunk; the bitmap is in front of it.
    pub(crate) lines: u64,
    /// Offset of the first block within the chunk.
    pub(crate) data: u64,
}

impl Slab {
    /// The layout for `class`, or `None` when there is no such class (a broken peer's word).
    pub(crate) const fn of_class(class: u32) -> Option<Self> {
        if class as usize >= CLASSES {
            return None;
        }
        let size = size_of_class(class);
        let mut blocks = CHUNK / (size + LINE);
        loop {
            let lines = blocks.div_ceil(8).next_multiple_of(LINE);
            let align = if size >= PAGE { PAGE } else { LINE };
            let data = (lines + blocks * LINE).next_multiple_of(align);
            if data + blocks * size <= CHUNK {
                return Some(Self {
                    size,
                    blocks,
                    lines,
                    data,
                });
            }
            blocks -= 1;
        }
    }
}

/// The layouts of all classes, so that no operation works one out.
pub(crate) static SLABS: [Slab; CLASSES] = SLABS_OF;

/// The same, for what is worked out when this is compiled.
pub(crate) const SLABS_OF: [Slab; CLASSES] = {
    let mut all = [Slab {
        size: 0,
        blocks: 0,
        lines: 0,
        data: 0,
    }; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        if let Some(slab) = Slab::of_class(class as u32) {
            all[class] = slab;
        }
        class += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_gets_the_smallest_class_that_holds_it() {
        assert_eq!(LARGEST, 256 << 10);
        for bytes in (0..=LARGEST)
            .step_by(7)
            .chain((0..CLASSES as u32).map(size_of_class))
        {
            let class = class_of_size(bytes).expect("fits");
            assert!(size_of_class(class) >= bytes, "{bytes}");
            assert!(class == 0 || size_of_class(class - 1) < bytes, "{bytes}");
        }
        assert_eq!(class_of_size(LARGEST + 1), None);
    }

    #[test]
    fn slabs_waste_little_and_fit() {
        for slab in SLABS {
            assert!(slab.blocks >= 7);
            assert!(slab.data + slab.blocks * slab.size <= CHUNK);
            assert!(slab.lines * 8 >= slab.blocks);
            assert!(slab.size % LINE == 0 && slab.data % LINE == 0);
        }
    }
}
