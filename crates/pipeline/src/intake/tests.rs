//! What one process of a pipeline publishes, as the next one gets it, both in this process.

use mp_queue::{Event, Queue, WaitPolicy};
use shm_core::ExclusiveBytes;

use super::*;
use crate::board::Board;
use crate::device::Store;
use crate::home::{Known, Upstreams};
use crate::output::Output;
use crate::pool::Pool;
use crate::route::{Backpressure, Lane, Router, Routes};
use crate::spec::{Layout, TensorSpec};
use crate::tally::Tally;
use crate::time_card::{Batch, Outcome};

/// A first step of two slots, and the step behind it.
struct Line {
    output: Output,
    intake: Intake,
    home: Arc<Home>,
    tally: Tally,
    pool: Arc<Pool>,
}

/// `expected`: what the step behind takes the slots of the first to be.
fn line(expected: &TensorSpec) -> Line {
    let layout = |spec: &TensorSpec| Arc::new(Layout::of(std::slice::from_ref(spec)).unwrap());
    let own = layout(&TensorSpec::of::<u8>([64]));
    let board = Board::new(&[2, 0]).unwrap();
    let freed = Event::new().unwrap();
    let (log, _) = Queue::<Batch>::bounded(4).unwrap().split();
    let home = |rank, upstream| {
        let tally = Tally::new().unwrap();
        let noted = Some(tally.clone());
        let who = (rank, rank, -1);
        let home = Home::new(who, board.clone(), upstream, log.clone(), noted, false);
        (Arc::new(home), tally)
    };
    let (first, _) = home(0, Upstreams::default());
    let mut upstream = Upstreams::default();
    upstream.insert(
        0,
        Known {
            freed: freed.clone(),
            layout: layout(expected),
        },
    );
    let (second, tally) = home(1, upstream);
    let memory = || Store::Host(ExclusiveBytes::zeros(own.bytes).unwrap().freeze());
    let slots = vec![memory(), memory()];
    let pool = Pool::new(&board, 0, own, freed, None, slots);
    let (to, from) = Queue::<Item>::bounded(4).unwrap().split();
    let lane = Lane {
        to,
        from: None,
        readers: vec![1],
        index: 0,
    };
    let policy = Backpressure::Block;
    let routes = Routes {
        queues: vec![vec![lane]],
        policy,
    };
    let selector = crate::selector::built_in("round_robin", 1).unwrap();
    let router = Some(Router::new(routes, selector));
    let (slots, wait) = (Some(Arc::clone(&pool)), WaitPolicy::Eager);
    Line {
        output: Output::new(first, slots, router, 1, policy, 0, true, wait),
        intake: Intake::new(
            (0, from, vec![0]),
            Sequence::AsTheyCome,
            Ledger::new(vec![]),
            vec![],
        ),
        home: second,
        tally,
        pool,
    }
}

impl Line {
    fn publish(&mut self, fill: u8) {
        let mut slot = self.output.loan().unwrap();
        slot.tensor_mut::<u8>(0).unwrap().fill(fill);
        slot.set_sequence(u64::from(fill));
        self.output.publish(slot).unwrap();
    }

    fn next(&mut self) -> Result<(Next, Option<Input>)> {
        let mut place = None;
        let next = self
            .intake
            .next(&self.home, Some(Instant::now()), &mut place)?;
        Ok((next, place))
    }

    /// What the second process has noted of items since the last time.
    fn noted(&self) -> Vec<crate::time_card::Entry> {
        self.tally.read(&mut 0)
    }
}

#[test]
fn what_was_published_comes_as_it_was_and_its_slot_is_free_once_it_was_let_go_of() {
    let mut line = line(&TensorSpec::of::<u8>([64]));
    for fill in [3, 4] {
        line.publish(fill);
    }
    assert_eq!(line.pool.in_use(), 2);
    for fill in [3, 4] {
        let (Next::Item, Some(input)) = line.next().unwrap() else {
            panic!("nothing came");
        };
        assert_eq!(input.tensor::<u8>(0).unwrap(), [fill; 64]);
        assert_eq!(
            (input.item(), input.sequence()),
            (u64::from(fill) - 3, u64::from(fill))
        );
        drop(input);
    }
    assert_eq!(line.pool.in_use(), 0);
    let noted = line.noted();
    let ended = noted
        .iter()
        .map(|entry| (entry.card.item, entry.ended.len()));
    assert_eq!(ended.collect::<Vec<_>>(), [(0, 1), (1, 1)]);
}

#[test]
fn who_waits_for_an_item_notes_nothing_where_none_comes() {
    let mut line = line(&TensorSpec::of::<u8>([64]));
    assert!(matches!(line.next().unwrap(), (Next::Nothing, None)));
    assert!(line.intake.blank.take().is_some(), "it is ready for one");
    assert!(line.noted().is_empty());
}

#[test]
fn a_slot_that_is_smaller_than_it_is_to_be_is_refused_and_let_go_of() {
    let mut line = line(&TensorSpec::of::<u8>([4096]));
    line.publish(3);
    let error = line.next().unwrap_err();
    assert!(error.to_string().contains("slot 0 of process 0"), "{error}");
    assert!(matches!(line.next().unwrap(), (Next::Nothing, None)));
    assert_eq!(line.pool.in_use(), 0);
    let noted = line.noted();
    let [one] = &noted[..] else {
        panic!("{noted:?}");
    };
    assert_eq!(one.card.outcome, Outcome::Failed);
}
