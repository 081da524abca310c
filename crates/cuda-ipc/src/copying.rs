//! Copies of a tensor's elements on a device, and from one device to another.

use crate::body::Body;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::stream::Stream;

impl Body {
    /// Overwrites the elements with another's, from device to device.
    pub(crate) fn copy_from(&self, from: &Self) -> Result<()> {
        let fits = self.geometry.shape() == from.geometry.shape()
            && self.geometry.is_contiguous()
            && from.geometry.is_contiguous();
        if !fits {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "a device tensor of shape {:?} was to be copied to one of shape {:?}; both must be contiguous and alike",
                    from.geometry.shape(),
                    self.geometry.shape(),
                ),
            ));
        }
        self.using.place.check_alive(false)?;
        from.using.place.check_alive(false)?;
        self.stream.wait_for(&from.stream)?;
        self.using.works_on(&self.stream);
        let bytes = self.geometry.packed_bytes() as u64;
        copy_in(
            &self.stream,
            (self.device(), self.address()),
            (from.device(), from.address()),
            bytes,
        )?;
        // What the source's stream does next comes after the copy has read it.
        from.stream.wait_for(&self.stream)?;
        from.using.works_on(&from.stream);
        Ok(())
    }

    /// A copy on `device`, in the order of that device's current stream.
    pub(crate) fn copy_to(&self, stream: &Stream) -> Result<Self> {
        self.using.place.check_alive(false)?;
        let (address, length) = self.span();
        let geometry = self.geometry.starting_at(self.geometry.byte_span().start)?;
        let elements = length / self.geometry.dtype().size();
        let mut copy = Self::new(self.geometry.dtype(), [elements], stream)?;
        stream.wait_for(&self.stream)?;
        let to = copy.using.address();
        copy_in(
            stream,
            (stream.device(), to),
            (self.device(), address),
            length as u64,
        )?;
        // The source is not written before the copy has read it.
        self.stream.wait_for(stream)?;
        self.using.works_on(&self.stream);
        copy.geometry = geometry;
        Ok(copy)
    }
}

/// Copies bytes in the order of a stream, on its device or from another one.
fn copy_in(
    stream: &Stream,
    (there, to): (Device, u64),
    (here, from): (Device, u64),
    bytes: u64,
) -> Result<()> {
    let (driver, raw) = (stream.driver(), stream.raw()?);
    if here == there {
        return driver.copy(raw, to, from, bytes);
    }
    driver.copy_between(raw, (there.ordinal(), to), (here.ordinal(), from), bytes)
}
