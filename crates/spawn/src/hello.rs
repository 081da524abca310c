//! The greeting: the one packet that the parent puts into the control socket before the child exists.
//!
//! It has a fixed layout, so that a child can tell *that* it does not understand before it trusts a single field. The
//! descriptors that belong to it (the arena, and the parent's stdin if the child is given it) come in the same packet.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::image::{Build, fnv};
use crate::link::Member;

/// What a greeting starts with.
const MAGIC: [u8; 8] = *b"tmpspawn";

/// The version of this layout and of what follows it.
pub(crate) const VERSION: u32 = 3;

/// The longest name that travels; what `top` shows is shorter still.
pub(crate) const NAME: usize = 64;

/// The role of a process that runs a function.
pub(crate) const WORKER: u32 = 0;

/// That of a fork server. Its offset, unless it is 0, leads to what it preloads.
pub(crate) const SERVER: u32 = 1;

/// A handle of the arena, as two words.
pub(crate) type Handle = [u64; 2];

/// The types behind a trampoline, as far as two processes can compare them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Signature {
    argument_size: u64,
    argument_align: u64,
    outcome_size: u64,
    outcome_align: u64,
    names: u64,
}

impl Signature {
    /// That of no function.
    pub(crate) const NONE: Signature = Signature {
        argument_size: 0,
        argument_align: 0,
        outcome_size: 0,
        outcome_align: 0,
        names: 0,
    };

    /// The signature of a function `F` from `A` to `R`. The names are not promised to be unique: they catch mistakes,
    /// the build identity is what makes the offset trustworthy.
    pub(crate) fn of<F, A, R>() -> Signature {
        let names = [
            std::any::type_name::<F>(),
            std::any::type_name::<A>(),
            std::any::type_name::<R>(),
        ];
        Signature {
            argument_size: size_of::<A>() as u64,
            argument_align: align_of::<A>() as u64,
            outcome_size: size_of::<R>() as u64,
            outcome_align: align_of::<R>() as u64,
            names: names.iter().fold(0, |seed, name| fnv(name, seed)),
        }
    }
}

/// The longest arguments that travel in the greeting's packet: a page's worth, which costs nobody anything.
pub(crate) const INLINE: usize = 4 << 10;

/// The greeting, as it lies in the packet.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Hello {
    magic: [u8; 8],
    version: u32,
    size: u32,
    /// The build that the offset belongs to.
    pub(crate) build: Build,
    /// The types that the parent means.
    pub(crate) signature: Signature,
    /// Where the trampoline is.
    pub(crate) offset: u64,
    /// The letterbox that holds the arguments; no handle if they follow the greeting in its packet.
    pub(crate) arguments: Handle,
    /// The letterbox for the result.
    pub(crate) outcome: Handle,
    /// The parent's process id.
    pub(crate) parent: u32,
    /// The child's index in its context.
    pub(crate) rank: u32,
    /// How deep in a tree of spawns the child is; the program itself is 0.
    pub(crate) depth: u32,
    /// 1 if the second descriptor is the stdin that the child is given.
    pub(crate) stdin: u32,
    /// What the process is to be: [`WORKER`] or [`SERVER`].
    pub(crate) role: u32,
    /// 1 if the arguments follow the greeting in its packet.
    pub(crate) inline: u32,
    supervisor_row: u16,
    supervisor_epoch: u16,
    /// The number that the parent gave to the context that the child belongs to.
    pub(crate) context: u32,
    name_length: u64,
    name: [u8; NAME],
}

/// What a parent has to say.
#[derive(Clone, Debug)]
pub(crate) struct Greeting {
    pub(crate) build: Build,
    pub(crate) signature: Signature,
    pub(crate) offset: u64,
    pub(crate) arguments: Handle,
    pub(crate) outcome: Handle,
    pub(crate) parent: u32,
    pub(crate) rank: u32,
    pub(crate) depth: u32,
    pub(crate) stdin: bool,
    pub(crate) role: u32,
    pub(crate) inline: bool,
    /// The parent in the arena.
    pub(crate) supervisor: Member,
    pub(crate) context: u32,
    pub(crate) name: String,
}

impl Hello {
    /// The packet of a greeting.
    pub(crate) fn new(greeting: &Greeting) -> Hello {
        let mut end = greeting.name.len().min(NAME);
        while !greeting.name.is_char_boundary(end) {
            end -= 1;
        }
        let mut name = [0; NAME];
        name[..end].copy_from_slice(&greeting.name.as_bytes()[..end]);
        Hello {
            magic: MAGIC,
            version: VERSION,
            size: size_of::<Hello>() as u32,
            build: greeting.build,
            signature: greeting.signature,
            offset: greeting.offset,
            arguments: greeting.arguments,
            outcome: greeting.outcome,
            parent: greeting.parent,
            rank: greeting.rank,
            depth: greeting.depth,
            stdin: greeting.stdin.into(),
            role: greeting.role,
            inline: greeting.inline.into(),
            supervisor_row: greeting.supervisor.row,
            supervisor_epoch: greeting.supervisor.epoch,
            context: greeting.context,
            name_length: end as u64,
            name,
        }
    }

    /// The greeting in a packet, or why it is none of this version.
    pub(crate) fn read(packet: &[u8]) -> Result<Hello, String> {
        let Some((start, _)) = packet.split_first_chunk::<16>() else {
            return Err(format!(
                "the greeting has {} bytes, too few to be one",
                packet.len()
            ));
        };
        if start[..8] != MAGIC {
            return Err("what came over stdin is not a greeting of this library".to_owned());
        }
        let word = |at: usize| {
            u32::from_ne_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]])
        };
        if word(8) != VERSION || word(12) != size_of::<Hello>() as u32 {
            return Err(format!(
                "the parent speaks version {} with {} bytes, this process version {VERSION} with {}: they are not \
                 built from the same sources",
                word(8),
                word(12),
                size_of::<Hello>()
            ));
        }
        match Hello::read_from_prefix(packet) {
            Ok((hello, rest)) if rest.is_empty() || hello.inline == 1 => Ok(hello),
            _ => Err(format!(
                "the greeting has {} bytes, not {}",
                packet.len(),
                size_of::<Hello>()
            )),
        }
    }

    /// The parent in the arena.
    pub(crate) fn supervisor(&self) -> Member {
        Member {
            row: self.supervisor_row,
            epoch: self.supervisor_epoch,
        }
    }

    /// The process's name.
    pub(crate) fn name(&self) -> String {
        let length = usize::try_from(self.name_length).unwrap_or(NAME).min(NAME);
        // A thread's name must not contain a zero byte.
        String::from_utf8_lossy(&self.name[..length]).replace('\0', "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting() -> Greeting {
        Greeting {
            build: crate::image::image().unwrap().build(),
            signature: Signature::of::<fn(), u8, u16>(),
            offset: u64::MAX - 3,
            arguments: [1, 2],
            outcome: [3, 4],
            parent: 5,
            rank: 6,
            depth: 7,
            stdin: true,
            role: WORKER,
            inline: false,
            supervisor: Member { row: 8, epoch: 9 },
            context: 10,
            name: "features.6".into(),
        }
    }

    #[test]
    fn a_greeting_arrives_as_it_was_sent() {
        let sent = greeting();
        let read = Hello::read(Hello::new(&sent).as_bytes()).unwrap();
        assert_eq!(
            (read.name(), read.offset, read.outcome),
            (sent.name, sent.offset, sent.outcome)
        );
        assert_eq!(
            (read.supervisor(), read.context),
            (sent.supervisor, sent.context)
        );
        assert_eq!((read.build, read.signature), (sent.build, sent.signature));
    }

    #[test]
    fn a_foreign_short_or_newer_greeting_is_refused_with_the_reason() {
        let good = Hello::new(&greeting()).as_bytes().to_vec();
        for length in 0..good.len() {
            assert!(
                Hello::read(&good[..length]).is_err(),
                "{length} bytes were enough"
            );
        }
        let mut foreign = good.clone();
        foreign[0] ^= 1;
        assert!(
            Hello::read(&foreign)
                .err()
                .unwrap()
                .contains("not a greeting")
        );
        let mut newer = good;
        newer[8] += 1;
        assert!(Hello::read(&newer).err().unwrap().contains("version 4"));
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let hello = Hello::new(&Greeting {
            name: "ä".repeat(50),
            ..greeting()
        });
        assert_eq!(hello.name(), "ä".repeat(32));
    }

    #[test]
    fn signatures_tell_types_and_functions_apart() {
        assert_ne!(
            Signature::of::<fn(), u8, u16>(),
            Signature::of::<fn(), u16, u8>()
        );
        assert_ne!(
            Signature::of::<fn(), u8, u16>(),
            Signature::of::<fn(u8), u8, u16>()
        );
    }
}
