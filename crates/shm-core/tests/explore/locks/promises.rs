//! What holds in the worlds of locks, and what is noticed when a rule is left out.

use super::Role::{Locker, Party, Reader, Reaper, Writer};
use super::{Config, Locks, Variant};
use crate::{all_is_well, is_noticed};

fn lock_holds(name: &str, config: Config) {
    all_is_well(name, &Locks::new(config));
}

fn lock_fails(variant: Variant, with: &str, config: Config) {
    is_noticed(&variant, with, &Locks::new(Config { variant, ..config }));
}

/// Two that lock once, one reaper, one kill.
const LOCKS: Config = Config {
    roles: &[Locker, Locker, Reaper],
    words: 1,
    rounds: 1,
    kills: 1,
    reuses: 0,
    variant: Variant::Right,
};

#[test]
fn a_mutex_survives_a_kill_anywhere_and_the_next_holder_is_told() {
    lock_holds("mutex", LOCKS);
    let rounds = 2;
    lock_holds("mutex, twice", Config { rounds, ..LOCKS });
    lock_holds(
        "mutex, two reapers, a successor",
        Config {
            roles: &[Locker, Locker, Reaper, Reaper],
            reuses: 1,
            ..LOCKS
        },
    );
}

#[test]
fn a_semaphore_survives_a_kill_anywhere() {
    let two = Config { words: 2, ..LOCKS };
    lock_holds("two permits, two processes", two);
    lock_holds(
        "two permits, three processes, no kill",
        Config {
            roles: &[Locker, Locker, Locker],
            kills: 0,
            ..two
        },
    );
}

#[test]
fn readers_and_writers_survive_a_kill_anywhere() {
    lock_holds(
        "a reader and a writer",
        Config {
            roles: &[Reader, Writer, Reaper],
            words: 2,
            ..LOCKS
        },
    );
    lock_holds(
        "two writers",
        Config {
            roles: &[Writer, Writer, Reaper],
            words: 2,
            ..LOCKS
        },
    );
}

#[test]
fn a_barrier_survives_a_kill_anywhere() {
    lock_holds(
        "barrier of two",
        Config {
            roles: &[Party, Party, Reaper],
            rounds: 2,
            ..LOCKS
        },
    );
    lock_holds(
        "barrier of three, no kill",
        Config {
            roles: &[Party, Party, Party],
            kills: 0,
            ..LOCKS
        },
    );
}

#[test]
fn locks_without_one_of_their_rules_are_noticed() {
    let stuck = "nobody can go on";
    lock_fails(Variant::SilentReaper, stuck, LOCKS);
    let quiet = Config { kills: 0, ..LOCKS };
    lock_fails(Variant::SilentRelease, stuck, quiet);
    lock_fails(
        Variant::SameEpoch,
        "was not its holder's",
        Config {
            roles: &[Locker, Locker, Reaper, Reaper],
            reuses: 1,
            ..LOCKS
        },
    );
    let mixed = Config {
        roles: &[Reader, Writer],
        words: 2,
        ..quiet
    };
    lock_fails(Variant::ReaderDoesNotLook, "while another writes", mixed);
    lock_fails(Variant::SilentStepBack, stuck, mixed);
    lock_fails(
        Variant::NotBroken,
        "leads nowhere",
        Config {
            roles: &[Party, Party, Reaper],
            ..LOCKS
        },
    );
}

#[test]
#[ignore = "big: run it with --release"]
fn big_worlds_of_locks_hold() {
    let two_reapers = Config {
        roles: &[Locker, Locker, Reaper, Reaper],
        kills: 2,
        reuses: 1,
        ..LOCKS
    };
    lock_holds("mutex, two reapers, two kills, a successor", two_reapers);
    lock_holds(
        "two permits, three processes",
        Config {
            roles: &[Locker, Locker, Locker, Reaper],
            words: 2,
            ..LOCKS
        },
    );
    lock_holds(
        "two readers and a writer",
        Config {
            roles: &[Reader, Reader, Writer, Reaper],
            words: 3,
            ..LOCKS
        },
    );
    lock_holds(
        "barrier of three",
        Config {
            roles: &[Party, Party, Party, Reaper],
            ..LOCKS
        },
    );
}
