//! Contexts.

use super::driver_calls;
use crate::code::{self, invalid, refuse};
use crate::context;
use crate::knobs::Feature;
use crate::process::CURRENT;
use crate::raw::Out;

driver_calls! {
    fn cuDevicePrimaryCtxRetain(process, call, context: Out<usize>, device: i32) {
        let device = process.device(device)?;
        process.check_device(device)?;
        context.set(context::handle(device))?;
        process.retain(device);
        Ok(())
    }

    fn cuDevicePrimaryCtxRelease_v2(process, call, device: i32) {
        process.release(process.device(device)?)
    }

    fn cuDevicePrimaryCtxReset_v2(process, call, device: i32) {
        process.reset(process.device(device)?);
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(process, call, device: i32, flags: Out<u32>, active: Out<i32>) {
        let device = process.device(device)?;
        flags.set(0)?;
        let retained = process.local().contexts[device].retained;
        active.set(i32::from(retained > 0))
    }

    fn cuCtxGetCurrent(process, call, context: Out<usize>) {
        context.set(CURRENT.with_borrow(|stack| stack.last().copied().unwrap_or(0)))
    }

    fn cuCtxSetCurrent(process, call, context: usize) {
        if context != 0 {
            context::device_of(context)?;
        }
        CURRENT.with_borrow_mut(|stack| {
            stack.pop();
            if context != 0 {
                stack.push(context);
            }
        });
        Ok(())
    }

    fn cuCtxPushCurrent_v2(process, call, context: usize) {
        context::device_of(context)?;
        CURRENT.with_borrow_mut(|stack| stack.push(context));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(process, call, context: Out<usize>) {
        match CURRENT.with_borrow_mut(|stack| stack.pop()) {
            Some(popped) => {
                context.optional(popped);
                Ok(())
            }
            None => refuse(code::INVALID_CONTEXT, "this thread has no current context"),
        }
    }

    fn cuCtxGetDevice(process, call, device: Out<i32>) {
        device.set(process.ordinal(process.current_even_if_broken()?))
    }

    fn cuCtxSynchronize(process, call) {
        let device = process.current()?;
        process.synchronize(device);
        process.check_device(device)
    }

    fn cuCtxEnablePeerAccess(process, call, peer: usize, flags: u32) {
        let (device, peer) = (process.current()?, context::device_of(peer)?);
        if flags != 0 {
            return invalid("flags other than 0");
        }
        if device == peer || !process.knobs.has(Feature::Peers) {
            return refuse(code::PEER_UNSUPPORTED, format!("device {device} cannot use memory of device {peer}"));
        }
        match std::mem::replace(&mut process.local().contexts[device].peers[peer], true) {
            true => refuse(code::PEER_ALREADY, "it was allowed before"),
            false => Ok(()),
        }
    }

    fn cuCtxDisablePeerAccess(process, call, peer: usize) {
        let (device, peer) = (process.current()?, context::device_of(peer)?);
        match std::mem::replace(&mut process.local().contexts[device].peers[peer], false) {
            true => Ok(()),
            false => refuse(code::PEER_NOT_ENABLED, "it was not allowed"),
        }
    }
}
