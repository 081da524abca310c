//! Explores every interleaving of small worlds over the real algorithms, with a kill before any
//! step, and checks that nothing is lost, doubled, reordered, torn or stuck.
//!
//! Memory is sequentially consistent here; orderings are loom's subject (`tests/loom_*.rs`). The
//! big worlds take some minutes: `cargo test --release --test explore -- --ignored --nocapture`.

mod engine;
mod intake;
mod locks;
mod memory;
mod queue;
mod references;

use std::fmt::Debug;
use std::time::Instant;

use engine::{Report, World, explore};
use queue::{Config, Queue, Variant};

/// States after which a search gives up.
const LIMIT: usize = 30_000_000;

fn run(name: &str, world: &impl World) -> Report {
    let start = Instant::now();
    let report = explore(world, LIMIT);
    println!(
        "{name}: {} states, {} transitions, {} ends, {:.1?}",
        report.states,
        report.transitions,
        report.ends,
        start.elapsed(),
    );
    assert!(!report.cut_off, "{name} has more than {LIMIT} states");
    report
}

/// Checks that nothing goes wrong in a world.
fn all_is_well(name: &str, world: &impl World) {
    let report = run(name, world);
    if let Some(violation) = report.violation {
        panic!("{name}: {violation}");
    }
    assert!(report.ends > 0, "{name} never ends");
}

/// Checks that the explorer notices what a world that lacks a rule does wrong: the violation says `with`.
fn is_noticed(rule: &impl Debug, with: &str, world: &impl World) {
    let report = run(&format!("{rule:?}"), world);
    let violation = report.violation;
    assert!(
        violation
            .as_ref()
            .is_some_and(|violation| violation.contains(with)),
        "{rule:?} should have been noticed by {with:?}, not {violation:?}"
    );
}

fn holds(name: &str, config: Config) {
    all_is_well(name, &Queue::new(config));
}

fn fails(variant: Variant, with: &str, config: Config) {
    is_noticed(&variant, with, &Queue::new(Config { variant, ..config }));
}

/// Consumers that poll.
const POLL: Config = Config::BASE;
/// Consumers and producers that sleep.
const PARK: Config = Config {
    park: true,
    quiet_payload: true,
    ..Config::BASE
};

#[test]
fn one_producer_and_one_consumer_survive_a_kill_anywhere() {
    for capacity in [1, 2] {
        let one = Config { capacity, ..POLL };
        let two = Config {
            producers: &[2],
            ..one
        };
        holds("1:1", one);
        holds("1:1, two messages", two);
        holds("1:1, successor", Config { reuses: 1, ..two });
        holds("1:1, closing", Config { close: true, ..two });
    }
}

#[test]
fn two_producers_survive_a_kill_anywhere() {
    for capacity in [1, 2] {
        let producers = &[1, 1];
        holds(
            "2:1",
            Config {
                capacity,
                producers,
                ..POLL
            },
        );
    }
}

#[test]
fn two_consumers_survive_a_kill_anywhere() {
    for capacity in [1, 2] {
        let config = Config {
            capacity,
            consumers: 2,
            ..POLL
        };
        holds("1:2", config);
    }
}

#[test]
fn a_message_handed_back_by_a_living_consumer_is_delivered_once() {
    let config = Config {
        hand_backs: 1,
        ..POLL
    };
    holds("1:1, handing back", config);
    holds(
        "1:2, handing back",
        Config {
            kills: 0,
            consumers: 2,
            producers: &[2],
            ..config
        },
    );
    holds(
        "1:1, handing back, asleep",
        Config {
            park: true,
            quiet_payload: true,
            ..config
        },
    );
}

#[test]
fn nobody_sleeps_beside_a_message() {
    holds("1:1, asleep", PARK);
    holds(
        "1:1, asleep, capacity 1",
        Config {
            capacity: 1,
            ..PARK
        },
    );
    holds(
        "2:1, asleep, no kill",
        Config {
            producers: &[1, 1],
            kills: 0,
            ..PARK
        },
    );
}

#[test]
fn closing_wakes_everybody() {
    holds(
        "1:1, asleep, closing, no kill",
        Config {
            kills: 0,
            close: true,
            ..PARK
        },
    );
}

#[test]
fn cells_without_one_of_their_rules_are_noticed() {
    let two = Config {
        producers: &[2],
        consumers: 2,
        ..POLL
    };
    fails(Variant::NoOrphanEpoch, "leads nowhere", two);
    fails(
        Variant::DrainedWhileTaking,
        "drained, but",
        Config { close: true, ..two },
    );
    fails(
        Variant::SameEpoch,
        "of producer 0 after",
        Config {
            producers: &[2],
            reapers: 2,
            reuses: 1,
            ..POLL
        },
    );
    let three = Config {
        producers: &[3],
        kills: 0,
        ..POLL
    };
    fails(Variant::ReleaseBeforeRead, "was read as", three);
    fails(Variant::PublishBeforeWrite, "is torn", three);
}

#[test]
fn waiting_without_one_of_its_rules_is_noticed() {
    let stuck = "nobody can go on";
    let quiet = Config { kills: 0, ..PARK };
    let two = Config {
        producers: &[1, 1],
        ..PARK
    };
    fails(Variant::SilentReaper, "leads nowhere", two);
    fails(
        Variant::RegisterBeforeSeq,
        stuck,
        Config { kills: 0, ..two },
    );
    // Consumers that leave after one message do not come back to what they left unannounced.
    let leaving = Config {
        consumers: 2,
        takes: 1,
        ..quiet
    };
    fails(
        Variant::NoPassingOn,
        stuck,
        Config {
            producers: &[1, 1],
            ..leaving
        },
    );
    fails(
        Variant::UnregisterBlindly,
        stuck,
        Config {
            producers: &[2],
            ..leaving
        },
    );
    let closing = Config {
        close: true,
        ..quiet
    };
    fails(Variant::SilentClose, stuck, closing);
    fails(
        Variant::ReleaseWakesOneAfterClose,
        stuck,
        Config {
            consumers: 2,
            ..closing
        },
    );
}

#[test]
#[ignore = "big: run it with --release"]
fn big_polling_worlds_hold() {
    let two_by_two = Config {
        producers: &[1, 1],
        consumers: 2,
        ..POLL
    };
    holds("2:2", two_by_two);
    holds(
        "2:2, capacity 1",
        Config {
            capacity: 1,
            ..two_by_two
        },
    );
    let quiet = Config {
        quiet_payload: true,
        ..two_by_two
    };
    holds(
        "2:2, closing",
        Config {
            close: true,
            ..quiet
        },
    );
    holds(
        "1:2, three messages, closing",
        Config {
            producers: &[3],
            close: true,
            ..quiet
        },
    );
    let recovery = Config {
        producers: &[2],
        consumers: 1,
        reapers: 2,
        kills: 2,
        reuses: 2,
        ..quiet
    };
    holds("1:1, two kills, two reapers, two successors", recovery);
    holds(
        "1:1, two kills, two reapers, two successors, capacity 1",
        Config {
            capacity: 1,
            ..recovery
        },
    );
}

#[test]
#[ignore = "big: run it with --release"]
fn big_sleeping_worlds_hold() {
    let two_producers = Config {
        producers: &[1, 1],
        ..PARK
    };
    holds("2:1, asleep", two_producers);
    holds(
        "1:1, asleep, closing",
        Config {
            close: true,
            ..PARK
        },
    );
    holds(
        "1:1, asleep, two reapers, successor",
        Config {
            producers: &[2],
            reapers: 2,
            reuses: 1,
            ..PARK
        },
    );
    let no_kill = Config {
        consumers: 2,
        kills: 0,
        ..PARK
    };
    holds(
        "2:2, asleep, leaving after one message, no kill",
        Config {
            producers: &[1, 1],
            takes: 1,
            ..no_kill
        },
    );
    holds(
        "1:2, asleep, closing, no kill",
        Config {
            close: true,
            ..no_kill
        },
    );
    holds(
        "1:2, asleep",
        Config {
            consumers: 2,
            ..PARK
        },
    );
}
