//! The driver and its devices.

use std::ffi::c_char;
use std::ptr;

use super::{driver_calls, plain_calls};
use crate::code::{self, invalid, refuse};
use crate::knobs::{self, Feature, Knobs};
use crate::process::{self, Process};
use crate::raw::{self, Out};

/// What tells a device from every other one, wherever it is seen from.
pub(crate) fn uuid(device: usize) -> [u8; 16] {
    let mut uuid = *b"emulated-device-";
    uuid[15] = b'A' + device as u8;
    uuid
}

plain_calls! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return invalid("flags other than 0");
        }
        process::start()
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.set(Knobs::from_environment().version)
    }

    fn cuGetErrorName(error: i32, text: Out<*const c_char>) {
        match code::name(error) {
            Some(name) => text.set(name.as_ptr()),
            None => {
                text.optional(ptr::null());
                invalid("no such code")
            }
        }
    }

    fn cuGetErrorString(error: i32, text: Out<*const c_char>) {
        match code::text(error) {
            Some(name) => text.set(name.as_ptr()),
            None => {
                text.optional(ptr::null());
                invalid("no such code")
            }
        }
    }

    fn cuGetProcAddress_v2(symbol: *const c_char, found: Out<usize>, _version: i32, _flags: u64, status: Out<u32>) {
        let name = raw::text(symbol)?;
        let hidden = knobs::words(knobs::MISSING).contains(&name);
        // The newest name of a call is the one with a number, as a driver would find it.
        let address = ["_v2", ""].iter().find_map(|suffix| raw::own_symbol(&format!("{name}{suffix}")));
        match address.filter(|_| !hidden) {
            Some(address) => {
                status.optional(0);
                found.set(address)
            }
            None => {
                status.optional(1);
                found.optional(0);
                refuse(code::NOT_FOUND, "the library has no such symbol")
            }
        }
    }
}

driver_calls! {
    fn cuDeviceGetCount(process, call, count: Out<i32>) {
        count.set(process.knobs.devices.len() as i32)
    }

    fn cuDeviceGet(process, call, device: Out<i32>, ordinal: i32) {
        process.device(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetName(process, call, name: *mut c_char, len: i32, device: i32) {
        let text = format!("Emulated device {}\0", process.device(device)?);
        raw::put_bytes(name, len, text.as_bytes())
    }

    fn cuDeviceGetUuid(process, call, answer: Out<[u8; 16]>, device: i32) {
        answer.set(uuid(process.device(device)?))
    }

    fn cuDeviceGetUuid_v2(process, call, answer: Out<[u8; 16]>, device: i32) {
        answer.set(uuid(process.device(device)?))
    }

    fn cuDeviceGetPCIBusId(process, call, name: *mut c_char, len: i32, device: i32) {
        let text = format!("0000:{:02x}:00.0\0", 0x10 + process.device(device)?);
        raw::put_bytes(name, len, text.as_bytes())
    }

    fn cuDeviceTotalMem_v2(process, call, bytes: Out<usize>, device: i32) {
        process.device(device)?;
        bytes.set(process.knobs.memory as usize)
    }

    fn cuDeviceGetAttribute(process, call, value: Out<i32>, attribute: i32, device: i32) {
        process.device(device)?;
        value.set(device_attribute(process, attribute)?)
    }

    fn cuDeviceCanAccessPeer(process, call, can: Out<i32>, device: i32, peer: i32) {
        let different = process.device(device)? != process.device(peer)?;
        can.set(i32::from(different && process.knobs.has(Feature::Peers)))
    }
}

/// Attributes by their numbers in `cuda.h`; those that nobody asks an emulated device for are zero.
fn device_attribute(process: &Process, attribute: i32) -> code::Answer<i32> {
    let has = |feature| i32::from(process.knobs.has(feature));
    // A driver knows the attributes of its time.
    let newest = match process.knobs.version {
        i32::MIN..11_010 => 118,
        11_010..12_000 => 121,
        12_000..12_030 => 127,
        12_030.. => 145,
    };
    if !(1..=newest).contains(&attribute) {
        return invalid(format!(
            "attribute {attribute}; this driver knows those up to {newest}"
        ));
    }
    Ok(match attribute {
        // Threads in a block, size of a warp.
        1 => 1024,
        10 => 32,
        // Multiprocessors; compute capability 9.0.
        16 => 8,
        75 => 9,
        76 => 0,
        // Integrated, compute mode: no, default.
        18 | 20 => 0,
        // Unified addresses, concurrent managed access, pageable memory access.
        41 => 1,
        // Streams' words: the first interface until 11.8 had 93, the second has 122.
        93 | 122 => has(Feature::MemoryOperations),
        // Host registration, and of read-only memory.
        99 | 113 => has(Feature::HostRegister),
        102 => has(Feature::Vmm),
        103 => has(Feature::Vmm) & has(Feature::PosixDescriptors),
        115 => has(Feature::Pools),
        125 => has(Feature::IpcEvents),
        _ => 0,
    })
}
