//! Copies of tensors in memory of the host, for processes that cannot open the memory itself: one for each storage, however
//! many views of it are sent.
//!
//! Nobody writes a shared tensor, so that one copy of its storage stands for all its handles. The process that sends keeps the
//! copy beside the tensor; who receives makes one block of it, and knows that block again by the copy's name when another
//! view comes. Both end where the tensor may be written again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use shm_core::message::{Companion, while_reading, while_writing};
use shm_core::tensor::Geometry;
use shm_core::{SharedTensor, Tensor};

use crate::body::Body;
use crate::device::Device;
use crate::error::{ErrorKind, Result};
use crate::hub::Hub;
use crate::stats::COUNTERS;
use crate::stream::Stream;
use crate::token::{HeldToken, Token};
use crate::travel::Lies;
use crate::using::Use;

/// Bytes of copies that are kept for what may be sent again, at most.
const KEPT: usize = 256 << 20;

/// A copy of a storage that is kept beside its tensor, if it is.
pub(crate) type KeptCopy = Mutex<Option<SharedTensor<u8>>>;

/// The copies that are kept, and of how many bytes; the eldest first. Not the tensors: who had one here for a moment could be
/// its last user, when its token has gone.
static KEEPERS: Mutex<VecDeque<(Weak<KeptCopy>, usize)>> = Mutex::new(VecDeque::new());

/// What identifies a copy everywhere: line and generation of its block, which no other block ever has.
pub(crate) type CopyId = [u64; 2];

/// What a block here is a copy of.
#[derive(Debug)]
pub(crate) struct Source {
    id: CopyId,
    token: Weak<SharedTensor<u64>>,
}

/// The source of a block, if it is a copy that was not written since.
pub(crate) type Origin = Mutex<Option<Source>>;

/// A block that was made of a copy, for as long as somebody has it.
#[derive(Clone, Debug)]
pub(crate) struct Copied {
    origin: Weak<Origin>,
    using: Weak<Use>,
}

/// The copies of the message that this thread writes.
#[derive(Debug, Default)]
struct Copies(HashMap<usize, (Arc<Use>, SharedTensor<u8>)>);

impl Companion for Copies {
    fn finish(&mut self) -> shm_core::Result<()> {
        // The message has them.
        self.0.clear();
        Ok(())
    }
}

/// Whether this thread writes a message.
pub(crate) fn is_in_message() -> bool {
    while_writing(|_: &mut Copies| ()).is_some()
}

/// A copy of the bytes from the first to the last element, in the arena, and how the elements lie in it.
pub(crate) fn copy_of_one(body: &Body) -> Result<(Tensor<u8>, Lies)> {
    let span = body.geometry.byte_span();
    let mut bytes = room(span.len())?;
    body.read_span(bytes.try_as_mut_slice()?)?;
    let geometry = body.geometry.starting_at(span.start)?;
    COUNTERS.host_copies.add(1);
    Ok((bytes, Lies(geometry)))
}

/// A copy of the storage of a shared tensor, in the arena, and how the elements lie in it. The same one for all handles, as
/// long as it is kept, and in any case within a message; a handle that is the only one here takes no more than it needs.
pub(crate) fn copy_of_shared(body: &Body) -> Result<(SharedTensor<u8>, Lies)> {
    let key = Arc::as_ptr(&body.using).addr();
    let of_message = while_writing(|copies: &mut Copies| {
        let found = copies.0.get(&key);
        found.map(|(_, copy)| copy.clone())
    });
    if let Some(copy) = of_message
        .flatten()
        .or_else(|| body.using.copy().lock().clone())
    {
        return Ok((copy, Lies(body.geometry)));
    }
    if Arc::strong_count(&body.using) == 1 {
        let (copy, lies) = copy_of_one(body)?;
        return Ok((copy.freeze(), lies));
    }
    let mut bytes = room(body.storage_bytes()?)?;
    body.read_storage(bytes.try_as_mut_slice()?)?;
    COUNTERS.host_copies.add(1);
    let copy = bytes.freeze();
    keep(&body.using, &copy);
    while_writing(|copies: &mut Copies| {
        copies.0.insert(key, (body.using.clone(), copy.clone()));
    });
    Ok((copy, Lies(body.geometry)))
}

/// Memory of the host, for which copies that are only kept give way.
fn room(bytes: usize) -> Result<Tensor<u8>> {
    let arena = &Hub::get()?.arena;
    match Tensor::uninit_in(arena, bytes) {
        Err(error)
            if matches!(
                error.kind(),
                shm_core::ErrorKind::OutOfRoom(_) | shm_core::ErrorKind::CapacityExhausted { .. }
            ) =>
        {
            give_up();
            Ok(Tensor::uninit_in(arena, bytes)?)
        }
        made => Ok(made?),
    }
}

/// Keeps a copy beside its tensor, and gives the eldest up where there are too many.
fn keep(using: &Use, copy: &SharedTensor<u8>) {
    let mut over = Vec::new();
    let mut keepers = KEEPERS.lock();
    keepers.retain(|(keeper, _)| keeper.strong_count() > 0);
    *using.copy().lock() = Some(copy.clone());
    keepers.push_back((Arc::downgrade(using.copy()), copy.numel()));
    let mut sum: usize = keepers.iter().map(|(_, bytes)| bytes).sum();
    while sum > KEPT
        && let Some((keeper, bytes)) = keepers.pop_front()
    {
        sum -= bytes;
        over.extend(keeper.upgrade());
    }
    drop(keepers);
    over.iter().for_each(|keeper| drop(keeper.lock().take()));
}

/// The tensor is going to be written: its copy says nothing of it any more.
pub(crate) fn forget(using: &Use) {
    let is_it = |keeper: &Weak<KeptCopy>| std::ptr::eq(keeper.as_ptr(), &raw const **using.copy());
    KEEPERS.lock().retain(|(keeper, _)| !is_it(keeper));
    drop(using.copy().lock().take());
}

/// Gives up the copies that are only kept for what may be sent again.
pub(crate) fn give_up() {
    let keepers = std::mem::take(&mut *KEEPERS.lock());
    for keeper in keepers.iter().filter_map(|(keeper, _)| keeper.upgrade()) {
        drop(keeper.lock().take());
    }
}

/// How many copies are kept, and their bytes.
pub(crate) fn kept() -> (u64, u64) {
    let keepers = KEEPERS.lock();
    let there = keepers
        .iter()
        .filter(|(keeper, _)| keeper.strong_count() > 0);
    there.fold((0, 0), |(count, sum), (_, bytes)| {
        (count + 1, sum + *bytes as u64)
    })
}

/// A tensor that came as a copy of a storage: in the block that the copy has here already, if it has one.
pub(crate) fn arrive_shared(
    id: CopyId,
    bytes: &[u8],
    geometry: Geometry,
    device: Device,
) -> Result<Body> {
    let hub = Hub::get()?;
    geometry.check(bytes.len(), geometry.dtype().align())?;
    let known = hub.copies.lock().get(&id).cloned();
    if let Some(body) = known.and_then(|known| known.again(id, geometry, device).transpose()) {
        COUNTERS.received.add(1);
        COUNTERS.staged.add(1);
        return body;
    }
    let body = Body::from_copy(bytes, geometry, device)?.freeze();
    remember(hub, &body, id);
    Ok(body)
}

impl Copied {
    /// The copy of that name is in this block, whose token that is, from now on.
    fn made_of(id: CopyId, using: &Arc<Use>, token: &Arc<SharedTensor<u64>>) -> Self {
        let token = Arc::downgrade(token);
        *using.origin().lock() = Some(Source { id, token });
        Self {
            origin: Arc::downgrade(using.origin()),
            using: Arc::downgrade(using),
        }
    }

    /// Another handle of the block, if it is still what it was made as, and none of its streams is lost: what is behind that
    /// can be read by nobody, and another copy can.
    fn again(&self, id: CopyId, geometry: Geometry, device: Device) -> Result<Option<Body>> {
        // First, and so dropped last: who has the block's use here may be its last user. In a tensor's hands, for where that
        // use could not be noted.
        let token = self.origin.upgrade().and_then(|origin| {
            let origin = origin.lock();
            origin.as_ref().and_then(|source| source.token(id))
        });
        let Some(token) = token.map(|token| HeldToken::from(Token::Shared(token))) else {
            return Ok(None);
        };
        let using = self.using.upgrade();
        let Some(using) = using.filter(|using| using.place.device() == device) else {
            return Ok(None);
        };
        let stream = Stream::for_device(device)?;
        match using.gather_shared(&stream) {
            Err(error) if *error.kind() == ErrorKind::WriterGone => return Ok(None),
            other => other?,
        }
        using.works_on(&stream);
        Ok(Some(Body {
            using,
            token,
            geometry,
            stream,
        }))
    }

    fn is_there(&self) -> bool {
        self.using.strong_count() > 0
    }
}

fn remember(hub: &Hub, body: &Body, id: CopyId) {
    if let Token::Shared(token) = &*body.token {
        let made = Copied::made_of(id, &body.using, token);
        let mut copies = hub.copies.lock();
        // Now and then, those of tensors that are gone.
        if copies.len().is_power_of_two() {
            copies.retain(|_, known| known.is_there());
        }
        copies.insert(id, made);
    }
}

impl Source {
    /// The token of the block, if it is the copy of that name.
    fn token(&self, id: CopyId) -> Option<Arc<SharedTensor<u64>>> {
        (self.id == id).then(|| self.token.upgrade()).flatten()
    }

    /// The block has another token.
    pub(crate) fn set_token(&mut self, token: &Arc<SharedTensor<u64>>) {
        self.token = Arc::downgrade(token);
    }
}

/// Which memory, block and turn of it a copy was fetched of.
type Fetched = ([u64; 2], u32, u64);

/// What was fetched for the message that this thread reads. Not for longer: the message holds what the copies are of, and
/// nobody can have written it meanwhile.
#[derive(Debug, Default)]
struct Fetches(HashMap<Fetched, Copied>);

/// A shared tensor whose storage has to be fetched from its origin, or was for another view in the same message.
pub(crate) fn fetch_shared(
    fetched: Fetched,
    geometry: Geometry,
    device: Device,
    fetch: impl FnOnce() -> Result<Vec<u8>>,
) -> Result<Body> {
    // Found by this alone, and in this message alone.
    let id = fetched.0;
    let known = while_reading(|fetches: &mut Fetches| fetches.0.get(&fetched).cloned());
    if let Some(body) = known
        .flatten()
        .and_then(|known| known.again(id, geometry, device).transpose())
    {
        COUNTERS.received.add(1);
        COUNTERS.staged.add(1);
        return body;
    }
    let body = Body::from_copy(&fetch()?, geometry, device)?.freeze();
    if let Token::Shared(token) = &*body.token {
        let made = Copied::made_of(id, &body.using, token);
        while_reading(|fetches: &mut Fetches| fetches.0.insert(fetched, made));
    }
    Ok(body)
}
