//! The library's symbols: C functions that check who calls and pass on.

mod context;
mod copy;
mod device;
mod event;
mod ipc;
mod memory;
mod stream;
mod vmm;

/// Functions of the driver that need it to be started. Each is counted, may be made to fail by a knob, and its refusals are
/// reported.
macro_rules! driver_calls {
    ($($(#[$meta:meta])* fn $name:ident($process:ident, $call:ident $(, $arg:ident: $type:ty)* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> i32 {
            const CALL: crate::calls::Call = crate::calls::Call::named(stringify!($name));
            crate::process::enter(CALL, |$process| {
                let $call = CALL;
                let _ = ($process, $call);
                $body
            })
        }
    )*};
}

/// Functions that work before the driver is started.
macro_rules! plain_calls {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> i32 {
            crate::process::enter_plain(|| $body)
        }
    )*};
}

use driver_calls;
use plain_calls;
