//! Marks: one word in shared memory that says of an event what it stands for, and who recorded it.
//!
//! | bits | |
//! |---|---|
//! | 0–2 | state: 0 none, 1 bound, 2 claimed, 3 recorded, 4 done, 5 joint, 6 lent, 7 kept |
//! | 3–15 | index of the event in its origin's station |
//! | 16–27, 28–43 | row and epoch of who claimed or recorded it |
//! | 44–55 | low bits of the event's generation |
//! | 56–63 | in which of its streams that process recorded it |

use shm_core::word::Owner;

/// An event of an origin's station.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct EventId {
    /// Its place in the station.
    pub(crate) index: u16,
    /// Grows when the event of that place is replaced; 12 bits.
    pub(crate) generation: u16,
}

/// Who recorded an event, and where: what comes of that stream can be read in the process's [ledger](crate::ledger).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct By {
    pub(crate) who: Owner,
    /// The stream's number in that process, or [`NO_NUMBER`].
    pub(crate) stream: u8,
}

/// Of a stream that has no number, in which nothing is recorded before the work of others that it waits for is over.
pub(crate) const NO_NUMBER: u8 = u8::MAX;

/// What a mark says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mark {
    /// Nothing, and there is no event to say it with.
    None,
    /// Nothing yet; this event can be recorded.
    Bound(EventId),
    /// Somebody is about to record the event.
    Claimed(EventId, Owner),
    /// Somebody recorded the event, in a stream of that process.
    Recorded(EventId, By),
    /// What it would stand for is over: its recorder waited for it.
    Done(Option<EventId>),
    /// Somebody recorded the event, in a stream of that process, for several blocks of a message. It is none of theirs:
    /// nobody records it again as long as a block says this.
    Joint(EventId, By),
    /// It was the block's event, until somebody recorded it for several. Its origin takes it away.
    Lent(EventId),
    /// That process may still have work on the block, of whose end it could tell nobody. The event is the block's own again
    /// when the process has ended.
    Kept(Owner, Option<EventId>),
}

/// Of the 13 bits that an index has.
const NO_EVENT: u16 = 0x1fff;

impl Mark {
    pub(crate) const fn to_word(self) -> u64 {
        let nobody = By {
            who: Owner { row: 0, epoch: 0 },
            stream: 0,
        };
        let none = EventId {
            index: NO_EVENT,
            generation: 0,
        };
        let (state, event, by) = match self {
            Self::None => (0, none, nobody),
            Self::Bound(event) => (1, event, nobody),
            Self::Claimed(event, who) => (2, event, By { who, stream: 0 }),
            Self::Recorded(event, by) => (3, event, by),
            Self::Done(Some(event)) => (4, event, nobody),
            Self::Done(None) => (4, none, nobody),
            Self::Joint(event, by) => (5, event, by),
            Self::Lent(event) => (6, event, nobody),
            Self::Kept(who, Some(event)) => (7, event, By { who, stream: 0 }),
            Self::Kept(who, None) => (7, none, By { who, stream: 0 }),
        };
        state
            | ((event.index as u64 & 0x1fff) << 3)
            | ((by.who.row as u64 & 0xfff) << 16)
            | ((by.who.epoch as u64) << 28)
            | ((event.generation as u64 & 0xfff) << 44)
            | ((by.stream as u64) << 56)
    }

    /// Reads a word; one that no mark has is [`Mark::None`].
    pub(crate) const fn from_word(word: u64) -> Self {
        let event = EventId {
            index: (word >> 3) as u16 & 0x1fff,
            generation: (word >> 44) as u16 & 0xfff,
        };
        let who = Owner {
            row: (word >> 16) as u16 & 0xfff,
            epoch: (word >> 28) as u16,
        };
        let by = By {
            who,
            stream: (word >> 56) as u8,
        };
        let has_event = event.index != NO_EVENT;
        match word & 0b111 {
            1 if has_event => Self::Bound(event),
            2 if has_event => Self::Claimed(event, who),
            3 if has_event => Self::Recorded(event, by),
            4 if has_event => Self::Done(Some(event)),
            4 => Self::Done(None),
            5 if has_event => Self::Joint(event, by),
            6 if has_event => Self::Lent(event),
            7 if by.stream != 0 => Self::None,
            7 if has_event => Self::Kept(who, Some(event)),
            7 if event.generation == 0 => Self::Kept(who, None),
            _ => Self::None,
        }
    }

    /// The event that is the block's own, with which it can be said.
    pub(crate) const fn own(self) -> Option<EventId> {
        match self {
            Self::None
            | Self::Done(None)
            | Self::Joint(..)
            | Self::Lent(_)
            | Self::Kept(_, None) => None,
            Self::Bound(event)
            | Self::Claimed(event, _)
            | Self::Recorded(event, _)
            | Self::Done(Some(event))
            | Self::Kept(_, Some(event)) => Some(event),
        }
    }

    /// The same event, with nothing said.
    pub(crate) const fn cleared(self) -> Self {
        match self.own() {
            Some(event) => Self::Bound(event),
            None => Self::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_survives_its_word_and_no_word_is_more_than_a_mark() {
        let event = EventId {
            index: 0xabc,
            generation: 0xfff,
        };
        let who = Owner {
            row: 4_094,
            epoch: u16::MAX,
        };
        let by = By { who, stream: 254 };
        for mark in [
            Mark::None,
            Mark::Bound(event),
            Mark::Claimed(event, who),
            Mark::Recorded(event, by),
            Mark::Done(Some(event)),
            Mark::Done(None),
            Mark::Joint(event, by),
            Mark::Lent(event),
            Mark::Kept(who, None),
            Mark::Kept(who, Some(event)),
        ] {
            assert_eq!(Mark::from_word(mark.to_word()), mark);
        }
        for state in 0..8 {
            let _ = Mark::from_word(state | (u64::MAX << 3)).to_word();
        }
        assert_eq!(Mark::from_word(u64::MAX), Mark::None);
        assert_eq!(Mark::from_word(0), Mark::None);
    }
}
