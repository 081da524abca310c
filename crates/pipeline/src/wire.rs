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
use shm_core::message::{Block, Incoming, Outgoing};

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

/// An item that is all of one slot, with no value beside it: what a stage that says nothing else publishes.
#[derive(Debug)]
pub(crate) struct Slim {
    pub(crate) id: u64,
    pub(crate) sequence: u64,
    pub(crate) tag: u64,
    pub(crate) enqueued: u64,
    /// The exponent of its weight.
    pub(crate) weight: u8,
    pub(crate) place: Place,
    pub(crate) memory: SharedBytes,
}

/// What came out of a queue.
pub(crate) enum Came {
    Slim(Slim),
    Item(Item),
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
    match item.take_slim() {
        Some(slim) => {
            put_slim(to, slim, deadline).map_err(|(error, slim)| (error, slim.map(Item::from)))
        }
        None => to.put_until(item, deadline).map_err(PutError::into_parts),
    }
}

/// The same for what is slim.
///
/// # Errors
/// With the item where it is still whole.
#[inline]
pub(crate) fn put_slim(
    to: &Sender<Item>,
    slim: Slim,
    deadline: Deadline,
) -> Result<(), (mp_queue::Error, Option<Slim>)> {
    let mut message = slim.into_message();
    to.put_message(&mut message, deadline).map_err(|error| {
        let slim = message.into_block().map(Slim::of_block);
        (error, slim.and_then(Result::ok))
    })
}

/// Takes an item out of a queue.
///
/// # Errors
/// As [`Receiver::get_timeout`].
#[inline]
pub(crate) fn take(from: &Receiver<Item>, deadline: Deadline) -> mp_queue::Result<Came> {
    let mut message = Incoming::default();
    from.take_into(deadline, &mut message)?;
    came(message)
}

/// What a message holds.
#[inline]
pub(crate) fn came(mut message: Incoming) -> mp_queue::Result<Came> {
    match message.take_block() {
        Some(block) => Slim::of_block(block?).map(Came::Slim),
        None => message.take_or().map(Came::Item),
    }
}

/// As [`take`], for who wants it whole.
///
/// # Errors
/// As there.
pub(crate) fn get(from: &Receiver<Item>, deadline: Deadline) -> mp_queue::Result<Item> {
    Ok(take(from, deadline)?.into())
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
    /// A message of it.
    #[inline]
    fn into_message(self) -> Outgoing {
        let place = u64::from(self.weight)
            | u64::from(self.place.rank) << WEIGHT_BITS
            | u64::from(self.place.turn) << TURN_AT
            | u64::from(self.place.slot) << SLOT_AT;
        let words = [self.id, self.sequence, self.tag, self.enqueued, place];
        Outgoing::of_block(self.memory, words)
    }

    #[inline]
    fn of_block((memory, words): Block) -> mp_queue::Result<Self> {
        let [id, sequence, tag, enqueued, place] = words;
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
            memory,
        })
    }

    pub(crate) fn member(&self) -> Member {
        Member {
            root: self.id,
            // Below 128: checked when it arrived.
            weight: 1_u128 << (self.weight & 127),
        }
    }
}

impl Item {
    /// The item as a slim one, if it is one: its memory is taken out of it then.
    fn take_slim(&mut self) -> Option<Slim> {
        let weight = self.short()?;
        let [share] = &*self.shares else { return None };
        // What lies on a device travels in a longer message.
        let memory = share.memory.host()?;
        let fits = share.views.is_empty() && self.payload.is_empty() && share.place().fits_a_word();
        let memory = fits.then(|| memory.clone())?;
        let share = self.shares.pop()?;
        Some(Slim {
            id: self.id,
            sequence: self.sequence,
            tag: self.tag,
            enqueued: self.enqueued,
            weight,
            place: share.place(),
            memory,
        })
    }
}

impl From<Slim> for Item {
    fn from(slim: Slim) -> Self {
        Self {
            id: slim.id,
            parts: 1,
            members: vec![slim.member()],
            enqueued: slim.enqueued,
            sequence: slim.sequence,
            tag: slim.tag,
            shares: vec![Share {
                rank: slim.place.rank,
                slot: slim.place.slot,
                turn: slim.place.turn,
                memory: Memory::Host(slim.memory),
                views: Vec::new(),
            }],
            ..Self::default()
        }
    }
}

impl From<Came> for Item {
    fn from(came: Came) -> Self {
        match came {
            Came::Slim(slim) => slim.into(),
            Came::Item(item) => item,
        }
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
