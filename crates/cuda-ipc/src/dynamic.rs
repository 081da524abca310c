//! `DynDeviceTensor`: a tensor on a device whose element type, and whether it is shared, are known at run time only.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use shm_core::{Dtype, DynTensor, Element, Shape};

use crate::body::Body;
use crate::error::{Error, ErrorKind, Result};
use crate::shared::SharedDeviceTensor;
use crate::stream::Stream;
use crate::tensor::{DeviceTensor, describe};
use crate::token::Token;
use crate::travel;

/// A tensor on a device with its element type, and whether it is exclusive or shared, known at run time only. It is sent as
/// what it is.
pub struct DynDeviceTensor {
    pub(crate) body: Body,
}

impl DynDeviceTensor {
    /// A tensor of zeros, on the current stream; exclusive.
    ///
    /// # Errors
    /// When there is no device, or it has no room.
    pub fn zeros(dtype: Dtype, shape: impl Into<Shape>) -> Result<Self> {
        let body = Body::new(dtype, shape, &Stream::current()?)?;
        body.fill_bytes(0)?;
        Ok(Self { body })
    }

    /// A copy of a tensor of the arena, on the current stream; exclusive.
    ///
    /// # Errors
    /// When there is no device, it has no room, or the elements do not follow one another.
    pub fn from_host(host: &DynTensor) -> Result<Self> {
        let body = Body::new(host.dtype(), host.shape(), &Stream::current()?)?;
        body.write_span(&host.to_bytes())?;
        Ok(Self { body })
    }

    /// Whether this process, and in it this owner, is the only one.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        matches!(*self.body.token, Token::Exclusive(_))
    }

    /// As an exclusive tensor of that element type.
    ///
    /// # Errors
    /// When it has another, or is shared.
    pub fn downcast<T: Element>(self) -> Result<DeviceTensor<T>> {
        self.check::<T>(true)?;
        Ok(DeviceTensor::over(self.body))
    }

    /// As a shared tensor of that element type; an exclusive one is frozen.
    ///
    /// # Errors
    /// When it has another element type.
    pub fn downcast_shared<T: Element>(self) -> Result<SharedDeviceTensor<T>> {
        self.check::<T>(false)?;
        Ok(SharedDeviceTensor::over(self.body.freeze()))
    }

    fn check<T: Element>(&self, exclusive: bool) -> Result<()> {
        if self.dtype() != T::DTYPE || (exclusive && !self.is_exclusive()) {
            let mode = if self.is_exclusive() {
                "exclusive"
            } else {
                "shared"
            };
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "the device tensor is {mode}, of {}; wanted was one of {}",
                    self.dtype(),
                    T::DTYPE
                ),
            ));
        }
        Ok(())
    }

    /// Gives up writing, so that any number of processes can read.
    #[must_use]
    pub fn freeze(self) -> Self {
        Self {
            body: self.body.freeze(),
        }
    }

    /// Another handle of a shared tensor.
    ///
    /// # Errors
    /// When it is exclusive.
    pub fn try_clone(&self) -> Result<Self> {
        let body = self.body.share(self.body.geometry)?;
        Ok(Self { body })
    }

    /// The elements as bytes, in row-major order, copied to the host.
    ///
    /// # Errors
    /// When they do not follow one another, the memory's origin has ended, or what the driver answers.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        if !self.is_contiguous() {
            return Err(Error::new(
                ErrorKind::Shape,
                "the elements of the device tensor do not follow one another; `downcast` it and use `to_vec`",
            ));
        }
        let mut bytes = vec![0; self.body.geometry.byte_span().len()];
        self.body.read_span(&mut bytes)?;
        Ok(bytes)
    }

    crate::accessors::what_it_is!();
}

impl<T: Element> From<DeviceTensor<T>> for DynDeviceTensor {
    fn from(tensor: DeviceTensor<T>) -> Self {
        Self { body: tensor.body }
    }
}

impl<T: Element> From<SharedDeviceTensor<T>> for DynDeviceTensor {
    fn from(tensor: SharedDeviceTensor<T>) -> Self {
        Self { body: tensor.body }
    }
}

impl Serialize for DynDeviceTensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        travel::serialize(&self.body, serializer)
    }
}

impl<'de> Deserialize<'de> for DynDeviceTensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let body = travel::either(deserializer)?;
        Ok(Self { body })
    }
}

impl fmt::Debug for DynDeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "DynDeviceTensor", &self.body)
    }
}
