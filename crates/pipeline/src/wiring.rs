//! Wiring: the queues between steps, each process's slots, and what each process is given of them.

use std::time::Duration;

use mp_queue::channel::Channel;
use mp_queue::{Event, Queue, Receiver, Sender, WaitPolicy};
use shm_core::{ExclusiveBytes, SharedBytes};
use spawn::Process;

use crate::board::Board;
use crate::check::{Specs, in_queue, out_queues, slots};
use crate::client::Client;
use crate::device::place_of;
use crate::error::Result;
use crate::home::Upstream;
use crate::intake::Sequence;
use crate::item::Item;
use crate::knot::Parties;
use crate::process::Post;
use crate::route::{Backpressure, Delivery, Lane, Routes};
use crate::spec::Layout;
use crate::step::{QueueGroup, Step, Unfinished};
use crate::tally::Tally;
use crate::time_card::Batch;

/// Items that a queue without tensors holds where nothing is said, as in RnB.
const QUEUE_SIZE: usize = 500;
/// Batches of time cards on their way home.
const LOG: usize = 1024;
/// Items that a process may have begun at once and is still looked after, and one more place for what changes.
const LEDGER: usize = 16 + 1;

/// One process of a run.
pub(crate) struct Seat {
    pub(crate) step: usize,
    pub(crate) group: usize,
    pub(crate) replica: usize,
    pub(crate) device: i32,
    pub(crate) name: String,
    slots: usize,
    slot_bytes: usize,
    /// The device that the slots lie on; `None` for the arena.
    place: Option<u32>,
    pub(crate) freed: Event,
    pub(crate) tally: Tally,
    pub(crate) ledger: Vec<Queue<Item>>,
}

/// A queue, or one reader's own copy of it.
pub(crate) struct Strand {
    /// The step that reads it.
    pub(crate) step: usize,
    queue: u32,
    pub(crate) readers: Vec<u32>,
    /// Until the last process that may need it is there.
    pub(crate) to: Option<Sender<Item>>,
    pub(crate) from: Option<Receiver<Item>>,
    /// To look at it, and to nudge who waits there.
    pub(crate) channel: Channel,
}

/// See the module.
pub(crate) struct Wiring {
    pub(crate) steps: Vec<Step>,
    pub(crate) specs: Specs,
    pub(crate) seats: Vec<Seat>,
    pub(crate) strands: Vec<Strand>,
    pub(crate) board: Board,
    pub(crate) log: Option<Sender<Batch>>,
    pub(crate) news: Event,
    pub(crate) go: Event,
    /// How its processes wait.
    wait: WaitPolicy,
    has_client: bool,
    client_policy: Backpressure,
}

impl Wiring {
    /// Lays all queues. The receiver is for time cards.
    pub(crate) fn lay(
        steps: Vec<Step>,
        specs: Specs,
        client: Option<&Client>,
        wait: Option<WaitPolicy>,
    ) -> Result<(Self, Receiver<Batch>)> {
        let last = steps.len() - 1;
        let mut seats = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            let mut replica = 0;
            for (number, group) in step.groups.iter().enumerate() {
                let layout = Layout::anywhere(&specs[index][number])?;
                let has_slots = index < last && !layout.tensors.is_empty();
                for &device in &group.devices {
                    let place = place_of(&specs[index][number], device, group.on_cpu)?;
                    let ledger = if step.restarts > 0 {
                        (0..LEDGER)
                            .map(|_| Queue::bounded(1))
                            .collect::<Result<_, _>>()?
                    } else {
                        Vec::new()
                    };
                    seats.push(Seat {
                        step: index,
                        group: number,
                        replica,
                        device,
                        name: match step.processes() {
                            1 => step.name.clone(),
                            _ => format!("{}.{replica}", step.name),
                        },
                        slots: if has_slots { slots(step) as usize } else { 0 },
                        slot_bytes: layout.bytes.max(1),
                        place: place.filter(|_| has_slots),
                        freed: Event::new()?,
                        tally: Tally::new()?,
                        ledger,
                    });
                    replica += 1;
                }
            }
        }
        let mut strands = Vec::new();
        for index in 0..steps.len() {
            if index > 0 || client.is_some() {
                lay_strands(&steps, index, &seats, client, &mut strands)?;
            }
        }
        // One more row, for the client.
        let slots: Vec<usize> = seats.iter().map(|seat| seat.slots).chain([0]).collect();
        let board = Board::new(&slots)?;
        let (log, receiver) = Queue::bounded(LOG)?.split();
        let seats_count = seats.len();
        let wiring = Self {
            steps,
            specs,
            seats,
            strands,
            board,
            log: Some(log),
            news: Event::new()?,
            go: Event::new()?,
            wait: wait.unwrap_or_else(|| fitting(seats_count)),
            has_client: client.is_some(),
            client_policy: client.map(|client| client.policy).unwrap_or_default(),
        };
        Ok((wiring, receiver))
    }

    pub(crate) fn step_of(&self, rank: usize) -> &Step {
        &self.steps[self.seats[rank].step]
    }

    pub(crate) fn group_of(&self, rank: usize) -> &QueueGroup {
        &self.step_of(rank).groups[self.seats[rank].group]
    }

    pub(crate) fn process(&self, rank: usize) -> Process {
        Process::named(self.seats[rank].name.clone()).stdin(self.step_of(rank).stdin.clone())
    }

    /// Slots of all processes of a step, and the bytes of the largest.
    pub(crate) fn slots_of(&self, step: usize) -> (usize, usize) {
        let of_step = self.seats.iter().filter(|seat| seat.step == step);
        of_step.fold((0, 0), |(count, bytes), seat| {
            let own = if seat.slots > 0 { seat.slot_bytes } else { 0 };
            (count + seat.slots, bytes.max(own))
        })
    }

    /// The slots of a process, all free; those on a device it makes itself.
    pub(crate) fn make_slots(&self, rank: usize) -> Result<Vec<SharedBytes>> {
        let seat = &self.seats[rank];
        if seat.place.is_some() {
            return Ok(Vec::new());
        }
        (0..seat.slots)
            .map(|_| Ok(ExclusiveBytes::zeros(seat.slot_bytes)?.freeze()))
            .collect()
    }

    /// The lane that a client writes.
    pub(crate) fn client_lane(&self) -> Option<Lane> {
        self.lanes(0, 0, self.client_policy).pop()
    }

    /// The lanes of one queue before a step.
    fn lanes(&self, step: usize, queue: u32, policy: Backpressure) -> Vec<Lane> {
        // Where readers have queues of their own, some may be done while others go on.
        let several = self
            .strands
            .iter()
            .filter(|strand| strand.step == step)
            .count()
            > 1;
        self.strands
            .iter()
            .enumerate()
            .filter(|(_, strand)| strand.step == step && (strand.queue == queue || step == 0))
            .filter_map(|(index, strand)| {
                let takes_out = policy == Backpressure::DropOldest || several;
                Some(Lane {
                    to: strand.to.clone()?,
                    from: strand.from.clone().filter(|_| takes_out),
                    readers: strand.readers.clone(),
                    index: index as u32,
                })
            })
            .collect()
    }

    /// What process `rank` is given, the slots aside.
    pub(crate) fn post(&self, rank: usize, restarts: u32) -> Option<Post> {
        let seat = &self.seats[rank];
        let step = &self.steps[seat.step];
        let group = &step.groups[seat.group];
        let next = self.steps.get(seat.step + 1);
        let upstream = self
            .seats
            .iter()
            .enumerate()
            .filter(|(_, other)| other.step < seat.step && other.slots > 0)
            .map(|(rank, other)| Upstream {
                rank: rank as u32,
                freed: other.freed.clone(),
                specs: self.specs[other.step][other.group].clone(),
            })
            .collect();
        let strand = self
            .strands
            .iter()
            .position(|strand| strand.step == seat.step && strand.readers.contains(&(rank as u32)));
        let input = strand.and_then(|lane| Some((lane as u32, self.strands[lane].from.clone()?)));
        let routes = next.map(|_| Routes {
            queues: out_queues(group, false)
                .into_iter()
                .map(|queue| self.lanes(seat.step + 1, queue, step.backpressure))
                .collect(),
            policy: step.backpressure,
        });
        Some(Post {
            step: step.name.clone(),
            step_index: seat.step as u32,
            rank: rank as u32,
            replica: seat.replica,
            replicas: step.processes(),
            group: seat.group,
            device: seat.device,
            restarts,
            deaths_expected: self.steps.iter().any(|step| step.restarts > 0),
            wait: self.wait,
            upstream,
            touch: Vec::new(),
            writers: input
                .as_ref()
                .map_or_else(Vec::new, |(lane, _)| self.writers(*lane as usize)),
            input,
            sequence: match step.ordered {
                false => Sequence::AsTheyCome,
                true => Sequence::ByNumber {
                    ahead: self.ahead_of(seat.step),
                },
            },
            specs: self.specs[seat.step][seat.group].clone(),
            slots: Vec::new(),
            on_device: seat.place.map(|device| (device, seat.slots)),
            later: (0..self.seats.len())
                .filter(|&other| self.seats[other].step > seat.step)
                .map(|other| other as u32)
                .collect(),
            freed: seat.freed.clone(),
            routes,
            selector: group.selector.clone(),
            segments: step.segments,
            tombstones: self
                .steps
                .iter()
                .skip(seat.step + 1)
                .any(|later| later.ordered),
            board: self.board.clone(),
            tally: seat.tally.clone(),
            log: self.log.clone()?,
            news: self.news.clone(),
            go: self.go.clone(),
            ledger: seat.ledger.clone(),
            backlog: Vec::new(),
        })
    }

    /// How many items may be on their way to a step, behind the first queue.
    fn ahead_of(&self, step: usize) -> u64 {
        let queues = self
            .strands
            .iter()
            .filter(|strand| (1..=step).contains(&strand.step));
        let queued: usize = queues.map(|strand| strand.channel.capacity()).sum();
        let before = self.seats.iter().filter(|seat| seat.step < step);
        let in_hand: usize = before.map(|seat| 1 + seat.slots).sum();
        (queued + in_hand) as u64
    }

    /// Whether a step gets its items in order.
    pub(crate) fn is_ordered(&self) -> bool {
        self.steps.iter().any(|step| step.ordered)
    }

    /// Who may put into each lane, and who takes from it.
    pub(crate) fn parties(&self) -> Parties {
        let lanes = 0..self.strands.len();
        let writers: Vec<Vec<u32>> = lanes.clone().map(|lane| self.writers(lane)).collect();
        let takers = lanes.clone().map(|lane| {
            let strand = &self.strands[lane];
            let before = strand.step.checked_sub(1).map(|before| &self.steps[before]);
            let mut takers = strand.readers.clone();
            if before.is_some_and(|step| step.backpressure == Backpressure::DropOldest) {
                takers.extend(&writers[lane]);
            }
            takers
        });
        let takers: Vec<Vec<u32>> = takers.collect();
        // What a process of a later step has read, it may pass on.
        let mut reach: Vec<Vec<u32>> = vec![Vec::new(); self.seats.len()];
        for rank in (0..self.seats.len()).rev() {
            let written = lanes
                .clone()
                .filter(|&lane| writers[lane].contains(&(rank as u32)));
            let mut reached: Vec<u32> = Vec::new();
            for &taker in written.flat_map(|lane| &takers[lane]) {
                reached.push(taker);
                reached.extend(&reach[taker as usize]);
            }
            reached.sort_unstable();
            reached.dedup();
            reach[rank] = reached;
        }
        Parties {
            reach,
            takers,
            from_client: lanes
                .map(|lane| self.strands[lane].step == 0 && self.has_client())
                .collect(),
            writers,
        }
    }

    /// Whether `reader` may get slots of `writer`, straight.
    pub(crate) fn reads(&self, reader: usize, writer: usize) -> bool {
        let (from, to) = (&self.seats[writer], &self.seats[reader]);
        from.step + 1 == to.step
            && out_queues(self.group_of(writer), false).contains(&in_queue(self.group_of(reader)))
    }

    /// Who puts into a lane.
    pub(crate) fn writers(&self, lane: usize) -> Vec<u32> {
        let strand = &self.strands[lane];
        (0..self.seats.len())
            .filter(|&rank| {
                self.seats[rank].step + 1 == strand.step
                    && out_queues(self.group_of(rank), false).contains(&strand.queue)
            })
            .map(|rank| rank as u32)
            .collect()
    }

    /// Lets go of what this process needs no longer once the others have theirs, or the processes of a step are done: what
    /// they put ends then, and what they took is wanted by nobody.
    pub(crate) fn let_go(
        &mut self,
        writers_of: impl Fn(usize) -> bool,
        readers_of: impl Fn(usize) -> bool,
    ) {
        for strand in &mut self.strands {
            if strand.step.checked_sub(1).is_none_or(&writers_of) {
                strand.to = None;
            }
            if readers_of(strand.step) {
                strand.from = None;
            }
        }
    }

    /// Makes who waits for a slot look again.
    pub(crate) fn wake_writers(&self) {
        self.seats.iter().for_each(|seat| seat.freed.set());
    }

    pub(crate) fn has_client(&self) -> bool {
        self.has_client
    }

    /// Whether items may be lost on the way.
    pub(crate) fn may_lose(&self) -> bool {
        let drops = |policy| matches!(policy, Backpressure::DropNewest | Backpressure::DropOldest);
        drops(self.client_policy)
            || self
                .steps
                .iter()
                .any(|step| drops(step.backpressure) || step.restarts > 0)
    }

    pub(crate) fn limit(&self, rank: usize) -> Option<Duration> {
        self.step_of(rank).limit
    }

    pub(crate) fn unfinished(&self, rank: usize) -> Unfinished {
        self.step_of(rank).unfinished
    }
}

/// How so many processes wait where nothing is said. Whoever started them sleeps while they run, so that they may have a
/// core each though there is one more of them than cores.
fn fitting(processes: usize) -> WaitPolicy {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    if processes <= cores {
        WaitPolicy::Eager
    } else {
        WaitPolicy::Adaptive
    }
}

fn lay_strands(
    steps: &[Step],
    index: usize,
    seats: &[Seat],
    client: Option<&Client>,
    strands: &mut Vec<Strand>,
) -> Result<()> {
    let step = &steps[index];
    let before = index.checked_sub(1).map(|before| &steps[before]);
    let mut queues: Vec<u32> = step.groups.iter().map(in_queue).collect();
    if before.is_none() {
        queues = vec![0];
    }
    queues.sort_unstable();
    queues.dedup();
    for queue in queues {
        let readers: Vec<u32> = seats
            .iter()
            .enumerate()
            .filter(|(_, seat)| {
                seat.step == index
                    && (before.is_none() || in_queue(&step.groups[seat.group]) == queue)
            })
            .map(|(rank, _)| rank as u32)
            .collect();
        let capacity = match (before, client) {
            (Some(before), _) => capacity_behind(before, index - 1, seats),
            (None, Some(client)) => client.capacity(),
            (None, None) => QUEUE_SIZE,
        };
        let lanes = match before.map(|before| before.delivery) {
            Some(Delivery::Every) => readers.iter().map(|&reader| vec![reader]).collect(),
            _ => vec![readers],
        };
        for readers in lanes {
            let (to, from) = Queue::bounded(capacity)?.split();
            strands.push(Strand {
                step: index,
                queue,
                readers,
                channel: from.channel().clone(),
                to: Some(to),
                from: Some(from),
            });
        }
    }
    Ok(())
}

/// Room for everything that can be on its way, so that a process waits for slots and not for room.
fn capacity_behind(before: &Step, index: usize, seats: &[Seat]) -> usize {
    if let Some(size) = before.queue_size {
        return size;
    }
    let slots: usize = seats
        .iter()
        .filter(|seat| seat.step == index)
        .map(|seat| seat.slots)
        .sum();
    match slots * before.segments as usize {
        0 => QUEUE_SIZE,
        items => items,
    }
}
