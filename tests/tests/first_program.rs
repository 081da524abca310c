//! The first program of the README, as it is and with workers that go wrong: the right sum, or an error that says who
//! and why. Never a hang.

use std::process::{Command, ExitCode};

use integration_tests::{kill, tests};
use tensormp::prelude::*;

fn main() -> ExitCode {
    integration_tests::main(&tests![
        the_first_program_prints_its_sum,
        one_worker_gives_the_same_sum,
        many_workers_give_the_same_sum,
        one_worker_that_panics_is_told,
        one_of_four_that_panics_is_told,
        one_worker_that_kills_itself_is_told,
        one_worker_that_is_killed_is_told,
        one_of_four_that_is_killed_is_told,
        one_worker_that_returns_early_is_told,
        four_workers_that_return_early_are_told,
        one_of_four_may_return_early,
        one_worker_that_fails_is_told,
        one_of_four_that_fails_is_told,
        one_worker_that_exits_with_a_code_is_told,
        one_worker_that_exits_with_0_is_told,
        an_error_after_the_last_message_is_told_by_join,
        a_program_that_gives_up_leaves_no_worker,
    ])
}

const TENSORS: u32 = 100;

fn sum(_rank: usize, work: Receiver<Tensor<f32>>) -> tensormp::Result<f64> {
    let mut total = 0.0;
    for tensor in &work {
        total += tensor.as_slice().iter().map(|&x| f64::from(x)).sum::<f64>();
    }
    Ok(total)
}

/// What a worker answers.
type Answer = tensormp::Result<f64>;

/// As the example's `main`, with the function and the number of workers given. `before` is called before each message.
fn program<F>(work: F, workers: usize, before: impl Fn(u32, &SpawnContext<f64>)) -> Answer
where
    F: Fn(usize, Receiver<Tensor<f32>>) -> Answer + Copy + Send + 'static,
{
    let (sender, receiver) = Queue::bounded(8)?.split();
    let mut context = spawn(work, receiver, workers)?;
    for i in 0..TENSORS {
        before(i, &context);
        sender.put(Tensor::full([SIDE, SIDE], i as f32)?)?;
    }
    drop(sender);
    Ok(context.join()?.iter().sum())
}

/// What the program above adds up: small tensors, since nothing here is about their size.
const SIDE: usize = 64;
const SMALL_SUM: f64 = (SIDE * SIDE) as f64 * 4950.0;

fn undisturbed(_: u32, _: &SpawnContext<f64>) {}

/// The error, which must hold all these words.
#[track_caller]
fn told(answer: Answer, words: &[&str]) -> String {
    let text = answer.expect_err("an error").to_string();
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
    assert!(!text.contains('\n'), "more than a line: {text}");
    text
}

fn the_first_program_prints_its_sum() {
    let output = Command::new(env!("CARGO_BIN_EXE_first")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "5190451200\n");
}

fn one_worker_gives_the_same_sum() {
    assert_eq!(program(sum, 1, undisturbed).unwrap(), SMALL_SUM);
}

fn many_workers_give_the_same_sum() {
    assert_eq!(program(sum, 7, undisturbed).unwrap(), SMALL_SUM);
}

/// Does what the others do, but the one of this rank takes a message and then goes wrong.
fn sum_but<const RANK: usize>(
    rank: usize,
    work: Receiver<Tensor<f32>>,
    wrong: fn() -> Answer,
) -> Answer {
    if rank != RANK {
        return sum(rank, work);
    }
    // The others may have taken all there was.
    let _ = work.get();
    wrong()
}

fn panics<const RANK: usize>(rank: usize, work: Receiver<Tensor<f32>>) -> Answer {
    sum_but::<RANK>(rank, work, || panic!("the scale is {}", 0))
}

fn one_worker_that_panics_is_told() {
    let words = [
        "process \"",
        "pid ",
        "panicked at ",
        "first_program.rs:",
        "the scale is 0",
    ];
    told(program(panics::<0>, 1, undisturbed), &words);
}

fn one_of_four_that_panics_is_told() {
    let words = [
        ".2\" (pid ",
        "pid ",
        "panicked at ",
        "first_program.rs:",
        "the scale is 0",
    ];
    told(program(panics::<2>, 4, undisturbed), &words);
}

fn one_worker_that_kills_itself_is_told() {
    fn dies(rank: usize, work: Receiver<Tensor<f32>>) -> Answer {
        sum_but::<0>(rank, work, || {
            kill(std::process::id());
            unreachable!("nobody survives SIGKILL");
        })
    }
    let words = [
        "process \"",
        "pid ",
        "was killed by SIGKILL before its function returned",
    ];
    told(program(dies, 1, undisturbed), &words);
}

/// Kills a worker once most messages are on their way, so that all workers are most likely in the middle of them.
fn kills<const RANK: usize>(i: u32, context: &SpawnContext<f64>) {
    if i == TENSORS / 2 {
        kill(context.pids()[RANK]);
    }
}

fn one_worker_that_is_killed_is_told() {
    let text = told(
        program(sum, 1, kills::<0>),
        &["process \"", "(pid ", "was killed by SIGKILL"],
    );
    assert!(
        !text.contains("memory"),
        "nothing was short of memory: {text}"
    );
}

fn one_of_four_that_is_killed_is_told() {
    told(
        program(sum, 4, kills::<3>),
        &["process \"", ".3\" (pid ", "killed by SIGKILL"],
    );
}

fn returns_early(_rank: usize, work: Receiver<Tensor<f32>>) -> Answer {
    work.get()?;
    Ok(0.0)
}

fn one_worker_that_returns_early_is_told() {
    let words = [
        "putting a message",
        "the process with pid ",
        "returned",
        "the last receiver",
    ];
    told(program(returns_early, 1, undisturbed), &words);
}

fn four_workers_that_return_early_are_told() {
    let words = [
        "putting a message",
        "process ",
        "pid ",
        "returned",
        "the last receiver",
    ];
    told(program(returns_early, 4, undisturbed), &words);
}

fn one_of_four_may_return_early() {
    fn one_rests(rank: usize, work: Receiver<Tensor<f32>>) -> Answer {
        match rank {
            1 => Ok(0.0),
            _ => sum(rank, work),
        }
    }
    assert_eq!(program(one_rests, 4, undisturbed).unwrap(), SMALL_SUM);
}

fn fails<const RANK: usize>(rank: usize, work: Receiver<Tensor<f32>>) -> Answer {
    sum_but::<RANK>(rank, work, || Err("the weights are missing".into()))
}

fn one_worker_that_fails_is_told() {
    let words = [
        "process \"",
        "pid ",
        "returned an error: the weights are missing",
    ];
    told(program(fails::<0>, 1, undisturbed), &words);
}

fn one_of_four_that_fails_is_told() {
    let words = [
        ".1\" (pid ",
        "pid ",
        "returned an error: the weights are missing",
    ];
    told(program(fails::<1>, 4, undisturbed), &words);
}

fn exits<const CODE: i32>(rank: usize, work: Receiver<Tensor<f32>>) -> Answer {
    sum_but::<0>(rank, work, || std::process::exit(CODE))
}

fn one_worker_that_exits_with_a_code_is_told() {
    let words = [
        "process \"",
        "pid ",
        "exited with code 3 before its function returned",
    ];
    told(program(exits::<3>, 1, undisturbed), &words);
    told(program(exits::<3>, 4, undisturbed), &words);
}

fn one_worker_that_exits_with_0_is_told() {
    let words = [
        "process \"",
        "pid ",
        "exited with code 0 before its function returned",
        "no result",
    ];
    told(program(exits::<0>, 1, undisturbed), &words);
    told(program(exits::<0>, 4, undisturbed), &words);
}

fn an_error_after_the_last_message_is_told_by_join() {
    fn fails_last(rank: usize, work: Receiver<Tensor<f32>>) -> Answer {
        let total = sum(rank, work)?;
        Err(format!("{total} is too much").into())
    }
    let answer = program(fails_last, 1, undisturbed);
    assert!(
        matches!(answer, Err(tensormp::Error::Process(_))),
        "{answer:?}"
    );
    let words = [
        "process \"fails_last\" (pid ",
        "returned an error",
        "is too much",
    ];
    told(answer, &words);
}

fn a_program_that_gives_up_leaves_no_worker() {
    fn gives_up() -> Answer {
        let (sender, receiver) = Queue::<Tensor<f32>>::bounded(8)?.split();
        let context = spawn(sum, receiver, 4)?;
        sender.put(Tensor::zeros(4)?)?;
        Err(format!("no use with {} workers", context.pids().len()).into())
    }
    // That nothing is left is checked after each test.
    told(gives_up(), &["no use with 4 workers"]);
}
