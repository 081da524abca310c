//! The scene of device tensors: tokens, memories, stations, marks and events of an origin that is another process, on the
//! emulated driver, changed before and while both use them.

use std::time::Duration;

use cuda_emulator::Knobs;
use cuda_ipc::{DeviceTensor, DynDeviceTensor, Gate, Options, Path, SharedDeviceTensor};
use mp_queue::{ErrorKind, Event, Queue, Receiver, Sender};
use serde::{Deserialize, Serialize};
use shm_core::Arena;

use super::input::Input;
use super::pokes::Victim;
use super::scene::{Refused, file_of};
use crate::Result;

/// By which the words are found: tokens begin so, a memory's device and a station's socket are called so.
const TEXTS: [&str; 3] = ["devtok", "emulated-device-", "tensormp-device-"];
const PARCELS: u32 = 6;
/// How long anybody waits for the other.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Serialize, Deserialize)]
struct Parcel {
    own: DeviceTensor<u32>,
    shared: SharedDeviceTensor<u32>,
    view: SharedDeviceTensor<u32>,
    any: DynDeviceTensor,
}

impl Parcel {
    fn new(value: u32) -> cuda_ipc::Result<Self> {
        let shared = DeviceTensor::from_slice([3, 4], &[value; 12])?.freeze();
        Ok(Self {
            own: DeviceTensor::from_slice([100], &[value; 100])?,
            view: shared.transpose(0, 1)?.narrow(0, 1, 2)?,
            shared,
            any: DeviceTensor::from_slice([5], &[f64::from(value); 5])?.into(),
        })
    }

    /// Does with it what one does, and gives back what is sent on.
    fn use_up(mut self, refused: &mut Refused) -> DeviceTensor<u32> {
        refused.ok(self.own.copy_from_slice(&[7; 100]));
        refused.ok(self.own.to_vec());
        refused.ok(self.view.to_vec());
        refused.ok(self.any.to_bytes());
        drop(self.view);
        match self.shared.try_thaw() {
            Ok(mut own) => drop(refused.ok(own.clear())),
            Err(shared) => drop(refused.ok(shared.to_host())),
        }
        self.own
    }
}

/// What the origin is told: the path, to whom, what comes back, that it has sent, and that it may go on.
type Lot = (
    u8,
    Sender<Parcel>,
    Receiver<DeviceTensor<u32>>,
    Event,
    Event,
);

fn install(path: u8, gate: bool) -> cuda_ipc::Result<()> {
    let mut options = Options::new();
    options = match path {
        0 | 1 => options.path(Path::Handle),
        2 => options.path(Path::Descriptor),
        3 => options.path(Path::Host),
        _ => options.events(7),
    };
    if gate {
        options = options.gate(Gate::Host(PATIENCE));
    }
    options.install()
}

/// A panic in whatever thread is harm: those that serve others have nobody who joins them.
fn panics_are_harm() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |what| {
        tell(what);
        std::process::abort();
    }));
}

/// Sends, and goes on with its memory after somebody has written where it must not.
fn origin(_rank: usize, (path, to, back, sent, go): Lot) -> Result<u64> {
    panics_are_harm();
    install(path, false)?;
    let mut refused = Refused::default();
    for value in 0..PARCELS {
        to.put(Parcel::new(value)?)
            .map_err(|failed| failed.to_string())?;
    }
    sent.set();
    refused.ok(go.wait_timeout(PATIENCE));
    while let Ok(tensor) = back.try_get() {
        refused.ok(tensor.to_vec());
    }
    for value in 0..20 {
        if let Some(parcel) = refused.ok(Parcel::new(value)) {
            drop(parcel.use_up(&mut refused));
        }
    }
    cuda_ipc::collect();
    refused.ok(cuda_ipc::close(Duration::from_millis(100)));
    std::hint::black_box(cuda_ipc::stats());
    Ok(refused.0)
}

/// Plays it. Answers how often something was refused.
pub(super) fn play(input: &Input, refused: &mut Refused) -> Result<()> {
    // A word may say that somebody wrote a tensor who never did: whether it ever happens is not what is looked for here.
    Knobs::new().events_of_the_dead_happen().load()?;
    panics_are_harm();
    install(input.read_as, input.again)?;
    let arena = Arena::current()?;
    let (to, from) = Queue::bounded_in(&arena, PARCELS as usize)?.split();
    let (back, home) = Queue::bounded_in(&arena, PARCELS as usize)?.split();
    let (sent, go) = (Event::new_in(&arena)?, Event::new_in(&arena)?);
    let lot = (input.read_as, to, home, sent.clone(), go.clone());
    let mut context = spawn::spawn(origin, lot, 1)?;
    sent.wait_timeout(Duration::from_secs(30))?;
    // Its memory and events are open here before they change.
    let mut kept = Vec::new();
    for _ in 0..2 {
        kept.push(from.get()?);
    }
    let victim = Victim::look(file_of(&arena)?, &TEXTS)?;
    let changes = victim.plan(&input.pokes);
    for change in &changes {
        victim.write(change.at, change.after)?;
    }
    if input.dies {
        context.kill();
    }
    for _ in 0..PARCELS {
        match from.try_get() {
            Ok(parcel) => {
                let own = parcel.use_up(refused);
                refused.ok(back.try_put(own));
            }
            Err(error) if *error.kind() == ErrorKind::Empty => break,
            Err(error) => {
                refused.ok(Err::<(), _>(error));
            }
        }
    }
    for parcel in kept {
        drop(parcel.use_up(refused));
    }
    // The changes once more, over what has happened meanwhile.
    for change in &changes {
        victim.write(change.at, change.after)?;
    }
    go.set();
    cuda_ipc::collect();
    if let Err(error) = context.join() {
        let text = error.to_string();
        let is_ours = input.dies && text.contains("SIGKILL");
        if text.contains("panicked") || (text.contains("signal") && !is_ours) {
            return Err(text.into());
        }
        refused.ok(Err::<(), _>(text));
    }
    drop((from, back));
    cuda_ipc::collect();
    refused.ok(cuda_ipc::close(Duration::from_millis(100)));
    std::hint::black_box(cuda_ipc::stats());
    Ok(())
}
