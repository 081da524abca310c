//! A slot's memory: on its way, in the hands of a reader, and of its writer. In the arena, or on a device.

use serde::{Deserialize, Serialize};
use shm_core::{ExclusiveBytes, SharedBytes};

use crate::error::{Error, Result};
use crate::item::View;
use crate::spec::Layout;

#[cfg(feature = "cuda")]
use cuda_ipc::{DeviceTensor, Moment, Sealed, SharedDeviceTensor, Stream};

/// On its way. Whoever passes it on needs no device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Memory {
    Host(SharedBytes),
    /// Apart, so that what lies in the arena is not moved in as much room.
    #[cfg(feature = "cuda")]
    Device(Box<Sealed>),
}

/// To be read.
#[derive(Clone, Debug)]
pub(crate) enum Store {
    Host(SharedBytes),
    /// Apart, as there.
    #[cfg(feature = "cuda")]
    Device(Box<SharedDeviceTensor<u8>>),
}

/// To be written: nobody else has it.
#[derive(Debug)]
pub(crate) enum Writable {
    Host(ExclusiveBytes),
    /// Apart, as there.
    #[cfg(feature = "cuda")]
    Device(Box<DeviceTensor<u8>>),
}

/// A copy that was begun when a slot arrived.
#[derive(Debug, Default)]
pub(crate) struct Copying {
    /// The device copies; `None` once it is known to be done.
    #[cfg(feature = "cuda")]
    moment: Option<Moment>,
    /// Done, and nobody has noted when.
    is_over: bool,
}

impl Copying {
    /// Whether the copy is known to be over now, and was not before.
    pub(crate) fn came_to_an_end(&mut self) -> bool {
        #[cfg(feature = "cuda")]
        if let Some(moment) = &self.moment
            && moment.has_passed().unwrap_or(false)
        {
            self.moment = None;
            self.is_over = true;
        }
        std::mem::take(&mut self.is_over)
    }
}

/// Slots of so many bytes, all free, on a device of this process: one allocation, with its events.
#[cfg(feature = "cuda")]
pub(crate) fn make_slots(device: u32, count: usize, bytes: usize) -> Result<Vec<Store>> {
    let stream = Stream::of(cuda_ipc::Device::new(device)?)?;
    let slots = stream.scope(|| DeviceTensor::<u8>::slots(count, [bytes.max(1)]))?;
    Ok(slots
        .into_iter()
        .map(|slot| Store::Device(Box::new(slot.freeze())))
        .collect())
}

/// Never comes to it: devices are refused before.
#[cfg(not(feature = "cuda"))]
pub(crate) fn make_slots(device: u32, _count: usize, _bytes: usize) -> Result<Vec<Store>> {
    Err(Error::invalid(format!(
        "slots on CUDA device {device} were asked for, and this program was built without the feature `cuda`"
    )))
}

impl Memory {
    /// What lies in the arena.
    pub(crate) fn host(&self) -> Option<&SharedBytes> {
        match self {
            Self::Host(memory) => Some(memory),
            #[cfg(feature = "cuda")]
            Self::Device(_) => None,
        }
    }

    /// To be read here.
    ///
    /// # Errors
    /// `Lost` when it went with the process that wrote it.
    pub(crate) fn open(self) -> Result<Store> {
        match self {
            Self::Host(memory) => Ok(Store::Host(memory)),
            #[cfg(feature = "cuda")]
            Self::Device(sealed) => {
                let opened = sealed.open().and_then(|tensor| tensor.downcast_shared());
                Ok(Store::Device(Box::new(opened?)))
            }
        }
    }
}

impl Store {
    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Host(memory) => memory.len(),
            #[cfg(feature = "cuda")]
            Self::Device(memory) => memory.numel(),
        }
    }

    /// One more reference, to travel.
    pub(crate) fn send(&self) -> Result<Memory> {
        match self {
            Self::Host(memory) => Ok(Memory::Host(memory.to_send()?)),
            #[cfg(feature = "cuda")]
            Self::Device(memory) => Ok(Memory::Device(Box::new(memory.seal()?))),
        }
    }

    /// This reference, to travel.
    ///
    /// # Errors
    /// With the reference, what the device's driver answers.
    pub(crate) fn into_memory(self) -> Result<Memory, Box<(Error, Self)>> {
        match self {
            Self::Host(memory) => Ok(Memory::Host(memory)),
            #[cfg(feature = "cuda")]
            Self::Device(memory) => match memory.seal() {
                Ok(sealed) => Ok(Memory::Device(Box::new(sealed))),
                Err(error) => Err(Box::new((error.into(), Self::Device(memory)))),
            },
        }
    }

    /// Whether nobody else has it.
    pub(crate) fn thaw(place: &mut Option<Self>) -> Option<Writable> {
        let thawed = match place.take()? {
            Self::Host(memory) => memory
                .try_thaw()
                .map(Writable::Host)
                .map_err(|memory| Some(Self::Host(memory))),
            #[cfg(feature = "cuda")]
            Self::Device(memory) if memory.is_sole() => memory
                .try_thaw()
                .map(|memory| Writable::Device(Box::new(memory)))
                .map_err(|memory| Some(Self::Device(Box::new(memory)))),
            #[cfg(feature = "cuda")]
            held => Err(Some(held)),
        };
        match thawed {
            Ok(writable) => Some(writable),
            Err(held) => {
                *place = held;
                None
            }
        }
    }

    /// Whether nobody else has it, without becoming its writer.
    pub(crate) fn is_free(place: &mut Option<Self>) -> bool {
        match place {
            #[cfg(feature = "cuda")]
            Some(Self::Device(memory)) => memory.is_sole(),
            _ => match Self::thaw(place) {
                Some(writable) => {
                    *place = Some(writable.freeze());
                    true
                }
                None => false,
            },
        }
    }

    /// The bytes, where this process can reach them.
    pub(crate) fn bytes(&self) -> Result<&[u8]> {
        match self {
            Self::Host(memory) => Ok(memory.as_slice()),
            #[cfg(feature = "cuda")]
            Self::Device(memory) => Err(on_a_device(memory.device())),
        }
    }

    /// What is valid of it in memory of its own, where it is now.
    pub(crate) fn detached(&self, layout: &Layout, views: &[View]) -> Result<Self> {
        match self {
            Self::Host(memory) => {
                let from = memory.as_slice();
                let mut copy = ExclusiveBytes::zeros(layout.bytes.max(1))?;
                let to = copy.as_mut_slice();
                for range in layout.valid(views) {
                    if let (Some(to), Some(from)) = (to.get_mut(range.clone()), from.get(range)) {
                        to.copy_from_slice(from);
                    }
                }
                Ok(Self::Host(copy.freeze()))
            }
            #[cfg(feature = "cuda")]
            Self::Device(memory) => copy_to(memory, memory.device(), layout, views),
        }
    }

    /// What is valid of it where a process works that was given `device`, if it is not there: a copy, and how to see when it
    /// is over.
    #[cfg(feature = "cuda")]
    pub(crate) fn brought_to(
        &self,
        device: i32,
        layout: &Layout,
        views: &[View],
    ) -> Result<Option<(Self, Copying)>> {
        let Self::Device(memory) = self else {
            return Ok(None);
        };
        match u32::try_from(device) {
            Ok(ordinal) if ordinal == memory.device().ordinal() => Ok(None),
            Ok(ordinal) => {
                let copy = copy_to(memory, cuda_ipc::Device::new(ordinal)?, layout, views)?;
                let moment = match &copy {
                    Self::Device(copy) => Some(copy.stream().moment()?),
                    Self::Host(_) => None,
                };
                let copying = Copying {
                    moment,
                    is_over: false,
                };
                Ok(Some((copy, copying)))
            }
            Err(_) => {
                let mut copy = ExclusiveBytes::zeros(layout.bytes.max(1))?;
                let to = copy.as_mut_slice();
                for range in layout.valid(views) {
                    if let Some(to) = to.get_mut(range.clone()) {
                        memory
                            .part::<u8>(range.start, [range.len()])?
                            .copy_to_slice(to)?;
                    }
                }
                let copying = Copying {
                    moment: None,
                    is_over: true,
                };
                Ok(Some((Self::Host(copy.freeze()), copying)))
            }
        }
    }

    /// Everything is where it is read.
    #[cfg(not(feature = "cuda"))]
    pub(crate) fn brought_to(
        &self,
        _device: i32,
        _layout: &Layout,
        _views: &[View],
    ) -> Result<Option<(Self, Copying)>> {
        Ok(None)
    }
}

/// What is valid of a slot, on a device: between devices, or on the one that it is on.
#[cfg(feature = "cuda")]
fn copy_to(
    memory: &SharedDeviceTensor<u8>,
    device: cuda_ipc::Device,
    layout: &Layout,
    views: &[View],
) -> Result<Store> {
    let stream = Stream::current()
        .ok()
        .filter(|stream| stream.device() == device);
    let stream = match stream {
        Some(current) => current,
        None => Stream::of(device)?,
    };
    let mut copy = stream.scope(|| DeviceTensor::<u8>::uninit([layout.bytes.max(1)]))?;
    for range in layout.valid(views).filter(|range| !range.is_empty()) {
        let from = memory.part::<u8>(range.start, [range.len()])?;
        copy.part_mut::<u8>(range.start, [range.len()])?
            .copy_from_shared(&from)?;
    }
    Ok(Store::Device(Box::new(copy.freeze())))
}

impl Writable {
    /// Whether it lies in the arena.
    pub(crate) const fn is_on_host(&self) -> bool {
        match self {
            Self::Host(_) => true,
            #[cfg(feature = "cuda")]
            Self::Device(_) => false,
        }
    }

    pub(crate) fn freeze(self) -> Store {
        match self {
            Self::Host(memory) => Store::Host(memory.freeze()),
            #[cfg(feature = "cuda")]
            Self::Device(memory) => Store::Device(Box::new(memory.freeze())),
        }
    }

    /// The bytes, where this process can reach them.
    pub(crate) fn bytes(&mut self) -> Result<&mut [u8]> {
        match self {
            Self::Host(memory) => Ok(memory.as_mut_slice()),
            #[cfg(feature = "cuda")]
            Self::Device(memory) => Err(on_a_device(memory.device())),
        }
    }
}

#[cfg(feature = "cuda")]
fn on_a_device(device: cuda_ipc::Device) -> Error {
    Error::invalid(format!(
        "elements of a slot were asked for that lie on CUDA device {}; use `device_tensor` and `device_tensor_mut`, or `to_vec` and `write`, which copy",
        device.ordinal()
    ))
}
