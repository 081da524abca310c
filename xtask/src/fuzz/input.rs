//! An input: which arena, and what is changed in it. Small, so that one can be kept as a file and read by a person.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What is fed with an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Target {
    /// Attaching to a file.
    Attach,
    /// Taking messages.
    Message,
    /// Looking up and giving names.
    Names,
    /// Everything, with any word of the arena changed.
    Structures,
    /// Receiving tensors on devices.
    Device,
}

impl Target {
    pub(crate) fn all() -> Vec<Target> {
        Target::value_variants().to_vec()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Target::Attach => "attach",
            Target::Message => "message",
            Target::Names => "names",
            Target::Structures => "structures",
            Target::Device => "device",
        }
    }
}

/// Which word of the arena's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Place {
    /// From the start of the file.
    Header(u16),
    /// Counted among those that are not 0, and around again.
    Used(u32),
    /// So many words from where a text of the scene lies.
    Near(u8, i8),
}

/// What becomes of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum How {
    Set(u64),
    Flip(u8),
    Add(i64),
    /// One of its bytes.
    Byte(u8, u8),
    /// What another word holds.
    Copy(Place),
}

/// What becomes of a file's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Length {
    /// To so many bytes.
    Cut(u64),
    /// By so many bytes.
    Grow(u64),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Input {
    pub(crate) target: Target,
    pub(crate) pokes: Vec<(Place, How)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) length: Option<Length>,
    /// Whether the changes are made again and again while the arena is used; with tensors on devices, whether a thread waits
    /// for their writers and no stream.
    #[serde(default)]
    pub(crate) again: bool,
    /// Whether the peer is dead when the others look.
    #[serde(default)]
    pub(crate) dies: bool,
    /// As which type messages are read; which way tensors on devices go.
    #[serde(default)]
    pub(crate) read_as: u8,
}

impl Input {
    pub(crate) fn random(target: Target, rng: &mut fastrand::Rng) -> Input {
        let count = match rng.u8(..3) {
            0 => 1,
            _ => rng.usize(1..5),
        };
        let resized = target == Target::Attach && rng.u8(..6) == 0;
        let length = resized.then(|| match rng.u8(..3) {
            0 => Length::Cut(rng.u64(..100_000)),
            1 => Length::Cut(rng.u64(..80 << 20)),
            _ => Length::Grow(1 << rng.u32(..24)),
        });
        Input {
            target,
            pokes: (0..count)
                .map(|_| (place(target, rng), how(target, rng)))
                .collect(),
            length,
            again: matches!(target, Target::Structures | Target::Device) && rng.u8(..3) == 0,
            dies: target != Target::Attach && rng.bool(),
            read_as: if rng.bool() { 0 } else { rng.u8(..5) },
        }
    }
}

fn place(target: Target, rng: &mut fastrand::Rng) -> Place {
    let near = |rng: &mut fastrand::Rng| Place::Near(rng.u8(..16), rng.i8(-12..12));
    let used = |rng: &mut fastrand::Rng| Place::Used(rng.u32(..));
    match (target, rng.u8(..10)) {
        // A memory's words and those of its first blocks.
        (Target::Device, _) => Place::Near(rng.u8(..), rng.i8(-12..72)),
        (Target::Attach, 0..5) => Place::Header(rng.u16(..24)),
        (Target::Message, 0..9) => near(rng),
        (Target::Names, 0..7) => near(rng),
        (Target::Structures, 0) => Place::Header(rng.u16(8..24)),
        _ => used(rng),
    }
}

fn how(target: Target, rng: &mut fastrand::Rng) -> How {
    match rng.u8(..6) {
        0 => How::Set(number(rng)),
        1 => How::Flip(rng.u8(..64)),
        2 => How::Add([-1, 1, -64, 64, 8, 1 << 32][rng.usize(..6)]),
        3 => How::Copy(place(target, rng)),
        _ => How::Byte(rng.u8(..8), number(rng) as u8),
    }
}

/// Numbers at which something begins or ends, more often than others.
fn number(rng: &mut fastrand::Rng) -> u64 {
    match rng.u8(..5) {
        0 => rng.u64(..),
        1 => rng.u64(..16),
        2 => (1_u64 << rng.u32(..64)).wrapping_sub(rng.u64(..2)),
        3 => u64::MAX - rng.u64(..16),
        _ => rng.u64(..1 << 20),
    }
}

#[cfg(test)]
mod tests {
    use super::{Input, Target};

    #[test]
    fn an_input_survives_its_file_and_a_seed_makes_it_again() {
        for target in Target::all() {
            let of = |seed| Input::random(target, &mut fastrand::Rng::with_seed(seed));
            for seed in 0..100 {
                let text = serde_json::to_string(&of(seed)).unwrap();
                let back: Input = serde_json::from_str(&text).unwrap();
                assert_eq!(back, of(seed));
            }
        }
    }
}
