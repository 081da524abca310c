//! Kills at labelled steps inside put, get, loan, publish, borrow, release, and of memory and reaping.

use integration_tests::{Test, play as program, tests};
use tensormp::prelude::*;
use tensormp::shm_core::failpoint::LABELS;

use crate::scene::{Role, Way, arm, audit, play};

pub(crate) const TESTS: &[Test] = &tests![
    a_producer_killed_at_any_step_of_put_loses_nothing,
    a_consumer_killed_at_any_step_of_get_loses_what_it_had,
    what_a_consumer_was_taking_when_it_was_killed_is_back_or_counted_lost,
    a_producer_killed_at_any_step_of_a_ring_loses_nothing,
    a_consumer_killed_at_any_step_of_a_ring_gives_its_slot_back,
    both_sides_may_be_killed_at_once,
    a_lane_ends_when_its_sender_is_killed_at_any_step,
    a_lane_ends_when_its_receiver_is_killed_at_any_step,
    a_process_killed_while_it_makes_memory_leaves_none,
    a_reaper_killed_at_any_step_is_succeeded,
    a_process_killed_while_it_joins_is_told,
];

pub(crate) const SCENES: &[Test] = &tests![joining];

const COUNT: u64 = 24;

/// The labels that begin with one of these.
fn labels(beginnings: &[&str]) -> Vec<&'static str> {
    let labels = LABELS.iter().copied();
    let found: Vec<_> = labels
        .filter(|label| {
            beginnings
                .iter()
                .any(|beginning| label.starts_with(beginning))
        })
        .collect();
    assert!(
        found.len() >= beginnings.len(),
        "labels of {beginnings:?}: {found:?}"
    );
    found
}

fn kill_at(label: &str, nth: u64) -> Option<String> {
    Some(format!("{label}:{nth}=kill"))
}

/// Kills `victim` at each label that begins so, and makes sure that it comes by at those of `certain`.
fn at_each(way: Way, victim: Role, certain: &[&str], also: &[&str]) {
    for label in labels(&[certain, also].concat()) {
        let sure = certain.iter().any(|beginning| label.starts_with(beginning));
        // Its twin may take all there is before it has started.
        let mut tries = 1..=20;
        while play(way, COUNT, &[(victim, kill_at(label, 1))], |_, _| {}) == 0 && sure {
            assert!(tries.next().is_some(), "{victim:?} never comes by {label}");
        }
        play(way, COUNT, &[(victim, kill_at(label, 6))], |_, _| {});
    }
}

fn a_producer_killed_at_any_step_of_put_loses_nothing() {
    at_each(
        Way::Queue,
        Role::Producer(0),
        &["put.", "block.alloc."],
        &["block.drop.", "line."],
    );
}

fn a_consumer_killed_at_any_step_of_get_loses_what_it_had() {
    at_each(
        Way::Queue,
        Role::Consumer(0),
        &["get.", "block.drop."],
        &["line."],
    );
}

fn what_a_consumer_was_taking_when_it_was_killed_is_back_or_counted_lost() {
    type Message = (u32, Option<Tensor<u32>>);
    fn take(_rank: usize, (armed, from): (Armed, Receiver<Message>)) -> tensormp::Result<()> {
        arm(armed.as_deref());
        for _ in 0..2 {
            from.get()?;
        }
        Ok(())
    }
    let mut killed = 0;
    for with_tensor in [false, true] {
        let (sender, receiver) = Queue::bounded(4).unwrap().split();
        let (mut put, mut left) = (0, 0);
        let mut expected = (0, 0);
        for (label, lost) in [
            ("get.taken", false),
            ("get.recorded", false),
            ("get.released", true),
        ] {
            // The second message: the first has come into its program's hands, and is nobody's to count.
            for number in 0..2 {
                let tensor = with_tensor.then(|| Tensor::full(3, number).unwrap());
                sender.put((number, tensor)).unwrap();
                put += 1;
            }
            let mut context = spawn(take, (kill_at(label, 2), receiver.clone()), 1).unwrap();
            assert!(context.join().is_err(), "it never comes by {label}");
            killed += 1;
            audit(1);
            expected = if lost {
                (expected.0, expected.1 + 1)
            } else {
                (expected.0 + 1, expected.1)
            };
            let stats = receiver.stats();
            assert_eq!((stats.handed_back, stats.lost), expected, "{label}");
            while receiver.try_get().is_ok() {
                left += 1;
            }
        }
        let stats = receiver.stats();
        assert_eq!(stats.dead_consumers, 3);
        assert_eq!(put, left + 3 + stats.lost, "put: taken, found, or lost");
    }
    assert_eq!(killed, 6);
}

fn a_producer_killed_at_any_step_of_a_ring_loses_nothing() {
    at_each(
        Way::Ring,
        Role::Producer(0),
        &["slot.loaned", "put."],
        &["line."],
    );
}

fn a_consumer_killed_at_any_step_of_a_ring_gives_its_slot_back() {
    at_each(
        Way::Ring,
        Role::Consumer(0),
        &["get.", "slot.borrowed", "slot.released"],
        &["block.drop."],
    );
}

fn both_sides_may_be_killed_at_once() {
    for way in [Way::Queue, Way::Ring] {
        for (put, get) in [
            ("put.claimed", "get.taken"),
            ("put.written", "get.recorded"),
            ("put.giving", "get.released"),
            ("put.published", "get.taken"),
            ("put.giving", "get.taken"),
        ] {
            let victims = [
                (Role::Producer(1), kill_at(put, 3)),
                (Role::Consumer(1), kill_at(get, 2)),
            ];
            let killed = play(way, COUNT, &victims, |_, _| {});
            assert!(killed >= 1, "the producer comes by {put} in any case");
        }
    }
}

type Item = (u32, Tensor<u32>, SharedTensor<u32>);
type Armed = Option<String>;

/// Plays one sender and one receiver of a lane. Gives what each of them told: numbers taken and why it ended, or the
/// error of the process.
fn lane(sends: Armed, takes: Armed) -> [Result<(Vec<u32>, String), String>; 2] {
    fn send(
        _rank: usize,
        (armed, mut to): (Armed, LaneSender<Item>),
    ) -> tensormp::Result<(Vec<u32>, String)> {
        arm(armed.as_deref());
        for i in 0..COUNT as u32 {
            let item = (i, Tensor::full(3, i)?, Tensor::full(2, i)?.freeze());
            if let Err(error) = to.put(item) {
                let (error, item) = error.into_parts();
                assert_eq!(item.ok_or("the value is lost")?.1.as_slice(), [i; 3]);
                return Ok((Vec::new(), error.to_string()));
            }
        }
        Ok((Vec::new(), String::new()))
    }
    fn take(
        _rank: usize,
        (armed, mut from): (Armed, LaneReceiver<Item>),
    ) -> tensormp::Result<(Vec<u32>, String)> {
        arm(armed.as_deref());
        let mut taken = Vec::new();
        loop {
            match from.get() {
                Ok((i, own, shared)) => {
                    assert_eq!(
                        (own.as_slice(), shared.as_slice()),
                        (&[i; 3][..], &[i; 2][..])
                    );
                    taken.push(i);
                }
                Err(error) => return Ok((taken, error.to_string())),
            }
        }
    }
    let (to, from) = pair(3).unwrap();
    let takes = spawn(take, (takes, from), 1).unwrap();
    let sends = spawn(send, (sends, to), 1).unwrap();
    [sends, takes].map(|context| match context.into_results() {
        Ok(mut told) => Ok(told.remove(0)),
        Err(error) => Err(error.to_string()),
    })
}

fn a_lane_ends_when_its_sender_is_killed_at_any_step() {
    for label in labels(&["lane.put.", "block.alloc."]) {
        for nth in [1, 7] {
            let [sent, taken] = lane(kill_at(label, nth), None);
            let killed = sent.expect_err(label);
            assert!(
                killed.contains("process \"") && killed.contains("SIGKILL"),
                "{killed}"
            );
            let (taken, why) = taken.unwrap();
            assert!(
                why.contains("process \"") && why.contains("SIGKILL"),
                "{label}: {why}"
            );
            assert!(
                taken.iter().copied().eq(0..taken.len() as u32),
                "{label}: {taken:?}"
            );
            audit(1);
        }
    }
}

fn a_lane_ends_when_its_receiver_is_killed_at_any_step() {
    for label in labels(&["lane.get.", "block.drop."]) {
        for nth in [1, 7] {
            let [sent, taken] = lane(None, kill_at(label, nth));
            let Err(killed) = taken else {
                assert!(label.starts_with("block."), "it never came by {label}");
                continue;
            };
            assert!(
                killed.contains("process \"") && killed.contains("SIGKILL"),
                "{killed}"
            );
            let (_, why) = sent.unwrap();
            // It may have sent everything before.
            let all = why.is_empty() && label.starts_with("block.");
            let told = why.contains("process \"") && why.contains("SIGKILL");
            assert!(all || told, "{label}: {why}");
            audit(1);
        }
    }
}

/// Makes and drops memory of all kinds.
fn makes(_rank: usize, armed: Armed) -> tensormp::Result<()> {
    arm(armed.as_deref());
    let queue = Queue::bounded(4)?;
    let large = Tensor::full(3 << 20, 1_u8)?;
    queue.put((large, "long ".repeat(100), Tensor::full(10, 2_u8)?.freeze()))?;
    let small: Vec<_> = (0..3000)
        .map(Tensor::<u32>::zeros)
        .collect::<Result<_, _>>()?;
    drop(small);
    queue.get()?;
    Ok(())
}

fn a_process_killed_while_it_makes_memory_leaves_none() {
    // Once in peace, so that the arena has what all of them use.
    spawn(makes, None, 1).unwrap().join().unwrap();
    let beginnings = ["block.", "chunk.", "lease.", "line.", "object."];
    for label in labels(&beginnings) {
        for nth in [1, 2, 40] {
            let mut context = spawn(makes, kill_at(label, nth), 1).unwrap();
            let killed = context.join().is_err();
            drop(context);
            audit(killed.into());
        }
    }
}

fn a_reaper_killed_at_any_step_is_succeeded() {
    for label in labels(&["reap."]) {
        let victims = [
            (Role::Producer(0), kill_at("put.giving", 4)),
            (Role::Consumer(0), kill_at(label, 1)),
        ];
        play(Way::Queue, COUNT, &victims, |_, _| {});
        // Where this process is not the first to look, the one that waits is: it dies in the middle of reaping.
        play(Way::Ring, COUNT, &victims, |_, _| {});
    }
}

fn a_process_killed_while_it_joins_is_told() {
    let mut scene = program("joining");
    let scene = scene.env("TENSORMP_FAILPOINT", "row.joining=kill");
    assert!(scene.status().unwrap().success());
}

/// The children inherit the environment and never come further than joining.
fn joining() {
    arm(None);
    let queue = Queue::bounded(1).unwrap();
    queue.put(Tensor::full(3, 1_u8).unwrap()).unwrap();
    for _ in 0..3 {
        let mut context = spawn(|_, _: Queue<Tensor<u8>>| (), queue.clone(), 2).unwrap();
        let text = context.join().unwrap_err().to_string();
        assert!(text.contains("SIGKILL"), "{text}");
        assert!(text.contains("process "), "{text}");
    }
    assert_eq!(queue.get().unwrap().as_slice(), [1; 3]);
    audit(6);
}
