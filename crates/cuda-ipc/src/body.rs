//! A tensor on a device without its element type and its mode: what the public types are made of.

use shm_core::object::ObjectKind;
use shm_core::tensor::Geometry;
use shm_core::trace::Trace;
use shm_core::{Dtype, Element, Shape, Tensor};
use smallvec::smallvec;
use std::sync::Arc;

use crate::asking::{Part, fetch_copy};
use crate::bytes::{bytes_of, bytes_of_mut, zeros};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::hub::Hub;
use crate::layout::{Described, Path, malformed};
use crate::place::Place;
use crate::pool::BlockRef;
use crate::stats::COUNTERS;
use crate::stream::Stream;
use crate::token::{HeldToken, MAGIC, Token, WORDS};
use crate::using::Use;

/// A tensor on a device, typed or not.
#[derive(Debug)]
pub(crate) struct Body {
    // Before the token: the last use is noted before the reference goes.
    pub(crate) using: Arc<Use>,
    pub(crate) token: HeldToken,
    pub(crate) geometry: Geometry,
    pub(crate) stream: Stream,
}

impl Body {
    /// A tensor of elements that are whatever was there before.
    pub(crate) fn new(dtype: Dtype, shape: impl Into<Shape>, stream: &Stream) -> Result<Self> {
        let geometry = Geometry::contiguous(dtype, shape)?;
        let hub = Hub::get()?;
        let bytes = geometry.packed_bytes() as u64;
        let (block, place) = hub.allocate(stream.device(), bytes, stream)?;
        Self::over(hub, block, place, bytes, geometry, stream)
    }

    /// Tensors that share one allocation of their own, with what it takes to send them made beforehand.
    pub(crate) fn slots(
        dtype: Dtype,
        shape: impl Into<Shape>,
        count: u32,
        stream: &Stream,
    ) -> Result<Vec<Self>> {
        let geometry = Geometry::contiguous(dtype, shape)?;
        let hub = Hub::get()?;
        let bytes = geometry.packed_bytes() as u64;
        let mut blocks = hub
            .allocate_slots(stream.device(), bytes, count)?
            .into_iter();
        let slots = blocks
            .by_ref()
            .map(|(block, place)| Self::over(hub, block, place, bytes, geometry, stream))
            .collect();
        // Those behind one that could not be made.
        blocks.for_each(|(block, _)| hub.put_back(block));
        slots
    }

    pub(crate) fn over(
        hub: &Hub,
        block: BlockRef,
        place: Place,
        bytes: u64,
        geometry: Geometry,
        stream: &Stream,
    ) -> Result<Self> {
        let [line, generation] = place.object().handle();
        let turn = place.turn(block.index);
        let words = [MAGIC, line, generation, u64::from(block.index), turn, bytes];
        let token = match Tensor::from_slice_in(&hub.arena, WORDS, &words) {
            Ok(token) => token,
            Err(error) => {
                // Who used it before this stream waits for, and whoever comes next for this stream.
                block.memory.used_by(block.index, smallvec![stream.clone()]);
                hub.put_back(block);
                return Err(error.into());
            }
        };
        let trace = Trace::of(&token);
        let using = Use::begin(place, block.index, trace.clone(), stream);
        hub.lend(block, trace);
        Ok(Self {
            using,
            token: Token::Exclusive(token).into(),
            geometry,
            stream: stream.clone(),
        })
    }

    /// What a token stands for, which came in a message; on the stream that is current here, which waits for the writer.
    pub(crate) fn arrive(token: Token, geometry: Geometry) -> Result<Self> {
        let hub = Hub::get()?;
        let [magic, line, generation, index, turn, bytes] = token.words()?;
        if magic != MAGIC {
            return Err(malformed("a tensor that stands for no device memory"));
        }
        let memory = [line, generation];
        let place = match hub.place(memory) {
            Ok(place) => place,
            Err(error) if error.is_of_the_way() => {
                let stands_for = (memory, index, turn, bytes);
                return Self::arrive_as_copy(hub, &token, geometry, stands_for, error);
            }
            Err(error) => return Err(error),
        };
        let (count, stride) = place.blocks();
        let index = u32::try_from(index)
            .ok()
            .filter(|index| *index < count)
            .ok_or_else(|| malformed("a block that its memory does not have"))?;
        if bytes > stride {
            return Err(malformed("a tensor that is longer than its block"));
        }
        if place.turn(index) != turn {
            return Err(malformed("a block that was given to somebody else since"));
        }
        // Blocks begin at multiples of 512 bytes; those that others made were checked when they were wrapped.
        geometry.check(bytes as usize, geometry.dtype().align())?;
        place.check_alive(false)?;
        let stream = Stream::for_device(place.device())?;
        place
            .arrive(index, &stream)
            .map_err(|error| place.explain(error))?;
        let using = Use::begin(place, index, token.trace()?, &stream);
        if matches!(token, Token::Shared(_)) {
            using.was_shared();
        }
        COUNTERS.received.add(1);
        Ok(Self {
            using,
            token: token.into(),
            geometry,
            stream,
        })
    }

    /// As [`arrive`](Self::arrive), where the memory cannot be opened here: its origin makes a copy for this process, and is
    /// told that this way does not work, so that it takes another next time.
    fn arrive_as_copy(
        hub: &Hub,
        token: &Token,
        geometry: Geometry,
        (memory, index, turn, bytes): ([u64; 2], u64, u64, u64),
        refusal: Error,
    ) -> Result<Self> {
        let object = crate::import::open_object(&hub.arena, memory)?;
        object.expect(ObjectKind::DeviceMemory)?;
        let said = Described::read(&object)?;
        let visited = hub.visit(said.station)?;
        geometry.check(bytes as usize, geometry.dtype().align())?;
        let index = u32::try_from(index).map_err(|_| malformed("a block beyond all memory"))?;
        let device = Device::by_uuid(said.uuid)?;
        let fetch = |range: std::ops::Range<usize>| {
            let part = Part {
                index,
                turn,
                start: range.start as u64,
                bytes: range.len() as u64,
            };
            fetch_copy(&visited, said.pid, memory, part).map_err(|second| {
                if visited.is_ending() {
                    return crate::import::origin_gone(&said, hub).because(second);
                }
                let kind = match second.kind() {
                    ErrorKind::TimedOut => ErrorKind::TimedOut,
                    _ => ErrorKind::NoPath,
                };
                let text = format!(
                    "{refusal}; and a copy through the host cannot be had either: {second}"
                );
                Error::new(kind, text)
            })
        };
        let body = match token {
            Token::Shared(_) => {
                let fetched = (memory, index, turn);
                crate::staging::fetch_shared(fetched, geometry, device, || fetch(0..bytes as usize))
            }
            Token::Exclusive(_) | Token::Lent => {
                let span = geometry.byte_span();
                let geometry = geometry.starting_at(span.start)?;
                fetch(span).and_then(|copy| Self::from_copy(&copy, geometry, device))
            }
        }?;
        // Where a copy cannot be had either, something else is wrong, which may pass.
        visited.refuse(said.path);
        hub.note_peer(said.origin, said.pid, Path::Host, &refusal.to_string());
        Ok(body)
    }

    /// A tensor of its own memory with these bytes, which came from another process.
    pub(crate) fn from_copy(bytes: &[u8], geometry: Geometry, device: Device) -> Result<Self> {
        let stream = Stream::for_device(device)?;
        geometry.check(bytes.len(), geometry.dtype().align())?;
        let mut body = Self::new(Dtype::U8, [bytes.len()], &stream)?;
        body.write_span(bytes)?;
        body.geometry = geometry;
        COUNTERS.received.add(1);
        COUNTERS.staged.add(1);
        Ok(body)
    }

    /// Another handle of the same tensor; of a shared one only.
    pub(crate) fn share(&self, geometry: Geometry) -> Result<Self> {
        let Token::Shared(token) = &*self.token else {
            return Err(Error::new(
                ErrorKind::StillHeld,
                "an exclusive tensor has one handle; `freeze()` it first",
            ));
        };
        Ok(Self {
            using: self.using.clone(),
            token: Token::Shared(token.clone()).into(),
            geometry,
            stream: self.stream.clone(),
        })
    }

    /// Gives up writing.
    pub(crate) fn freeze(self) -> Self {
        let token = match self.token.into_inner() {
            Token::Exclusive(token) => Token::Shared(Arc::new(token.freeze())),
            other => other,
        };
        Self {
            token: token.into(),
            ..self
        }
    }

    /// May write again, if nobody else has it, here or elsewhere.
    #[expect(
        clippy::result_large_err,
        reason = "the tensor itself comes back, which is no error to be passed far"
    )]
    pub(crate) fn try_thaw(self) -> Result<Self, Self> {
        let alone = Arc::strong_count(&self.using) == 1;
        let Self {
            using,
            token,
            geometry,
            stream,
        } = self;
        let token = match token.into_inner() {
            Token::Shared(token) if alone => match Arc::try_unwrap(token) {
                Ok(token) => match token.try_thaw() {
                    Ok(token) => Token::Exclusive(token),
                    Err(token) => {
                        let token = Arc::new(token);
                        using.set_token_of_copy(&token);
                        Token::Shared(token)
                    }
                },
                Err(token) => Token::Shared(token),
            },
            other => other,
        };
        let body = Self {
            using,
            token: token.into(),
            geometry,
            stream,
        };
        if !matches!(*body.token, Token::Exclusive(_)) {
            return Err(body);
        }
        match body.using.thaw(&body.stream) {
            Ok(()) => Ok(body),
            Err(error) => {
                tracing::warn!(%error, "a shared tensor stays so, since its readers could not be waited for");
                Err(body.freeze())
            }
        }
    }

    /// Whether this is the only handle of it, here, elsewhere and in messages.
    pub(crate) fn is_sole(&self) -> bool {
        Arc::strong_count(&self.using) == 1
            && self
                .token
                .trace()
                .is_ok_and(|trace| trace.references() <= 1)
    }

    pub(crate) fn device(&self) -> Device {
        self.using.place.device()
    }

    pub(crate) fn path(&self) -> Path {
        match &self.using.place {
            Place::Home(memory, _) => memory.path,
            Place::Away(import) => import.path,
        }
    }

    /// The device address of the first element, for work that is put into `stream` next: the stream waits for what this
    /// tensor's stream has to do, and the tensor's memory for what will be in the stream when the last handle goes.
    pub(crate) fn enter(&self, stream: &Stream) -> Result<u64> {
        crate::driver::check_not_forked()?;
        stream.expect(self.device())?;
        self.using.place.check_alive(false)?;
        let address = self.address()?;
        stream.wait_for(&self.stream)?;
        self.using.works_on(stream);
        Ok(address)
    }

    pub(super) fn address(&self) -> Result<u64> {
        let offset = self.geometry.offset() * self.geometry.dtype().size();
        Ok(self.using.address()? + offset as u64)
    }

    /// From now on in the order of another stream, which waits for the one so far.
    pub(crate) fn set_stream(&mut self, stream: &Stream) -> Result<()> {
        self.enter(stream)?;
        self.stream = stream.clone();
        Ok(())
    }

    /// The bytes from the first to the last element, and where they begin.
    pub(super) fn span(&self) -> Result<(u64, usize)> {
        let span = self.geometry.byte_span();
        Ok((self.using.address()? + span.start as u64, span.len()))
    }

    /// Copies the elements to the host, in row-major order.
    pub(crate) fn read<T: Element>(&self, to: &mut [T]) -> Result<()> {
        if to.len() != self.geometry.numel() {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "a device tensor of {} elements was to be copied to a slice of {}",
                    self.geometry.numel(),
                    to.len()
                ),
            ));
        }
        self.using.place.check_alive(false)?;
        let (address, length) = self.span()?;
        let _calm = self.gate()?;
        let upto = self.stream.recorded();
        let driver = self.stream.driver();
        let raw = self.stream.raw()?;
        let outcome = if self.geometry.is_contiguous() {
            driver.read(raw, bytes_of_mut(to), address)
        } else {
            let mut all = zeros::<T>(length / size_of::<T>());
            driver.read(raw, bytes_of_mut(&mut all), address).map(|()| {
                let first = self.geometry.byte_span().start / size_of::<T>();
                let mut to = to.iter_mut();
                self.geometry.each_index(|index| {
                    if let (Some(to), Some(&from)) = (to.next(), all.get(index - first)) {
                        *to = from;
                    }
                });
            })
        };
        let outcome = outcome.inspect(|()| self.has_read(length, upto));
        // If the origin has ended meanwhile, what was copied may be anything, and so may be the driver's answer.
        self.using.place.check_alive(true)?;
        outcome.map_err(|error| self.using.place.explain(error))
    }

    /// So many bytes came to the host, behind so much in the stream. The driver waits for nothing to read none.
    fn has_read(&self, length: usize, upto: u64) {
        if length > 0 {
            self.stream.has_done(upto);
        }
    }

    /// The bytes from the first to the last element, copied to the host.
    pub(crate) fn read_span(&self, to: &mut [u8]) -> Result<()> {
        self.read_from(self.span()?.0, to)
    }

    fn read_from(&self, address: u64, to: &mut [u8]) -> Result<()> {
        self.using.place.check_alive(false)?;
        let _calm = self.gate()?;
        let (length, upto) = (to.len(), self.stream.recorded());
        let outcome = self.stream.driver().read(self.stream.raw()?, to, address);
        let outcome = outcome.inspect(|()| self.has_read(length, upto));
        self.using.place.check_alive(true)?;
        outcome.map_err(|error| self.using.place.explain(error))
    }

    /// How many bytes the storage has, of which the elements may be a part.
    pub(crate) fn storage_bytes(&self) -> Result<usize> {
        let [.., bytes] = self.token.words()?;
        Ok(bytes as usize)
    }

    /// The bytes of the storage, copied to the host.
    pub(crate) fn read_storage(&self, to: &mut [u8]) -> Result<()> {
        // Whoever wrote it did so before it was shared.
        self.using.gather_shared(&self.stream)?;
        self.read_from(self.using.address()?, to)
    }

    /// Overwrites the elements, which are contiguous, in row-major order.
    pub(crate) fn write<T: Element>(&self, from: &[T]) -> Result<()> {
        if from.len() != self.geometry.numel() {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "a device tensor of {} elements was to be copied from a slice of {}",
                    self.geometry.numel(),
                    from.len()
                ),
            ));
        }
        if !self.geometry.is_contiguous() {
            return Err(Error::new(
                ErrorKind::Shape,
                "the elements of the device tensor do not follow one another, after a transposition; write before it",
            ));
        }
        self.write_span(bytes_of(from))
    }

    pub(crate) fn write_span(&self, from: &[u8]) -> Result<()> {
        self.using.place.check_alive(true)?;
        let (address, _) = self.span()?;
        self.using.is_written_in(&self.stream)?;
        let _calm = self.gate()?;
        self.stream
            .driver()
            .write(self.stream.raw()?, address, from)
    }
}
