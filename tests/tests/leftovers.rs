//! Narrow limits and sudden ends: a clear error or success, no hang, and nothing is left.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitCode, Stdio};

use integration_tests::{Test, kill, pidfd, play, tests, wait_for_end};
use pipeline::{Consumer, Producer, TensorSpec, Topology, ring};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tensormp::pipeline;
use tensormp::prelude::*;

fn main() -> ExitCode {
    let scenes: &[Test] = &tests![workers_that_wait, workers_of_workers];
    let tests = tests![
        few_descriptors_are_enough_or_an_error_that_says_so,
        descriptors_do_not_run_out,
        one_core_is_enough,
        workers_die_with_a_program_that_is_killed,
        workers_of_workers_die_with_a_program_that_is_killed,
        a_program_that_is_terminated_leaves_nothing,
        a_child_that_aborts_does_not_fill_the_arena,
        children_that_fail_one_after_the_other_leave_no_memory,
    ];
    integration_tests::main_with_scenes(&tests, scenes)
}

/// Two workers add up ten tensors.
fn a_small_job() -> tensormp::Result<f64> {
    fn sum(_rank: usize, work: Receiver<Tensor<f64>>) -> tensormp::Result<f64> {
        Ok(work
            .iter()
            .map(|tensor| tensor.as_slice().iter().sum::<f64>())
            .sum())
    }
    let (sender, receiver) = Queue::bounded(4)?.split();
    let mut workers = spawn(sum, receiver, 2)?;
    for i in 0..10 {
        sender.put(Tensor::full([10, 10], f64::from(i))?)?;
    }
    drop(sender);
    Ok(workers.join()?.iter().sum())
}

fn limit(resource: Resource, current: Option<u64>) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current, maximum }).unwrap();
}

fn few_descriptors_are_enough_or_an_error_that_says_so() {
    let mut enough = 0;
    let mut told = 0;
    for descriptors in 3..=40 {
        limit(Resource::Nofile, Some(descriptors));
        let answer = a_small_job();
        limit(Resource::Nofile, Some(1000));
        match answer {
            Ok(sum) => {
                assert_eq!(sum, 4500.0);
                enough += 1;
            }
            Err(error) => {
                let text = error.to_string();
                assert!(
                    text.contains("ulimit -n")
                        || text.contains("open files")
                        || text.contains("descriptor"),
                    "with {descriptors} descriptors: {text}"
                );
                told += 1;
            }
        }
    }
    assert!(enough > 0 && told > 0, "{enough} succeeded, {told} failed");
}

fn descriptors_do_not_run_out() {
    limit(Resource::Nofile, Some(64));
    for _ in 0..40 {
        assert_eq!(a_small_job().unwrap(), 4500.0);
        let (mut producer, mut consumer) = small_ring();
        let slot = producer.loan().unwrap();
        producer.publish(slot).unwrap();
        assert!(consumer.borrow().unwrap().is_some());
    }
}

fn small_ring() -> (Producer, Consumer) {
    ring(2, &[TensorSpec::of::<u64>(100)], Topology::OneToOne).unwrap()
}

fn one_core_is_enough() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    fn write(_rank: usize, mut producer: Producer) -> tensormp::Result<u64> {
        for number in 0..500 {
            let mut slot = producer.loan()?;
            slot.tensor_mut::<u64>(0)?.fill(number);
            producer.publish(slot)?;
        }
        Ok(0)
    }
    fn read(_rank: usize, mut consumer: Consumer) -> tensormp::Result<u64> {
        let mut sum = 0;
        while let Some(slot) = consumer.borrow()? {
            sum += slot.tensor::<u64>(0)?[99];
        }
        Ok(sum)
    }
    let all = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)).unwrap();
    let mut one = CpuSet::new();
    one.set(first);
    // Before the first thread is made, which inherits it, as the children do.
    sched_setaffinity(None, &one).unwrap();
    assert_eq!(a_small_job().unwrap(), 4500.0);
    let (producer, consumer) = small_ring();
    let mut group = Group::new();
    group.add("write", write, producer).unwrap();
    group.add("read", read, consumer).unwrap();
    assert_eq!(group.start().unwrap().join().unwrap(), [0, 124_750]);
}

/// Ends a program when a test ends early.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a scene that prints the pids of its workers on a line once they work, and opens these.
fn program(scene: &mut Command) -> (Program, Vec<OwnedFd>) {
    let mut program = Program(scene.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    let mut output = BufReader::new(program.0.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let pids = line.split_whitespace();
    let workers: Vec<_> = pids.map(|pid| pidfd(pid.parse().unwrap())).collect();
    assert!(!workers.is_empty());
    (program, workers)
}

/// A worker in each kind of wait, and one that computes.
fn workers_that_wait() {
    type Things = (Queue<Tensor<u8>>, Event, Barrier, Sender<u32>);
    fn wait(rank: usize, (queue, event, barrier, ready): Things) -> tensormp::Result<()> {
        ready.put(std::process::id())?;
        match rank {
            0 => drop(queue.get()?),
            1 => event.wait()?,
            2 => drop(barrier.wait()?),
            3 => loop {
                std::hint::spin_loop();
            },
            _ => loop {
                let _kept = Tensor::full(100, 1_u8)?;
            },
        }
        Ok(())
    }
    let (sender, ready) = Queue::bounded(5).unwrap().split();
    let things = (
        Queue::bounded(1).unwrap(),
        Event::new().unwrap(),
        Barrier::new(2).unwrap(),
        sender,
    );
    let mut context = spawn(wait, things, 5).unwrap();
    let pids: Vec<_> = (0..5).map(|_| ready.get().unwrap().to_string()).collect();
    println!("{}", pids.join(" "));
    let _ = context.join();
}

fn workers_of_workers() {
    fn waits(_rank: usize, ready: Sender<u32>) -> tensormp::Result<()> {
        ready.put(std::process::id())?;
        loop {
            std::thread::park();
        }
    }
    fn starts(_rank: usize, ready: Sender<u32>) -> tensormp::Result<()> {
        ready.put(std::process::id())?;
        spawn(waits, ready, 2)?.join()?;
        Ok(())
    }
    let (sender, ready) = Queue::bounded(6).unwrap().split();
    let mut context = spawn(starts, sender, 2).unwrap();
    let pids: Vec<_> = (0..6).map(|_| ready.get().unwrap().to_string()).collect();
    println!("{}", pids.join(" "));
    let _ = context.join();
}

fn workers_die_with_a_program_that_is_killed() {
    let (program, workers) = program(&mut play("workers_that_wait"));
    kill(program.0.id());
    workers.iter().for_each(wait_for_end);
}

fn workers_of_workers_die_with_a_program_that_is_killed() {
    let (program, workers) = program(&mut play("workers_of_workers"));
    assert_eq!(workers.len(), 6);
    kill(program.0.id());
    workers.iter().for_each(wait_for_end);
}

fn a_program_that_is_terminated_leaves_nothing() {
    let (mut program, workers) = program(&mut play("workers_that_wait"));
    let pid = rustix::process::Pid::from_child(&program.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    workers.iter().for_each(wait_for_end);
    assert!(!program.0.wait().unwrap().success());
}

fn a_child_that_aborts_does_not_fill_the_arena() {
    fn aborts(_rank: usize, large: SharedTensor<u8>) -> tensormp::Result<()> {
        assert_eq!(large.as_slice()[0], 7);
        std::process::abort();
    }
    // Cores go to a directory of their own, if the system writes them beside the program at all.
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
    std::env::set_current_dir(place).unwrap();
    let maximum = getrlimit(Resource::Core).maximum;
    limit(Resource::Core, maximum);
    let large = Tensor::full(64 << 20, 7_u8).unwrap().freeze();
    let arena = Arena::current().unwrap();
    let used = || {
        let file = std::fs::File::from(
            std::os::fd::AsFd::as_fd(&arena)
                .try_clone_to_owned()
                .unwrap(),
        );
        std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) * 512
    };
    let (committed, before) = (arena.stats().committed, used());
    for _ in 0..2 {
        let error = spawn(aborts, large.clone(), 1).unwrap().join().unwrap_err();
        assert!(error.to_string().contains("SIGABRT"), "{error}");
    }
    assert!(
        used() < before + (8 << 20),
        "{before} bytes became {}",
        used()
    );
    assert!(arena.stats().committed < committed + (8 << 20));
    let cores: u64 = std::fs::read_dir(place)
        .unwrap()
        .map(|core| core.unwrap().metadata().unwrap().len())
        .sum();
    assert!(
        cores < 64 << 20,
        "{cores} bytes of cores, with the arena's memory in them"
    );
}

fn children_that_fail_one_after_the_other_leave_no_memory() {
    type Given = (u32, SharedTensor<u8>, Barrier);
    fn fails(_rank: usize, (how, _kept, both): Given) -> tensormp::Result<()> {
        let _own = Tensor::full(1 << 20, 1_u8)?;
        let queue = Queue::bounded(2)?;
        queue.put(Tensor::full(1000, 1_u8)?)?;
        both.wait()?;
        match how % 4 {
            0 => Err("no".into()),
            1 => panic!("no"),
            2 => std::process::exit(4),
            _ => {
                kill(std::process::id());
                Ok(())
            }
        }
    }
    let kept = Tensor::full(1000, 1_u8).unwrap().freeze();
    // What is kept to be used again has no fixed size: how much was held at once depends on who came first.
    let committed = || {
        let arena = Arena::current().unwrap();
        arena.trim();
        arena.stats().committed
    };
    let round = |how| {
        let given = (how, kept.clone(), Barrier::new(2).unwrap());
        let mut context = spawn(fails, given, 2).unwrap();
        assert!(context.join().is_err());
        // A child may have been killed while it buried the other one; then that is taken up a moment later.
        let arena = Arena::current().unwrap();
        while arena.participants() > 1 {
            arena.bury_the_dead();
            std::thread::yield_now();
        }
    };
    (0..4).for_each(round);
    let before = committed();
    (0..24).for_each(round);
    let after = committed();
    // Less than one tensor of them.
    assert!(after < before + (1 << 20), "{before} bytes became {after}");
    assert!(kept.try_thaw().is_ok(), "no dead process has it any more");
}
