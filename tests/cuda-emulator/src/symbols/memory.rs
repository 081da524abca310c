//! Memory of devices, what is known about an address, and memory of the host.

use super::driver_calls;
use crate::code::{Answer, invalid};
use crate::context;
use crate::process::Process;
use crate::raw::{In, Out};
use crate::space::Use;

driver_calls! {
    fn cuMemAlloc_v2(process, call, at: Out<u64>, size: usize) {
        at.set(process.allocate(size)?)
    }

    fn cuMemFree_v2(process, call, at: u64) {
        process.free(call, at)
    }

    fn cuMemAllocAsync(process, call, at: Out<u64>, size: usize, stream: usize) {
        at.set(process.allocate_async(call, size, stream)?)
    }

    fn cuMemFreeAsync(process, call, at: u64, stream: usize) {
        process.free_async(call, at, stream)
    }

    fn cuMemGetInfo_v2(process, call, free: Out<usize>, total: Out<usize>) {
        let device = process.current()?;
        let used = process.board.lock().used[device];
        free.set(process.knobs.memory.saturating_sub(used) as usize)?;
        total.set(process.knobs.memory as usize)
    }

    fn cuMemGetAddressRange_v2(process, call, start: Out<u64>, size: Out<usize>, at: u64) {
        let range = process.range_of(at)?;
        start.optional(range.0);
        size.optional(range.1 as usize);
        Ok(())
    }

    fn cuPointerGetAttribute(process, call, value: Out<u64>, attribute: i32, at: u64) {
        match attribute_of(process, attribute, at)? {
            Some(found) => found.store(value),
            None => invalid(format!("{at:#x} is no address that the driver knows")),
        }
    }

    fn cuPointerGetAttributes(process, call, count: u32, attributes: In<i32>, values: In<usize>, at: u64) {
        for i in 0..count as usize {
            let found = attribute_of(process, attributes.get(i)?, at)?;
            // An address that the driver does not know has the attributes zero.
            found.unwrap_or(Value::Long(0)).store(Out::at(values.get(i)?))?;
        }
        Ok(())
    }

    fn cuMemHostRegister_v2(process, call, at: usize, len: usize, flags: u32) {
        process.register(at, len, flags)
    }

    fn cuMemHostUnregister(process, call, at: usize) {
        process.unregister(at)
    }

    fn cuMemHostAlloc(process, call, at: Out<usize>, len: usize, _flags: u32) {
        at.set(process.allocate_host(len)?)
    }

    fn cuMemFreeHost(process, call, at: usize) {
        process.free_host(at)
    }

    fn cuMemHostGetDevicePointer_v2(process, call, device: Out<u64>, at: usize, _flags: u32) {
        device.set(process.device_address(at)?)
    }
}

/// An attribute's value, which C code has room for by the attribute.
enum Value {
    Word(u32),
    Long(u64),
}

impl Value {
    fn store(self, to: Out<u64>) -> Answer {
        match self {
            Self::Word(value) => to.cast().set(value),
            Self::Long(value) => to.set(value),
        }
    }
}

/// None when the driver does not know the address.
fn attribute_of(process: &Process, attribute: i32, at: u64) -> Answer<Option<Value>> {
    process.current()?;
    let local = process.local();
    let host = local.pinned_around(at as usize, 1);
    let around = local
        .space
        .around(at)
        .and_then(|(start, range)| Some((start, range, range.target?)));
    let Some((start, range, target)) = around else {
        let value = match attribute {
            1 => Value::Long(context::handle(process.knobs.devices[0]) as u64),
            2 => Value::Word(1),
            3 | 4 => Value::Long(at),
            8 | 10 => Value::Word(0),
            9 => Value::Word(0),
            13 => Value::Word(1),
            _ => return invalid(format!("attribute {attribute}")),
        };
        return Ok(host.then_some(value));
    };
    let plain = matches!(range.what, Use::Own { pooled: false });
    Ok(Some(match attribute {
        1 => Value::Long(context::handle(target.device) as u64),
        2 => Value::Word(2),
        3 => Value::Long(at),
        4 => return invalid("the host has no address for it"),
        6 | 8 => Value::Word(0),
        7 => Value::Long(process.board.lock().allocations[target.index].key),
        9 => Value::Word(process.ordinal(target.device).cast_unsigned()),
        10 => Value::Word(u32::from(plain)),
        11 => Value::Long(start),
        12 => Value::Long(range.len),
        13 => Value::Word(1),
        14 => Value::Long(u64::from(matches!(range.what, Use::Reserved { .. }))),
        17 => Value::Long(0),
        _ => return invalid(format!("attribute {attribute}")),
    }))
}
