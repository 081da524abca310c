//! A process that is stopped is alive: what it holds is waited for, and nothing else.

use std::time::Duration;

use integration_tests::{Test, kill, resume, see_stopped, stop, tests};
use mp_queue::ErrorKind;
use tensormp::mp_queue;
use tensormp::prelude::*;

use crate::scene::arm;

pub(crate) const TESTS: &[Test] = &tests![
    a_consumer_that_is_stopped_between_messages_delays_nobody,
    a_consumer_that_is_stopped_inside_get_delays_only_its_cell,
    a_producer_that_is_stopped_inside_put_delays_only_its_cell,
    a_message_comes_back_from_a_stopped_taker_that_is_killed,
];

type Item = (u32, Tensor<u32>);

fn item(i: u32) -> Item {
    (i, Tensor::full(3, i).unwrap())
}

/// Takes all there is; stops itself at a failpoint, if one is given.
fn take(
    _rank: usize,
    (armed, from): (Option<String>, Receiver<Item>),
) -> tensormp::Result<Vec<u32>> {
    arm(armed.as_deref());
    let mut taken = Vec::new();
    for (i, tensor) in &from {
        assert_eq!(tensor.as_slice(), [i; 3]);
        taken.push(i);
    }
    Ok(taken)
}

fn a_consumer_that_is_stopped_between_messages_delays_nobody() {
    fn wait(_rank: usize, (ready, from): (Event, Receiver<Item>)) -> tensormp::Result<Vec<u32>> {
        // It takes one and keeps it.
        let (i, _kept) = from.get()?;
        ready.set();
        take(0, (None, from)).map(|taken| [vec![i], taken].concat())
    }
    let ready = Event::new().unwrap();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    sender.put(item(0)).unwrap();
    let mut stopped = spawn(wait, (ready.clone(), receiver.clone()), 1).unwrap();
    ready.wait().unwrap();
    stop(stopped.pids()[0]);
    let mut other = spawn(take, (None, receiver), 1).unwrap();
    // All go through the other one, many more than there is room for.
    for i in 1..200 {
        sender.put(item(i)).unwrap();
    }
    resume(stopped.pids()[0]);
    drop(sender);
    let mut all = [stopped.join().unwrap(), other.join().unwrap()]
        .concat()
        .concat();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..200));
}

fn a_consumer_that_is_stopped_inside_get_delays_only_its_cell() {
    if !cfg!(debug_assertions) {
        return;
    }
    for label in ["get.taken", "get.recorded"] {
        let (sender, receiver) = Queue::bounded(4).unwrap().split();
        let armed = Some(format!("{label}:1=stop"));
        let mut context = spawn(take, (armed, receiver.clone()), 1).unwrap();
        sender.put(item(0)).unwrap();
        see_stopped(context.pids()[0]);
        // The cells beside the one it holds are free, and others may take from them.
        for i in 1..4 {
            sender.put(item(i)).unwrap();
            assert_eq!(receiver.get().unwrap().0, i);
        }
        // The next cell is the one it holds.
        let error = sender
            .put_timeout(item(4), Duration::from_millis(50))
            .unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::TimedOut);
        let text = error.to_string();
        assert!(text.contains("stopped.rs:"), "which queue it was: {text}");
        let four = error.into_value().unwrap();
        resume(context.pids()[0]);
        drop(receiver);
        sender.put(four).unwrap();
        drop(sender);
        assert_eq!(context.join().unwrap(), [[0, 4]]);
    }
}

fn a_producer_that_is_stopped_inside_put_delays_only_its_cell() {
    fn put(_rank: usize, (armed, to): (String, Sender<Item>)) -> tensormp::Result<()> {
        arm(Some(&armed));
        for i in 0..3 {
            to.put((i, Tensor::full(3, i)?))?;
        }
        Ok(())
    }
    if !cfg!(debug_assertions) {
        return;
    }
    for label in ["put.claimed", "put.written", "put.giving"] {
        let (sender, receiver) = Queue::<Item>::bounded(4).unwrap().split();
        let armed = format!("{label}:2=stop");
        let mut context = spawn(put, (armed, sender), 1).unwrap();
        see_stopped(context.pids()[0]);
        assert_eq!(receiver.get().unwrap().0, 0);
        let error = receiver.get_timeout(Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::TimedOut);
        let text = error.to_string();
        assert!(text.contains("stopped.rs:"), "which queue it was: {text}");
        resume(context.pids()[0]);
        assert_eq!(receiver.get().unwrap().0, 1);
        assert_eq!(receiver.get().unwrap().0, 2);
        assert!(receiver.get().unwrap_err().is_closed());
        context.join().unwrap();
    }
}

fn a_message_comes_back_from_a_stopped_taker_that_is_killed() {
    if !cfg!(debug_assertions) {
        return;
    }
    for label in ["get.taken", "get.recorded"] {
        let (sender, receiver) = Queue::bounded(4).unwrap().split();
        let armed = Some(format!("{label}:1=stop"));
        let mut context = spawn(take, (armed, receiver.clone()), 1).unwrap();
        sender.put(item(0)).unwrap();
        see_stopped(context.pids()[0]);
        // The queue goes on beyond the cell that is held, and then nothing more comes.
        for i in 1..3 {
            sender.put(item(i)).unwrap();
            assert_eq!(receiver.get().unwrap().0, i);
        }
        assert_eq!(receiver.try_get().unwrap_err().kind(), &ErrorKind::Empty);
        kill(context.pids()[0]);
        assert!(context.join().is_err());
        let (number, tensor) = receiver.try_get().unwrap();
        assert_eq!((number, tensor.as_slice()), (0, &[0; 3][..]));
    }
}
