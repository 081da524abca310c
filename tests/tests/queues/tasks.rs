//! Queues of tasks: when all are done, also when those who do them die.

use std::time::Duration;

use integration_tests::{Test, kill, tests};
use mp_queue::{ErrorKind, SimpleQueue};
use tensormp::mp_queue;
use tensormp::prelude::*;

pub(crate) const TESTS: &[Test] = &tests![
    a_queue_is_idle_when_every_task_is_done,
    the_tasks_of_a_killed_consumer_are_lost_and_not_waited_for,
    a_task_that_was_not_taken_cannot_be_done,
    tasks_that_make_tasks_are_waited_for,
    a_simple_queue_is_pythons,
];

fn a_queue_is_idle_when_every_task_is_done() {
    fn works(
        _rank: usize,
        (tasks, sum): (JoinableQueue<u64>, AliasedTensor<u64>),
    ) -> tensormp::Result<()> {
        while let Ok(task) = tasks.get() {
            sum.fetch_add(&[0], task)?;
            tasks.task_done()?;
        }
        Ok(())
    }
    let tasks = JoinableQueue::bounded(8).unwrap();
    let sum = Tensor::zeros(1).unwrap().alias();
    let mut context = spawn(works, (tasks.clone(), sum.clone()), 3).unwrap();
    for round in 1..=20 {
        for task in 1..=50 {
            tasks.put(task).unwrap();
        }
        tasks.wait_idle().unwrap();
        assert_eq!(
            sum.load(&[0]).unwrap(),
            round * 1275,
            "all were done, not only taken"
        );
    }
    tasks.close();
    context.join().unwrap();
    let stats = tasks.stats();
    assert_eq!((stats.put, stats.got, stats.lost), (1_000, 1_000, 0));
}

fn the_tasks_of_a_killed_consumer_are_lost_and_not_waited_for() {
    fn takes_two(
        _rank: usize,
        (tasks, ready): (JoinableQueue<Tensor<u8>>, Event),
    ) -> tensormp::Result<()> {
        let _kept = [tasks.get()?, tasks.get()?];
        ready.set();
        loop {
            std::thread::park();
        }
    }
    let (tasks, ready) = (JoinableQueue::bounded(8).unwrap(), Event::new().unwrap());
    for i in 0..3 {
        tasks.put(Tensor::full(100, i).unwrap()).unwrap();
    }
    let context = spawn(takes_two, (tasks.clone(), ready.clone()), 1).unwrap();
    ready.wait().unwrap();
    let short = Duration::from_millis(20);
    let error = tasks.wait_idle_timeout(short).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::TimedOut);
    assert!(error.to_string().contains("2 are in hand"), "{error}");
    kill(context.pids()[0]);
    drop(context);
    // The third is ours to do.
    assert_eq!(tasks.get().unwrap().as_slice(), [2; 100]);
    assert!(!tasks.is_idle());
    tasks.task_done().unwrap();
    // A context that failed is told by the queues it had; a new one begins anew.
    let mut other = spawn(
        |_rank: usize, _tasks: JoinableQueue<Tensor<u8>>| (),
        tasks.clone(),
        1,
    )
    .unwrap();
    other.join().unwrap();
    tasks.wait_idle().unwrap();
    assert_eq!(tasks.stats().lost, 2);
}

fn a_task_that_was_not_taken_cannot_be_done() {
    let tasks = JoinableQueue::bounded(2).unwrap();
    tasks.put(7_u8).unwrap();
    assert_eq!(tasks.task_done().unwrap_err().kind(), &ErrorKind::NoTask);
    assert_eq!(tasks.get().unwrap(), 7);
    tasks.task_done().unwrap();
    assert_eq!(tasks.task_done().unwrap_err().kind(), &ErrorKind::NoTask);
    assert!(tasks.is_idle());
}

fn tasks_that_make_tasks_are_waited_for() {
    /// Makes two of each task until they are small.
    fn halves(
        _rank: usize,
        (tasks, leaves): (JoinableQueue<u32>, AliasedTensor<u64>),
    ) -> tensormp::Result<()> {
        while let Ok(task) = tasks.get() {
            if task > 1 {
                tasks.put(task / 2)?;
                tasks.put(task - task / 2)?;
            } else {
                leaves.fetch_add(&[0], 1)?;
            }
            tasks.task_done()?;
        }
        Ok(())
    }
    let tasks = JoinableQueue::bounded(1_024).unwrap();
    let leaves = Tensor::zeros(1).unwrap().alias();
    let mut context = spawn(halves, (tasks.clone(), leaves.clone()), 2).unwrap();
    for round in 1..=5 {
        tasks.put(200).unwrap();
        tasks.wait_idle().unwrap();
        assert_eq!(leaves.load(&[0]).unwrap(), 200 * round);
    }
    tasks.close();
    context.join().unwrap();
}

fn a_simple_queue_is_pythons() {
    fn answers(
        _rank: usize,
        (to, from): (SimpleQueue<u32>, SimpleQueue<u32>),
    ) -> tensormp::Result<()> {
        while let Ok(number) = to.get() {
            from.put(number + 1)?;
        }
        Ok(())
    }
    let (to, from) = (SimpleQueue::new().unwrap(), SimpleQueue::new().unwrap());
    let mut context = spawn(answers, (to.clone(), from.clone()), 1).unwrap();
    for number in 0..100 {
        to.put(number).unwrap();
        assert_eq!(from.get().unwrap(), number + 1);
    }
    assert!(to.empty() && from.empty());
    to.close();
    context.join().unwrap();
}
