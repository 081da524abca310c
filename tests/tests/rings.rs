//! Rings of slots between real processes: in order, in place, and every slot comes back.

use std::process::ExitCode;
use std::time::Duration;

use integration_tests::{kill, tests};
use mp_queue::ErrorKind as QueueErrorKind;
use pipeline::{Consumer, ErrorKind, Producer, TensorSpec, Topology, ring};
use tensormp::prelude::*;
use tensormp::{mp_queue, pipeline};

fn main() -> ExitCode {
    integration_tests::main(&tests![
        slots_arrive_in_order_and_as_they_were_written,
        two_slots_suffice_and_so_does_one,
        replicas_share_the_slots_and_each_is_seen_once,
        a_chain_of_rings_keeps_the_order,
        what_travels_beside_a_slot_arrives,
        a_slot_is_written_and_read_in_one_place,
        the_end_comes_when_the_producer_is_dropped_or_closes,
        a_producer_without_consumers_is_told,
        slots_that_are_dropped_come_back,
        a_ring_whose_slots_are_all_in_use_says_so,
        a_killed_borrower_gives_its_slots_back,
        a_killed_writer_gives_its_slots_back,
        a_killed_producer_ends_the_consumer_with_the_cause,
        a_killed_consumer_ends_the_producer_with_the_cause,
        a_ring_for_two_cannot_be_shared_by_more,
        a_slot_of_another_ring_is_refused,
        tensors_that_a_slot_does_not_have_are_refused,
        rings_that_come_and_go_take_no_more_memory,
    ])
}

const ROW: usize = 1000;

fn specs() -> [TensorSpec; 2] {
    [TensorSpec::of::<u64>([4, ROW]), TensorSpec::of::<f32>(())]
}

/// Publishes numbers `from..to`, each written all over its slot.
fn write(producer: &mut Producer, numbers: std::ops::Range<u64>) -> tensormp::Result<()> {
    for number in numbers {
        let mut slot = producer.loan()?;
        let (rows, scale) = slot.two_tensors_mut::<u64, f32>(0, 1)?;
        rows.fill(number);
        scale[0] = number as f32;
        slot.set_sequence(number);
        producer.publish(slot)?;
    }
    Ok(())
}

/// The numbers of all slots to the end, after a look at their contents.
fn read(consumer: &mut Consumer) -> tensormp::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    while let Some(slot) = consumer.borrow()? {
        let number = slot.sequence();
        let rows = slot.tensor::<u64>(0)?;
        assert_eq!(rows.len(), 4 * ROW);
        // Ends and middle: any other slot's contents would show.
        assert_eq!([rows[0], rows[2 * ROW], rows[4 * ROW - 1]], [number; 3]);
        assert_eq!(slot.tensor::<f32>(1)?, [number as f32]);
        numbers.push(number);
    }
    Ok(numbers)
}

fn writer(_rank: usize, (mut producer, count): (Producer, u64)) -> tensormp::Result<Vec<u64>> {
    write(&mut producer, 0..count)?;
    Ok(Vec::new())
}

fn reader(_rank: usize, mut consumer: Consumer) -> tensormp::Result<Vec<u64>> {
    read(&mut consumer)
}

/// Sends numbers through a ring from one child to another.
fn through(slots: u32, count: u64, topology: Topology) -> Vec<u64> {
    let (producer, consumer) = ring(slots, &specs(), topology).unwrap();
    let mut group = Group::new();
    group.add("writer", writer, (producer, count)).unwrap();
    group.add("reader", reader, consumer).unwrap();
    group.start().unwrap().into_results().unwrap().remove(1)
}

fn slots_arrive_in_order_and_as_they_were_written() {
    for topology in [Topology::OneToOne, Topology::Replicas] {
        assert!(
            through(4, 1000, topology).into_iter().eq(0..1000),
            "{topology:?}"
        );
    }
}

fn two_slots_suffice_and_so_does_one() {
    for topology in [Topology::OneToOne, Topology::Replicas] {
        for slots in [1, 2] {
            let numbers = through(slots, 300, topology);
            assert!(
                numbers.into_iter().eq(0..300),
                "{slots} slots, {topology:?}"
            );
        }
    }
}

fn replicas_share_the_slots_and_each_is_seen_once() {
    fn write_part(rank: usize, mut producer: Producer) -> tensormp::Result<Vec<u64>> {
        let first = 500 * rank as u64;
        write(&mut producer, first..first + 500)?;
        Ok(Vec::new())
    }
    let (producer, consumer) = ring(3, &specs(), Topology::Replicas).unwrap();
    let mut group = Group::new();
    group
        .add_replicas("write", write_part, producer, 3)
        .unwrap();
    group.add_replicas("read", reader, consumer, 3).unwrap();
    let seen = group.start().unwrap().into_results().unwrap();
    for numbers in &seen {
        for part in 0..3 {
            let of_one = numbers.iter().filter(|&&number| number / 500 == part);
            assert!(of_one.is_sorted(), "a producer's slots came out of order");
        }
    }
    let mut all = seen.concat();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..1500));
}

fn a_chain_of_rings_keeps_the_order() {
    fn double(
        _rank: usize,
        (mut from, mut to): (Consumer, Producer),
    ) -> tensormp::Result<Vec<u64>> {
        while let Some(slot) = from.borrow()? {
            let mut next = to.loan()?;
            let (rows, scale) = next.two_tensors_mut::<u64, f32>(0, 1)?;
            for (to, &from) in rows.iter_mut().zip(slot.tensor::<u64>(0)?) {
                *to = from;
            }
            scale[0] = slot.tensor::<f32>(1)?[0];
            next.set_sequence(slot.sequence());
            to.publish(next)?;
        }
        Ok(Vec::new())
    }
    let (mut first, from_first) = ring(2, &specs(), Topology::OneToOne).unwrap();
    let (to_second, from_second) = ring(2, &specs(), Topology::OneToOne).unwrap();
    let (to_last, mut last) = ring(2, &specs(), Topology::OneToOne).unwrap();
    let mut group = Group::new();
    group.add("one", double, (from_first, to_second)).unwrap();
    group.add("two", double, (from_second, to_last)).unwrap();
    let mut context = group.start().unwrap();
    let reading = std::thread::spawn(move || read(&mut last).unwrap());
    write(&mut first, 0..200).unwrap();
    drop(first);
    assert!(reading.join().unwrap().into_iter().eq(0..200));
    context.join().unwrap();
}

fn what_travels_beside_a_slot_arrives() {
    fn write(_rank: usize, producer: Producer) -> tensormp::Result<()> {
        let mut producer = producer.timed(true);
        let mut slot = producer.loan()?;
        slot.tensor_mut::<u64>(0)?[..2 * ROW].fill(5);
        slot.set_valid(0, 2)?;
        assert!(slot.set_valid(0, 5).is_err(), "it has 4 rows");
        slot.set_sequence(u64::MAX);
        slot.set_tag(1 << 63);
        producer.publish(slot)?;
        // Nothing of it stays with the slot.
        let mut producer = producer.timed(false);
        let slot = producer.loan()?;
        producer.publish(slot)?;
        Ok(())
    }
    let (producer, consumer) = ring(1, &specs(), Topology::OneToOne).unwrap();
    let mut consumer = consumer.timed(true);
    let mut context = spawn(write, producer, 1).unwrap();
    let slot = consumer.borrow().unwrap().unwrap();
    assert_eq!((slot.valid(0), slot.valid(1)), (Some(2), None));
    assert_eq!(slot.tensor::<u64>(0).unwrap(), [5; 2 * ROW]);
    assert_eq!((slot.sequence(), slot.tag()), (u64::MAX, 1 << 63));
    let times = [slot.published_ns(), slot.asked_ns(), slot.borrowed_ns()];
    assert!(times.iter().all(Option::is_some), "{times:?}");
    assert!(times[0] <= times[2] && times[1] <= times[2], "{times:?}");
    drop(slot);
    // Only who asks for times pays for looking at the clock.
    let mut consumer = consumer.timed(false);
    let slot = consumer.borrow().unwrap().unwrap();
    assert_eq!(
        (slot.published_ns(), slot.asked_ns(), slot.borrowed_ns()),
        (None, None, None)
    );
    assert_eq!((slot.valid(0), slot.sequence(), slot.tag()), (None, 0, 0));
    assert_eq!(slot.tensor::<u64>(0).unwrap().len(), 4 * ROW);
    drop(slot);
    assert!(consumer.borrow().unwrap().is_none());
    context.join().unwrap();
}

fn a_slot_is_written_and_read_in_one_place() {
    // In one process, where addresses can be compared.
    let (mut producer, mut consumer) = ring(2, &specs(), Topology::OneToOne).unwrap();
    let mut slot = producer.loan().unwrap();
    let place = slot.tensor_mut::<u64>(0).unwrap().as_ptr();
    assert_eq!(place.addr() % 64, 0);
    let index = slot.index();
    producer.publish(slot).unwrap();
    let slot = consumer.borrow().unwrap().unwrap();
    assert_eq!(
        (slot.index(), slot.tensor::<u64>(0).unwrap().as_ptr()),
        (index, place)
    );
}

fn the_end_comes_when_the_producer_is_dropped_or_closes() {
    for topology in [Topology::OneToOne, Topology::Replicas] {
        let (mut producer, mut consumer) = ring(4, &specs(), topology).unwrap();
        write(&mut producer, 0..3).unwrap();
        drop(producer);
        assert!(
            read(&mut consumer).unwrap().into_iter().eq(0..3),
            "{topology:?}"
        );
        assert!(consumer.borrow().unwrap().is_none());

        let (mut producer, mut consumer) = ring(4, &specs(), topology).unwrap();
        write(&mut producer, 0..3).unwrap();
        producer.close();
        assert!(
            read(&mut consumer).unwrap().into_iter().eq(0..3),
            "{topology:?}"
        );
        let slot = producer.loan().unwrap();
        let error = producer.publish(slot).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Queue(QueueErrorKind::Closed));
        assert_eq!(
            producer.in_use(),
            0,
            "a slot that was not published is free again"
        );
    }
}

fn a_producer_without_consumers_is_told() {
    let (mut producer, consumer) = ring(2, &specs(), Topology::Replicas).unwrap();
    drop(consumer);
    let error = producer.loan().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Queue(QueueErrorKind::Closed));

    // The same when it went to a process that had no use for it.
    let (mut producer, consumer) = ring(2, &specs(), Topology::OneToOne).unwrap();
    let context = spawn(|_, _: Consumer| (), consumer, 1).unwrap();
    let error = loop {
        if let Err(error) = write(&mut producer, 0..1) {
            break error.to_string();
        }
    };
    let pid = context.pids()[0];
    assert!(
        error.contains(&format!("the process with pid {pid} returned")),
        "{error}"
    );
}

fn slots_that_are_dropped_come_back() {
    let (mut producer, mut consumer) = ring(2, &specs(), Topology::Replicas).unwrap();
    for _ in 0..10 {
        let (one, two) = (producer.loan().unwrap(), producer.loan().unwrap());
        assert_ne!(one.index(), two.index());
        assert_eq!(producer.in_use(), 2);
        drop(one);
        producer.publish(two).unwrap();
        drop(consumer.borrow().unwrap().unwrap());
        assert_eq!(producer.in_use(), 0);
    }
    // A ring that is dropped with slots on their way.
    write(&mut producer, 0..2).unwrap();
    let lines = Arena::current().unwrap().audit().lines;
    drop((producer, consumer));
    assert!(Arena::current().unwrap().audit().lines < lines);
}

fn a_ring_whose_slots_are_all_in_use_says_so() {
    fn keep(
        _rank: usize,
        (mut consumer, have, go): (Consumer, Event, Event),
    ) -> tensormp::Result<()> {
        let kept = (consumer.borrow()?, consumer.borrow()?);
        have.set();
        go.wait()?;
        drop(kept);
        assert!(consumer.borrow()?.is_some());
        Ok(())
    }
    let (mut producer, consumer) = ring(2, &specs(), Topology::Replicas).unwrap();
    let (have, go) = (Event::new().unwrap(), Event::new().unwrap());
    let mut context = spawn(keep, (consumer, have.clone(), go.clone()), 1).unwrap();
    write(&mut producer, 0..2).unwrap();
    have.wait().unwrap();
    let error = producer.try_loan().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Queue(QueueErrorKind::Full));
    let error = producer
        .loan_timeout(Duration::from_millis(20))
        .unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Queue(QueueErrorKind::TimedOut));
    assert!(error.to_string().contains("2 slots"), "{error}");
    go.set();
    write(&mut producer, 2..3).unwrap();
    context.join().unwrap();
    assert_eq!(producer.in_use(), 0);

    let (_producer, mut consumer) = ring(2, &specs(), Topology::Replicas).unwrap();
    let error = consumer.try_borrow().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Queue(QueueErrorKind::Empty));
    let error = consumer
        .borrow_timeout(Duration::from_millis(20))
        .unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Queue(QueueErrorKind::TimedOut));
}

fn a_killed_borrower_gives_its_slots_back() {
    fn keep(_rank: usize, (mut consumer, have): (Consumer, Event)) -> tensormp::Result<()> {
        let _kept = (consumer.borrow()?, consumer.borrow()?);
        have.set();
        loop {
            std::thread::park();
        }
    }
    let (mut producer, mut consumer) = ring(2, &specs(), Topology::Replicas).unwrap();
    let have = Event::new().unwrap();
    let theirs = consumer.try_clone().unwrap();
    let mut context = spawn(keep, (theirs, have.clone()), 1).unwrap();
    write(&mut producer, 0..2).unwrap();
    have.wait().unwrap();
    assert_eq!(producer.in_use(), 2);
    kill(context.pids()[0]);
    assert!(context.join().unwrap_err().to_string().contains("SIGKILL"));
    assert_eq!(producer.in_use(), 0);
    // And the ring goes on without it.
    write(&mut producer, 2..4).unwrap();
    for number in 2..4 {
        assert_eq!(consumer.try_borrow().unwrap().unwrap().sequence(), number);
    }
}

fn a_killed_writer_gives_its_slots_back() {
    fn keep(_rank: usize, (mut producer, have): (Producer, Event)) -> tensormp::Result<()> {
        let mut kept = (producer.loan()?, producer.loan()?);
        kept.0.tensor_mut::<u64>(0)?.fill(1);
        have.set();
        loop {
            std::thread::park();
        }
    }
    let (mut producer, mut consumer) = ring(2, &specs(), Topology::Replicas).unwrap();
    let have = Event::new().unwrap();
    let theirs = producer.try_clone().unwrap();
    let mut context = spawn(keep, (theirs, have.clone()), 1).unwrap();
    have.wait().unwrap();
    assert_eq!(producer.in_use(), 2);
    kill(context.pids()[0]);
    assert!(context.join().is_err());
    assert_eq!(producer.in_use(), 0);
    write(&mut producer, 0..2).unwrap();
    drop(producer);
    assert_eq!(consumer.borrow().unwrap().unwrap().sequence(), 0);
    assert_eq!(consumer.borrow().unwrap().unwrap().sequence(), 1);
}

/// The failure of a context's only process, as its parent's ring tells it.
#[track_caller]
fn killed(error: &pipeline::Error, pid: u32) {
    let ErrorKind::Queue(QueueErrorKind::PeerFailed(failure)) = error.kind() else {
        panic!("{error}")
    };
    assert_eq!((failure.rank, failure.pid), (0, pid), "{failure}");
    assert!(failure.cause.contains("was killed by SIGKILL"), "{failure}");
}

fn a_killed_producer_ends_the_consumer_with_the_cause() {
    fn dies(_rank: usize, mut producer: Producer) -> tensormp::Result<()> {
        write(&mut producer, 0..3)?;
        let _slot = producer.loan()?;
        kill(std::process::id());
        Ok(())
    }
    for topology in [Topology::OneToOne, Topology::Replicas] {
        let (producer, mut consumer) = ring(4, &specs(), topology).unwrap();
        let context = spawn(dies, producer, 1).unwrap();
        // What it had published is there.
        for number in 0..3 {
            assert_eq!(consumer.borrow().unwrap().unwrap().sequence(), number);
        }
        killed(&consumer.borrow().unwrap_err(), context.pids()[0]);
    }
}

fn a_killed_consumer_ends_the_producer_with_the_cause() {
    fn dies(_rank: usize, mut consumer: Consumer) -> tensormp::Result<()> {
        let _slot = consumer.borrow()?;
        kill(std::process::id());
        Ok(())
    }
    for topology in [Topology::OneToOne, Topology::Replicas] {
        let (mut producer, consumer) = ring(2, &specs(), topology).unwrap();
        let context = spawn(dies, consumer, 1).unwrap();
        let error = loop {
            let mut step = || {
                let slot = producer.loan()?;
                producer.publish(slot)
            };
            if let Err(error) = step() {
                break error;
            }
        };
        killed(&error, context.pids()[0]);
    }
}

fn a_ring_for_two_cannot_be_shared_by_more() {
    let (producer, consumer) = ring(2, &specs(), Topology::OneToOne).unwrap();
    for error in [
        producer.try_clone().unwrap_err(),
        consumer.try_clone().unwrap_err(),
    ] {
        assert_eq!(error.kind(), &ErrorKind::Invalid);
        assert!(
            error.to_string().contains("Replicas"),
            "what to do: {error}"
        );
    }
    let error = spawn(|_, _: Consumer| (), consumer, 2).unwrap_err();
    assert!(error.to_string().contains("2 processes"), "{error}");
    let error = spawn(|_, _: Producer| (), producer, 2).unwrap_err();
    assert!(error.to_string().contains("2 processes"), "{error}");
}

fn a_slot_of_another_ring_is_refused() {
    let (mut one, _from_one) = ring(2, &specs(), Topology::OneToOne).unwrap();
    let (mut two, _from_two) = ring(2, &specs(), Topology::OneToOne).unwrap();
    let slot = one.loan().unwrap();
    assert_eq!(two.publish(slot).unwrap_err().kind(), &ErrorKind::Invalid);
    assert_eq!((one.in_use(), two.in_use()), (0, 0));
}

fn tensors_that_a_slot_does_not_have_are_refused() {
    let (mut producer, mut consumer) = ring(1, &specs(), Topology::OneToOne).unwrap();
    let mut slot = producer.loan().unwrap();
    assert!(slot.tensor_mut::<u64>(2).is_err());
    let text = slot.tensor_mut::<u8>(0).unwrap_err().to_string();
    assert!(text.contains("u64") && text.contains("u8"), "{text}");
    assert!(slot.two_tensors_mut::<u64, u64>(0, 0).is_err());
    producer.publish(slot).unwrap();
    let slot = consumer.borrow().unwrap().unwrap();
    assert!(slot.tensor::<f64>(1).is_err() && slot.tensor::<f32>(1).is_ok());
    assert!(ring(0, &specs(), Topology::OneToOne).is_err());
}

fn rings_that_come_and_go_take_no_more_memory() {
    let once = || {
        let (mut producer, mut consumer) = ring(3, &specs(), Topology::Replicas).unwrap();
        write(&mut producer, 0..3).unwrap();
        drop(consumer.borrow().unwrap());
        let kept = consumer.borrow().unwrap().unwrap();
        drop((producer, consumer));
        assert_eq!(
            kept.tensor::<u64>(0).unwrap()[0],
            1,
            "a slot outlives its ring"
        );
    };
    once();
    let before = Arena::current().unwrap().stats().committed;
    for _ in 0..200 {
        once();
    }
    assert_eq!(Arena::current().unwrap().stats().committed, before);
}
