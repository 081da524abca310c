//! What must hold of references, and what the explorer must notice.

use super::{Config, References, Role, Variant};
use crate::{all_is_well, is_noticed};

fn holds(name: &str, config: Config) {
    all_is_well(name, &References::new(config));
}

fn fails(variant: Variant, with: &str, config: Config) {
    let world = References::new(Config { variant, ..config });
    is_noticed(&variant, with, &world);
}

const MOVING: Config = Config::BASE;
const SHARING: Config = Config {
    users: &[Role::Sharer, Role::Taker],
    ..MOVING
};
const SLOTS: Config = Config {
    users: &[Role::Loaner, Role::Loaner],
    slots: true,
    ..MOVING
};
const OPENING: Config = Config {
    users: &[Role::Loaner, Role::Opener],
    ..MOVING
};
/// What somebody let go of travels on.
const RELAYING: Config = Config {
    users: &[Role::Loaner, Role::Relay, Role::Taker],
    ..MOVING
};
/// One that makes lines and drops them, its successor, and two reapers, one of which may be late.
const SUCCESSION: Config = Config {
    users: &[Role::Loaner],
    rounds: 2,
    reapers: 2,
    kills: 2,
    reuses: 1,
    ..MOVING
};

/// The reaper may be killed, too, and another goes on.
fn relay(config: Config) -> Config {
    Config {
        reapers: 2,
        kills: 2,
        ..config
    }
}

fn together(config: Config) -> Config {
    Config {
        reapers: 2,
        exclusive: false,
        ..config
    }
}

#[test]
fn a_reference_that_moves_is_freed_once_whoever_is_killed() {
    holds("moving", MOVING);
    let twice = Config {
        rounds: 2,
        ..MOVING
    };
    holds("moving, twice", twice);
    let reuses = 1;
    holds("moving, successor", Config { reuses, ..twice });
    let regrets = 1;
    holds("moving, regrets", Config { regrets, ..MOVING });
    let lane = Config {
        lane: true,
        ..MOVING
    };
    holds("moving, lane", lane);
    holds("moving, lane, relay", relay(lane));
    holds("moving, lane, regrets", Config { regrets, ..lane });
    let twice = Config { rounds: 2, ..lane };
    holds("moving, lane, successor", Config { reuses, ..twice });
}

#[test]
fn a_reference_that_is_shared_is_freed_once_whoever_is_killed() {
    holds("sharing", SHARING);
    let regrets = 1;
    holds("sharing, regrets", Config { regrets, ..SHARING });
    let lane = Config {
        lane: true,
        ..SHARING
    };
    holds("sharing, lane", lane);
    holds("sharing, lane, regrets", Config { regrets, ..lane });
    let twice = Config { rounds: 2, ..lane };
    holds("sharing, lane, successor", Config { reuses: 1, ..twice });
}

#[test]
fn a_slot_is_one_loaners_whoever_is_killed() {
    holds("loans", SLOTS);
    holds("loans, two slots", Config { lines: 2, ..SLOTS });
}

#[test]
fn what_is_opened_by_its_handle_is_freed_once() {
    holds("opening", OPENING);
    holds(
        "opening, twice",
        Config {
            rounds: 2,
            ..OPENING
        },
    );
}

#[test]
fn what_travels_is_held_by_somebody_whoever_looks() {
    let lane = Config {
        lane: true,
        ..RELAYING
    };
    holds("relaying by a lane", lane);
    fails(Variant::NoTouch, "holders", RELAYING);
    fails(Variant::EntriesAlone, "holders", RELAYING);
}

#[test]
fn one_reaper_at_a_time_is_at_a_row() {
    holds("succession", SUCCESSION);
}

#[test]
fn references_without_one_of_their_rules_are_noticed() {
    let gone = "holders";
    fails(
        Variant::SameEpoch,
        gone,
        Config {
            kills: 1,
            ..together(SUCCESSION)
        },
    );
    fails(Variant::CellsFirst, gone, MOVING);
    fails(Variant::SubtractFirst, gone, SHARING);
    fails(Variant::CountLate, gone, SHARING);
    fails(Variant::NoTicket, gone, MOVING);
    let twice = Config {
        rounds: 2,
        ..MOVING
    };
    fails(Variant::TicketLast, gone, twice);
    fails(Variant::NoDropping, gone, MOVING);
    fails(
        Variant::SkipFailed,
        "given free with",
        together(relay(MOVING)),
    );
    fails(Variant::NoClaimant, gone, SLOTS);
    fails(Variant::LateReaper, "two reapers", SUCCESSION);
    fails(Variant::NoDoubt, "leaked", SHARING);
    fails(Variant::NoWait, "leaked", SHARING);
    // Nothing is left out but that reapers keep each other out.
    fails(Variant::Right, gone, together(OPENING));
}

#[test]
#[ignore = "big: run it with --release"]
fn big_worlds_of_references_hold() {
    holds("moving, relay", relay(MOVING));
    holds("sharing, relay", relay(SHARING));
    holds("loans, relay", relay(SLOTS));
    holds("opening, relay", relay(OPENING));
    holds("relaying", RELAYING);
    holds(
        "relaying by a lane, two kills",
        Config {
            lane: true,
            kills: 2,
            ..RELAYING
        },
    );
    let successors = |config| Config {
        rounds: 2,
        reuses: 2,
        kills: 2,
        ..config
    };
    holds("moving, two kills, two successors", successors(MOVING));
    holds("sharing, two kills, two successors", successors(SHARING));
    holds("loans, two kills, two successors", successors(SLOTS));
    let travelling = Config {
        users: &[Role::Mover, Role::Loaner, Role::Taker],
        ..SLOTS
    };
    holds("loans that travel", travelling);
    holds(
        "loans that travel by a lane",
        Config {
            lane: true,
            ..travelling
        },
    );
    let crowd = Config {
        users: &[Role::Mover, Role::Mover, Role::Taker],
        lines: 2,
        ..MOVING
    };
    holds("two movers", crowd);
    holds("two movers, two cells", Config { cells: 2, ..crowd });
    holds(
        "two takers",
        Config {
            users: &[Role::Sharer, Role::Taker, Role::Taker],
            ..SHARING
        },
    );
}

#[test]
#[ignore = "big: run it with --release"]
fn two_reapers_at_once_do_no_harm_to_what_nobody_opens_or_shares() {
    // Nor to what nobody shares: two that look into one doubt for the same dead one would take each other's word for theirs.
    for (name, config) in [("moving", MOVING), ("loans", SLOTS)] {
        holds(&format!("{name}, two reapers at once"), together(config));
    }
}
