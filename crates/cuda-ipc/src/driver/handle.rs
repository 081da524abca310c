//! Handles of streams and events, as the driver gives them out: not copied, so that what was destroyed is not used.

/// A stream of the driver.
#[derive(Debug)]
pub struct RawStream {
    pub(super) device: u32,
    pub(super) raw: usize,
    pub(super) owned: bool,
}

impl RawStream {
    /// A stream that somebody else made and will destroy.
    ///
    /// # Safety
    /// `raw` is a stream of the driver, of this device, and lives for as long as this handle and all that uses it.
    #[must_use]
    pub unsafe fn borrowed(device: u32, raw: usize) -> Self {
        Self {
            device,
            raw,
            owned: false,
        }
    }

    /// The same stream by another handle, where somebody else made it; for who uses that no longer than this one is there.
    pub(crate) fn lent(&self) -> Option<Self> {
        let Self { device, raw, owned } = *self;
        (!owned).then_some(Self { device, raw, owned })
    }

    /// Whether it is destroyed with this handle.
    pub(crate) const fn is_owned(&self) -> bool {
        self.owned
    }

    /// The device it belongs to.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.device
    }

    /// The driver's pointer, as a number.
    #[must_use]
    pub fn as_raw(&self) -> usize {
        self.raw
    }
}

/// An event of the driver.
#[derive(Debug)]
pub struct RawEvent {
    pub(super) device: u32,
    pub(super) raw: usize,
}

impl RawEvent {
    /// An event that an implementation of [`Driver`](super::Driver) made.
    ///
    /// # Safety
    /// `raw` is an event of that driver which nobody else destroys.
    #[must_use]
    pub unsafe fn made(device: u32, raw: usize) -> Self {
        Self { device, raw }
    }

    /// The device it belongs to.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.device
    }
}
