//! Who does what in the suite `cuda`: some make device tensors, some send them on, some read them.

const MAKERS: usize = 3;
const SENDERS: usize = 2;
const READERS: usize = 3;
pub(super) const CREW: usize = MAKERS + SENDERS + READERS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Maker,
    Sender,
    Reader,
}

/// Who works in a place.
pub(super) fn role(slot: usize) -> Role {
    match slot {
        ..MAKERS => Role::Maker,
        _ if slot < MAKERS + SENDERS => Role::Sender,
        _ => Role::Reader,
    }
}

/// Who has to receive what others wait to be rid of, and is not there: a process with a stream that waits for the dead ends,
/// also when all were told to stop and nobody starts others, and then a maker would wait for ever for room in its queue.
pub(super) fn missed(running: &[usize]) -> Option<usize> {
    let is_there = |wanted: Role| running.iter().any(|&slot| role(slot) == wanted);
    let [makes, sends, reads] = [Role::Maker, Role::Sender, Role::Reader].map(is_there);
    if makes && !sends {
        Some(MAKERS)
    } else if (makes || sends) && !reads {
        Some(MAKERS + SENDERS)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_left_has_somebody_to_receive_what_it_sends() {
        let (maker, sender, reader) = (0, MAKERS, MAKERS + SENDERS);
        assert_eq!(missed(&[maker, reader]), Some(sender));
        assert_eq!(missed(&[maker]), Some(sender));
        assert_eq!(missed(&[maker, sender]), Some(reader));
        assert_eq!(missed(&[sender + 1]), Some(reader));
        for enough in [
            &[maker, sender, reader][..],
            &[sender, reader],
            &[reader],
            &[],
        ] {
            assert_eq!(missed(enough), None);
        }
        assert_eq!(
            [maker, sender, reader].map(role),
            [Role::Maker, Role::Sender, Role::Reader]
        );
    }
}
