//! The suite `memory`: tensors of all kinds and sizes, made, filled, frozen, aliased, viewed, sent through a queue,
//! letterboxes and names, taken, checked, written again, kept for a while and dropped.
//!
//! Each tensor holds a pattern of its own, so memory that was given to two at once, or freed while somebody held it, shows
//! as soon as anyone who holds it looks.

use std::time::Duration;

use mp_queue::Queue;
use serde::{Deserialize, Serialize};
use shm_core::letterbox::Letterbox;
use shm_core::{AliasedTensor, Arena, ErrorKind, SharedTensor, Tensor};

use super::pattern::{Corrupt, check, element, fill};
use super::receipts::Receipts;
use super::suite::{Scene, Suite, Worker};
use crate::Result;

const CREW: usize = 4;
/// Messages in the queue, and in each letterbox.
const ROOM: u32 = 8;
const QUEUE: &str = "queue";
/// Names that are given, taken over and taken away.
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Tensors that a process keeps at most.
const HOARD: usize = 24;
/// How long it waits for a message or for room at most: the others may all be dead.
const WAIT: Duration = Duration::from_millis(20);

/// A tensor and the number of its pattern.
#[derive(Debug, Serialize, Deserialize)]
enum Item {
    Own(u64, Tensor<u64>),
    Shared(u64, SharedTensor<u64>),
    /// A view: the elements from there on.
    Part(u64, usize, SharedTensor<u64>),
    Aliased(u64, AliasedTensor<u64>),
}

#[derive(Debug, Serialize, Deserialize)]
struct Message {
    items: Vec<Item>,
    /// Makes some messages too long for a cell.
    ballast: String,
}

impl Item {
    fn check(&self) -> Result<(), Corrupt> {
        match self {
            Item::Own(id, tensor) => check(*id, 0, tensor.as_slice(), "a tensor"),
            Item::Shared(id, tensor) => check(*id, 0, tensor.as_slice(), "a shared tensor"),
            Item::Part(id, start, tensor) => check(*id, *start, tensor.as_slice(), "a view"),
            Item::Aliased(id, tensor) => check(*id, 0, &tensor.to_vec(), "an aliased tensor"),
        }
    }
}

impl Message {
    fn check(&self) -> Result<(), Corrupt> {
        self.items.iter().try_for_each(Item::check)
    }
}

/// The suite.
#[derive(Debug)]
pub(crate) struct Memory;

struct Room {
    queue: Queue<Message>,
    boxes: Vec<Letterbox>,
}

impl Suite for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn crew(&self) -> usize {
        CREW
    }

    fn labels(&self) -> &'static [&'static str] {
        &[
            "attach.", "block.", "chunk.", "doubt.", "get.", "lane.", "lease.", "line.", "names.",
            "object.", "put.", "reap.", "row.",
        ]
    }

    fn open(&self, arena: &Arena, _rng: fastrand::Rng) -> Result<Box<dyn Scene>> {
        let queue = Queue::bounded_in(arena, ROOM as usize)?;
        arena.publish(QUEUE, &queue)?;
        let boxes = (0..CREW).map(|_| Letterbox::create(arena, ROOM));
        Ok(Box::new(Room {
            queue,
            boxes: boxes.collect::<Result<_, _>>()?,
        }))
    }

    fn work(&self, worker: Worker) -> Result<()> {
        Life::begin(worker)?.live()
    }
}

impl Scene for Room {
    /// Each gets the handles of its box to send into and its box to take from, which is the next one's.
    fn start(&mut self, slot: usize, _life: u64) -> Result<Vec<u64>> {
        let of = |slot: usize| self.boxes[slot % CREW].handle();
        Ok([of(slot), of(slot + 1)].concat())
    }

    fn check(self: Box<Self>, arena: &Arena, _receipts: &Receipts) -> Result<Vec<String>> {
        let mut wrong = Vec::new();
        let mut look = |checked: Result<(), Corrupt>| wrong.extend(checked.err());
        loop {
            match self.queue.try_get() {
                Ok(message) => look(message.check()),
                Err(error) if *error.kind() == mp_queue::ErrorKind::Empty => break,
                Err(error) => return Err(error.into()),
            }
        }
        for letters in &self.boxes {
            while let Some(message) = letters.try_recv::<Message>()? {
                look(message.check());
            }
        }
        for published in arena.published()? {
            if NAMES.contains(&published.name.as_str()) {
                look(arena.open::<Message>(&published.name)?.check());
                arena.unpublish(&published.name)?;
            }
        }
        arena.unpublish(QUEUE)?;
        Ok(wrong.iter().map(Corrupt::to_string).collect())
    }
}

/// One process, with what it keeps.
struct Life {
    worker: Worker,
    queue: Queue<Message>,
    to: Letterbox,
    from: Letterbox,
    hoard: Vec<Item>,
    made: u64,
}

/// Whether an error is one that others may cause at any time.
fn is_in_order(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        // Its predecessor has the side and is not buried yet; a name is somebody's.
        ErrorKind::AlreadyExists | ErrorKind::NotFound | ErrorKind::Full
    )
}

fn unless_in_order(error: shm_core::Error) -> Result<()> {
    match is_in_order(error.kind()) {
        true => Ok(()),
        false => Err(error.into()),
    }
}

impl Life {
    fn begin(worker: Worker) -> Result<Life> {
        let [a, b, c, d] = *worker.part.words else {
            return Err("a process needs the handles of two letterboxes".into());
        };
        Ok(Life {
            queue: worker.arena.open(QUEUE)?,
            to: Letterbox::open(&worker.arena, [a, b])?,
            from: Letterbox::open(&worker.arena, [c, d])?,
            hoard: Vec::new(),
            made: 0,
            worker,
        })
    }

    fn live(mut self) -> Result<()> {
        while !self.worker.control.is_stopping() {
            self.worker.control.step(self.worker.part.slot)?;
            self.act()?;
            while self.hoard.len() > HOARD {
                self.take_any();
            }
        }
        self.task("ending");
        self.hoard.iter().try_for_each(Item::check)?;
        Ok(())
    }

    fn task(&self, task: &str) {
        self.worker.arena.recorder().set_task(task);
    }

    fn act(&mut self) -> Result<()> {
        match self.worker.rng.u8(..20) {
            0..=3 => self.make(),
            4 => self.convert(),
            5..=7 => self.put(),
            8..=10 => self.get(),
            11 => self.post(),
            12 => self.collect(),
            13 => self.publish(),
            14 => self.open(),
            15 => self.view(),
            16 => self.rewrite(),
            17 => self
                .hoard
                .iter()
                .try_for_each(Item::check)
                .map_err(Into::into),
            18 => {
                self.task("dropping");
                self.take_any();
                Ok(())
            }
            _ => {
                if self.worker.rng.u8(..8) == 0 {
                    self.task("trimming");
                    self.worker.arena.trim();
                }
                Ok(())
            }
        }
    }

    fn next_id(&mut self) -> u64 {
        self.made += 1;
        (self.worker.part.life << 32) | self.made
    }

    /// Mostly small, some of a few pages, now and then one of several chunks.
    fn length(&mut self) -> usize {
        let rng = &mut self.worker.rng;
        match rng.u8(..40) {
            0 => rng.usize(260_000..700_000),
            1..=5 => rng.usize(600..20_000),
            6 => 0,
            _ => rng.usize(1..600),
        }
    }

    fn take_any(&mut self) -> Option<Item> {
        let count = self.hoard.len();
        (count > 0).then(|| self.hoard.swap_remove(self.worker.rng.usize(..count)))
    }

    fn make(&mut self) -> Result<()> {
        self.task("allocating");
        let (id, length) = (self.next_id(), self.length());
        let mut tensor = Tensor::uninit_in(&self.worker.arena, length)?;
        fill(id, tensor.as_mut_slice());
        self.hoard.push(Item::Own(id, tensor));
        Ok(())
    }

    /// Freezes, aliases, or takes back what nobody else holds.
    fn convert(&mut self) -> Result<()> {
        self.task("converting");
        let alias = self.worker.rng.bool();
        let item = match self.take_any() {
            Some(Item::Own(id, tensor)) if alias => Item::Aliased(id, tensor.alias()),
            Some(Item::Own(id, tensor)) => Item::Shared(id, tensor.freeze()),
            Some(Item::Shared(id, tensor)) => match tensor.try_thaw() {
                Ok(tensor) => Item::Own(id, tensor),
                Err(tensor) => Item::Shared(id, tensor),
            },
            Some(Item::Aliased(id, tensor)) => match tensor.try_unalias() {
                Ok(tensor) => Item::Own(id, tensor),
                Err(tensor) => Item::Aliased(id, tensor),
            },
            Some(part @ Item::Part(..)) => part,
            None => return Ok(()),
        };
        item.check()?;
        self.hoard.push(item);
        Ok(())
    }

    /// One or a few of what is kept; what is shared is kept as well, or not.
    fn message(&mut self) -> Result<Message> {
        let mut items = Vec::new();
        for _ in 0..self.worker.rng.usize(1..4) {
            let Some(item) = self.take_any() else { break };
            let keep = self.worker.rng.bool();
            match &item {
                Item::Shared(id, tensor) => {
                    if keep {
                        self.hoard.push(Item::Shared(*id, tensor.clone()));
                    }
                    // Two views of one storage in one message.
                    if tensor.numel() > 1 && self.worker.rng.bool() {
                        let start = self.worker.rng.usize(..tensor.numel());
                        let part = tensor.narrow(0, start, tensor.numel() - start)?;
                        items.push(Item::Part(*id, start, part));
                    }
                }
                Item::Aliased(id, tensor) if keep => {
                    self.hoard.push(Item::Aliased(*id, tensor.clone()));
                }
                _ => {}
            }
            items.push(item);
        }
        let ballast = "long ".repeat(if self.worker.rng.u8(..4) == 0 { 30 } else { 0 });
        Ok(Message { items, ballast })
    }

    fn put(&mut self) -> Result<()> {
        let message = self.message()?;
        self.task("putting into the queue");
        let put = match self.worker.rng.bool() {
            true => self.queue.try_put(message),
            false => self.queue.put_timeout(message, WAIT),
        };
        let Err(failed) = put else { return Ok(()) };
        let (error, message) = failed.into_parts();
        match error.kind() {
            mp_queue::ErrorKind::Full | mp_queue::ErrorKind::TimedOut => {
                let message = message.ok_or("a message did not come back out of a full queue")?;
                message.check()?;
                self.hoard.extend(message.items);
                Ok(())
            }
            _ => Err(error.into()),
        }
    }

    fn get(&mut self) -> Result<()> {
        self.task("getting from the queue");
        let got = match self.worker.rng.bool() {
            true => self.queue.try_get(),
            false => self.queue.get_timeout(WAIT),
        };
        match got {
            Ok(message) => self.took(message),
            Err(error) => match error.kind() {
                mp_queue::ErrorKind::Empty | mp_queue::ErrorKind::TimedOut => Ok(()),
                _ => Err(error.into()),
            },
        }
    }

    fn took(&mut self, message: Message) -> Result<()> {
        self.worker.control.message()?;
        message.check()?;
        self.hoard.extend(message.items);
        Ok(())
    }

    fn post(&mut self) -> Result<()> {
        let message = self.message()?;
        self.task("posting a letter");
        match self.to.send(message) {
            Ok(()) => Ok(()),
            Err(failed) => unless_in_order(failed.error),
        }
    }

    fn collect(&mut self) -> Result<()> {
        self.task("collecting letters");
        match self.from.try_recv::<Message>() {
            Ok(Some(message)) => self.took(message),
            Ok(None) => Ok(()),
            Err(error) => unless_in_order(error),
        }
    }

    fn name(&mut self) -> &'static str {
        NAMES[self.worker.rng.usize(..NAMES.len())]
    }

    fn publish(&mut self) -> Result<()> {
        let name = self.name();
        let id = self.next_id();
        self.task("publishing");
        let mut tensor = Tensor::uninit_in(&self.worker.arena, 50)?;
        fill(id, tensor.as_mut_slice());
        let message = Message {
            items: vec![Item::Shared(id, tensor.freeze())],
            ballast: String::new(),
        };
        let arena = &self.worker.arena;
        let done = match self.worker.rng.u8(..4) {
            0 => arena.publish(name, &message),
            1 => arena.unpublish(name),
            _ => arena.republish(name, &message),
        };
        done.or_else(unless_in_order)
    }

    fn open(&mut self) -> Result<()> {
        let name = self.name();
        self.task("opening a name");
        match self.worker.arena.open::<Message>(name) {
            Ok(message) => self.took(message),
            Err(error) => unless_in_order(error),
        }
    }

    /// Looks at what is shared in another order.
    fn view(&mut self) -> Result<()> {
        self.task("viewing");
        for item in &self.hoard {
            let Item::Shared(id, tensor) = item else {
                continue;
            };
            let half = tensor.numel() / 2;
            if half == 0 {
                continue;
            }
            let turned = tensor
                .narrow(0, 0, 2 * half)?
                .reshape([2, half])?
                .transpose(0, 1)?;
            for (at, &word) in turned.select(0, half - 1)?.to_vec().iter().enumerate() {
                let index = at * half + half - 1;
                if word != element(*id, index) {
                    let text = format!("a view of {id:#x} holds {word:#x} for element {index}");
                    return Err(Corrupt(text).into());
                }
            }
        }
        Ok(())
    }

    /// Gives what is exclusive another pattern; writes what is aliased again, as it is.
    fn rewrite(&mut self) -> Result<()> {
        self.task("rewriting");
        let id = self.next_id();
        match self.take_any() {
            Some(Item::Own(old, mut tensor)) => {
                check(old, 0, tensor.as_slice(), "a tensor")?;
                fill(id, tensor.as_mut_slice());
                self.hoard.push(Item::Own(id, tensor));
            }
            Some(Item::Aliased(id, tensor)) => {
                for index in 0..tensor.numel().min(100) {
                    tensor.store(&[index], element(id, index))?;
                }
                self.hoard.push(Item::Aliased(id, tensor));
            }
            other => self.hoard.extend(other),
        }
        Ok(())
    }
}
