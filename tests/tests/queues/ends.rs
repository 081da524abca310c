//! How a queue ends: the last of a side is dropped, returns, or dies.

use std::time::{Duration, Instant};

use integration_tests::{Test, kill, pidfd, resume, stop, stop_below, tests, wait_for_end};
use mp_queue::ErrorKind;
use tensormp::mp_queue;
use tensormp::prelude::*;

pub(crate) const TESTS: &[Test] = &tests![
    the_last_sender_ends_the_receivers,
    the_last_receiver_ends_the_senders,
    a_closed_queue_gives_what_it_holds,
    a_queue_that_one_process_closes_is_closed_for_all,
    a_sender_that_is_killed_ends_its_receiver_with_the_cause,
    a_pause_of_all_hides_nobodys_cause,
    the_cause_of_a_death_is_waited_for_no_longer_than_the_caller_would,
    a_receiver_that_is_killed_ends_its_sender_with_the_cause,
    a_queue_counts_the_consumers_that_died_with_it,
    a_get_that_others_could_serve_ends_when_a_process_is_killed,
    a_lane_ends_when_the_other_end_is_killed,
    what_processes_apart_were_handed_ends_as_if_they_had_let_go,
    who_returns_with_an_end_in_hand_has_not_died_with_it,
    messages_of_a_process_that_is_killed_later_still_arrive,
    a_loop_that_meets_an_unreadable_message_fails_its_worker,
    a_queue_of_a_failed_context_serves_the_next_one,
    more_processes_than_an_arena_has_room_for_are_refused_at_once,
];

fn the_last_sender_ends_the_receivers() {
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let second = sender.clone();
    sender.put(1).unwrap();
    drop(sender);
    second.put(2).unwrap();
    drop(second);
    assert_eq!((receiver.get().unwrap(), receiver.get().unwrap()), (1, 2));
    let error = receiver.get().unwrap_err();
    assert!(error.is_closed(), "{error}");
    let error = receiver.try_get().unwrap_err();
    assert!(error.is_closed(), "{error}");
    assert!(receiver.is_closed() && receiver.is_empty());
}

fn the_last_receiver_ends_the_senders() {
    fn rest(_rank: usize, _: Receiver<u32>) {}
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    sender.put(1).unwrap();
    drop(receiver);
    let error = sender.put(2).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Closed);
    assert_eq!(error.into_value(), Some(2));

    // The same when it went to a process that had no use for it.
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let mut context = spawn(rest, receiver, 1).unwrap();
    let pid = context.pids()[0];
    context.join().unwrap();
    let error = sender.put(2).unwrap_err();
    let ErrorKind::PeerFailed(failure) = error.kind() else {
        panic!("{error}")
    };
    assert_eq!((failure.rank, failure.pid), (0, pid));
    assert_eq!(error.into_value(), Some(2));
}

fn a_closed_queue_gives_what_it_holds() {
    let queue = Queue::bounded(4).unwrap();
    queue.put("a".to_owned()).unwrap();
    queue.put("b".to_owned()).unwrap();
    queue.close();
    let error = queue.put("c".to_owned()).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Closed);
    assert_eq!(error.into_value().as_deref(), Some("c"));
    assert_eq!(queue.get().unwrap(), "a");
    assert_eq!(queue.get().unwrap(), "b");
    assert!(queue.get().unwrap_err().is_closed());
}

fn a_queue_that_one_process_closes_is_closed_for_all() {
    fn count(_rank: usize, queue: Queue<Tensor<u8>>) -> tensormp::Result<usize> {
        Ok(queue.receiver().iter().count())
    }
    let queue = Queue::bounded(2).unwrap();
    let mut context = spawn(count, queue.clone(), 3).unwrap();
    for _ in 0..20 {
        queue.put(Tensor::zeros(3).unwrap()).unwrap();
    }
    // Everyone holds both sides, so only closing ends the loops.
    queue.close();
    assert_eq!(context.join().unwrap().iter().sum::<usize>(), 20);
}

/// The failure of a context's process as its parent's queue tells it.
#[track_caller]
fn killed(kind: &ErrorKind, pid: u32) {
    let ErrorKind::PeerFailed(failure) = kind else {
        panic!("{kind:?}")
    };
    assert_eq!((failure.rank, failure.pid), (0, pid), "{failure}");
    assert!(failure.cause.contains("was killed by SIGKILL"), "{failure}");
}

fn a_sender_that_is_killed_ends_its_receiver_with_the_cause() {
    fn dies(_rank: usize, to: Sender<u32>) -> tensormp::Result<()> {
        to.put(1)?;
        kill(std::process::id());
        Ok(())
    }
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let context = spawn(dies, sender, 1).unwrap();
    // What it had sent is not lost.
    assert_eq!(receiver.get().unwrap(), 1);
    killed(receiver.get().unwrap_err().kind(), context.pids()[0]);
    killed(receiver.get().unwrap_err().kind(), context.pids()[0]);
}

fn a_pause_of_all_hides_nobodys_cause() {
    type Pids = (u32, u32);
    fn holds(_rank: usize, to: Sender<u32>) -> tensormp::Result<()> {
        to.put(1)?;
        loop {
            std::thread::park();
        }
    }
    fn hears(_rank: usize, (from, told): (Receiver<u32>, Sender<String>)) -> tensormp::Result<()> {
        from.get()?;
        told.put("it waits".to_owned())?;
        told.put(from.get().unwrap_err().to_string())?;
        Ok(())
    }
    fn starts(_rank: usize, (pids, told): (Sender<Pids>, Sender<String>)) -> tensormp::Result<()> {
        let (to, from) = Queue::bounded(4)?.split();
        let mut holder = spawn(holds, to, 1)?;
        let mut hearer = spawn(hears, (from, told), 1)?;
        pids.put((holder.pids()[0], hearer.pids()[0]))?;
        hearer.join()?;
        assert!(holder.join().is_err());
        Ok(())
    }
    let (pids, started) = Queue::bounded(1).unwrap().split();
    let (told, hear) = Queue::bounded(2).unwrap().split();
    let mut starter = spawn(starts, (pids, told), 1).unwrap();
    let (holder, hearer) = started.get().unwrap();
    assert_eq!(hear.get().unwrap(), "it waits");
    // First whoever would say why the other is gone, then whoever waits for that.
    stop(starter.pids()[0]);
    kill(holder);
    // It waits for a moment, and then, since somebody is known to have died, for seconds more.
    std::thread::sleep(Duration::from_millis(1000));
    stop_below(hearer);
    std::thread::sleep(Duration::from_secs(4));
    resume(hearer);
    std::thread::sleep(Duration::from_millis(300));
    resume(starter.pids()[0]);
    let cause = hear.get().unwrap();
    assert!(cause.contains("killed by SIGKILL"), "{cause}");
    starter.join().unwrap();
}

fn the_cause_of_a_death_is_waited_for_no_longer_than_the_caller_would() {
    type Ends = (Sender<u32>, Receiver<u32>);
    fn holds(_rank: usize, (ends, told): (Ends, Sender<u32>)) -> tensormp::Result<()> {
        told.put(std::process::id())?;
        let _kept = ends;
        loop {
            std::thread::park();
        }
    }
    fn starts(_rank: usize, (ends, told): (Ends, Sender<u32>)) -> tensormp::Result<()> {
        assert!(spawn(holds, (ends, told), 1)?.join().is_err());
        Ok(())
    }
    let (to, from) = Queue::bounded(2).unwrap().split();
    let (back, forth) = Queue::bounded(2).unwrap().split();
    let (told, hear) = Queue::bounded(1).unwrap().split();
    let mut starter = spawn(starts, ((to, forth), told), 1).unwrap();
    let holder = hear.get().unwrap();
    // The one that would say why the other is gone says nothing, and is there.
    stop(starter.pids()[0]);
    kill(holder);
    let parks = || (from.stats().parks, back.stats().parks);
    let before = parks();
    let of_get = loop {
        Arena::current().unwrap().bury_the_dead();
        match from.try_get().unwrap_err() {
            error if error.kind() == &ErrorKind::Empty => {}
            error => break error,
        }
    };
    let of_put = loop {
        match back.try_put(1) {
            Ok(()) => {}
            Err(error) if error.kind() == &ErrorKind::Full => {}
            Err(error) => break error,
        }
    };
    assert_eq!(parks(), before, "a try slept");
    // The best of some: this machine may stand still meanwhile.
    let took = (0..4).map(|_| {
        let since = Instant::now();
        let error = from.get_timeout(Duration::from_millis(1)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::PeerFailed(_)), "{error}");
        since.elapsed()
    });
    let shortest = took.min().unwrap();
    assert!(shortest < Duration::from_secs(2), "{shortest:?}");
    for kind in [of_get.kind(), of_put.kind()] {
        let ErrorKind::PeerFailed(failure) = kind else {
            panic!("{kind:?}");
        };
        assert_eq!(failure.pid, holder, "{failure}");
        assert!(failure.cause.contains("died while it held"), "{failure}");
    }
    resume(starter.pids()[0]);
    starter.join().unwrap();
}

fn a_receiver_that_is_killed_ends_its_sender_with_the_cause() {
    fn dies(_rank: usize, from: Receiver<Tensor<u8>>) -> tensormp::Result<()> {
        let _kept = from.get()?;
        kill(std::process::id());
        Ok(())
    }
    let (sender, receiver) = Queue::bounded(2).unwrap().split();
    let context = spawn(dies, receiver, 1).unwrap();
    let error = loop {
        if let Err(error) = sender.put(Tensor::full(9, 4).unwrap()) {
            break error;
        }
    };
    killed(error.kind(), context.pids()[0]);
    assert_eq!(error.into_value().unwrap().as_slice(), [4; 9]);
}

fn a_queue_counts_the_consumers_that_died_with_it() {
    fn takes(_rank: usize, (from, dies): (Receiver<Tensor<u8>>, bool)) -> tensormp::Result<()> {
        let _kept = from.get()?;
        if dies {
            kill(std::process::id());
        }
        Ok(())
    }
    fn puts_and_dies(_rank: usize, to: Sender<Tensor<u8>>) -> tensormp::Result<()> {
        to.put(Tensor::full(9, 1)?)?;
        kill(std::process::id());
        Ok(())
    }
    integration_tests::allow_leaks(4);
    let (sender, receiver) = Queue::bounded(8).unwrap().split();
    for number in 0..5 {
        sender.put(Tensor::full(9, number).unwrap()).unwrap();
    }
    // The last one to go has nothing left in hand.
    for dies in [true, true, true, false] {
        let mut context = spawn(takes, (receiver.clone(), dies), 1).unwrap();
        assert_eq!(context.join().is_err(), dies);
    }
    let mut context = spawn(puts_and_dies, sender.clone(), 1).unwrap();
    assert!(context.join().is_err());
    while Arena::current().unwrap().stats().participants > 1 {
        Arena::current().unwrap().bury_the_dead();
    }
    let stats = receiver.stats();
    assert_eq!((stats.put, stats.got), (6, 4));
    assert_eq!(stats.dead_consumers, 3);
    assert_eq!(receiver.len(), 2);
}

fn a_get_that_others_could_serve_ends_when_a_process_is_killed() {
    fn waits(_rank: usize, (work, ready): (Queue<u32>, Queue<u32>)) -> tensormp::Result<()> {
        ready.put(0)?;
        work.get()?;
        Ok(())
    }
    // This process can put as well, and yet nobody will: it waits itself.
    let (work, ready) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let mut context = spawn(waits, (work.clone(), ready.clone()), 1).unwrap();
    ready.get().unwrap();
    kill(context.pids()[0]);
    killed(ready.get().unwrap_err().kind(), context.pids()[0]);
    let here = work.get().unwrap_err();
    killed(here.kind(), context.pids()[0]);
    let error = context.join().unwrap_err().to_string();
    assert!(error.contains("SIGKILL"), "{error}");
    // Both name it alike.
    let name = format!("process \"waits\" (pid {}) ", context.pids()[0]);
    for text in [error, here.to_string()] {
        assert!(text.contains(&name), "{name:?} is missing in: {text}");
    }
}

fn a_lane_ends_when_the_other_end_is_killed() {
    fn sends(_rank: usize, mut to: LaneSender<u32>) -> tensormp::Result<()> {
        to.put(1)?;
        kill(std::process::id());
        Ok(())
    }
    fn gets(_rank: usize, mut from: LaneReceiver<u32>) -> tensormp::Result<()> {
        from.get()?;
        kill(std::process::id());
        Ok(())
    }
    let (sender, mut receiver) = pair(2).unwrap();
    let context = spawn(sends, sender, 1).unwrap();
    assert_eq!(receiver.get().unwrap(), 1);
    killed(receiver.get().unwrap_err().kind(), context.pids()[0]);

    let (mut sender, receiver) = pair(2).unwrap();
    let context = spawn(gets, receiver, 1).unwrap();
    let error = loop {
        if let Err(error) = sender.put(7) {
            break error;
        }
    };
    killed(error.kind(), context.pids()[0]);
    assert_eq!(error.into_value(), Some(7));
}

fn what_processes_apart_were_handed_ends_as_if_they_had_let_go() {
    type Ends = (LaneSender<u32>, Sender<u32>);
    fn sends(_rank: usize, (mut lane, queue): Ends) -> tensormp::Result<()> {
        lane.put(1)?;
        queue.put(2)?;
        kill(std::process::id());
        Ok(())
    }
    fn gets(_rank: usize, mut from: LaneReceiver<u32>) -> tensormp::Result<()> {
        from.get()?;
        kill(std::process::id());
        Ok(())
    }
    let apart = || Group::new().apart();
    let (sender, mut lane) = pair(2).unwrap();
    let (to, queue) = Queue::bounded(2).unwrap().split();
    let mut group = apart();
    group.add("sends", sends, (sender, to)).unwrap();
    let mut context = group.start().unwrap();
    // What it had sent comes first.
    assert_eq!((lane.get().unwrap(), queue.get().unwrap()), (1, 2));
    for error in [lane.get().unwrap_err(), queue.get().unwrap_err()] {
        assert_eq!(error.kind(), &ErrorKind::Closed, "{error}");
    }
    // The cause is for who joins.
    let cause = context.join().unwrap_err().to_string();
    assert!(
        cause.contains("\"sends\"") && cause.contains("SIGKILL"),
        "{cause}"
    );

    let (mut sender, receiver) = pair(2).unwrap();
    let mut group = apart();
    group.add("gets", gets, receiver).unwrap();
    let mut context = group.start().unwrap();
    let error = loop {
        if let Err(error) = sender.put(7) {
            break error;
        }
    };
    // A put that nobody can take is an error in any case: it says that somebody died, as far as is known here.
    let ErrorKind::PeerFailed(failure) = error.kind() else {
        panic!("{error}");
    };
    assert_eq!((failure.pid, &*failure.name), (context.pids()[0], ""));
    assert_eq!(error.into_value(), Some(7));
    context.join().unwrap_err();
}

fn who_returns_with_an_end_in_hand_has_not_died_with_it() {
    /// It is dropped by nobody, like whatever a program keeps for as long as it lives.
    static KEPT: std::sync::OnceLock<(LaneSender<u32>, Sender<u32>)> = std::sync::OnceLock::new();
    type Ends = (LaneSender<u32>, Sender<u32>);
    fn keeps(_rank: usize, (mut lane, queue): Ends) -> tensormp::Result<()> {
        lane.put(1)?;
        queue.put(2)?;
        let _ = KEPT.set((lane, queue));
        Ok(())
    }
    // Who waits when it ends, and who comes after that.
    for joined_first in [false, true] {
        let (sender, mut lane) = pair(2).unwrap();
        let (to, queue) = Queue::bounded(2).unwrap().split();
        let mut group = Group::new();
        group.add("keeps", keeps, (sender, to)).unwrap();
        let mut context = group.start().unwrap();
        if joined_first {
            context.join().unwrap();
        }
        assert_eq!((lane.get().unwrap(), queue.get().unwrap()), (1, 2));
        for error in [lane.get().unwrap_err(), queue.get().unwrap_err()] {
            assert_eq!(error.kind(), &ErrorKind::Closed, "{error}");
        }
        context.join().unwrap();
    }
}

fn messages_of_a_process_that_is_killed_later_still_arrive() {
    fn sends(_rank: usize, (to, done): (Sender<Tensor<u32>>, Event)) -> tensormp::Result<()> {
        for i in 0..50 {
            to.put(Tensor::full(100, i)?)?;
        }
        done.set();
        loop {
            std::thread::park();
        }
    }
    let (sender, receiver) = Queue::bounded(50).unwrap().split();
    let done = Event::new().unwrap();
    let context = spawn(sends, (sender, done.clone()), 1).unwrap();
    done.wait().unwrap();
    let process = pidfd(context.pids()[0]);
    kill(context.pids()[0]);
    wait_for_end(&process);
    for i in 0..50 {
        assert_eq!(receiver.get().unwrap().as_slice(), [i; 100]);
    }
    killed(receiver.get().unwrap_err().kind(), context.pids()[0]);
}

/// postcard can write it, but not read it.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
enum Untagged {
    Number(u32),
}

fn a_loop_that_meets_an_unreadable_message_fails_its_worker() {
    fn count(_rank: usize, work: Receiver<Untagged>) -> tensormp::Result<usize> {
        Ok(work.iter().count())
    }
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    sender.put(Untagged::Number(1)).unwrap();
    drop(sender);
    let error = spawn(count, receiver, 1).unwrap().join().unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("untagged") && text.contains("ended early"),
        "{text}"
    );
}

fn a_queue_of_a_failed_context_serves_the_next_one() {
    fn work(rank: usize, (fails, queue): (bool, Queue<u32>)) -> tensormp::Result<u32> {
        if fails {
            return Err("on purpose".into());
        }
        // Nothing is there yet: a failure that was left behind would end this wait.
        match rank {
            0 => Ok(queue.get()?),
            _ => Ok(queue.put(7).map(|()| 0)?),
        }
    }
    let queue = Queue::bounded(1).unwrap();
    let error = spawn(work, (true, queue.clone()), 1)
        .unwrap()
        .join()
        .unwrap_err();
    assert!(error.to_string().contains("on purpose"), "{error}");
    let mut context = spawn(work, (false, queue), 2).unwrap();
    assert_eq!(context.join().unwrap(), [7, 0]);
}

fn more_processes_than_an_arena_has_room_for_are_refused_at_once() {
    fn nothing(_rank: usize, _: ()) -> tensormp::Result<()> {
        Ok(())
    }
    let error = spawn(nothing, (), usize::MAX).unwrap_err();
    assert!(error.to_string().contains("room for"), "{error}");
}
