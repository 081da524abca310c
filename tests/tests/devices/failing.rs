//! A driver of which one call fails, once, whichever it is.
//!
//! A scene does a little of everything, three times, with a process beside it. One call of this process, or of that one, fails.
//! At most one of the three times is an error then, which names the call and what the driver answered; nothing races, nothing is
//! used that was given back, and nothing is kept but what the driver refused to take.

use std::error::Error;
use std::time::Duration;

use cuda_emulator::{Kind, Knobs};
use cuda_ipc::{Device, DeviceTensor, Options, PinnedTensor, SharedDeviceTensor, Stream};
use integration_tests::{Test, play, tests};
use tensormp::prelude::*;
use tensormp::spawn_api::builder;

use crate::lifetime::{arm, has_failpoints};
use crate::support::no_memory_is_left;

pub(crate) const TESTS: &[Test] = &tests![
    a_call_of_an_origin_that_fails_is_an_error_and_does_no_harm,
    a_call_of_a_consumer_that_fails_is_an_error_and_does_no_harm,
    an_event_that_could_not_be_shared_for_once_is_none_and_the_next_one_is_shared,
    an_event_of_the_dead_that_could_not_be_replaced_for_once_is_replaced_later,
];
pub(crate) const SCENES: &[Test] = &tests![one_call_fails];

type Floats = DeviceTensor<f32>;
type Message = (Vec<Floats>, SharedDeviceTensor<f32>);
type Answer = Result<Message, String>;

/// The how manieth call fails, and of whom: this process, or the other one.
const AT: &str = "FAILING_AT";
const OF: &str = "FAILING_OF";

/// Whether elements are what they have to be: an error of its own, that no driver gave.
fn expect(found: &[f32], wanted: f32) -> Result<(), Box<dyn Error + Send + Sync>> {
    match found.iter().all(|element| *element == wanted) {
        true => Ok(()),
        false => Err(format!("{wanted} was to be found, and not {found:?}").into()),
    }
}

fn change((tensors, shared): &mut Message) -> Result<(), Box<dyn Error + Send + Sync>> {
    expect(&shared.to_vec()?, 5.0)?;
    for tensor in tensors {
        expect(&tensor.to_vec()?, 5.0)?;
        tensor.copy_from_slice(&[7.0; 10])?;
    }
    Ok(())
}

fn echo(_rank: usize, (from, to): (Receiver<Message>, Sender<Answer>)) -> tensormp::Result<()> {
    loop {
        let answer = match from.get() {
            Ok(mut message) => match change(&mut message) {
                Ok(()) => Ok(message),
                Err(error) => Err(error.to_string()),
            },
            Err(error) if error.to_string().contains("closed") => return Ok(()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = to.put(answer) {
            to.put(Err(error.to_string()))?;
        }
    }
}

/// A little of everything.
fn everything(
    to: &Sender<Message>,
    answers: &Receiver<Answer>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let (first, second) = (Device::new(0)?, Device::new(1)?);
    let mut tensor = Floats::from_slice([10], &[1.0; 10])?;
    let there = tensor.to_device(second)?;
    tensor.copy_from(&there)?;
    expect(&tensor.to_vec()?, 1.0)?;
    let queue = Queue::bounded(1)?;
    queue.put(Floats::slots(2, [10])?)?;
    drop(queue.get()?);
    let pinned = PinnedTensor::new(Tensor::full([10], 3.0_f32)?, first)?;
    pinned.copy_to(&mut tensor)?;
    expect(&tensor.to_vec()?, 3.0)?;
    expect(pinned.into_inner()?.as_slice(), 3.0)?;
    let side = Stream::new(first)?;
    tensor.set_stream(&side)?;
    side.wait_for(&Stream::legacy(first)?)?;
    let moment = side.moment()?;
    side.synchronize()?;
    assert!(moment.has_passed()?);
    drop(side.scope(|| Floats::zeros([300_000]))?);
    tensor.copy_from_slice(&[5.0; 10])?;
    let tensors: cuda_ipc::Result<Vec<_>> = (0..3)
        .map(|_| Floats::from_slice([10], &[5.0; 10]))
        .collect();
    let shared = tensor.freeze();
    to.put((tensors?, shared.clone()))?;
    let (mut tensors, again) = answers.get()??;
    drop(again);
    for tensor in &mut tensors {
        expect(&tensor.to_vec()?, 7.0)?;
        tensor.clear()?;
    }
    if let Ok(mut tensor) = shared.try_thaw() {
        tensor.clear()?;
        expect(&tensor.to_vec()?, 0.0)?;
    }
    cuda_ipc::collect();
    Ok(())
}

fn one_call_fails() {
    let at = std::env::var(AT).unwrap().parse().unwrap();
    let here = std::env::var(OF).unwrap() == "origin";
    let failing = Knobs::new().fail_at(at, 999);
    let (session, other) = match here {
        true => (
            failing.load().unwrap(),
            builder().env("CUDA_EMULATOR_FAIL", ""),
        ),
        false => {
            let session = Knobs::new().load().unwrap();
            let mut other = builder();
            for (name, value) in failing.variables() {
                other = other.env(name, value);
            }
            (session, other)
        }
    };
    let (to, receiver) = Queue::bounded(1).unwrap().split();
    let (sender, answers) = Queue::bounded(1).unwrap().split();
    let mut context = other.spawn(echo, (receiver, sender), 1).unwrap();
    let times: Vec<_> = (0..3).map(|_| everything(&to, &answers)).collect();
    drop((to, answers));
    context.join().unwrap();
    let errors: Vec<_> = times.into_iter().filter_map(Result::err).collect();
    let refused = session.reports_of(Kind::Refused);
    println!("{errors:?}, since {refused:?}");
    assert!(refused.len() <= 1 && errors.len() <= refused.len());
    for error in errors {
        let (call, _) = refused[0].text.split_once(':').unwrap();
        let error = error.to_string();
        assert!(error.contains(call) && error.contains("999"), "{error}");
    }
    cuda_ipc::close(Duration::from_secs(20)).unwrap();
    let live = session.live();
    assert!(live.allocations <= refused.len(), "{live:?}");
    let faults = session.faults();
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Each of these calls; which they are differs from one time to the next, as threads come first or last.
fn fail(of: &str, calls: impl Iterator<Item = u64>) {
    for at in calls {
        let scene = play("one_call_fails")
            .env(AT, at.to_string())
            .env(OF, of)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&scene.stdout);
        let told = String::from_utf8_lossy(&scene.stderr);
        assert!(scene.status.success(), "call {at}: {said}\n{told}");
    }
}

fn a_call_of_an_origin_that_fails_is_an_error_and_does_no_harm() {
    fail("origin", (1..400).step_by(13));
}

fn a_call_of_a_consumer_that_fails_is_an_error_and_does_no_harm() {
    fail("consumer", (1..200).step_by(7));
}

fn an_event_that_could_not_be_shared_for_once_is_none_and_the_next_one_is_shared() {
    let operating_system = 304;
    let call = "cuIpcGetEventHandle";
    // The first is the trial's.
    let session = Knobs::new().fail(call, operating_system, Some(2)).load();
    let session = session.unwrap();
    let (to, from) = Queue::bounded(1).unwrap().split();
    for value in 0..4 {
        to.put(DeviceTensor::from_slice([100], &[value; 100]).unwrap())
            .unwrap();
        assert_eq!(from.get().unwrap().to_vec().unwrap(), [value; 100]);
    }
    let stats = cuda_ipc::stats();
    assert_eq!(stats.host_waits, 1, "{stats:?}");
    no_memory_is_left(session);
}

/// What a reader had claimed that was killed is given another event, which cannot be shared for once.
fn an_event_of_the_dead_that_could_not_be_replaced_for_once_is_replaced_later() {
    fn read(_rank: usize, from: Receiver<DeviceTensor<u8>>) -> tensormp::Result<()> {
        arm("device.release.recorded=kill");
        drop(from.get()?);
        Ok(())
    }
    if !has_failpoints() {
        return;
    }
    let call = "cuIpcGetEventHandle";
    // Of the trial, and of the first tensor, which was written and is released.
    let before = 3;
    let knobs = Knobs::new().fail(call, 304, Some(before + 1));
    let session = knobs.events_of_the_dead_never_happen().load().unwrap();
    // As many as it takes for one tensor.
    Options::new().events(2).install().unwrap();
    let (to, from) = Queue::bounded(1).unwrap().split();
    let mut reader = spawn(read, from, 1).unwrap();
    let mut late = DeviceTensor::from_slice([100], &[1_u8; 100]).unwrap();
    session.hold();
    late.clear().unwrap();
    to.put(late).unwrap();
    assert!(reader.join().is_err());
    session.let_go();
    let shared = || session.calls_of(std::process::id()).of(call);
    assert_eq!(shared(), before);
    let fresh = DeviceTensor::from_slice([100], &[2_u8; 100]).unwrap();
    assert_eq!(shared(), before + 1);
    drop(fresh);
    let (to, from) = Queue::bounded(1).unwrap().split();
    while shared() == before + 1 {
        let two = [1_u8, 2].map(|value| DeviceTensor::from_slice([1], &[value]).unwrap());
        to.put(two).unwrap();
        let _two: [DeviceTensor<u8>; 2] = from.get().unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    no_memory_is_left(session);
}
