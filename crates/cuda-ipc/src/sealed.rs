//! `Sealed`: a shared device tensor on its way, which nobody has opened.

use serde::{Deserialize, Serialize};
use shm_core::Element;

use crate::dynamic::DynDeviceTensor;
use crate::error::Result;
use crate::shared::SharedDeviceTensor;
use crate::travel::{self, Parcel};

/// A shared device tensor on its way: it keeps the tensor, and no memory is opened, no stream made to wait and no driver
/// needed where it only passes through. From [`SharedDeviceTensor::seal`]; whoever wants the elements
/// [opens](Self::open) it.
///
/// A message of many tensors, some of which may be lost with the process whose memory they lie in, is still received when
/// they are sealed: each says for itself whether it can be opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sealed(Parcel);

impl Sealed {
    /// The tensor, on the current stream of its device, which waits for whoever wrote it.
    ///
    /// # Errors
    /// `OriginGone` and `WriterGone` when it was lost with a process; what receiving a device tensor can answer.
    pub fn open(&self) -> Result<DynDeviceTensor> {
        let body = travel::open(self.0.clone())?;
        Ok(DynDeviceTensor { body })
    }
}

impl<T: Element> SharedDeviceTensor<T> {
    /// The tensor as it travels: behind everything that was put into its stream so far.
    ///
    /// # Errors
    /// When the memory's origin has ended, or what the driver answers.
    pub fn seal(&self) -> Result<Sealed> {
        travel::seal(&self.body).map(Sealed)
    }

    /// Whether nobody else holds it, here, elsewhere or in a message: [`try_thaw`](Self::try_thaw) gives it back.
    #[must_use]
    pub fn is_sole(&self) -> bool {
        self.body.is_sole()
    }
}
