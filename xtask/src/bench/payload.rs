//! The payloads of hand-overs: their sizes, and marks by which the receiver knows that it got this one, whole.
//!
//! A few words spread over the payload are made from its number. To write and check them costs nothing next to the payload,
//! and happens outside of the time measured.

use crate::Result;

/// A size and how it is called.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Size {
    pub(crate) name: &'static str,
    pub(crate) bytes: usize,
}

/// A handle, and what is said beside it.
pub(crate) const HANDLE: Size = Size {
    name: "64B",
    bytes: 64,
};
pub(crate) const LARGE: Size = Size {
    name: "12MB",
    bytes: 12_042_240,
};
pub(crate) const SIZES: [Size; 3] = [
    Size {
        name: "4KiB",
        bytes: 4096,
    },
    Size {
        name: "1MiB",
        bytes: 1 << 20,
    },
    LARGE,
];

const MARKS: usize = 5;
const MARK: usize = size_of::<u64>();

/// Where the marks lie: first and last word, and between.
fn places(bytes: usize) -> [usize; MARKS] {
    std::array::from_fn(|mark| (bytes - MARK) * mark / (MARKS - 1))
}

fn value(number: u64, mark: usize) -> u64 {
    // An odd multiplier: different numbers give different marks.
    (number * MARKS as u64 + mark as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Marks a payload of at least 8 bytes as this one.
pub(crate) fn mark(payload: &mut [u8], number: u64) {
    for (mark, place) in places(payload.len()).into_iter().enumerate() {
        payload[place..place + MARK].copy_from_slice(&value(number, mark).to_le_bytes());
    }
}

/// Whether it is this one.
pub(crate) fn check(payload: &[u8], number: u64) -> Result<()> {
    for (mark, place) in places(payload.len()).into_iter().enumerate() {
        if payload[place..place + MARK] != value(number, mark).to_le_bytes() {
            return Err(format!(
                "payload {number} of {} bytes: not what was sent, at byte {place}",
                payload.len()
            )
            .into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{SIZES, check, mark};

    #[test]
    fn a_payload_is_known_by_its_marks() {
        for size in SIZES {
            let mut payload = vec![0; size.bytes];
            mark(&mut payload, 3);
            assert!(check(&payload, 3).is_ok());
            assert!(check(&payload, 4).is_err());
            payload[size.bytes - 1] ^= 1;
            assert!(check(&payload, 3).is_err());
        }
    }
}
