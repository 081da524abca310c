//! Kills from outside, at moments that nobody chose.

use std::hash::{BuildHasher, Hasher, RandomState};

use integration_tests::{Receipts, Test, kill, tests};

use crate::scene::{Role, Way, play};

pub(crate) const TESTS: &[Test] = &tests![
    a_producer_of_a_queue_may_be_killed_at_any_moment,
    a_consumer_of_a_queue_may_be_killed_at_any_moment,
    a_producer_of_a_ring_may_be_killed_at_any_moment,
    a_consumer_of_a_ring_may_be_killed_at_any_moment,
    one_of_each_side_may_be_killed_at_any_moment,
];

const ROUNDS: usize = 12;
const COUNT: u64 = 600;

/// A number below `limit`, another in each run.
fn random(limit: u64) -> u64 {
    RandomState::new().build_hasher().finish() % limit
}

/// Waits until so much was sent and taken.
fn see(receipts: &Receipts, count: u64) {
    while receipts.count() < count {
        std::thread::yield_now();
    }
    // And a little more, so that the kill comes anywhere between two receipts.
    for _ in 0..random(2000) {
        std::hint::spin_loop();
    }
}

fn rounds(way: Way, victims: &[Role]) {
    let armed: Vec<_> = victims.iter().map(|&role| (role, None)).collect();
    for _ in 0..ROUNDS {
        let mut moments: Vec<u64> = victims.iter().map(|_| random(2 * COUNT)).collect();
        moments.sort_unstable();
        let killed = play(way, COUNT, &armed, |pids, receipts| {
            for (moment, role) in moments.iter().zip(victims) {
                see(receipts, *moment);
                kill(match role {
                    Role::Producer(number) => pids[*number],
                    Role::Consumer(number) => pids[2 + number],
                });
            }
        });
        assert!(killed <= victims.len());
    }
}

fn a_producer_of_a_queue_may_be_killed_at_any_moment() {
    rounds(Way::Queue, &[Role::Producer(0)]);
}

fn a_consumer_of_a_queue_may_be_killed_at_any_moment() {
    rounds(Way::Queue, &[Role::Consumer(1)]);
}

fn a_producer_of_a_ring_may_be_killed_at_any_moment() {
    rounds(Way::Ring, &[Role::Producer(1)]);
}

fn a_consumer_of_a_ring_may_be_killed_at_any_moment() {
    rounds(Way::Ring, &[Role::Consumer(0)]);
}

fn one_of_each_side_may_be_killed_at_any_moment() {
    rounds(Way::Queue, &[Role::Producer(0), Role::Consumer(0)]);
    rounds(Way::Ring, &[Role::Consumer(1), Role::Producer(1)]);
}
