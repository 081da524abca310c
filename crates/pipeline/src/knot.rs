//! Knots: processes that wait for each other's slots for ever.
//!
//! A process that waits for one of its slots can go on if any of its readers can; one that waits for room in a queue, if
//! there is room or any of those that read it can; one that waits for an item, if one is on its way, or any of those that
//! make items can. What is left when all that can go on is taken away waits for
//! ever. It is looked for on the board, whose words are what the processes do *now*: a process that is merely slow, or
//! stopped, is not in a knot.

use std::sync::atomic::{Ordering, fence};

use crate::board::{Board, State};

/// Who may put into each lane, and who takes from it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parties {
    pub(crate) writers: Vec<Vec<u32>>,
    pub(crate) readers: Vec<Vec<u32>>,
    pub(crate) from_client: Vec<bool>,
}

/// The processes that wait for each other, with the how-manieth state each is in; empty for none.
///
/// `is_empty` tells of a lane whether nothing is in it, `is_full` whether there is no room, `client_is_done` of the client whether
/// it has ended. Certain is only what is
/// found twice: what was put behind the back of the first look had its writer in another state then.
pub(crate) fn find(
    board: &Board,
    parties: &Parties,
    is_empty: impl Fn(usize) -> bool,
    is_full: impl Fn(usize) -> bool,
    client_is_done: bool,
) -> Vec<(u32, u64)> {
    let processes = board.processes().saturating_sub(1);
    // Before the states: who takes an item says that it waits no longer, and then takes it.
    let empty: Vec<bool> = (0..parties.writers.len()).map(is_empty).collect();
    // Likewise: who takes an item makes room, and says that it works before it waits again.
    let full: Vec<bool> = (0..parties.writers.len()).map(is_full).collect();
    fence(Ordering::Acquire);
    let states: Vec<State> = (0..=processes as u32)
        .map(|rank| board.state(rank))
        .collect();
    // Its row is the last.
    let client_waits = states[processes] == State::WaitsForOutcomes;
    let mut goes_on: Vec<bool> = states[..processes]
        .iter()
        .map(|state| {
            !matches!(
                state,
                State::WaitsForInput(_) | State::WaitsForSlot | State::WaitsForRoom(_)
            )
        })
        .collect();
    loop {
        let mut changed = false;
        for rank in 0..processes {
            if goes_on[rank] {
                continue;
            }
            let can = match states[rank] {
                State::WaitsForInput(lane) => {
                    let at = lane as usize;
                    let writers = parties.writers.get(at).map_or(&[][..], Vec::as_slice);
                    let from_client = parties.from_client.get(at).copied().unwrap_or(false);
                    // Without writers left the lane ends, which is an answer, too.
                    let ends = writers
                        .iter()
                        .all(|&writer| states[writer as usize] == State::Done)
                        && (client_is_done || !from_client);
                    ends || !empty.get(at).copied().unwrap_or(false)
                        || (from_client && !client_is_done && !client_waits)
                        || writers.iter().any(|&writer| {
                            goes_on[writer as usize] && states[writer as usize] != State::Done
                        })
                }
                State::WaitsForRoom(lane) => {
                    let at = lane as usize;
                    let readers = parties.readers.get(at).map_or(&[][..], Vec::as_slice);
                    // Without readers left nobody is waited for, either.
                    !full.get(at).copied().unwrap_or(false)
                        || readers.is_empty()
                        || readers.iter().any(|&reader| goes_on[reader as usize])
                }
                // One that nobody reads is free or on its way.
                State::WaitsForSlot => (0..board.slot_count(rank as u32) as u32).any(|slot| {
                    let readers = board.readers(rank as u32, slot);
                    readers.all(processes as u32, |reader| goes_on[reader as usize])
                }),
                _ => true,
            };
            if can {
                goes_on[rank] = true;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    let client = (client_waits && !client_is_done).then_some(processes as u32);
    let stuck = (0..processes as u32).filter(|&rank| !goes_on[rank as usize]);
    let stuck: Vec<u32> = stuck.collect();
    let client = client.filter(|_| !stuck.is_empty());
    // The client's state is part of it where it is taken for one that gives nothing now.
    stuck
        .into_iter()
        .chain(client)
        .map(|rank| (rank, board.since(rank).1))
        .collect()
}

/// What is told of a knot: who holds whose slots.
pub(crate) fn describe(board: &Board, knot: &[(u32, u64)], name: impl Fn(u32) -> String) -> String {
    let mut holders = Vec::new();
    for &(rank, _) in knot {
        if board.state(rank) != State::WaitsForSlot {
            continue;
        }
        let count = board.slot_count(rank) as u32;
        for (holder, _) in knot {
            let held: Vec<String> = (0..count)
                .filter(|&slot| board.readers(rank, slot).includes(*holder))
                .map(|slot| slot.to_string())
                .collect();
            if !held.is_empty() {
                holders.push(format!(
                    "{} holds slots {} of the {count} that {} has, and waits for more input",
                    name(*holder),
                    held.join(", "),
                    name(rank)
                ));
            }
        }
    }
    format!(
        "processes wait for each other for ever: {}; give the writing step more slots, or keep fewer \
         inputs at once",
        holders.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::Place;

    fn parties() -> Parties {
        Parties {
            writers: vec![vec![0]],
            readers: vec![vec![1]],
            from_client: vec![false],
        }
    }

    fn ranks(knot: &[(u32, u64)]) -> Vec<u32> {
        knot.iter().map(|(rank, _)| *rank).collect()
    }

    fn hold(board: &Board, slot: u32, reader: u32) -> Place {
        let turn = board.turn(0, slot);
        let place = Place {
            rank: 0,
            slot,
            turn,
        };
        board.hold(place, reader);
        place
    }

    #[test]
    fn a_reader_that_keeps_all_slots_and_waits_is_a_knot() {
        let board = Board::new(&[2, 0, 0]).unwrap();
        board.enter(0, State::WaitsForSlot);
        board.enter(1, State::WaitsForInput(0));
        hold(&board, 0, 1);
        let empty = |_| true;
        assert!(
            find(&board, &parties(), empty, |_| false, true).is_empty(),
            "slot 1 is free"
        );
        hold(&board, 1, 1);
        let knot = find(&board, &parties(), empty, |_| false, true);
        assert_eq!(ranks(&knot), [0, 1]);
        let text = describe(&board, &knot, |rank| format!("process {rank}"));
        assert!(
            text.contains("process 1 holds slots 0, 1 of the 2 that process 0 has"),
            "{text}"
        );
        let coming = find(&board, &parties(), |_| false, |_| false, true);
        assert!(coming.is_empty(), "an item comes");
    }

    #[test]
    fn a_slot_comes_back_only_when_all_its_readers_go_on() {
        let board = Board::new(&[1, 0, 0, 0]).unwrap();
        board.enter(0, State::WaitsForSlot);
        board.enter(1, State::WaitsForInput(0));
        board.enter(2, State::Working);
        let place = hold(&board, 0, 1);
        board.hold(place, 2);
        let parties = Parties {
            writers: vec![vec![0], vec![0]],
            readers: vec![vec![1], vec![2]],
            from_client: vec![false; 2],
        };
        assert_eq!(
            ranks(&find(&board, &parties, |_| true, |_| false, true)),
            [0, 1]
        );
        board.let_go(place, 1);
        assert!(find(&board, &parties, |_| true, |_| false, true).is_empty());
    }

    #[test]
    fn whoever_works_will_go_on() {
        let board = Board::new(&[1, 0, 0]).unwrap();
        board.enter(0, State::WaitsForSlot);
        hold(&board, 0, 1);
        board.enter(1, State::Working);
        let empty = |_| true;
        assert!(find(&board, &parties(), empty, |_| false, true).is_empty());
        board.enter(0, State::Done);
        board.enter(1, State::WaitsForInput(0));
        assert!(
            find(&board, &parties(), empty, |_| false, true).is_empty(),
            "the lane ends"
        );
    }

    #[test]
    fn a_client_that_waits_for_what_it_offered_offers_nothing() {
        let board = Board::new(&[0, 0]).unwrap();
        let parties = Parties {
            writers: vec![Vec::new()],
            readers: vec![vec![0]],
            from_client: vec![true],
        };
        board.enter(0, State::WaitsForInput(0));
        assert!(find(&board, &parties, |_| true, |_| false, false).is_empty());
        board.enter(1, State::WaitsForOutcomes);
        assert_eq!(
            ranks(&find(&board, &parties, |_| true, |_| false, false)),
            [0, 1]
        );
        assert!(find(&board, &parties, |_| false, |_| false, false).is_empty());
    }

    #[test]
    fn a_writer_that_waits_for_room_goes_on_with_a_reader_or_with_room() {
        // 0 writes to 1 and 2, each with a lane; 1 writes slots, which 3 keeps.
        let board = Board::new(&[0, 1, 0, 0, 0]).unwrap();
        let parties = Parties {
            writers: vec![vec![0], vec![0], vec![1, 2]],
            readers: vec![vec![1], vec![2], vec![3]],
            from_client: vec![false; 3],
        };
        board.enter(0, State::WaitsForRoom(0));
        board.enter(1, State::WaitsForSlot);
        board.enter(2, State::WaitsForInput(1));
        board.enter(3, State::WaitsForInput(2));
        let turn = board.turn(1, 0);
        let place = Place {
            rank: 1,
            slot: 0,
            turn,
        };
        board.hold(place, 3);
        let found = |full: bool| ranks(&find(&board, &parties, |lane| lane > 0, |_| full, true));
        assert_eq!(found(true), [0, 1, 2, 3]);
        assert!(found(false).is_empty(), "there is room");
        board.enter(1, State::Working);
        assert!(found(true).is_empty(), "its reader works");
        board.enter(1, State::Done);
        assert!(found(true).is_empty(), "nobody reads it any more");
    }
}
