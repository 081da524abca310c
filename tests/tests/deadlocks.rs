//! Waits that can never end are errors that name who waits where; waits that can are left alone.

use std::process::ExitCode;
use std::time::Duration;

use integration_tests::tests;
use mp_queue::{Condvar, ErrorKind as QueueErrorKind, Mutex};
use pipeline::{Consumer, Producer, TensorSpec, Topology, ring};
use spawn_api::{Deadlock, ErrorKind};
use tensormp::prelude::*;
use tensormp::{mp_queue, pipeline, spawn_api};

fn main() -> ExitCode {
    integration_tests::main(&tests![
        a_join_that_keeps_the_sender_is_a_deadlock,
        workers_that_wait_for_each_other_are_a_deadlock,
        a_wait_for_any_process_that_keeps_the_sender_is_a_deadlock,
        threads_that_start_processes_or_pass_on_their_stderr_are_nobody_who_could_act,
        a_put_that_only_its_own_process_could_make_room_for_is_a_deadlock,
        a_get_that_only_its_own_process_could_answer_is_a_deadlock,
        a_consumer_that_keeps_all_slots_is_told,
        an_event_that_nobody_is_left_to_set_is_a_deadlock,
        a_barrier_that_too_few_come_to_says_how_many_have_arrived,
        a_condition_that_nobody_is_left_to_notify_is_a_deadlock,
        a_thread_that_locks_twice_is_told_that_it_did,
        a_lock_whose_guard_went_to_another_thread_is_waited_for,
        a_join_after_a_deadlock_tells_the_same_story,
        who_is_slow_is_not_stuck,
        a_sender_on_its_way_in_a_message_is_no_deadlock,
        a_published_queue_is_no_deadlock,
        a_wait_with_a_deadline_is_no_deadlock,
    ])
}

/// The deadlock as data: the wait for the processes tells of it, and not one of them.
fn deadlock_of(error: &spawn_api::Error) -> Deadlock {
    match error.kind() {
        ErrorKind::Deadlock { deadlock } => deadlock.clone(),
        _ => panic!("{error:?}"),
    }
}

fn drain(_rank: usize, work: Receiver<u64>) -> tensormp::Result<u64> {
    let mut sum = 0;
    for number in &work {
        sum += number;
    }
    Ok(sum)
}

fn a_join_that_keeps_the_sender_is_a_deadlock() {
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let mut context = spawn(drain, receiver, 2).unwrap();
    let pids = context.pids();
    sender.put(1).unwrap();
    let error = context.join().unwrap_err();
    let deadlock = deadlock_of(&error);
    let waits: Vec<_> = deadlock.waits.iter().map(|wait| wait.pid).collect();
    assert_eq!(waits[0], std::process::id(), "{error}");
    assert!(pids.iter().all(|pid| waits.contains(pid)), "{error}");
    let text = error.to_string();
    for part in [
        "deadlock",
        "2 processes that it joins",
        "a message from the queue made at",
        "deadlocks.rs",
        "whose senders this process holds",
        "the last sender ends its receivers' loops",
    ] {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
    drop(sender);
}

fn workers_that_wait_for_each_other_are_a_deadlock() {
    fn waits(rank: usize, ends: Vec<(Sender<u64>, Receiver<u64>)>) -> tensormp::Result<u64> {
        // Each keeps a sender of what the other waits for, and puts nothing.
        let number = ends[rank].1.get()?;
        Ok(number)
    }
    let ends: Vec<_> = (0..2).map(|_| Queue::bounded(1).unwrap().split()).collect();
    let mut context = spawn(waits, ends, 2).unwrap();
    let error = context.join().unwrap_err();
    assert_eq!(deadlock_of(&error).waits.len(), 3, "{error}");
}

fn a_wait_for_any_process_that_keeps_the_sender_is_a_deadlock() {
    fn first_returns(rank: usize, work: Receiver<u64>) -> tensormp::Result<u64> {
        if rank == 0 { Ok(0) } else { drain(rank, work) }
    }
    let (sender, receiver) = Queue::<u64>::bounded(4).unwrap().split();
    let mut context = spawn(first_returns, receiver, 3).unwrap();
    assert_eq!(context.wait_any().unwrap().unwrap().rank, 0);
    let error = context.wait_any().unwrap_err();
    assert_eq!(deadlock_of(&error).waits.len(), 3, "{error}");
    assert_eq!(context.join().unwrap_err().to_string(), error.to_string());
    drop(sender);
}

fn threads_that_start_processes_or_pass_on_their_stderr_are_nobody_who_could_act() {
    fn nothing(_rank: usize, _: ()) {}
    // What a thread with other rights starts is started by a thread that stays.
    let less = std::thread::spawn(|| {
        rustix::thread::set_no_new_privs(true).unwrap();
        spawn(nothing, (), 1).unwrap().join().unwrap();
    });
    less.join().unwrap();
    let (sender, receiver) = Queue::<u64>::bounded(4).unwrap().split();
    let kept = spawn_api::builder().stderr_tail(true);
    let mut context = kept.spawn(drain, receiver, 1).unwrap();
    let error = context.join().unwrap_err();
    assert_eq!(deadlock_of(&error).waits.len(), 2, "{error}");
    drop(sender);
}

fn a_put_that_only_its_own_process_could_make_room_for_is_a_deadlock() {
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    sender.put(1).unwrap();
    let failed = sender.put(2).unwrap_err();
    assert!(
        matches!(failed.kind(), QueueErrorKind::Deadlock(_)),
        "{failed:?}"
    );
    assert!(
        failed.error().to_string().contains("room in the queue")
            && failed
                .error()
                .to_string()
                .contains("receivers this process holds"),
        "{failed:?}"
    );
    assert_eq!(failed.into_value(), Some(2));
    assert_eq!(receiver.get().unwrap(), 1);
}

fn a_get_that_only_its_own_process_could_answer_is_a_deadlock() {
    let (sender, receiver) = Queue::<u64>::bounded(1).unwrap().split();
    let error = receiver.get().unwrap_err();
    assert!(
        matches!(error.kind(), QueueErrorKind::Deadlock(_)),
        "{error:?}"
    );
    sender.put(3).unwrap();
    assert_eq!(receiver.get().unwrap(), 3);
}

fn a_consumer_that_keeps_all_slots_is_told() {
    fn keeps(_rank: usize, mut consumer: Consumer) -> tensormp::Result<usize> {
        let mut kept = Vec::new();
        while let Some(slot) = consumer.borrow()? {
            kept.push(slot);
        }
        Ok(kept.len())
    }
    fn feed(producer: &mut Producer) -> pipeline::Result<()> {
        for _ in 0..3 {
            let slot = producer.loan()?;
            producer.publish(slot)?;
        }
        Ok(())
    }
    let specs = [TensorSpec::of::<f32>([16])];
    let (mut producer, consumer) = ring(2, &specs, Topology::OneToOne).unwrap();
    let mut context = spawn(keeps, consumer, 1).unwrap();
    let here = feed(&mut producer).unwrap_err().to_string();
    // Both look; who is first tells, and the other hears of the end.
    let there = context.join().map(<[usize]>::to_vec);
    let told = format!("{here} / {there:?}");
    assert!(told.contains("deadlock"), "{told}");
    assert!(
        told.contains("a free slot of the ring made at") || here.contains("deadlock"),
        "{told}"
    );
}

fn an_event_that_nobody_is_left_to_set_is_a_deadlock() {
    fn waits(_rank: usize, go: Event) -> tensormp::Result<()> {
        Ok(go.wait()?)
    }
    let go = Event::new().unwrap();
    let mut context = spawn(waits, go, 3).unwrap();
    let error = context.join().unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("deadlock") && text.contains("the event made at"),
        "{text}"
    );
    assert!(
        text.contains("is to set") && !text.contains("sender"),
        "{text}"
    );
}

fn a_barrier_that_too_few_come_to_says_how_many_have_arrived() {
    fn waits(_rank: usize, barrier: Barrier) -> tensormp::Result<bool> {
        Ok(barrier.wait()?)
    }
    let barrier = Barrier::new(3).unwrap();
    let mut context = spawn(waits, barrier, 2).unwrap();
    let text = context.join().unwrap_err().to_string();
    for part in ["at which 2 of its 3 have arrived", "start so many"] {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
    for other in ["sender", "notify"] {
        assert!(!text.contains(other), "{other:?} has no place in: {text}");
    }
}

fn a_condition_that_nobody_is_left_to_notify_is_a_deadlock() {
    fn waits(_rank: usize, (mutex, changed): (Mutex, Condvar)) -> tensormp::Result<()> {
        drop(changed.wait(mutex.lock()?)?);
        Ok(())
    }
    let (mutex, changed) = (Mutex::new().unwrap(), Condvar::new().unwrap());
    let mut context = spawn(waits, (mutex.clone(), changed.clone()), 2).unwrap();
    let error = context.join().unwrap_err();
    assert_eq!(deadlock_of(&error).waits.len(), 3, "{error}");
    assert!(error.to_string().contains("condition"), "{error}");
    // Alone in one process.
    let (mutex, changed) = (Mutex::new().unwrap(), Condvar::new().unwrap());
    let error = changed.wait(mutex.lock().unwrap()).unwrap_err();
    let kind = error.kind();
    assert!(matches!(kind, QueueErrorKind::Deadlock(_)), "{error:?}");
    assert!(!mutex.is_locked());
}

fn a_thread_that_locks_twice_is_told_that_it_did() {
    let mutex = Mutex::new().unwrap();
    let guard = mutex.lock().unwrap();
    let errors = [
        mutex.lock().unwrap_err(),
        mutex.try_lock().unwrap_err(),
        mutex.lock_timeout(Duration::from_millis(5)).unwrap_err(),
    ];
    assert!(matches!(errors[0].kind(), QueueErrorKind::Deadlock(_)));
    for error in &errors {
        let text = error.to_string();
        assert!(text.contains("locked by this very thread"), "{text}");
    }
    std::thread::scope(|scope| {
        let other = scope.spawn(|| mutex.try_lock().unwrap_err().to_string());
        let text = other.join().unwrap();
        assert!(!text.contains("this very thread"), "{text}");
    });
    drop(guard);
    assert!(mutex.lock().is_ok());
}

fn a_lock_whose_guard_went_to_another_thread_is_waited_for() {
    let mutex = Mutex::new().unwrap();
    let guard = mutex.lock().unwrap();
    let other = std::thread::spawn(move || {
        std::thread::sleep(SLOW);
        drop(guard);
    });
    assert!(mutex.lock().is_ok());
    other.join().unwrap();
}

fn a_join_after_a_deadlock_tells_the_same_story() {
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let mut context = spawn(drain, receiver, 1).unwrap();
    let first = context.join().unwrap_err();
    let second = context.join().unwrap_err();
    assert_eq!(first.to_string(), second.to_string());
    deadlock_of(&second);
    drop(sender);
}

/// Long enough for several looks, if there were something to find.
const SLOW: Duration = Duration::from_millis(3500);

fn who_is_slow_is_not_stuck() {
    fn slow(rank: usize, sender: Sender<usize>) -> tensormp::Result<()> {
        std::thread::sleep(SLOW);
        sender.put(rank)?;
        Ok(())
    }
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let mut context = spawn(slow, sender, 1).unwrap();
    assert_eq!(receiver.get().unwrap(), 0);
    context.join().unwrap();
}

fn a_sender_on_its_way_in_a_message_is_no_deadlock() {
    fn helper(_rank: usize, (inbox, done): (Receiver<Sender<u64>>, Event)) -> tensormp::Result<()> {
        done.wait()?;
        inbox.get()?.put(7)?;
        Ok(())
    }
    let (sender, receiver) = Queue::<u64>::bounded(1).unwrap().split();
    let (outbox, inbox) = Queue::bounded(1).unwrap().split();
    let done = Event::new().unwrap();
    let mut context = spawn(helper, (inbox, done.clone()), 1).unwrap();
    outbox.put(sender).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(SLOW);
            done.set();
        });
        assert_eq!(receiver.get().unwrap(), 7);
    });
    context.join().unwrap();
}

fn a_published_queue_is_no_deadlock() {
    fn finds(_rank: usize, (): ()) -> tensormp::Result<()> {
        std::thread::sleep(SLOW);
        let queue: Queue<u64> = Arena::current()?.open("numbers")?;
        queue.put(9)?;
        Ok(())
    }
    let queue = Queue::<u64>::bounded(1).unwrap();
    let arena = Arena::current().unwrap();
    arena.publish("numbers", &queue).unwrap();
    let mut context = spawn(finds, (), 1).unwrap();
    assert_eq!(queue.get().unwrap(), 9);
    context.join().unwrap();
    arena.unpublish("numbers").unwrap();
}

fn a_wait_with_a_deadline_is_no_deadlock() {
    fn tries(
        _rank: usize,
        (sender, receiver): (Sender<u64>, Receiver<u64>),
    ) -> tensormp::Result<bool> {
        let waited = receiver.get_timeout(SLOW);
        drop(sender);
        Ok(matches!(waited, Err(error) if *error.kind() == QueueErrorKind::TimedOut))
    }
    let ends = Queue::bounded(1).unwrap().split();
    let mut context = spawn(tries, ends, 1).unwrap();
    assert_eq!(context.join().unwrap(), [true]);
}
