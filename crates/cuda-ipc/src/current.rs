//! The current stream of a thread: which stream tensors are on that are made or received.

use std::cell::RefCell;
use std::mem::ManuallyDrop;

use crate::device::Device;
use crate::error::Result;
use crate::stream::Stream;

thread_local! {
    /// Those of the scopes that the thread is in. Never dropped, so that tensors can also be made, sent and received where the
    /// other values of a thread are; it has no memory outside of all scopes.
    static CURRENT: RefCell<ManuallyDrop<Vec<Stream>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

impl Stream {
    /// Makes this the current stream of the thread for as long as `f` runs: tensors that are made or received in it are on
    /// this stream.
    ///
    /// ```no_run
    /// # use cuda_ipc::{Device, DeviceTensor, Stream};
    /// # fn get() -> cuda_ipc::Result<DeviceTensor<f32>> { DeviceTensor::zeros([4]) }
    /// let side = Stream::new(Device::new(0)?)?;
    /// let tensor = side.scope(|| get())?; // `side` waits for whoever wrote it
    /// # Ok::<(), cuda_ipc::Error>(())
    /// ```
    pub fn scope<R>(&self, f: impl FnOnce() -> R) -> R {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                // Dropped when nothing of it is borrowed any more.
                let _left = CURRENT.with_borrow_mut(|streams| match streams.len() {
                    1 => std::mem::take(&mut **streams).pop(),
                    _ => streams.pop(),
                });
            }
        }
        CURRENT.with_borrow_mut(|streams| streams.push(self.clone()));
        let _leave = Leave;
        f()
    }

    /// The current stream of this thread: that of the innermost [`scope`](Self::scope), or else the default stream of
    /// device 0.
    ///
    /// # Errors
    /// When there is no device.
    pub fn current() -> Result<Self> {
        match CURRENT.with_borrow(|streams| streams.last().cloned()) {
            Some(stream) => Ok(stream),
            None => Self::of(Device::new(0)?),
        }
    }

    /// The stream for something on `device`: the current one if it is of that device, or else the device's default.
    pub(crate) fn for_device(device: Device) -> Result<Self> {
        let current = CURRENT.with_borrow(|streams| {
            streams
                .iter()
                .rev()
                .find(|stream| stream.device() == device)
                .cloned()
        });
        match current {
            Some(stream) => Ok(stream),
            None => Self::of(device),
        }
    }
}
