//! Workers killed at each step of taking a request and of replying.

use integration_tests::{Test, allow_leaks, play, tests};
use tensormp::mp_queue::ErrorKind;
use tensormp::prelude::*;
use tensormp::shm_core::failpoint::LABELS;

pub(crate) const TESTS: &[Test] = &tests![a_worker_killed_at_any_step_loses_at_most_its_task];

pub(crate) const SCENES: &[Test] = &tests![a_map_by_victims];

fn a_worker_killed_at_any_step_loses_at_most_its_task() {
    let labels = LABELS.iter().filter(|label| label.starts_with("lane."));
    let mut scenes = 0;
    for label in labels {
        let output = play("a_map_by_victims")
            .env("TENSORMP_FAILPOINT", format!("{label}:9@victim.0=kill"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{label}: {said}");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("some died: true"), "{label}: {said}");
        scenes += 1;
    }
    assert!(scenes >= 5);
}

/// Of two workers one dies at its ninth pass of a step, and so does each of its successors.
fn a_map_by_victims() {
    type Item = (u32, Tensor<u32>, SharedTensor<u32>);
    fn add((x, own, shared): Item) -> tensormp::Result<(u32, Tensor<u32>)> {
        Ok((x + own.as_slice()[0] + shared.as_slice()[0], own))
    }
    // A kill leaks one count at most.
    allow_leaks(200);
    let pool = Pool::builder().workers(2).name("victim").start().unwrap();
    let before = pool.pids();
    // Both run before there is work: else one of them might do nearly all of it before the other has started.
    let both = Barrier::new(2).unwrap();
    let meet = |both: Barrier| both.wait().map(drop);
    for met in pool.map(meet, [both.clone(), both]).unwrap() {
        met.unwrap();
    }
    let shared = Tensor::full(4, 1000_u32).unwrap().freeze();
    let items = (0..120).map(|x| (x, Tensor::full(7, x).unwrap(), shared.clone()));
    let mut lost = 0;
    let mut outcomes = 0;
    for (x, outcome) in (0..).zip(pool.map(add, items).unwrap()) {
        outcomes += 1;
        match outcome {
            Ok((sum, own)) => {
                assert_eq!(sum, 2 * x + 1000);
                assert_eq!(own.as_slice(), [x; 7]);
            }
            Err(error) => {
                assert!(
                    matches!(error.kind(), ErrorKind::TaskLost { .. }),
                    "{error}"
                );
                lost += 1;
            }
        }
    }
    assert_eq!(outcomes, 120);
    assert!(lost <= 40, "{lost}");
    println!("some died: {}", before != pool.pids() || lost > 0);
}
