//! What a spawned process costs: start → function → joined, against this executable run again → exit → waited for.
//!
//! Floor and subject alternate in short batches; the figure is the median of the ratios of neighbours, and the floor
//! against itself is printed beside it: `cargo bench -p spawn --bench start`.

use std::process::Command;
use std::time::{Duration, Instant};

static METHOD: std::sync::OnceLock<spawn::StartMethod> = std::sync::OnceLock::new();

const ROUNDS: usize = 15;
const BATCH: usize = 30;

fn nothing(_rank: usize, _: ()) {}

fn main() {
    // The floor's process: the same executable, and nothing done in it.
    if std::env::args().nth(1).as_deref() == Some("floor") {
        return;
    }
    spawn::init();
    // A few starts and nothing else, or as many of the floor's, to look at under strace or perf.
    let mut words = std::env::args().skip(1);
    if words.next().as_deref() == Some("few") {
        let floor = words.next().as_deref() == Some("floor");
        let one = if floor { floor_once } else { spawned };
        (0..200).for_each(|_| one());
        return;
    }
    let method = if std::env::args().any(|word| word == "forkserver") {
        spawn::StartMethod::Forkserver
    } else {
        spawn::StartMethod::Spawn
    };
    METHOD.set(method).expect("set once");
    let mut floors = Vec::new();
    let mut subjects = Vec::new();
    let mut ratios = Vec::new();
    let mut against_itself = Vec::new();
    batch(spawned);
    for _ in 0..ROUNDS {
        let floor = batch(floor_once);
        let subject = batch(spawned);
        let again = batch(floor_once);
        ratios.push(subject.as_secs_f64() / floor.as_secs_f64());
        against_itself.push(again.as_secs_f64() / floor.as_secs_f64());
        floors.push(floor.as_secs_f64() * 1e6);
        subjects.push(subject.as_secs_f64() * 1e6);
    }
    println!(
        "{method}: p50 {:.0} us; run again, exit, wait: p50 {:.0} us; ratio {:.2} (floor against itself {:.2})",
        median(subjects),
        median(floors),
        median(ratios),
        median(against_itself),
    );
}

/// The median time of one start in a batch.
fn batch(one: fn()) -> Duration {
    let mut times: Vec<Duration> = (0..BATCH)
        .map(|_| {
            let start = Instant::now();
            one();
            start.elapsed()
        })
        .collect();
    times.sort();
    times[BATCH / 2]
}

fn floor_once() {
    let status = Command::new("/proc/self/exe")
        .arg("floor")
        .status()
        .expect("this executable runs again");
    assert!(status.success());
}

fn spawned() {
    let method = METHOD.get().copied().unwrap_or_default();
    let started = spawn::builder().start_method(method).spawn(nothing, (), 1);
    let mut context = started.expect("a process");
    assert_eq!(context.join().expect("a result"), [()]);
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
