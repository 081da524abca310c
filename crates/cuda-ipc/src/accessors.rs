//! What all device tensors have: said once for the three public types, each of which has a `body`.
//!
//! Macros, not a type to which the three dereference: its methods would take `&self` alone, and one of these changes the
//! tensor.

/// What the tensor is, and where.
macro_rules! what_it_is {
    () => {
        /// The lengths of the dimensions, outermost first; empty for a scalar.
        #[must_use]
        pub fn shape(&self) -> &[usize] {
            self.body.geometry.shape()
        }

        /// How many elements lie between neighbours in each dimension.
        #[must_use]
        pub fn strides(&self) -> &[isize] {
            self.body.geometry.strides()
        }

        /// Index of the first element in the storage, in elements; not zero for some views.
        #[must_use]
        pub fn offset(&self) -> usize {
            self.body.geometry.offset()
        }

        /// How many dimensions there are; 0 for a scalar.
        #[must_use]
        pub fn ndim(&self) -> usize {
            self.body.geometry.ndim()
        }

        /// How many elements there are: the product of the shape, 1 for a scalar.
        #[must_use]
        pub fn numel(&self) -> usize {
            self.body.geometry.numel()
        }

        /// The element type, as known at run time.
        #[must_use]
        pub fn dtype(&self) -> shm_core::Dtype {
            self.body.geometry.dtype()
        }

        /// Whether the elements lie in row-major order without gaps.
        #[must_use]
        pub fn is_contiguous(&self) -> bool {
            self.body.geometry.is_contiguous()
        }

        /// The device that the elements are on.
        #[must_use]
        pub fn device(&self) -> crate::Device {
            self.body.device()
        }

        /// The stream in whose order everything is that is done with the tensor.
        #[must_use]
        pub fn stream(&self) -> &crate::Stream {
            &self.body.stream
        }

        /// From now on in the order of another stream of the device, which waits for the one so far.
        ///
        /// # Errors
        /// When it is a stream of another device, or the memory's origin has ended.
        pub fn set_stream(&mut self, stream: &crate::Stream) -> crate::Result<()> {
            self.body.set_stream(stream)
        }

        /// Whether the memory belongs to this process, and not to another one that it was received from.
        #[must_use]
        pub fn is_at_home(&self) -> bool {
            matches!(self.body.using.place, crate::place::Place::Home(..))
        }

        /// Which way the memory goes to other processes.
        #[must_use]
        pub fn path(&self) -> crate::Path {
            self.body.path()
        }
    };
}

/// The elements, copied to where they can be read; of the types that know what they are.
macro_rules! what_it_holds {
    () => {
        /// Copies the elements to the host, in row-major order, after everything in the tensor's stream.
        ///
        /// # Errors
        /// When the memory's origin has ended, or what the driver answers.
        pub fn to_vec(&self) -> crate::Result<Vec<T>> {
            let mut elements = crate::bytes::zeros::<T>(self.numel());
            self.body.read(&mut elements)?;
            Ok(elements)
        }

        /// Copies the elements into a slice, in row-major order, after everything in the tensor's stream.
        ///
        /// # Errors
        /// When the slice has another length, the memory's origin has ended, or what the driver answers.
        pub fn copy_to_slice(&self, to: &mut [T]) -> crate::Result<()> {
            self.body.read(to)
        }

        /// A copy of the elements in the arena.
        ///
        /// # Errors
        /// As for [`to_vec`](Self::to_vec), or when the arena has no room.
        pub fn to_host(&self) -> crate::Result<shm_core::Tensor<T>> {
            let mut host = shm_core::Tensor::uninit(self.shape())?;
            self.body.read(host.try_as_mut_slice()?)?;
            Ok(host)
        }

        /// A copy of the elements on another device (or on the same one), whose current stream it is on. From device to device
        /// if the two can reach each other.
        ///
        /// # Errors
        /// What the driver answers.
        pub fn to_device(&self, device: crate::Device) -> crate::Result<crate::DeviceTensor<T>> {
            let stream = crate::Stream::for_device(device)?;
            self.body.copy_to(&stream).map(crate::DeviceTensor::over)
        }
    };
}

pub(crate) use {what_it_holds, what_it_is};
