//! Knots: processes that wait for each other's slots for ever.
//!
//! A process that waits for one of its slots can go on if there is a slot that nobody keeps from it; one that waits for room
//! in a queue, if there is room or any of those that take from it can go on; one that waits for an item, if one is on its
//! way, or any of those that make items can. What is left when all that can go on is taken away waits for ever. It is looked
//! for on the board, whose words are what the processes do *now*: a process that is merely slow, or stopped, is not in a
//! knot.
//!
//! A slot is kept by those that read it, which the board says. Where it says nobody, the slot is free, or it waits in a
//! queue, or is in the hands of somebody who does not say so yet. So it is taken to come back as long as anybody who may ever
//! get it can go on; who lets go of one on a thread of its own, while it waits, says so. That it is not free is seen by its
//! process alone: a process that waits for a slot is in a knot for certain once it has looked again, since the knot was seen,
//! and found none ([`waits_for_slots`]).

use std::sync::atomic::{Ordering, fence};

use crate::board::{Board, State};

/// Who may put into each lane, and who takes from it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parties {
    pub(crate) writers: Vec<Vec<u32>>,
    /// Those that read it, and those that may drop what waits in it.
    pub(crate) takers: Vec<Vec<u32>>,
    pub(crate) from_client: Vec<bool>,
    /// Of each process, who may ever have one of its slots in hand.
    pub(crate) reach: Vec<Vec<u32>>,
}

impl Parties {
    fn any(list: &[Vec<u32>], at: usize, is: impl Fn(u32) -> bool) -> bool {
        list.get(at)
            .is_some_and(|ranks| ranks.iter().any(|&rank| is(rank)))
    }
}

/// A process of a knot, as it was seen: what it waited for, and the how-manieth of its states that was. What is concluded is
/// concluded from this, and not from what it does a moment later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stuck {
    pub(crate) rank: u32,
    pub(crate) serial: u64,
    pub(crate) state: State,
}

/// As [`find_where`], with processes that let go of nothing while they wait.
#[cfg(test)]
pub(crate) fn find(
    board: &Board,
    parties: &Parties,
    is_empty: impl Fn(usize) -> bool,
    is_full: impl Fn(usize) -> bool,
    client_is_done: bool,
) -> Vec<Stuck> {
    find_where(board, parties, is_empty, is_full, client_is_done, |_| false)
}

/// The processes that wait for each other; empty for none.
///
/// `is_empty` tells of a lane whether nothing is in it, `is_full` whether there is no room, `client_is_done` of the client whether
/// it has ended. Certain is only what is
/// found twice: what was put behind the back of the first look had its writer in another state then.
///
/// Whoever `lets_go` may let go of the slots that it reads though it waits.
pub(crate) fn find_where(
    board: &Board,
    parties: &Parties,
    is_empty: impl Fn(usize) -> bool,
    is_full: impl Fn(usize) -> bool,
    client_is_done: bool,
    lets_go: impl Fn(u32) -> bool,
) -> Vec<Stuck> {
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
        .zip(0..)
        .map(|(state, rank)| {
            let waits = matches!(
                state,
                State::WaitsForInput(_) | State::WaitsForSlot | State::WaitsForRoom(_)
            );
            // What a thread of it lets go of is on its way back, though the board may not say any more whose it was.
            !waits || board.lets_go_aside(rank)
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
                    // Without anybody left who takes from it nobody is waited for, either.
                    !full.get(at).copied().unwrap_or(false)
                        || parties.takers.get(at).is_none_or(Vec::is_empty)
                        || Parties::any(&parties.takers, at, |taker| goes_on[taker as usize])
                }
                State::WaitsForSlot => {
                    let comes_back =
                        || Parties::any(&parties.reach, rank, |other| goes_on[other as usize]);
                    (0..board.slot_count(rank as u32) as u32).any(|slot| {
                        let readers = board.readers(rank as u32, slot);
                        match readers.is_empty() {
                            true => comes_back(),
                            false => {
                                let frees =
                                    |reader: u32| goes_on[reader as usize] || lets_go(reader);
                                readers.all(processes as u32, frees)
                            }
                        }
                    })
                }
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
    // The client's state is part of it where it is taken for one that gives nothing now: one that offers, drops and waits in
    // turn, while nobody who is stuck waits for its inputs, undoes no knot.
    let is_in =
        |wanted: &dyn Fn(State) -> bool| stuck.iter().any(|&rank| wanted(states[rank as usize]));
    let awaits_client = is_in(&|state| match state {
        State::WaitsForInput(lane) => parties.from_client.get(lane as usize) == Some(&true),
        _ => false,
    });
    let awaits_slots = is_in(&|state| state == State::WaitsForSlot);
    let client = client.filter(|_| !stuck.is_empty() && (awaits_client || !awaits_slots));
    stuck
        .into_iter()
        .chain(client)
        .map(|rank| Stuck {
            rank,
            serial: board.since(rank).1,
            state: states[rank as usize],
        })
        .collect()
}

/// The processes of a knot that wait for one of their slots.
pub(crate) fn waits_for_slots(knot: &[Stuck]) -> impl Iterator<Item = u32> {
    let waits = knot.iter().filter(|one| one.state == State::WaitsForSlot);
    waits.map(|one| one.rank)
}

/// The processes of a knot that wait for slots of which one is nowhere: nobody reads it, and every lane that it could wait in
/// holds nothing. It is in the hands of somebody who does not say so, as while the dead are buried, or was lost with a death;
/// either way no process of the knot keeps it, and it comes back or is made anew.
pub(crate) fn misses_slots(
    board: &Board,
    parties: &Parties,
    knot: &[Stuck],
    holds_nothing: impl Fn(usize) -> bool,
) -> Vec<Stuck> {
    let is_nowhere = |rank: u32| {
        let mut slots = 0..board.slot_count(rank) as u32;
        let reach = parties.reach.get(rank as usize);
        let passes =
            |writer: &u32| *writer == rank || reach.is_some_and(|reach| reach.contains(writer));
        slots.any(|slot| board.readers(rank, slot).is_empty())
            && (0..parties.writers.len())
                .filter(|&lane| parties.writers[lane].iter().any(passes))
                .all(&holds_nothing)
    };
    let waits = |one: &&Stuck| one.state == State::WaitsForSlot && is_nowhere(one.rank);
    knot.iter().filter(waits).copied().collect()
}

/// What is told of a knot: who holds whose slots, and whose slots wait for whom.
pub(crate) fn describe(board: &Board, knot: &[Stuck], name: impl Fn(u32) -> String) -> String {
    let mut clauses = Vec::new();
    for rank in waits_for_slots(knot) {
        let count = board.slot_count(rank) as u32;
        let slots = |is: &dyn Fn(u32) -> bool| {
            let slots = (0..count).filter(|&slot| is(slot));
            let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
            (!slots.is_empty()).then(|| slots.join(", "))
        };
        for Stuck {
            rank: holder,
            state,
            ..
        } in knot
        {
            if let Some(held) = slots(&|slot| board.readers(rank, slot).includes(*holder)) {
                let does = match state {
                    State::WaitsForInput(_) => "waits for more input",
                    _ => "waits itself",
                };
                clauses.push(format!(
                    "{} holds slots {held} of the {count} that {} has, and {does}",
                    name(*holder),
                    name(rank)
                ));
            }
        }
        if let Some(unread) = slots(&|slot| board.readers(rank, slot).is_empty()) {
            clauses.push(format!(
                "slots {unread} of the {count} that {} has wait, unread, for processes that wait themselves",
                name(rank)
            ));
        }
    }
    format!(
        "processes wait for each other for ever: {}; give the writing step more slots, or keep fewer \
         inputs at once",
        clauses.join("; ")
    )
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::Place;

    /// Who writes to each lane, who takes from it, and who may have slots of each process in hand.
    fn parties(writers: &[&[u32]], takers: &[&[u32]], reach: &[&[u32]]) -> Parties {
        let all = |lists: &[&[u32]]| lists.iter().map(|list| list.to_vec()).collect();
        Parties {
            writers: all(writers),
            takers: all(takers),
            from_client: vec![false; writers.len()],
            reach: all(reach),
        }
    }

    /// 0 writes slots to 1.
    fn pair() -> Parties {
        parties(&[&[0]], &[&[1]], &[&[1], &[]])
    }

    /// A board where processes with so many slots do this, and the client nothing.
    fn board(processes: &[(usize, State)]) -> Board {
        let slots = processes.iter().map(|&(slots, _)| slots);
        let board = Board::new(&slots.chain([0]).collect::<Vec<_>>()).unwrap();
        for (rank, &(_, state)) in processes.iter().enumerate() {
            board.enter(rank as u32, state);
        }
        board
    }

    fn ranks(knot: &[Stuck]) -> Vec<u32> {
        knot.iter().map(|one| one.rank).collect()
    }

    /// Who is stuck where nothing is on its way, there is room, and the client has ended.
    fn stuck(board: &Board, parties: &Parties) -> Vec<u32> {
        ranks(&find(board, parties, |_| true, |_| false, true))
    }

    fn hold(board: &Board, (rank, slot): (u32, u32), reader: u32) -> Place {
        let turn = board.turn(rank, slot);
        let place = Place { rank, slot, turn };
        board.hold(place, reader);
        place
    }

    const SLOT: State = State::WaitsForSlot;

    fn input(lane: u32) -> State {
        State::WaitsForInput(lane)
    }

    #[test]
    fn a_reader_that_keeps_all_slots_and_waits_is_a_knot() {
        let board = board(&[(2, SLOT), (0, input(0))]);
        let told = || {
            let knot = find(&board, &pair(), |_| true, |_| false, true);
            describe(&board, &knot, |rank| format!("process {rank}"))
        };
        hold(&board, (0, 0), 1);
        assert_eq!(stuck(&board, &pair()), [0, 1], "slot 1 is free or waits");
        let unread = "slots 1 of the 2 that process 0 has wait, unread,";
        assert!(told().contains(unread), "{}", told());
        hold(&board, (0, 1), 1);
        assert_eq!(stuck(&board, &pair()), [0, 1]);
        let held = "process 1 holds slots 0, 1 of the 2 that process 0 has";
        assert!(told().contains(held), "{}", told());
        let coming = find(&board, &pair(), |_| false, |_| false, true);
        assert!(coming.is_empty(), "an item comes");
    }

    #[test]
    fn a_slot_that_nobody_reads_and_no_lane_holds_is_nowhere() {
        // 0 writes to 1, which passes on what it reads to 2.
        let board = board(&[(2, SLOT), (0, input(0)), (0, input(1))]);
        let parties = parties(&[&[0], &[1]], &[&[1], &[2]], &[&[1, 2], &[2], &[]]);
        let knot = find(&board, &parties, |_| true, |_| false, true);
        assert_eq!(ranks(&knot), [0, 1, 2]);
        let missing = |waits_in: Option<usize>| {
            let holds_nothing = |lane: usize| waits_in != Some(lane);
            ranks(&misses_slots(&board, &parties, &knot, holds_nothing))
        };
        assert_eq!(missing(None), [0]);
        assert!(missing(Some(0)).is_empty(), "it waits for 1");
        assert!(missing(Some(1)).is_empty(), "1 has passed it on");
        hold(&board, (0, 0), 1);
        assert_eq!(missing(None), [0], "the other one is nowhere");
        hold(&board, (0, 1), 2);
        assert!(missing(None).is_empty(), "both are read");
    }

    #[test]
    fn who_may_let_go_of_a_slot_helps_only_those_that_wait_for_it() {
        // 0 waits for slots that 1 holds, and 1 for one of its own, which 2 holds.
        let board = board(&[(1, SLOT), (1, SLOT), (0, input(1))]);
        let parties = parties(&[&[0], &[1]], &[&[1], &[2]], &[&[1], &[2], &[]]);
        hold(&board, (0, 0), 1);
        let place = hold(&board, (1, 0), 2);
        let found = |helper: Option<u32>| {
            let (empty, full) = (|_| true, |_| false);
            let lets_go = |rank| helper == Some(rank);
            ranks(&find_where(&board, &parties, empty, full, true, lets_go))
        };
        assert_eq!(found(None), [0, 1, 2]);
        assert_eq!(found(Some(1)), [1, 2]);
        assert!(found(Some(2)).is_empty());
        board.hold(place, 0);
        assert_eq!(found(Some(2)), [0, 1, 2], "another holds it, too");
    }

    #[test]
    fn who_lets_go_of_a_slot_aside_goes_on_though_nobody_reads_the_slot() {
        let board = board(&[(1, SLOT), (0, input(0))]);
        let place = hold(&board, (0, 0), 1);
        assert_eq!(stuck(&board, &pair()), [0, 1]);
        board.let_go_aside(1, 1);
        board.let_go(place, 1);
        assert!(stuck(&board, &pair()).is_empty(), "it is about to be free");
        board.let_go_aside(1, -1);
        assert_eq!(stuck(&board, &pair()), [0, 1]);
    }

    #[test]
    fn who_went_on_after_it_was_seen_waiting_is_told_of_as_waiting() {
        let board = board(&[(1, SLOT), (0, input(0))]);
        hold(&board, (0, 0), 1);
        let knot = find(&board, &pair(), |_| true, |_| false, true);
        board.enter(0, State::Working);
        assert!(waits_for_slots(&knot).eq([0]), "it has to answer first");
    }

    #[test]
    fn a_slot_comes_back_only_when_all_its_readers_go_on() {
        let board = board(&[(1, SLOT), (0, input(0)), (0, State::Working)]);
        let place = hold(&board, (0, 0), 1);
        board.hold(place, 2);
        let parties = parties(&[&[0], &[0]], &[&[1], &[2]], &[&[1, 2], &[], &[]]);
        assert_eq!(stuck(&board, &parties), [0, 1]);
        board.let_go(place, 1);
        assert!(stuck(&board, &parties).is_empty());
    }

    #[test]
    fn whoever_works_will_go_on() {
        let board = board(&[(1, SLOT), (0, State::Working)]);
        hold(&board, (0, 0), 1);
        assert!(stuck(&board, &pair()).is_empty());
        board.enter(0, State::Done);
        board.enter(1, input(0));
        assert!(stuck(&board, &pair()).is_empty(), "the lane ends");
    }

    #[test]
    fn a_client_that_waits_for_what_it_offered_offers_nothing() {
        let board = board(&[(0, input(0))]);
        let mut parties = parties(&[&[]], &[&[0]], &[&[]]);
        parties.from_client = vec![true];
        let found = |empty: bool| ranks(&find(&board, &parties, |_| empty, |_| false, false));
        assert!(found(true).is_empty());
        board.enter(1, State::WaitsForOutcomes);
        assert_eq!(found(true), [0, 1]);
        assert!(found(false).is_empty());
    }

    #[test]
    fn a_client_that_nobody_waits_for_is_no_part_of_a_knot() {
        // It drops what there is no room for, and waits and offers in turn.
        let board = board(&[(1, SLOT), (0, input(1))]);
        hold(&board, (0, 0), 1);
        let mut parties = parties(&[&[], &[0]], &[&[0], &[1]], &[&[1], &[]]);
        parties.from_client = vec![true, false];
        let found = || find(&board, &parties, |lane| lane == 1, |_| true, false);
        let seen = found();
        for state in [State::Working, State::WaitsForOutcomes, State::Working] {
            board.enter(2, state);
            assert_eq!(found(), seen, "the same, whatever it does");
        }
        assert_eq!(ranks(&seen), [0, 1]);
    }

    #[test]
    fn a_writer_that_waits_for_room_goes_on_with_a_reader_or_with_room() {
        // 0 writes to 1 and 2, each with a lane; 1 writes slots, which 3 keeps.
        let room = State::WaitsForRoom(0);
        let board = board(&[(0, room), (1, SLOT), (0, input(1)), (0, input(2))]);
        let parties = parties(
            &[&[0], &[0], &[1, 2]],
            &[&[1], &[2], &[3]],
            &[&[], &[3], &[3], &[]],
        );
        hold(&board, (1, 0), 3);
        let found = |full: bool| ranks(&find(&board, &parties, |lane| lane > 0, |_| full, true));
        assert_eq!(found(true), [0, 1, 2, 3]);
        assert!(found(false).is_empty(), "there is room");
        board.enter(1, State::Working);
        assert!(found(true).is_empty(), "its reader works");
        board.enter(1, State::Done);
        assert!(found(true).is_empty(), "nobody reads it any more");
    }

    #[test]
    fn a_slot_that_nobody_reads_comes_back_as_long_as_anybody_who_may_get_it_goes_on() {
        // 0 writes slots into two lanes; 1 has one of its own, which 3 keeps, 2 idles.
        let board = board(&[(2, SLOT), (1, SLOT), (0, input(1)), (0, input(2))]);
        let parties = parties(
            &[&[0], &[0], &[1, 2]],
            &[&[1], &[2], &[3]],
            &[&[1, 2, 3], &[3], &[3], &[]],
        );
        hold(&board, (0, 0), 1);
        let turn = board.turn(1, 0);
        let knot = || find(&board, &parties, |lane| lane > 0, |_| false, true);
        // Nobody has it in hand: it may be on its way to 3 by another, so it waits for 1 alone.
        assert_eq!(ranks(&knot()), [0, 1, 2, 3]);
        let (rank, slot) = (1, 0);
        board.hold(Place { rank, slot, turn }, 3);
        assert_eq!(ranks(&knot()), [0, 1, 2, 3]);
        for rank in 1..=3 {
            let state = board.state(rank);
            board.enter(rank, State::Working);
            assert!(knot().is_empty(), "{rank} works");
            board.enter(rank, state);
        }
        assert!(waits_for_slots(&knot()).eq([0, 1]));
    }

    #[test]
    fn whoever_may_drop_the_oldest_makes_room_and_gives_slots_back() {
        // 0 and 3 write into one lane, 1 reads it and waits for 2.
        let room = State::WaitsForRoom(1);
        let board = board(&[(1, SLOT), (1, room), (0, input(2)), (0, State::Working)]);
        let lanes = |takers: &[u32], reach: &[u32]| {
            parties(
                &[&[0, 3], &[1], &[1]],
                &[takers, &[2], &[2]],
                &[reach, &[2], &[], &[]],
            )
        };
        let found = |parties: &Parties| {
            let (empty, full) = (|lane| lane == 2, |lane| lane < 2);
            ranks(&find(&board, parties, empty, full, true))
        };
        assert_eq!(found(&lanes(&[1, 0, 3], &[0, 1, 2, 3])), [1, 2]);
        assert_eq!(found(&lanes(&[1], &[1, 2])), [0, 1, 2]);
    }
}
