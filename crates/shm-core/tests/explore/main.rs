//! Explores every interleaving of small worlds over the real algorithms, with a kill before any
//! step, and checks that nothing is lost, doubled, reordered, torn or stuck.
//!
//! Memory is sequentially consistent here; orderings are loom's subject (`tests/loom_*.rs`).
//! `TENSORMP_EXPLORE=full cargo test --release --test explore -- --nocapture` runs the big worlds.

mod engine;
mod memory;
mod queue;

use engine::explore;
use queue::{Config, Queue, Variant};

fn run(name: &str, config: Config, limit: usize) -> engine::Report {
    let start = std::time::Instant::now();
    let report = explore(&Queue::new(config), limit);
    println!(
        "{name}: {} states, {} transitions, {} fair, {} ends, {:?}{}",
        report.states,
        report.transitions,
        report.fair_states,
        report.ends,
        start.elapsed(),
        if report.cut_off { ", cut off" } else { "" },
    );
    report
}

fn holds(name: &str, config: Config) {
    let report = run(name, config, 20_000_000);
    if let Some(violation) = report.violation {
        panic!("{name}: {violation}");
    }
    assert!(!report.cut_off, "{name} is too big");
    assert!(report.ends > 0, "{name} never ends");
}

#[test]
fn probe() {
    for capacity in [1, 2] {
        holds(
            "1:1",
            Config {
                capacity,
                ..Config::BASE
            },
        );
        holds(
            "1:1 close",
            Config {
                capacity,
                close: true,
                ..Config::BASE
            },
        );
        holds(
            "1:1 park",
            Config {
                capacity,
                park: true,
                ..Config::BASE
            },
        );
        holds(
            "1:1, 2 msgs",
            Config {
                capacity,
                producers: &[2],
                ..Config::BASE
            },
        );
        holds(
            "1:1, 2 msgs park",
            Config {
                capacity,
                producers: &[2],
                park: true,
                ..Config::BASE
            },
        );
        holds(
            "1:1, 2 msgs, reuse",
            Config {
                capacity,
                producers: &[2],
                reuses: 1,
                ..Config::BASE
            },
        );
        holds(
            "2:1",
            Config {
                capacity,
                producers: &[1, 1],
                ..Config::BASE
            },
        );
        holds(
            "1:2",
            Config {
                capacity,
                producers: &[2],
                consumers: 2,
                ..Config::BASE
            },
        );
    }
}

#[test]
fn variants() {
    let fails = |name: &str, config: Config| {
        let report = run(name, config, 5_000_000);
        println!(
            "   {name} -> {:?}",
            report
                .violation
                .map(|v| v.lines().next().unwrap_or("").to_owned())
        );
    };
    let base = Config::BASE;
    for capacity in [1, 2] {
        println!("capacity {capacity}");
        let base = Config { capacity, ..base };
        fails(
            "same epoch",
            Config {
                variant: Variant::SameEpoch,
                producers: &[2],
                reapers: 2,
                reuses: 1,
                ..base
            },
        );
        fails(
            "same epoch 2k",
            Config {
                variant: Variant::SameEpoch,
                producers: &[2],
                kills: 2,
                reapers: 2,
                reuses: 2,
                ..base
            },
        );
        fails(
            "orphan",
            Config {
                variant: Variant::NoOrphanEpoch,
                producers: &[2],
                consumers: 2,
                ..base
            },
        );
        fails(
            "drained",
            Config {
                variant: Variant::DrainedWhileTaking,
                producers: &[2],
                consumers: 2,
                close: true,
                ..base
            },
        );
        fails(
            "silent",
            Config {
                variant: Variant::SilentReaper,
                producers: &[2],
                consumers: 2,
                park: true,
                ..base
            },
        );
        fails(
            "silent 2:1",
            Config {
                variant: Variant::SilentReaper,
                producers: &[1, 1],
                consumers: 1,
                park: true,
                ..base
            },
        );
        fails(
            "pass on",
            Config {
                variant: Variant::NoPassingOn,
                producers: &[1, 1],
                consumers: 2,
                park: true,
                kills: 0,
                ..base
            },
        );
        fails(
            "pass on 2:1",
            Config {
                variant: Variant::NoPassingOn,
                producers: &[2, 2],
                consumers: 1,
                park: true,
                kills: 0,
                ..base
            },
        );
        fails(
            "seq",
            Config {
                variant: Variant::RegisterBeforeSeq,
                producers: &[1, 1],
                consumers: 1,
                park: true,
                kills: 0,
                ..base
            },
        );
        fails(
            "seq 1:2",
            Config {
                variant: Variant::RegisterBeforeSeq,
                producers: &[2],
                consumers: 2,
                park: true,
                kills: 0,
                ..base
            },
        );
        fails(
            "blind",
            Config {
                variant: Variant::UnregisterBlindly,
                producers: &[1, 1],
                consumers: 1,
                park: true,
                kills: 0,
                ..base
            },
        );
        fails(
            "blind 1:2",
            Config {
                variant: Variant::UnregisterBlindly,
                producers: &[2],
                consumers: 2,
                park: true,
                kills: 0,
                ..base
            },
        );
        fails(
            "wake one",
            Config {
                variant: Variant::ReleaseWakesOneAfterClose,
                producers: &[1],
                consumers: 2,
                park: true,
                close: true,
                kills: 0,
                ..base
            },
        );
        fails(
            "silent close",
            Config {
                variant: Variant::SilentClose,
                producers: &[1],
                consumers: 1,
                park: true,
                close: true,
                kills: 0,
                ..base
            },
        );
        fails(
            "rel",
            Config {
                variant: Variant::ReleaseBeforeRead,
                producers: &[2],
                kills: 0,
                ..base
            },
        );
        fails(
            "rel2",
            Config {
                variant: Variant::ReleaseBeforeRead,
                producers: &[3],
                kills: 0,
                ..base
            },
        );
        fails(
            "pub",
            Config {
                variant: Variant::PublishBeforeWrite,
                producers: &[2],
                kills: 0,
                ..base
            },
        );
    }
}
