//! What is asked of the thread that lends device memory, and how it answers otherwise than with that.

use std::time::Duration;

/// In place of an answer: this process lacks something at the moment.
pub(crate) const COME_AGAIN: u8 = 2;

/// How long a visitor may take to say what it wants.
pub(crate) const HEARD_BY: Duration = Duration::from_secs(2);

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// [`DESCRIPTOR`] or [`COPY`].
    pub(crate) kind: u64,
    pub(crate) memory: [u64; 2],
    pub(crate) index: u64,
    pub(crate) turn: u64,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

const REQUEST: usize = 7 * 8;
/// A descriptor of the memory.
pub(crate) const DESCRIPTOR: u64 = 1;
/// A copy of bytes of a block.
pub(crate) const COPY: u64 = 2;

impl Request {
    pub(crate) fn to_bytes(self) -> [u8; REQUEST] {
        let words = [
            self.kind,
            self.memory[0],
            self.memory[1],
            self.index,
            self.turn,
            self.start,
            self.bytes,
        ];
        let mut bytes = [0; REQUEST];
        for (eight, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *eight = word.to_le_bytes();
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REQUEST] = bytes.try_into().ok()?;
        let mut words = [0; 7];
        for (word, eight) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*eight);
        }
        let [kind, line, generation, index, turn, start, bytes] = words;
        Some(Self {
            kind,
            memory: [line, generation],
            index,
            turn,
            start,
            bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_its_bytes_and_another_length_is_none() {
        let request = Request {
            kind: COPY,
            memory: [7, u64::MAX],
            index: 3,
            turn: 4,
            start: 5,
            bytes: 6,
        };
        assert_eq!(Request::from_bytes(&request.to_bytes()), Some(request));
        assert_eq!(Request::from_bytes(&request.to_bytes()[1..]), None);
    }
}
