//! A slot's tensors on a device, in place.

use cuda_ipc::{Device, DeviceTensor, PartMut, SharedDeviceTensor};
use shm_core::Element;

use super::{Store, Writable};
use crate::error::{Error, ErrorKind, Result};
use crate::input::Input;
use crate::pool::OutputSlot;

impl From<cuda_ipc::Error> for Error {
    fn from(error: cuda_ipc::Error) -> Self {
        let kind = match error.kind() {
            cuda_ipc::ErrorKind::OriginGone { .. } | cuda_ipc::ErrorKind::WriterGone => {
                ErrorKind::Lost
            }
            _ => ErrorKind::Device,
        };
        Self::caused(kind, "a slot on a device", error)
    }
}

impl OutputSlot {
    /// The device that the slot lies on; `None` in shared memory.
    #[must_use]
    pub fn device(&self) -> Option<Device> {
        match self.peek() {
            Some(Writable::Device(memory)) => Some(memory.device()),
            _ => None,
        }
    }

    /// All elements of tensor `index`, on the slot's device, to write. They hold what the last user of the slot left; what is
    /// started on them comes after the last reader is done.
    ///
    /// # Errors
    /// When there is no such tensor, its elements are no `T`, or the slot lies in shared memory
    /// ([`tensor_mut`](Self::tensor_mut)).
    pub fn device_tensor_mut<T: Element>(&mut self, index: usize) -> Result<PartMut<'_, T>> {
        let place = self.layout().place::<T>(index)?;
        let shape = self.specs()[index].shape().to_vec();
        match self.writable()? {
            Writable::Device(memory) => Ok(memory.part_mut::<T>(place.offset, &shape[..])?),
            Writable::Host(_) => Err(Error::invalid(format!(
                "tensor {index} of a slot was asked for on a device, and lies in shared memory; use `tensor_mut` or `write`, or let its specification be `on` \
                 Device::Own and give its process a device"
            ))),
        }
    }
}

impl Input {
    /// The valid elements of tensor `index`, on the device that the process was given. In place where the slot lies on it.
    /// What lay on another device was copied when the input arrived; what lies in shared memory is copied now.
    ///
    /// # Errors
    /// When there is no such tensor, its elements are no `T`, the item is in several slots, the process was given no device,
    /// or what the driver answers.
    pub fn device_tensor<T: Element>(&self, index: usize) -> Result<SharedDeviceTensor<T>> {
        // Fails where there are several.
        self.shape(index)?;
        self.device_tensor_in(0, index)
    }

    /// The same of the slot `slot` of those it is in.
    ///
    /// # Errors
    /// As [`device_tensor`](Self::device_tensor).
    pub fn device_tensor_in<T: Element>(
        &self,
        slot: usize,
        index: usize,
    ) -> Result<SharedDeviceTensor<T>> {
        self.check_dtype::<T>(slot, index)?;
        let shape = self.shape_in(slot, index)?;
        match self.valid_in(slot, index)? {
            (Store::Device(memory), range) => Ok(memory.part::<T>(range.start, shape)?),
            (Store::Host(_), _) => {
                let Ok(ordinal) = u32::try_from(self.home().device) else {
                    return Err(Error::invalid(format!(
                        "tensor {index} of an input was asked for on a device in a process on the CPU; use `tensor` or `to_vec`, or give the process a device"
                    )));
                };
                let stream = cuda_ipc::Stream::of(Device::new(ordinal)?)?;
                let elements = self.tensor_in::<T>(slot, index)?;
                let copy = DeviceTensor::from_slice_on(&stream, shape, elements)?;
                self.note_copy_done();
                Ok(copy.freeze())
            }
        }
    }
}
