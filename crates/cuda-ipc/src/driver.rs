//! The driver, as far as asking it whether it is there.
//!
//! cudarc panics at the first call when it finds no driver library, so nothing here calls before looking; and it keeps
//! driver codes in a closed enum whose formatting may panic as well, so codes become numbers at once.

use cudarc::driver::{result, sys};

/// Why no CUDA device can be used in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// There is no driver library to load.
    #[error(
        "the driver library (libcuda.so) is not on this system or not on the loader's path; install NVIDIA's driver, or add its folder to LD_LIBRARY_PATH"
    )]
    NoDriver,
    /// The driver is there, but answers an error. 100 is "no device".
    #[error("the driver answers {code} to {call}{}", hint(*code))]
    Refused {
        /// The driver call.
        call: &'static str,
        /// The driver's code, as in `cuda.h`.
        code: i32,
    },
}

fn hint(code: i32) -> &'static str {
    match code {
        100 => {
            ": it sees no device; check `nvidia-smi`, CUDA_VISIBLE_DEVICES, and that the container was given one"
        }
        3 | 804 | 803 => {
            ": it could not be started; its version and that of the kernel module may differ"
        }
        _ => "",
    }
}

/// How many CUDA devices this process can use; at least 1.
///
/// # Errors
/// Why there is none.
pub fn device_count() -> Result<usize, Unavailable> {
    // SAFETY: the call only tries to load the library and forgets the outcome, or keeps it for good.
    let present = unsafe { sys::is_culib_present() };
    if !present {
        return Err(Unavailable::NoDriver);
    }
    let refused = |call, error: result::DriverError| Unavailable::Refused {
        call,
        code: error.0 as i32,
    };
    result::init().map_err(|error| refused("cuInit", error))?;
    let count = result::device::get_count().map_err(|error| refused("cuDeviceGetCount", error))?;
    match usize::try_from(count) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(Unavailable::Refused {
            call: "cuDeviceGetCount",
            code: 100,
        }),
    }
}

/// Whether this process can use a CUDA device.
#[must_use]
pub fn is_available() -> bool {
    device_count().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_never_panics_and_says_why_there_is_none() {
        match device_count() {
            Ok(count) => assert!(count > 0 && is_available()),
            Err(reason) => {
                assert!(!is_available());
                assert!(reason.to_string().len() > 20, "{reason}");
            }
        }
    }

    #[test]
    fn a_refusal_names_call_code_and_what_to_do() {
        let error = Unavailable::Refused {
            call: "cuInit",
            code: 100,
        };
        let text = error.to_string();
        assert!(
            text.contains("100") && text.contains("cuInit") && text.contains("nvidia-smi"),
            "{text}"
        );
    }
}
