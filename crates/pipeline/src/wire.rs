//! How an item is written into a message: short where it is like most.
//!
//! What most items have fits a queue's cell: no parents, one input that it is made of, of which it has a weight that is a
//! power of two, and one slot at most. A message that does not fit gets a block of its own, which costs more than the
//! hand-over. The moment at which it was put comes last, since it is set last.
//!
//! Of those, an item that is all of one slot and has no value beside it is written as the slot's memory and five words:
//! nothing is serialized, and the receiver has not to be told what it knows.

use mp_queue::{Deadline, PutError, Receiver, Sender};
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use shm_core::SharedBytes;
use shm_core::message::{Incoming, Outgoing};

use crate::board::Place;
use crate::device::Memory;
use crate::item::{Attached, Item, Member, Share};

/// Like most.
#[derive(Serialize)]
struct Short<'a> {
    id: u64,
    /// The weight is 2 to the power of it.
    weight: u8,
    sequence: u64,
    tag: u64,
    payload: Bytes<'a>,
    share: Option<&'a Share>,
    enqueued: u64,
}

/// What is said of an item that is all of one slot, with no value beside it: what a stage that says nothing else publishes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slim {
    pub(crate) id: u64,
    pub(crate) sequence: u64,
    pub(crate) tag: u64,
    pub(crate) enqueued: u64,
    /// The exponent of its weight.
    pub(crate) weight: u8,
    pub(crate) place: Place,
}

/// Puts an item into a queue.
///
/// # Errors
/// With the item where it is still whole.
#[expect(
    clippy::result_large_err,
    reason = "the item itself comes back, which is no error to be passed far"
)]
pub(crate) fn put(
    to: &Sender<Item>,
    mut item: Item,
    deadline: Deadline,
) -> Result<(), (mp_queue::Error, Option<Item>)> {
    let Some((slim, memory)) = item.take_slim() else {
        return to.put_until(item, deadline).map_err(PutError::into_parts);
    };
    let mut message = Outgoing::of_block(memory, slim.words());
    to.put_message(&mut message, deadline)
        .map_err(|error| (error, unsent(message)))
}

/// The same for what is slim, with one more reference to its slot's memory.
///
/// # Errors
/// With the item where it is still whole.
#[inline]
#[expect(clippy::result_large_err, reason = "as there")]
pub(crate) fn put_slim(
    to: &Sender<Item>,
    slim: &Slim,
    memory: &SharedBytes,
    deadline: Deadline,
) -> Result<(), (mp_queue::Error, Option<Item>)> {
    let mut message = Outgoing::default();
    if let Err(error) = message.refer_to(memory, slim.words()) {
        return Err((error.into(), None));
    }
    to.put_message(&mut message, deadline)
        .map_err(|error| (error, unsent(message)))
}

/// The item of a message that was not sent.
#[cold]
fn unsent(message: Outgoing) -> Option<Item> {
    let (memory, words) = message.into_block()?;
    Some(Slim::of_words(words).ok()?.with(memory))
}

/// The item that a message holds.
pub(crate) fn came(message: &mut Incoming) -> mp_queue::Result<Item> {
    match message.take_block() {
        Some(block) => {
            let (memory, words) = block?;
            Ok(Slim::of_words(words)?.with(memory))
        }
        None => message.take_or(),
    }
}

/// Takes an item out of a queue.
///
/// # Errors
/// As [`Receiver::get_timeout`].
pub(crate) fn get(from: &Receiver<Item>, deadline: Deadline) -> mp_queue::Result<Item> {
    let mut message = Incoming::default();
    from.take_into(deadline, &mut message)?;
    came(&mut message)
}

/// Any other.
#[derive(Serialize)]
struct Long<'a> {
    id: u64,
    part: u32,
    parts: u32,
    parents: &'a [u64],
    members: &'a [Member],
    gone: bool,
    sequence: u64,
    tag: u64,
    payload: Bytes<'a>,
    attached: Option<&'a Attached>,
    shares: &'a [Share],
    copy: u32,
    copies: u32,
    enqueued: u64,
}

#[derive(Serialize)]
enum Written<'a> {
    Short(Short<'a>),
    Long(Long<'a>),
}

/// Bytes that are not written one by one.
struct Bytes<'a>(&'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

impl Item {
    /// The exponent of the weight, of an item that is like most.
    fn short(&self) -> Option<u8> {
        let &[Member { root, weight }] = &*self.members else {
            return None;
        };
        let is_short = root == self.id
            && weight.is_power_of_two()
            && (self.part, self.parts) == (0, 1)
            && self.parents.is_empty()
            && !self.gone
            && self.copies <= 1
            && self.attached.is_none()
            && self.shares.len() <= 1;
        is_short.then(|| weight.trailing_zeros() as u8)
    }
}

/// Bits of the last word beside a block: the weight's exponent, the process whose slot it is, which of the memories that the
/// slot had, and which slot.
const WEIGHT_BITS: u32 = 8;
const RANK_BITS: u32 = 16;
const TURN_BITS: u32 = 16;
const SLOT_BITS: u32 = 24;
const TURN_AT: u32 = WEIGHT_BITS + RANK_BITS;
const SLOT_AT: u32 = TURN_AT + TURN_BITS;

impl Place {
    /// Whether it has room in the last word beside a block.
    pub(crate) fn fits_a_word(self) -> bool {
        self.rank >> RANK_BITS == 0 && self.slot >> SLOT_BITS == 0
    }
}

impl Slim {
    /// As they lie beside a block.
    #[inline]
    fn words(&self) -> [u64; 5] {
        let place = u64::from(self.weight)
            | u64::from(self.place.rank) << WEIGHT_BITS
            | u64::from(self.place.turn) << TURN_AT
            | u64::from(self.place.slot) << SLOT_AT;
        [self.id, self.sequence, self.tag, self.enqueued, place]
    }

    /// What is said in a message of something slim, whose memory stays in it; `None` for any other message.
    #[inline]
    pub(crate) fn of(message: &Incoming) -> Option<mp_queue::Result<Self>> {
        message.beside_block().map(Self::of_words)
    }

    #[inline]
    fn of_words([id, sequence, tag, enqueued, place]: [u64; 5]) -> mp_queue::Result<Self> {
        let weight = place as u8;
        if weight >= 128 {
            let kind = shm_core::ErrorKind::Decode;
            let error = shm_core::Error::new(kind, "an item weighs more than all inputs");
            return Err(error.into());
        }
        Ok(Self {
            id,
            sequence,
            tag,
            enqueued,
            weight,
            place: Place {
                rank: (place >> WEIGHT_BITS) as u32 & ((1 << RANK_BITS) - 1),
                turn: (place >> TURN_AT) as u16,
                slot: (place >> SLOT_AT) as u32,
            },
        })
    }

    pub(crate) fn member(&self) -> Member {
        Member {
            root: self.id,
            // Below 128: checked when it arrived.
            weight: 1_u128 << (self.weight & 127),
        }
    }

    /// The item, which has this memory.
    pub(crate) fn with(self, memory: SharedBytes) -> Item {
        Item {
            id: self.id,
            parts: 1,
            members: vec![self.member()],
            enqueued: self.enqueued,
            sequence: self.sequence,
            tag: self.tag,
            shares: vec![self.place.share(Memory::Host(memory), Vec::new())],
            ..Item::default()
        }
    }
}

impl Item {
    /// The item as a slim one, if it is one: its memory is taken out of it then.
    fn take_slim(&mut self) -> Option<(Slim, SharedBytes)> {
        let weight = self.short()?;
        let [share] = &*self.shares else { return None };
        // What lies on a device travels in a longer message.
        let memory = share.memory.host()?;
        let fits = share.views.is_empty() && self.payload.is_empty() && share.place().fits_a_word();
        let memory = fits.then(|| memory.clone())?;
        let share = self.shares.pop()?;
        let slim = Slim {
            id: self.id,
            sequence: self.sequence,
            tag: self.tag,
            enqueued: self.enqueued,
            weight,
            place: share.place(),
        };
        Some((slim, memory))
    }
}

impl Serialize for Item {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let payload = Bytes(&self.payload);
        let written = match self.short() {
            Some(weight) => Written::Short(Short {
                id: self.id,
                weight,
                sequence: self.sequence,
                tag: self.tag,
                payload,
                share: self.shares.first(),
                enqueued: self.enqueued,
            }),
            None => Written::Long(Long {
                id: self.id,
                part: self.part,
                parts: self.parts,
                parents: &self.parents,
                members: &self.members,
                gone: self.gone,
                sequence: self.sequence,
                tag: self.tag,
                payload,
                attached: self.attached.as_deref(),
                shares: &self.shares,
                copy: self.copy,
                copies: self.copies,
                enqueued: self.enqueued,
            }),
        };
        written.serialize(serializer)
    }
}

#[derive(Deserialize)]
struct ShortRead {
    id: u64,
    weight: u8,
    sequence: u64,
    tag: u64,
    payload: BytesRead,
    #[serde(deserialize_with = "at_most_one")]
    shares: Vec<Share>,
    enqueued: u64,
}

/// To where it stays: a share is large where it may be on a device.
fn at_most_one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Share>, D::Error> {
    let share = Option::deserialize(deserializer)?;
    Ok(share.into_iter().collect())
}

#[derive(Deserialize)]
struct LongRead {
    id: u64,
    part: u32,
    parts: u32,
    parents: Vec<u64>,
    members: Vec<Member>,
    gone: bool,
    sequence: u64,
    tag: u64,
    payload: BytesRead,
    attached: Option<Box<Attached>>,
    shares: Vec<Share>,
    copy: u32,
    copies: u32,
    enqueued: u64,
}

#[derive(Deserialize)]
enum Read {
    Short(ShortRead),
    Long(LongRead),
}

struct BytesRead(Vec<u8>);

impl<'de> Deserialize<'de> for BytesRead {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = BytesRead;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<BytesRead, E> {
                Ok(BytesRead(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Any)
    }
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Read::deserialize(deserializer)? {
            Read::Short(short) => Self {
                id: short.id,
                parts: 1,
                members: vec![Member {
                    root: short.id,
                    weight: 1_u128
                        .checked_shl(short.weight.into())
                        .ok_or_else(|| D::Error::custom("an item weighs more than all inputs"))?,
                }],
                enqueued: short.enqueued,
                sequence: short.sequence,
                tag: short.tag,
                payload: short.payload.0,
                shares: short.shares,
                ..Self::default()
            },
            Read::Long(long) => Self {
                id: long.id,
                part: long.part,
                parts: long.parts,
                parents: long.parents,
                members: long.members,
                enqueued: long.enqueued,
                copy: long.copy,
                copies: long.copies,
                gone: long.gone,
                sequence: long.sequence,
                tag: long.tag,
                payload: long.payload.0,
                attached: long.attached,
                shares: long.shares,
            },
        })
    }
}

#[cfg(test)]
mod tests;
