//! Bytes that no process of ours wrote: in messages, and asked of the thread that lends memory.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use cuda_emulator::{Feature, Knobs, Session};
use cuda_ipc::{Device, DeviceTensor, Options, Path, SharedDeviceTensor, Stream};
use integration_tests::{Test, resume, see_stopped, tests};
use tensormp::prelude::*;
use tensormp::spawn_api::builder;

use crate::support::{machine, no_memory_is_left, with};

pub(crate) const TESTS: &[Test] = &tests![
    no_token_and_no_geometry_does_harm_to_who_receives_it,
    no_copy_through_the_host_does_harm_to_who_receives_it,
    whatever_the_lending_thread_is_asked_it_answers_and_goes_on,
    visitors_that_say_nothing_keep_nobody_waiting,
    a_visitor_that_was_stopped_for_too_long_comes_once_more,
    a_process_without_descriptors_is_told_so_and_goes_on_when_it_has_some,
    a_process_without_descriptors_does_not_change_the_way_to_others,
    what_an_origin_could_not_do_for_once_does_not_change_the_way,
    an_origin_that_had_no_thread_to_listen_with_has_one_later,
    an_origin_that_has_no_thread_to_copy_with_is_asked_again,
    a_way_that_was_tried_without_room_for_files_is_tried_again,
];

/// A device tensor in a message, as what it is made of: which way, the token's words, how the elements lie.
type Raw = (u8, Tensor<u64>, Vec<u8>);

/// The same queue, believed to be of another type.
fn as_another<T, U>(queue: &Queue<T>) -> Queue<U>
where
    Queue<T>: serde::Serialize,
    Queue<U>: serde::de::DeserializeOwned,
{
    let arena = Arena::current().unwrap();
    arena.publish("another", queue).unwrap();
    let other = arena.open("another").unwrap();
    arena.unpublish("another").unwrap();
    other
}

fn mutate(rng: &mut fastrand::Rng, words: &mut [u64], bytes: &mut Vec<u8>) {
    for _ in 0..rng.usize(1..3) {
        match rng.u8(..4) {
            0 if !words.is_empty() => {
                let at = rng.usize(..words.len());
                words[at] = match rng.u8(..4) {
                    0 => rng.u64(..),
                    1 => words[at] ^ (1 << rng.u32(..64)),
                    2 => words[at].wrapping_add_signed(rng.i64(-2..3)),
                    _ => u64::MAX - rng.u64(..3),
                };
            }
            1 => bytes.truncate(rng.usize(..=bytes.len())),
            2 => bytes.extend(std::iter::repeat_with(|| rng.u8(..)).take(3)),
            _ if !bytes.is_empty() => {
                let at = rng.usize(..bytes.len());
                bytes[at] ^= 1 << rng.u32(..8);
            }
            _ => {}
        }
    }
}

fn no_token_and_no_geometry_does_harm_to_who_receives_it() {
    const TIMES: u32 = 400;
    fn read(_rank: usize, from: Receiver<DeviceTensor<f32>>) -> tensormp::Result<(u32, u32)> {
        let (mut taken, mut refused) = (0, 0);
        loop {
            match from.get() {
                Ok(mut tensor) => {
                    let _ = (tensor.to_vec(), tensor.clear());
                    taken += 1;
                }
                Err(error) if error.to_string().contains("closed") => return Ok((taken, refused)),
                Err(_) => refused += 1,
            }
            if taken + refused == TIMES {
                return Ok((taken, refused));
            }
        }
    }
    let session = machine();
    let queue: Queue<DeviceTensor<f32>> = Queue::bounded(4).unwrap();
    let raw: Queue<Raw> = as_another(&queue);
    let mut context = spawn(read, queue.receiver().clone(), 1).unwrap();
    // One in the hands of this process, whose words are lied about.
    let here: Queue<DeviceTensor<f32>> = Queue::bounded(1).unwrap();
    let raw_here: Queue<Raw> = as_another(&here);
    here.put(DeviceTensor::from_slice([5, 7], &[1.5; 35]).unwrap())
        .unwrap();
    let (way, token, lies) = raw_here.get().unwrap();
    let mut rng = fastrand::Rng::with_seed(7);
    let mut refused = 0;
    for _ in 0..TIMES {
        let (mut words, mut bytes) = (token.to_vec(), lies.clone());
        mutate(&mut rng, &mut words, &mut bytes);
        let message = || {
            (
                way,
                Tensor::from_slice([words.len()], &words).unwrap(),
                bytes.clone(),
            )
        };
        raw_here.put(message()).unwrap();
        match here.get() {
            Ok(tensor) => drop(tensor.to_vec()),
            Err(_) => refused += 1,
        }
        raw.put(message()).unwrap();
    }
    assert!(refused > TIMES / 4, "{refused}");
    let (taken, refused) = context.join().unwrap()[0];
    assert!(refused > TIMES / 4, "{taken} and {refused}");
    // What it is, it still is.
    raw_here.put((way, token, lies)).unwrap();
    let back = here.get().unwrap();
    assert_eq!(back.shape(), [5, 7]);
    drop((back, queue, raw, here, raw_here));
    cuda_ipc::close(Duration::from_secs(20)).unwrap();
    assert_eq!(session.live().allocations, 0);
}

fn no_copy_through_the_host_does_harm_to_who_receives_it() {
    /// Which way, the bytes, how the elements lie, and of which device.
    type RawCopy = (u8, SharedTensor<u8>, Vec<u8>, [u64; 2]);
    let session = machine();
    Options::new().path(Path::Host).install().unwrap();
    let queue: Queue<SharedDeviceTensor<u16>> = Queue::bounded(1).unwrap();
    let raw: Queue<RawCopy> = as_another(&queue);
    let tensor = DeviceTensor::from_slice([6, 6], &[3_u16; 36])
        .unwrap()
        .freeze();
    queue.put(tensor.clone()).unwrap();
    let (way, copy, lies, device) = raw.get().unwrap();
    let mut rng = fastrand::Rng::with_seed(8);
    let (mut taken, mut refused) = (0, 0);
    for round in 0..400 {
        let (mut words, mut bytes) = (device.to_vec(), lies.clone());
        mutate(
            &mut rng,
            if round % 4 == 0 { &mut words } else { &mut [] },
            &mut bytes,
        );
        raw.put((way, copy.clone(), bytes, [words[0], words[1]]))
            .unwrap();
        match queue.get() {
            Ok(tensor) => {
                let _ = tensor.to_vec().unwrap();
                taken += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 100, "{taken} and {refused}");
    drop((copy, tensor, queue, raw));
    no_memory_is_left(session);
}

/// A connection to the thread of that process that lends memory.
fn visit(pid: u32) -> io::Result<OwnedFd> {
    let sockets = std::fs::read_to_string("/proc/net/unix")?;
    let start = format!("tensormp-device-{pid}-");
    let name = sockets
        .lines()
        .find_map(|line| {
            line.rsplit_once(" @")
                .filter(|(_, name)| name.starts_with(&start))
        })
        .map(|(_, name)| name.trim().to_owned())
        .ok_or(io::ErrorKind::NotFound)?;
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        None,
    )?;
    let address = rustix::net::SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

fn whatever_the_lending_thread_is_asked_it_answers_and_goes_on() {
    fn read(_rank: usize, from: Receiver<DeviceTensor<u8>>) -> tensormp::Result<u8> {
        Ok(from.get()?.to_vec().unwrap()[2])
    }
    let session = with(&Knobs::new().without(Feature::LegacyIpc));
    let tensor = DeviceTensor::from_slice([100], &[4_u8; 100]).unwrap();
    let mut rng = fastrand::Rng::with_seed(3);
    let mut answered = 0;
    for round in 0..300 {
        let socket = visit(std::process::id()).unwrap();
        let mut words: [u64; 7] = std::array::from_fn(|_| match rng.u8(..4) {
            0 => rng.u64(..4),
            1 => u64::MAX - rng.u64(..4),
            2 => 1 << rng.u32(..64),
            _ => rng.u64(..),
        });
        words[0] = rng.u64(..4);
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        match round % 5 {
            0 => bytes.truncate(rng.usize(..57)),
            1 => bytes.resize(rng.usize(56..4_000), 7),
            // Leaves before it has said anything.
            2 => continue,
            _ => {}
        }
        if bytes.is_empty() {
            continue;
        }
        rustix::net::send(&socket, &bytes, rustix::net::SendFlags::NOSIGNAL).unwrap();
        let mut answer = [0; 1024];
        let (length, _) =
            rustix::net::recv(&socket, &mut answer, rustix::net::RecvFlags::empty()).unwrap();
        assert!(length > 10 && answer[0] == 1, "it says why not");
        answered += 1;
    }
    assert!(answered > 200, "{answered}");
    // And lends to who asks rightly.
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    sender.put(tensor).unwrap();
    assert_eq!(spawn(read, receiver, 1).unwrap().join().unwrap(), [4]);
    no_memory_is_left(session);
}

fn visitors_that_say_nothing_keep_nobody_waiting() {
    fn read(_rank: usize, from: Receiver<DeviceTensor<u8>>) -> tensormp::Result<u8> {
        Ok(from.get()?.to_vec()?[2])
    }
    let session = machine();
    Options::new().path(Path::Descriptor).install().unwrap();
    let tensor = DeviceTensor::from_slice([100], &[4_u8; 100]).unwrap();
    // Each for a second or two, one after the other, is longer than anybody waits for an origin.
    let visitors = (0..60).map(|_| visit(std::process::id()).unwrap());
    let silent: Vec<_> = visitors.collect();
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    sender.put(tensor).unwrap();
    assert_eq!(spawn(read, receiver, 1).unwrap().join().unwrap(), [4]);
    drop(silent);
    no_memory_is_left(session);
}

fn a_visitor_that_was_stopped_for_too_long_comes_once_more() {
    fn read(_rank: usize, from: Receiver<DeviceTensor<u8>>) -> tensormp::Result<(u8, u64)> {
        #[cfg(debug_assertions)]
        tensormp::shm_core::failpoint::arm(Some("device.ask.connected=stop"));
        let tensor = from.get()?;
        // As it is asked for, and not a copy of it.
        Ok((tensor.to_vec()?[2], cuda_ipc::stats().staged))
    }
    if !cfg!(debug_assertions) {
        return eprintln!("skipped: this build has no failpoints");
    }
    let session = machine();
    Options::new().path(Path::Descriptor).install().unwrap();
    let tensor = DeviceTensor::from_slice([100], &[4_u8; 100]).unwrap();
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    let mut reader = spawn(read, receiver, 1).unwrap();
    sender.put(tensor).unwrap();
    let pid = reader.pids()[0];
    see_stopped(pid);
    // One that came later and says nothing either is left: so is that one.
    let silent = visit(std::process::id()).unwrap();
    let said = rustix::net::recv(&silent, &mut [0; 8], rustix::net::RecvFlags::empty());
    assert_eq!(said.unwrap().0, 0);
    resume(pid);
    assert_eq!(reader.join().unwrap(), [(4, 0)]);
    no_memory_is_left(session);
}

/// This process has no room for more descriptors while it lives.
#[expect(dead_code, reason = "held, and given back together")]
struct Full(Vec<OwnedFd>);

impl Full {
    fn new() -> Self {
        let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        limit.current = Some(64);
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        let mut all = Vec::new();
        loop {
            let Ok(one) = rustix::io::dup(io::stderr()) else {
                return Self(all);
            };
            all.push(one);
        }
    }
}

fn a_process_without_descriptors_is_told_so_and_goes_on_when_it_has_some() {
    type Told = (String, u8);
    fn read(_rank: usize, from: Receiver<DeviceTensor<u8>>) -> tensormp::Result<Told> {
        let first = from.get()?;
        // It is open now, also where its origin took long to answer.
        first.to_vec()?;
        let full = Full::new();
        // When it comes, or at its first use where its origin takes long to answer.
        let tensor = from.get().map_err(tensormp::Error::from);
        let read = tensor.and_then(|tensor| Ok(tensor.to_vec()?));
        let error = read.unwrap_err().to_string();
        assert_eq!(first.to_vec().unwrap()[0], 1, "what is open stays open");
        drop(full);
        // Lost is what could not be opened; the next one comes.
        Ok((error, from.get()?.to_vec().unwrap()[0]))
    }
    let session = machine();
    Options::new().path(Path::Descriptor).install().unwrap();
    let (sender, receiver) = Queue::bounded(3).unwrap().split();
    let mut context = spawn(read, receiver, 1).unwrap();
    for value in 1..=3 {
        let mut tensor = DeviceTensor::<u8>::zeros([3 << 20]).unwrap();
        tensor.copy_from_slice(&vec![value; 3 << 20]).unwrap();
        sender.put(tensor).unwrap();
    }
    drop(sender);
    let (error, last) = context.join().unwrap()[0].clone();
    assert!(error.contains("descriptor"), "{error}");
    assert_eq!(last, 3);
    no_memory_is_left(session);
}

fn a_process_without_descriptors_does_not_change_the_way_to_others() {
    fn read(_rank: usize, from: Receiver<DeviceTensor<u8>>) -> tensormp::Result<String> {
        from.get()?.to_vec()?;
        let full = Full::new();
        let tensor = from.get().map_err(tensormp::Error::from);
        let read = tensor.and_then(|tensor| Ok(tensor.to_vec()?));
        drop(full);
        Ok(read.unwrap_err().to_string())
    }
    let session = with(&Knobs::new().without(Feature::LegacyIpc));
    let (sender, receiver) = Queue::bounded(3).unwrap().split();
    let mut context = spawn(read, receiver, 1).unwrap();
    for _ in 0..2 {
        sender
            .put(DeviceTensor::<u8>::zeros([3 << 20]).unwrap())
            .unwrap();
    }
    let error = &context.join().unwrap()[0];
    assert!(error.contains("ulimit -n"), "{error}");
    let next = DeviceTensor::<u8>::zeros([3]).unwrap();
    assert_eq!(next.path(), Path::Descriptor);
    drop((next, sender));
    no_memory_is_left(session);
}

fn what_an_origin_could_not_do_for_once_does_not_change_the_way() {
    type Bytes = DeviceTensor<u8>;
    fn read(_rank: usize, from: Receiver<Bytes>) -> tensormp::Result<(String, u8)> {
        // What fails for once, fails here as well.
        let _ = Bytes::zeros([3])?.to_vec();
        Ok((
            from.get().unwrap_err().to_string(),
            from.get()?.to_vec()?[2],
        ))
    }
    // As if it had no file descriptor left: neither of its memory, after a trial, nor for a copy.
    let knobs = Knobs::new().without(Feature::LegacyIpc);
    let knobs = knobs.fail("cuMemExportToShareableHandle", 304, Some(2));
    let session = with(&knobs.fail("cuMemcpyDtoHAsync_v2", 304, Some(1)));
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    let mut context = spawn(read, receiver, 1).unwrap();
    for value in [7, 8] {
        let next = DeviceTensor::from_slice([3], &[value; 3]).unwrap();
        assert_eq!(next.path(), Path::Descriptor);
        sender.put(next).unwrap();
        while !sender.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let (error, last) = context.join().unwrap()[0].clone();
    assert!(error.contains("ulimit -n") && last == 8, "{error}");
    let next = Bytes::zeros([3]).unwrap();
    assert_eq!(next.path(), Path::Descriptor);
    drop((next, sender));
    no_memory_is_left(session);
}

/// There is no room for the stack of one more thread meanwhile, also none of a thread that has ended.
fn without_threads<R>(act: impl FnOnce() -> R) -> R {
    // What is needed meanwhile is taken out of this, which lies below what is kept.
    let spare: Vec<_> = (0..64).map(|_| vec![1_u8; 16 << 10]).collect();
    let _kept = Box::new([1_u8; 64]);
    let resource = rustix::process::Resource::As;
    let limit = rustix::process::getrlimit(resource);
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap_or_default().parse().unwrap();
    let mut tight = limit;
    tight.current = Some(pages * rustix::param::page_size() as u64 + (1 << 20));
    rustix::process::setrlimit(resource, tight).unwrap();
    let over = Arc::new(RwLock::new(()));
    let until = over.write().unwrap();
    let mut threads = Vec::new();
    // As large as those of most threads, and as that of the one that watches others.
    for size in [2 << 20, 256 << 10] {
        let start = || {
            let over = over.clone();
            let thread = std::thread::Builder::new().stack_size(size);
            thread.spawn(move || drop(over.read()))
        };
        threads.extend(std::iter::from_fn(|| start().ok()));
    }
    drop(spare);
    let answer = act();
    rustix::process::setrlimit(resource, limit).unwrap();
    drop(until);
    for thread in threads {
        thread.join().unwrap();
    }
    answer
}

fn an_origin_that_had_no_thread_to_listen_with_has_one_later() {
    type Part = (Sender<DeviceTensor<u8>>, Event);
    fn send(_rank: usize, (to, end): Part) -> tensormp::Result<()> {
        // A stream has its thread, in an emulated driver.
        Stream::of(Device::new(0)?)?.synchronize()?;
        to.put(without_threads(|| {
            DeviceTensor::from_slice([100], &[5; 100])
        })?)?;
        end.wait()?;
        Ok(())
    }
    let session = asked_for_copies();
    let (to, from) = Queue::bounded(1).unwrap().split();
    let end = Event::new().unwrap();
    let mut origin = origin().spawn(send, (to, end.clone()), 1).unwrap();
    let tensor = from.get().unwrap();
    assert_eq!(tensor.to_vec().unwrap(), [5; 100]);
    end.set();
    origin.join().unwrap();
    drop(tensor);
    no_memory_is_left(session);
}

fn an_origin_that_has_no_thread_to_copy_with_is_asked_again() {
    type Part = (Sender<DeviceTensor<u8>>, Event, Event);
    fn send(_rank: usize, (to, is_tight, end): Part) -> tensormp::Result<()> {
        to.put(DeviceTensor::from_slice([100], &[5; 100])?)?;
        without_threads(|| {
            is_tight.set();
            // Until it has been asked.
            std::thread::sleep(Duration::from_millis(1500));
        });
        end.wait()?;
        Ok(())
    }
    let session = asked_for_copies();
    let (to, from) = Queue::bounded(1).unwrap().split();
    let (is_tight, end) = (Event::new().unwrap(), Event::new().unwrap());
    let part = (to, is_tight.clone(), end.clone());
    let mut origin = origin().spawn(send, part, 1).unwrap();
    is_tight.wait().unwrap();
    let tensor = from.get().unwrap();
    assert_eq!(tensor.to_vec().unwrap(), [5; 100]);
    end.set();
    origin.join().unwrap();
    drop(tensor);
    no_memory_is_left(session);
}

/// Here no handle is opened, as in another container: an origin is asked for a copy.
fn asked_for_copies() -> Session {
    with(&Knobs::new().fail("cuIpcOpenMemHandle_v2", 201, None))
}

fn origin() -> tensormp::spawn_api::Builder {
    builder()
        .env("CUDA_EMULATOR_FAIL", "")
        .env("TENSORMP_CUDA_PATH", "handle")
}

fn a_way_that_was_tried_without_room_for_files_is_tried_again() {
    let session = machine();
    let device = Device::new(0).unwrap();
    let full = Full::new();
    let probe = device.probe().unwrap();
    assert_eq!(probe.handle, Ok(()));
    assert!(probe.descriptor.is_err());
    drop(full);
    assert_eq!(device.probe().unwrap().descriptor, Ok(()));
    no_memory_is_left(session);
}
