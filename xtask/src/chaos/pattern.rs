//! Contents by which a tensor can be told from any other, and from memory that somebody else wrote meanwhile.

use std::fmt;

/// What should not be in memory that is held. A process that finds it ends with its own code.
#[derive(Debug)]
pub(crate) struct Corrupt(pub(crate) String);

/// The exit code that says so.
pub(crate) const CORRUPT: u8 = 3;

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "corruption: {}", self.0)
    }
}

impl std::error::Error for Corrupt {}

/// Element `index` of the tensor with that number.
pub(crate) fn element(id: u64, index: usize) -> u64 {
    // The finalizer of splitmix64: neighbours have nothing in common.
    let mut x = id.wrapping_add((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Writes the whole pattern.
pub(crate) fn fill(id: u64, to: &mut [u64]) {
    for (index, element_of) in to.iter_mut().enumerate() {
        *element_of = element(id, index);
    }
}

/// Whether these are the elements from `start` on.
pub(crate) fn check(id: u64, start: usize, found: &[u64], what: &str) -> Result<(), Corrupt> {
    let wrong = found
        .iter()
        .enumerate()
        .find(|&(index, &word)| word != element(id, start + index));
    match wrong {
        None => Ok(()),
        Some((index, word)) => Err(Corrupt(format!(
            "{what} {id:#x} of {} elements holds {word:#x} at {} instead of {:#x}",
            found.len(),
            start + index,
            element(id, start + index)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::{check, fill};

    #[test]
    fn a_pattern_is_told_from_another_and_from_one_changed_word() {
        let mut words = [0; 100];
        fill(7, &mut words);
        check(7, 0, &words, "a tensor").unwrap();
        check(7, 40, &words[40..], "a view").unwrap();
        check(8, 0, &words, "another").unwrap_err();
        words[99] ^= 1;
        let text = check(7, 0, &words, "a tensor").unwrap_err().to_string();
        assert!(text.contains("at 99 instead of"), "{text}");
    }
}
