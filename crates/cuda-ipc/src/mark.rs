//! Marks: one word in shared memory that says of an event what it stands for, and who recorded it.
//!
//! | bits | |
//! |---|---|
//! | 0–3 | state: 0 none, 1 bound, 2 claimed, 3 recorded, 4 done, 5 joint, 6 lent |
//! | 4–19 | index of the event in its origin's station |
//! | 20–35, 36–51 | row and epoch of who claimed or recorded it |
//! | 52–63 | low bits of the event's generation |

use shm_core::word::Owner;

/// An event of an origin's station.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct EventId {
    /// Its place in the station.
    pub(crate) index: u16,
    /// Grows when the event of that place is replaced; 12 bits.
    pub(crate) generation: u16,
}

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
    Recorded(EventId, Owner),
    /// What it would stand for is over: its recorder waited for it.
    Done(Option<EventId>),
    /// Somebody recorded the event, in a stream of that process, for several blocks of a message. It is none of theirs:
    /// nobody records it again as long as a block says this.
    Joint(EventId, Owner),
    /// It was the block's event, until somebody recorded it for several. Its origin takes it away.
    Lent(EventId),
}

const NO_EVENT: u16 = u16::MAX;

impl Mark {
    pub(crate) const fn to_word(self) -> u64 {
        let nobody = Owner { row: 0, epoch: 0 };
        let none = EventId {
            index: NO_EVENT,
            generation: 0,
        };
        let (state, event, who) = match self {
            Self::None => (0, none, nobody),
            Self::Bound(event) => (1, event, nobody),
            Self::Claimed(event, who) => (2, event, who),
            Self::Recorded(event, who) => (3, event, who),
            Self::Done(Some(event)) => (4, event, nobody),
            Self::Done(None) => (4, none, nobody),
            Self::Joint(event, who) => (5, event, who),
            Self::Lent(event) => (6, event, nobody),
        };
        state
            | ((event.index as u64) << 4)
            | ((who.row as u64) << 20)
            | ((who.epoch as u64) << 36)
            | ((event.generation as u64 & 0xfff) << 52)
    }

    /// Reads a word; one that no mark has is [`Mark::None`].
    pub(crate) const fn from_word(word: u64) -> Self {
        let event = EventId {
            index: (word >> 4) as u16,
            generation: (word >> 52) as u16,
        };
        let who = Owner {
            row: (word >> 20) as u16,
            epoch: (word >> 36) as u16,
        };
        let has_event = event.index != NO_EVENT;
        match word & 0xf {
            1 if has_event => Self::Bound(event),
            2 if has_event => Self::Claimed(event, who),
            3 if has_event => Self::Recorded(event, who),
            4 if has_event => Self::Done(Some(event)),
            4 => Self::Done(None),
            5 if has_event => Self::Joint(event, who),
            6 if has_event => Self::Lent(event),
            _ => Self::None,
        }
    }

    /// The event that is the block's own, with which it can be said.
    pub(crate) const fn own(self) -> Option<EventId> {
        match self {
            Self::None | Self::Done(None) | Self::Joint(..) | Self::Lent(_) => None,
            Self::Bound(event)
            | Self::Claimed(event, _)
            | Self::Recorded(event, _)
            | Self::Done(Some(event)) => Some(event),
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
        for mark in [
            Mark::None,
            Mark::Bound(event),
            Mark::Claimed(event, who),
            Mark::Recorded(event, who),
            Mark::Done(Some(event)),
            Mark::Done(None),
            Mark::Joint(event, who),
            Mark::Lent(event),
        ] {
            assert_eq!(Mark::from_word(mark.to_word()), mark);
        }
        for state in 0..16 {
            let _ = Mark::from_word(state | (u64::MAX << 4)).to_word();
        }
        assert_eq!(Mark::from_word(u64::MAX), Mark::None);
        assert_eq!(Mark::from_word(0), Mark::None);
    }
}
