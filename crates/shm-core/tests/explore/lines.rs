//! What must hold of references, and what the explorer must notice.

use crate::leases::{Config, Leases, Role, Variant};
use crate::run;

fn holds(name: &str, config: Config) {
    let report = run(name, &Leases::new(config));
    if let Some(violation) = report.violation {
        panic!("{name}: {violation}");
    }
    assert!(report.ends > 0, "{name} never ends");
}

fn fails(variant: Variant, with: &[&str], config: Config) {
    let name = format!("{variant:?}");
    let report = run(&name, &Leases::new(Config { variant, ..config }));
    let violation = report.violation;
    assert!(
        violation
            .as_ref()
            .is_some_and(|violation| with.iter().any(|with| violation.contains(with))),
        "{name} should have been noticed by {with:?}, not {violation:?}"
    );
}

const BASE: Config = Config {
    users: &[Role::Loaner, Role::Loaner],
    rounds: 1,
    reapers: 1,
    kills: 1,
    together: false,
    variant: Variant::Right,
};

const MOVING: Config = Config {
    users: &[Role::Mover, Role::Taker],
    ..BASE
};

const SHARING: Config = Config {
    users: &[Role::Sharer, Role::Taker],
    ..BASE
};

#[test]
fn a_slot_is_one_loaners_whoever_is_killed() {
    holds("two loaners", BASE);
    holds("two loaners, twice", Config { rounds: 2, ..BASE });
    holds(
        "two loaners, reaper killed",
        Config {
            kills: 2,
            reapers: 2,
            ..BASE
        },
    );
}

#[test]
fn a_reference_that_moves_is_freed_once_whoever_is_killed() {
    holds("moving", MOVING);
    holds(
        "moving, twice",
        Config {
            rounds: 2,
            ..MOVING
        },
    );
    holds(
        "moving, two kills, two reapers",
        Config {
            kills: 2,
            reapers: 2,
            ..MOVING
        },
    );
}

#[test]
fn a_reference_that_is_shared_is_freed_once_whoever_is_killed() {
    holds("sharing", SHARING);
    holds(
        "sharing, twice",
        Config {
            rounds: 2,
            ..SHARING
        },
    );
    holds(
        "sharing, two kills, two reapers",
        Config {
            kills: 2,
            reapers: 2,
            ..SHARING
        },
    );
}

#[test]
#[ignore = "big: run it with --release"]
fn big_worlds_of_references_hold() {
    let three = Config {
        users: &[Role::Loaner; 3],
        ..BASE
    };
    holds("three loaners", three);
    holds("three loaners, twice", Config { rounds: 2, ..three });
    let either = Config {
        users: &[Role::Mover, Role::Taker, Role::Taker],
        ..MOVING
    };
    holds("moving to either", either);
    holds(
        "moving to either, twice",
        Config {
            rounds: 2,
            ..either
        },
    );
    let either = Config {
        users: &[Role::Sharer, Role::Taker, Role::Taker],
        ..either
    };
    holds("sharing with either", either);
    for (name, config) in [("loaners", BASE), ("moving", MOVING), ("sharing", SHARING)] {
        holds(
            &format!("{name}, two kills, reaped by two at once"),
            Config {
                kills: 2,
                reapers: 2,
                together: true,
                ..config
            },
        );
        holds(
            &format!("{name}, three kills, three reapers"),
            Config {
                kills: 3,
                reapers: 3,
                ..config
            },
        );
    }
}

#[test]
fn references_without_one_of_their_rules_are_noticed() {
    let freed = [
        "gone",
        "twice",
        "was not alone",
        "the same slot",
        "the count is",
    ];
    fails(Variant::NoClaimant, &freed, BASE);
    fails(Variant::UnclaimFirst, &freed, BASE);
    fails(Variant::CellsFirst, &freed, MOVING);
    fails(Variant::NoTicket, &freed, MOVING);
    fails(
        Variant::SkipAfterFailure,
        &freed,
        Config {
            kills: 2,
            reapers: 2,
            together: true,
            ..BASE
        },
    );
    fails(Variant::CountLate, &freed, SHARING);
    fails(Variant::SubtractFirst, &freed, SHARING);
}
