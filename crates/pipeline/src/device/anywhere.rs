//! Reading and writing a slot's tensors wherever they lie: for stages that run on a device or on the CPU.

use shm_core::Element;

use super::{Store, Writable};
use crate::error::{Error, Result};
use crate::input::Input;
use crate::pool::OutputSlot;

impl OutputSlot {
    /// Writes the first elements of tensor `index`, row-major, wherever the slot lies: in shared memory, or on a device,
    /// and then behind what its stream has to do. Comes back when the source can be used again.
    ///
    /// # Errors
    /// When there is no such tensor, its elements are no `T`, it has fewer, or what the driver answers.
    pub fn write<T: Element>(&mut self, index: usize, elements: &[T]) -> Result<()> {
        let place = self.layout().place::<T>(index)?;
        if elements.len() > place.numel {
            return Err(Error::invalid(format!(
                "{} elements were to be written into tensor {index} of a slot, which has {}",
                elements.len(),
                place.numel
            )));
        }
        match self.writable()? {
            Writable::Host(_) => {
                if let Some(to) = self.tensor_mut::<T>(index)?.get_mut(..elements.len()) {
                    to.copy_from_slice(elements);
                }
                Ok(())
            }
            #[cfg(feature = "cuda")]
            Writable::Device(memory) => {
                let mut part = memory.part_mut::<T>(place.offset, [elements.len()])?;
                Ok(part.copy_from_slice(elements)?)
            }
        }
    }

    /// Copies the valid elements of a tensor of an input to the byte `at` of the same tensor here; how many bytes they are.
    pub(crate) fn copy_in(
        &mut self,
        tensor: usize,
        at: usize,
        input: &Input,
        part: usize,
    ) -> Result<usize> {
        let place = self.layout().at(tensor)?;
        let room = (place.numel * place.dtype.size()).saturating_sub(at);
        let (store, range) = input.valid_in(part, tensor)?;
        let bytes = range.len();
        if bytes > room {
            return Err(Error::invalid(format!(
                "inputs do not fit a slot with {}",
                self.specs()[tensor]
            )));
        }
        let to = place.offset + at;
        match (self.writable()?, store) {
            (Writable::Host(memory), Store::Host(from)) => {
                let to = memory.as_mut_slice().get_mut(to..to + bytes);
                if let (Some(to), Some(from)) = (to, from.as_slice().get(range)) {
                    to.copy_from_slice(from);
                }
            }
            #[cfg(feature = "cuda")]
            (Writable::Host(memory), Store::Device(from)) => {
                let to = memory.as_mut_slice().get_mut(to..to + bytes);
                if let Some(to) = to {
                    from.part::<u8>(range.start, [bytes])?.copy_to_slice(to)?;
                }
            }
            #[cfg(feature = "cuda")]
            (Writable::Device(memory), Store::Host(from)) => {
                if let Some(from) = from.as_slice().get(range) {
                    memory.part_mut::<u8>(to, [bytes])?.copy_from_slice(from)?;
                }
            }
            #[cfg(feature = "cuda")]
            (Writable::Device(memory), Store::Device(from)) => {
                let from = from.part::<u8>(range.start, [bytes])?;
                memory
                    .part_mut::<u8>(to, [bytes])?
                    .copy_from_shared(&from)?;
            }
        }
        Ok(bytes)
    }
}

impl Input {
    /// A copy of the valid elements of tensor `index`, row-major, wherever they lie.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor), and what the driver answers.
    pub fn to_vec<T: Element>(&self, index: usize) -> Result<Vec<T>> {
        #[cfg(feature = "cuda")]
        if let (Store::Device(_), _) = self.valid_in(0, index)? {
            return Ok(self.device_tensor::<T>(index)?.to_vec()?);
        }
        Ok(self.tensor::<T>(index)?.to_vec())
    }
}
