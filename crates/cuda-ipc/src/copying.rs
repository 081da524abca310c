//! What a stream does with a tensor's elements: copies on a device, and from one device to another, and zeros.

use crate::body::Body;
use crate::company::Calm;
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
        crate::driver::check_not_forked()?;
        self.using.place.check_alive(false)?;
        from.using.place.check_alive(false)?;
        let (to, source) = (self.address()?, from.address()?);
        self.using.is_written_in(&self.stream)?;
        self.stream.wait_for(&from.stream)?;
        let bytes = self.geometry.packed_bytes() as u64;
        copy_in(
            &self.stream,
            (self.device(), to),
            (from.device(), source),
            bytes,
        )?;
        // What the source's stream does next comes after the copy has read it.
        from.is_read_in(&self.stream)
    }

    /// A copy on `device`, in the order of that device's current stream.
    pub(crate) fn copy_to(&self, stream: &Stream) -> Result<Self> {
        self.using.place.check_alive(false)?;
        let (address, length) = self.span()?;
        let geometry = self.geometry.starting_at(self.geometry.byte_span().start)?;
        let elements = length / self.geometry.dtype().size();
        let mut copy = Self::new(self.geometry.dtype(), [elements], stream)?;
        stream.wait_for(&self.stream)?;
        let to = copy.using.address()?;
        copy_in(
            stream,
            (stream.device(), to),
            (self.device(), address),
            length as u64,
        )?;
        // The source is not written before the copy has read it.
        self.is_read_in(stream)?;
        copy.geometry = geometry;
        Ok(copy)
    }
}

impl Body {
    /// As [`enter`](Self::enter), for work that writes: the stream waits for all that this process has to do with the memory.
    pub(crate) fn enter_to_write(&self, stream: &Stream) -> Result<u64> {
        crate::driver::check_not_forked()?;
        stream.expect(self.device())?;
        self.using.place.check_alive(false)?;
        let address = self.address()?;
        self.using.works_on(&self.stream);
        self.using.is_written_in(stream)?;
        Ok(address)
    }

    /// Sets all bytes of the elements.
    pub(crate) fn fill_bytes(&self, value: u8) -> Result<()> {
        let (address, length) = self.span()?;
        self.using.is_written_in(&self.stream)?;
        self.stream
            .driver()
            .fill(self.stream.raw()?, address, value, length as u64)
    }

    /// Before this thread waits for the tensor's stream. What its writer has not done is told as the end of the memory, where
    /// that went as well.
    pub(crate) fn gate(&self) -> Result<Calm<'_>> {
        let calm = self.stream.gate();
        calm.map_err(|error| self.using.place.explain(error))
    }

    /// Another stream has read it: what this one's does next comes after that.
    fn is_read_in(&self, stream: &Stream) -> Result<()> {
        let waits = self.stream.wait_for(stream);
        // Where it does not, the memory's next user waits for that stream itself.
        self.using
            .works_on(if waits.is_ok() { &self.stream } else { stream });
        waits
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
