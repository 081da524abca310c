//! Knots: processes that wait for each other's slots for ever.
//!
//! A process that waits for one of its slots can go on if any of its readers can; one that waits for an item can go on if
//! one is on its way, or any of those that make items can. What is left when all that can go on is taken away waits for
//! ever. It is looked for on the board, whose words are what the processes do *now*: a process that is merely slow, or
//! stopped, is not in a knot.

use serde::{Deserialize, Serialize};

use crate::board::{Board, State};

/// Who may put into each lane, and whether the client may, too.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Feeds {
    pub(crate) writers: Vec<Vec<u32>>,
    pub(crate) from_client: Vec<bool>,
}

/// The processes that wait for each other, with the how-manieth state each is in; empty for none.
pub(crate) fn find(board: &Board, feeds: &Feeds, client_is_done: bool) -> Vec<(u32, u64)> {
    let processes = board.processes().saturating_sub(1);
    let states: Vec<State> = (0..processes as u32)
        .map(|rank| board.state(rank))
        .collect();
    let mut goes_on: Vec<bool> = states
        .iter()
        .map(|state| !matches!(state, State::WaitsForInput(_) | State::WaitsForSlot))
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
                    let writers = feeds.writers.get(at).map_or(&[][..], Vec::as_slice);
                    // Without writers left the lane ends, which is an answer, too.
                    let ends = writers
                        .iter()
                        .all(|&writer| states[writer as usize] == State::Done)
                        && (client_is_done || !feeds.from_client.get(at).copied().unwrap_or(false));
                    ends || board.on_the_way(lane) > 0
                        || (!client_is_done && feeds.from_client.get(at).copied().unwrap_or(false))
                        || writers.iter().any(|&writer| {
                            goes_on[writer as usize] && states[writer as usize] != State::Done
                        })
                }
                State::WaitsForSlot => (0..board.slot_count(rank as u32) as u32).any(|slot| {
                    match board.holder(rank as u32, slot) {
                        // Free or on its way.
                        None => true,
                        Some(holder) => goes_on.get(holder as usize).copied().unwrap_or(true),
                    }
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
    (0..processes as u32)
        .filter(|&rank| !goes_on[rank as usize])
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
                .filter(|&slot| board.holder(rank, slot) == Some(*holder))
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

    fn feeds() -> Feeds {
        Feeds {
            writers: vec![vec![0]],
            from_client: vec![false],
        }
    }

    #[test]
    fn a_reader_that_keeps_all_slots_and_waits_is_a_knot() {
        let board = Board::new(&[2, 0, 0], 1).unwrap();
        board.enter(0, State::WaitsForSlot);
        board.enter(1, State::WaitsForInput(0));
        board.hold(0, 0, 1);
        assert!(find(&board, &feeds(), true).is_empty(), "slot 1 is free");
        board.hold(0, 1, 1);
        let knot = find(&board, &feeds(), true);
        assert_eq!(
            knot.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(),
            [0, 1]
        );
        let text = describe(&board, &knot, |rank| format!("process {rank}"));
        assert!(
            text.contains("process 1 holds slots 0, 1 of the 2 that process 0 has"),
            "{text}"
        );
        board.count_put(0, true);
        assert!(find(&board, &feeds(), true).is_empty(), "an item comes");
    }

    #[test]
    fn whoever_works_will_go_on() {
        let board = Board::new(&[1, 0, 0], 1).unwrap();
        board.enter(0, State::WaitsForSlot);
        board.hold(0, 0, 1);
        board.enter(1, State::Working);
        assert!(find(&board, &feeds(), true).is_empty());
        board.enter(0, State::Done);
        board.enter(1, State::WaitsForInput(0));
        assert!(find(&board, &feeds(), true).is_empty(), "the lane ends");
    }
}
