//! Several processes write one tensor at the same time.

use integration_tests::{Test, kill, pidfd, tests, wait_for_end};
use tensormp::prelude::*;
use tensormp::{Complex64, Complex128};

pub(crate) const TESTS: &[Test] = &tests![
    processes_that_count_lose_nothing,
    processes_that_add_floats_atomically_lose_nothing,
    hogwild_may_lose_updates_but_invents_nothing,
    an_element_is_never_half_of_what_two_processes_wrote,
    the_parts_of_a_complex128_are_each_whole,
    what_was_written_before_a_barrier_is_seen_after_it,
    a_view_that_a_child_returns_is_of_the_same_memory,
    a_writer_that_is_killed_gives_its_hold_back,
];

const PROCESSES: usize = 4;

fn processes_that_count_lose_nothing() {
    const ROUNDS: u16 = 400;
    type Counts = (AliasedTensor<u16>, AliasedTensor<i64>);
    fn count(_rank: usize, (small, large): Counts) -> tensormp::Result<()> {
        for _ in 0..ROUNDS {
            for i in 0..small.len() {
                small.fetch_add(&[i], 1)?;
            }
            for i in 0..3 {
                for j in 0..5 {
                    large.fetch_add(&[i, j], 1)?;
                }
            }
        }
        Ok(())
    }
    // Neighbours of two bytes lie in one word, and elements of a transposed view far apart.
    let small = Tensor::<u16>::zeros(37).unwrap().alias();
    let large = Tensor::<i64>::zeros([5, 3]).unwrap().alias();
    let turned = large.transpose(0, 1).unwrap();
    let mut context = spawn(count, (small.clone(), turned), PROCESSES).unwrap();
    context.join().unwrap();
    let wanted = PROCESSES as u16 * ROUNDS;
    assert_eq!(small.try_unalias().unwrap().as_slice(), [wanted; 37]);
    assert_eq!(large.to_vec(), [i64::from(wanted); 15]);
    drop(context);
    assert!(large.try_freeze().is_ok(), "nobody holds it any more");
}

fn processes_that_add_floats_atomically_lose_nothing() {
    fn add(_rank: usize, sums: AliasedTensor<f32>) -> tensormp::Result<()> {
        for round in 0..4000 {
            sums.fetch_update(&[round % 4], |sum| sum + 1.0)?;
        }
        Ok(())
    }
    let sums = Tensor::<f32>::zeros(4).unwrap().alias();
    spawn(add, sums.clone(), PROCESSES).unwrap().join().unwrap();
    assert_eq!(sums.to_vec(), [4000.0; 4]);
}

fn hogwild_may_lose_updates_but_invents_nothing() {
    const ROUNDS: usize = 500;
    fn step(_rank: usize, weights: AliasedTensor<f32>) -> tensormp::Result<()> {
        let gradient = vec![1.0; weights.len()];
        for _ in 0..ROUNDS {
            weights.apply(&gradient, |weight, slope| weight + slope)?;
        }
        Ok(())
    }
    let weights = Tensor::<f32>::zeros([16, 16]).unwrap().alias();
    let mut context = spawn(step, weights.clone(), PROCESSES).unwrap();
    context.join().unwrap();
    for weight in weights.to_vec() {
        // Whole steps only, no more than were made, and the last one of somebody is there.
        let most = (PROCESSES * ROUNDS) as f32;
        assert!(
            weight.fract() == 0.0 && (1.0..=most).contains(&weight),
            "{weight}"
        );
    }
}

/// What the processes write: the two halves of a pattern belong together.
fn pattern(rank: usize) -> (f32, f32) {
    (rank as f32 + 0.25, -(rank as f32) - 0.25)
}

fn an_element_is_never_half_of_what_two_processes_wrote() {
    fn write_and_look(rank: usize, tensor: AliasedTensor<Complex64>) -> tensormp::Result<()> {
        let (re, im) = pattern(rank);
        for _ in 0..2000 {
            tensor.fill(Complex64::new(re, im));
            for seen in tensor.to_vec() {
                let known = (0..PROCESSES).any(|rank| pattern(rank) == (seen.re, seen.im));
                assert!(known || seen == Complex64::default(), "{seen:?}");
            }
        }
        Ok(())
    }
    let tensor = Tensor::<Complex64>::zeros(8).unwrap().alias();
    spawn(write_and_look, tensor, PROCESSES)
        .unwrap()
        .join()
        .unwrap();
}

fn the_parts_of_a_complex128_are_each_whole() {
    fn write_and_look(rank: usize, tensor: AliasedTensor<Complex128>) -> tensormp::Result<()> {
        let (re, im) = pattern(rank);
        for _ in 0..2000 {
            tensor.fill(Complex128::new(re.into(), im.into()));
            for seen in tensor.to_vec() {
                let mut known = (0..PROCESSES).map(pattern).chain([(0.0, 0.0)]);
                assert!(known.any(|(re, _)| f64::from(re) == seen.re), "{seen:?}");
                let mut known = (0..PROCESSES).map(pattern).chain([(0.0, 0.0)]);
                assert!(known.any(|(_, im)| f64::from(im) == seen.im), "{seen:?}");
            }
        }
        Ok(())
    }
    let tensor = Tensor::<Complex128>::zeros(8).unwrap().alias();
    spawn(write_and_look, tensor, PROCESSES)
        .unwrap()
        .join()
        .unwrap();
}

fn what_was_written_before_a_barrier_is_seen_after_it() {
    fn work(rank: usize, (tensor, barrier): (AliasedTensor<u64>, Barrier)) -> tensormp::Result<()> {
        let row = tensor.select(0, rank)?;
        for round in 1..=50 {
            row.fill(round);
            barrier.wait()?;
            assert_eq!(tensor.to_vec(), vec![round; PROCESSES * 100]);
            barrier.wait()?;
        }
        Ok(())
    }
    let tensor = Tensor::<u64>::zeros([PROCESSES, 100]).unwrap().alias();
    let barrier = Barrier::new(PROCESSES as u32).unwrap();
    spawn(work, (tensor, barrier), PROCESSES)
        .unwrap()
        .join()
        .unwrap();
}

fn a_view_that_a_child_returns_is_of_the_same_memory() {
    fn column(rank: usize, tensor: AliasedTensor<u8>) -> tensormp::Result<AliasedTensor<u8>> {
        let column = tensor.select(1, rank)?;
        column.fill(rank as u8 + 1);
        Ok(column)
    }
    let tensor = Tensor::<u8>::zeros([3, 2]).unwrap().alias();
    let context = spawn(column, tensor.clone(), 2).unwrap();
    let columns = context.into_results().unwrap();
    assert_eq!(tensor.to_vec(), [1, 2, 1, 2, 1, 2]);
    columns[1].fill(9);
    assert_eq!(tensor.to_vec(), [1, 9, 1, 9, 1, 9]);
    assert!(columns.iter().all(|column| column.same_storage(&tensor)));
}

fn a_writer_that_is_killed_gives_its_hold_back() {
    fn write_for_ever(_rank: usize, (tensor, event): (AliasedTensor<u32>, Event)) {
        for round in 0_u32.. {
            tensor.fill(round);
            event.set();
        }
    }
    let tensor = Tensor::<u32>::zeros(1000).unwrap().alias();
    let event = Event::new().unwrap();
    let mut context = spawn(write_for_ever, (tensor.clone(), event.clone()), 1).unwrap();
    event.wait().unwrap();
    let tensor = tensor.try_unalias().unwrap_err();
    let pid = context.pids()[0];
    let fd = pidfd(pid);
    kill(pid);
    wait_for_end(&fd);
    context.join().unwrap_err();
    drop(context);
    assert!(tensor.try_unalias().is_ok());
}
