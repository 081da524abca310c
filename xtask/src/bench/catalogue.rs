//! All suites, their cases, and each subject by its name, which is how the two processes find it.

use pipeline::Topology;
use spawn::StartMethod;

use super::attach::{Attach, Map};
use super::bare;
use super::blocks::{Act, Blocks, Local};
use super::cuda::{self, Cuda};
use super::filling::Filling;
use super::floor::{CacheLine, FutexWake};
use super::many::{Idle, Many};
use super::memory::{FirstTouch, Memcpy};
use super::payload::{HANDLE, LARGE, SIZES};
use super::peer::Carried;
use super::pipeline::{Bare, ByHand, CLIPS_15, Handed, LARGER, Line, Load, Rate, Through};
use super::pool::{Pooled, PythonCall, RoundTrip, Work};
use super::python::{PythonQueue, TorchDevice};
use super::queue::{Kind, Queued};
use super::ring::{Ring, Waiting};
use super::start::{Peer, Start, Way};
use super::stream::{Stream, Transport};
use super::subject::Subject;

#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Suite {
    /// What the machine itself costs; each case against itself.
    Floor,
    /// One hand-over from process to process, by each transport.
    Handoff,
    /// A tensor through a queue: put in one process, got in the other.
    Queue,
    /// Starting a process, running a function in it, and waiting for it.
    Spawn,
    /// Tensors made, filled, cloned, sent and dropped, and an arena joined.
    Memory,
    /// Tasks of a pool: single calls, and those of a map.
    Pool,
    /// From the end of one stage's work to the next stage, RnB's measure, four ways.
    Pipeline,
    /// Device tensors from process to process; needs a GPU.
    Cuda,
}

/// A subject and the floor that fits it; none: the subject itself.
pub(crate) struct Case {
    pub(crate) subject: Box<dyn Subject>,
    pub(crate) floor: Option<Box<dyn Subject>>,
}

impl Suite {
    pub(crate) fn all() -> Vec<Suite> {
        vec![
            Suite::Floor,
            Suite::Handoff,
            Suite::Queue,
            Suite::Memory,
            Suite::Pool,
            Suite::Pipeline,
            Suite::Spawn,
            Suite::Cuda,
        ]
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Suite::Floor => "floor",
            Suite::Handoff => "handoff",
            Suite::Queue => "queue",
            Suite::Spawn => "spawn",
            Suite::Memory => "memory",
            Suite::Pool => "pool",
            Suite::Pipeline => "pipeline",
            Suite::Cuda => "cuda",
        }
    }

    pub(crate) fn cases(self) -> Vec<Case> {
        match self {
            Suite::Floor => {
                let subjects: [Box<dyn Subject>; 4] = [
                    Box::new(CacheLine),
                    Box::new(FutexWake),
                    Box::new(Memcpy),
                    Box::new(FirstTouch),
                ];
                let itself = |subject| Case {
                    subject,
                    floor: None,
                };
                let bare = [bare::Bare::Line, bare::Bare::Lane].map(Case::busy);
                subjects.into_iter().map(itself).chain(bare).collect()
            }
            Suite::Handoff => handoff(),
            Suite::Memory => memory(),
            Suite::Queue => queue(),
            Suite::Spawn => starts(),
            Suite::Pipeline => pipelines(),
            Suite::Cuda => devices(),
            Suite::Pool => {
                let work = [Work::Call, Work::Map { chunk: 1 }, Work::Map { chunk: 16 }];
                let mut cases: Vec<_> = work
                    .into_iter()
                    .map(|work| Case::task(Pooled(work)))
                    .collect();
                cases.push(Case::task(Peer {
                    order: "call",
                    name: "procspawn call",
                    metric: "task_ns",
                }));
                cases.push(Case::task(PythonCall));
                cases
            }
        }
    }
}

impl Case {
    /// A subject whose ends spin, as those of the cache line do.
    fn busy(subject: impl Subject + 'static) -> Case {
        Case {
            subject: Box::new(subject),
            floor: Some(Box::new(CacheLine)),
        }
    }

    /// A task, which cannot take less than its message there and back.
    fn task(subject: impl Subject + 'static) -> Case {
        Case {
            subject: Box::new(subject),
            floor: Some(Box::new(RoundTrip)),
        }
    }

    /// A subject whose receiver sleeps in the kernel until something comes, as that of the futex does.
    fn parked(subject: impl Subject + 'static) -> Case {
        Case {
            subject: Box::new(subject),
            floor: Some(Box::new(FutexWake)),
        }
    }
}

fn handoff() -> Vec<Case> {
    let ring = |topology, waiting, size| Ring {
        topology,
        waiting,
        size,
    };
    let (one, many) = (Topology::OneToOne, Topology::Replicas);
    let mut cases = Vec::new();
    for topology in [one, many] {
        cases.extend(SIZES.map(|size| Case::busy(ring(topology, Waiting::Busy, size))));
    }
    cases.push(Case::busy(ring(one, Waiting::Cycle, LARGE)));
    cases.extend(SIZES.map(|size| Case::parked(ring(one, Waiting::Parked, size))));
    for transport in [Transport::Pipe, Transport::Unix] {
        cases.extend(SIZES.map(|size| Case::parked(Stream { transport, size })));
    }
    cases
}

fn starts() -> Vec<Case> {
    let mut cases = Vec::new();
    let start = |way, large| Start { way, large };
    for large in [false, true] {
        cases.extend(StartMethod::ALL.map(|method| Case {
            subject: Box::new(start(Way::Method(method), large)),
            floor: Some(Box::new(start(Way::Again, false))),
        }));
    }
    let peer = |name, order| {
        Box::new(Peer {
            order,
            name,
            metric: "start_to_joined_ns",
        })
    };
    cases.push(Case {
        subject: peer("procspawn", "procspawn"),
        floor: Some(peer("run again, peer", "floor")),
    });
    cases
}

fn devices() -> Vec<Case> {
    use cuda::Act;
    let case = |act, floor| Case {
        subject: Box::new(Cuda(act)),
        floor: Some(floor),
    };
    let line = || -> Box<dyn Subject> { Box::new(CacheLine) };
    let mut cases: Vec<Case> = cuda::HANDOVERS
        .iter()
        .map(|&act| case(act, line()))
        .collect();
    cases.push(case(Act::CopyReceived, Box::new(Cuda(Act::CopyOwn))));
    cases.push(Case {
        subject: Box::new(TorchDevice),
        floor: Some(line()),
    });
    cases
}

fn queue() -> Vec<Case> {
    let [small, _, _] = SIZES;
    let sizes = [None, Some(small), Some(LARGE)];
    let queued = |kind, parked, size| Queued { kind, parked, size };
    let mut cases = Vec::new();
    for kind in [Kind::Pair, Kind::Queue] {
        cases.extend(sizes.map(|size| Case::busy(queued(kind, false, size))));
        cases.extend(sizes.map(|size| Case::parked(queued(kind, true, size))));
    }
    for (producers, consumers) in [(4, 4), (1, 4)] {
        cases.push(Case::busy(Many {
            producers,
            consumers,
            size: small,
        }));
    }
    cases.push(Case {
        subject: Box::new(Idle),
        floor: None,
    });
    cases.extend(peers());
    cases
}

/// Messages by other crates, in each way of waiting that they have.
fn peers() -> Vec<Case> {
    let [small, _, _] = SIZES;
    let mut cases = Vec::new();
    for (program, name) in [
        ("iceoryx2", "iceoryx2"),
        ("ipc-channel", "ipc-channel"),
        ("ringfire", "ringfire"),
        ("pipe", "pipe postcard"),
    ] {
        let carried = |parked, size| Carried {
            program,
            name,
            parked,
            size,
        };
        for size in [HANDLE, small, LARGE] {
            if program != "pipe" {
                cases.push(Case::busy(carried(false, size)));
            }
            // What ringfire has for large messages has no way to sleep.
            if program != "ringfire" || size.bytes < LARGE.bytes {
                cases.push(Case::parked(carried(true, size)));
            }
        }
    }
    for torch in [false, true] {
        cases.extend([HANDLE, small, LARGE].map(|size| Case::parked(PythonQueue { torch, size })));
    }
    cases
}

fn pipelines() -> Vec<Case> {
    let rate = |beside, floor: Box<dyn Subject>| Case {
        subject: Box::new(Rate { beside }),
        floor: Some(floor),
    };
    let mut cases = vec![
        rate("", Box::new(Bare::Alone)),
        rate(" beside apart", Box::new(Bare::Apart)),
        Case {
            subject: Box::new(Bare::Apart),
            floor: Some(Box::new(Bare::Alone)),
        },
    ];
    let line = Line::new;
    for size in [LARGE, CLIPS_15].into_iter().chain(LARGER) {
        cases.push(Case::busy(line(Load::Busy, size)));
    }
    let size = CLIPS_15;
    cases.push(Case::parked(line(Load::Parked, size)));
    for replicas in [2, 4] {
        let load = Load::Busy;
        cases.push(Case::busy(Line {
            replicas,
            ..line(load, size)
        }));
    }
    for slots in [1, 2, 16, 64] {
        let load = Load::Busy;
        cases.push(Case::busy(Line {
            slots,
            ..line(load, size)
        }));
    }
    for way in [Handed::Queue, Handed::Rnb, Handed::RnbCopied] {
        for size in [LARGE, CLIPS_15] {
            let load = Load::Busy;
            cases.push(Case::busy(ByHand { way, load, size }));
        }
    }
    for way in [Handed::Queue, Handed::Rnb] {
        let load = Load::Parked;
        cases.push(Case::parked(ByHand { way, load, size }));
    }
    cases.push(Case::busy(line(Load::Full, size)));
    for way in [Handed::Queue, Handed::Rnb] {
        let load = Load::Full;
        cases.push(Case::busy(ByHand { way, load, size }));
    }
    for size in [LARGE, CLIPS_15] {
        let transport = Transport::Pipe;
        cases.push(Case::parked(Through(Stream { transport, size })));
    }
    cases
}

/// So many live blocks; of those that grow, the first is the floor of the others.
const LIVE: [usize; 3] = [1, 1000, 1_000_000];
/// Processes that have joined beside the two of the benchmark.
const OTHERS: [usize; 2] = [6, 62];

fn memory() -> Vec<Case> {
    let against = |subject: Box<dyn Subject>, floor: Box<dyn Subject>| Case {
        subject,
        floor: Some(floor),
    };
    let mut cases = vec![
        against(Box::new(Filling::Recycled), Box::new(Memcpy)),
        against(Box::new(Filling::Fresh), Box::new(Filling::Malloc)),
    ];
    let blocks = |act, live, others| Box::new(Blocks { act, live, others });
    for (act, floor) in [
        (Act::Alloc, Some(Local::Malloc)),
        (Act::Drop, Some(Local::Free)),
        (Act::Clone, Some(Local::Arc)),
        (Act::Send, None),
    ] {
        cases.push(Case {
            subject: blocks(act, LIVE[0], 0),
            floor: floor.map(|floor| Box::new(floor) as Box<dyn Subject>),
        });
        for live in &LIVE[1..] {
            cases.push(against(blocks(act, *live, 0), blocks(act, LIVE[0], 0)));
        }
    }
    for act in [Act::AllocCold, Act::DropCold] {
        let live = LIVE[2];
        cases.push(against(blocks(act, live, 0), blocks(act, LIVE[1], 0)));
    }
    let attach = |named, gib, others| Box::new(Attach { named, gib, others });
    for named in [true, false] {
        cases.push(against(attach(named, 1, 0), Box::new(Map)));
        cases.push(against(attach(named, 64, 0), attach(named, 1, 0)));
    }
    for others in OTHERS {
        cases.push(against(attach(true, 1, others), attach(true, 1, 0)));
        for act in [Act::Alloc, Act::Drop, Act::Send] {
            let live = LIVE[0];
            cases.push(against(blocks(act, live, others), blocks(act, live, 0)));
        }
    }
    cases
}

/// The subject or floor of that key.
pub(crate) fn find(key: &str) -> Option<Box<dyn Subject>> {
    let cases = Suite::all().into_iter().flat_map(Suite::cases);
    let mut subjects = cases
        .flat_map(|case| [Some(case.subject), case.floor])
        .flatten();
    subjects.find(|subject| subject.key() == key)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{Suite, find};

    #[test]
    fn each_subject_is_found_by_its_name_and_none_twice() {
        let mut names = HashSet::new();
        for case in Suite::all().into_iter().flat_map(Suite::cases) {
            assert!(find(&case.subject.key()).is_some());
            assert!(case.floor.is_none_or(|floor| find(&floor.key()).is_some()));
            assert!(
                names.insert(case.subject.key()),
                "{} is there twice",
                case.subject.key()
            );
        }
        for name in [
            "ring busy 4KiB",
            "ring cells busy 12MB",
            "ring parked 1MiB",
            "pipe 12MB",
            "unix 4KiB",
            "spawn",
            "forkserver 8GiB",
            "procspawn",
            "pair busy handle",
            "1:1 busy handle",
            "1:1 busy 12MB",
            "1:1 parked handle",
            "4:4 busy 4KiB",
            "iceoryx2 1:1 busy 12MB",
            "ipc-channel 1:1 4KiB",
            "ringfire 1:1 busy 64B",
            "pipe postcard 1:1 12MB",
            "python queue 1:1 4KiB",
            "torch queue 1:1 12MB",
            "recycled 12MB",
            "fresh 12MB",
            "alloc 4KiB at 1",
            "alloc 4KiB at 1000000",
            "drop 4KiB at 1 among 64",
            "attach 64GiB",
            "call",
            "map",
            "pipeline ring busy 18MB",
            "pipeline ring parked 18MB",
            "pipeline queue busy 18MB",
            "pipeline rnb busy 18MB",
            "pipeline pipe 18MB",
            "device attach 1GiB",
            "device put",
            "device to device",
            "torch device to device",
        ] {
            assert!(names.contains(name), "{name} is not in {names:?}");
        }
    }
}
