//! From a function to an offset and back. Besides `text`, which asks the loader where the code is, and `fork`, which
//! copies a process, this is the only file of this crate with `unsafe` in it.
//!
//! For each function that is spawned the compiler makes one [`trampoline`], a plain function of ours that knows the
//! types. The parent sends where it is; the child, which runs the same image, calls it. The function itself is a type
//! without size (a function item, or a closure that captures nothing), so the trampoline needs no more than the type to
//! have the value.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr::NonNull;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::hello::{Hello, Signature};
use crate::image::Image;
use crate::outcome::Outcome;
use crate::worker::{self, Call};

/// A trampoline, whatever it leads to. Gives the exit code of the process.
pub(crate) type Trampoline = fn(&Call<'_>) -> i32;

/// What names a function across the process boundary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) offset: u64,
    pub(crate) signature: Signature,
    /// For people: the type's name may not be unique.
    pub(crate) name: &'static str,
}

/// Names `F` for a child that runs `image`.
pub(crate) fn target<F, A, R>(image: &Image) -> Result<Target, String>
where
    F: Fn(usize, A) -> R + Copy + Send + 'static,
    A: Serialize + DeserializeOwned,
    R: Outcome,
{
    let (trampoline, signature) = (of::<F, A, R>(), Signature::of::<F, A, R>());
    place(image, trampoline, signature, std::any::type_name::<F>())
}

/// Names `F` for a child that is another executable, and looks for the name instead of the place.
pub(crate) fn target_by_name<F, A, R>() -> Target
where
    F: Fn(usize, A) -> R + Copy + Send + 'static,
    A: Serialize + DeserializeOwned,
    R: Outcome,
{
    let _trampoline = of::<F, A, R>();
    Target {
        offset: 0,
        signature: Signature::of::<F, A, R>(),
        name: std::any::type_name::<F>(),
    }
}

/// The trampoline for `F` in this executable; what cannot be spawned is refused when this is compiled.
pub(crate) fn of<F, A, R>() -> Trampoline
where
    F: Fn(usize, A) -> R + Copy + Send + 'static,
    A: Serialize + DeserializeOwned,
    R: Outcome,
{
    // The compiler tells of what it refuses once, however often this is asked for.
    let _sizeless = Sizeless::<F>::spawned();
    trampoline::<F, A, R>
}

/// Names `F` for a fork server that runs `image`.
pub(crate) fn preload_target<F>(image: &Image) -> Result<Target, String>
where
    F: Fn() + Copy + Send + 'static,
{
    let _sizeless = Sizeless::<F>::preloaded();
    let name = std::any::type_name::<F>();
    place(
        image,
        preload_trampoline::<F>,
        Signature::of::<F, (), ()>(),
        name,
    )
}

fn place(
    image: &Image,
    trampoline: Trampoline,
    signature: Signature,
    name: &'static str,
) -> Result<Target, String> {
    match image.offset_of(trampoline as usize) {
        Some(offset) => Ok(Target {
            offset,
            signature,
            name,
        }),
        None => Err(format!(
            "the code for `{name}` lies outside the executable (in a shared library?), where a re-executed child \
             cannot find it by its place"
        )),
    }
}

/// The trampoline that a greeting names, if this image is the one that was meant.
pub(crate) fn resolve(image: &Image, hello: &Hello) -> Result<Trampoline, String> {
    if hello.build != image.build() {
        return Err(format!(
            "the parent runs another build ({}) than this process ({})",
            hello.build,
            image.build()
        ));
    }
    let Some(address) = image.address_of(hello.offset) else {
        return Err(format!(
            "offset {:#x} leads to no code of this executable",
            hello.offset
        ));
    };
    let pointer = std::ptr::with_exposed_provenance::<()>(address);
    // SAFETY: the address is that of a `Trampoline` of this image. The parent took it from one (`target` is the only
    // place that fills `Target::offset`), measured from the same anchor, and checked that it lies in the executable.
    // The build is compared above (same hash of what was linked, or else same file, size and time of change; same text
    // length, same version of this crate), and the parent ran its own executable again, so the distance between anchor and trampoline is the same here; the image has just found it inside the
    // executable's own code. The greeting came over a socket that the parent made (`entry` checked whose it is), so
    // no other user can have written it. The trampoline then compares the signature before it touches anything else.
    let trampoline = unsafe { std::mem::transmute::<*const (), Trampoline>(pointer) };
    Ok(trampoline)
}

/// Calls `F` with what the call carries.
fn trampoline<F, A, R>(call: &Call<'_>) -> i32
where
    F: Fn(usize, A) -> R + Copy + Send + 'static,
    A: Serialize + DeserializeOwned,
    R: Outcome,
{
    if call.hello.signature != Signature::of::<F, A, R>() {
        return call.refuse(format!(
            "the parent means a function of other types than `{}` has here",
            std::any::type_name::<F>()
        ));
    }
    worker::run(call, Sizeless::<F>::spawned().value())
}

/// Calls `F`, which is to prepare a fork server.
fn preload_trampoline<F>(call: &Call<'_>) -> i32
where
    F: Fn() + Copy + Send + 'static,
{
    if call.hello.signature == Signature::of::<F, (), ()>() {
        Sizeless::<F>::preloaded().value()();
    }
    0
}

/// Proof that a type has no size, so that its one value can be had from nothing.
///
/// What this cannot see is a captured value that has no size itself, such as a token that proves something: the child
/// gets a copy of it without the proof. The crate's documentation says so.
struct Sizeless<F>(PhantomData<F>);

impl<F: Copy + 'static> Sizeless<F> {
    /// For a function that is to be spawned. Others are refused here, when this is compiled.
    fn spawned() -> Sizeless<F> {
        const {
            assert!(
                size_of::<F>() == 0,
                "spawn takes a function item or a closure that captures nothing: another process does not have what was \
                 captured, nor what a function pointer points to. Pass the values as arguments instead"
            );
        }
        Sizeless(PhantomData)
    }

    /// The same for a function that prepares a fork server.
    fn preloaded() -> Sizeless<F> {
        const {
            assert!(
                size_of::<F>() == 0,
                "preload takes a function item or a closure that captures nothing: the fork server does not have what \
                 was captured, nor what a function pointer points to"
            );
        }
        Sizeless(PhantomData)
    }

    /// The one value of the type.
    fn value(self) -> F {
        // SAFETY: `F` has no bytes, or whoever made this proof was not compiled, so an aligned pointer that is not null
        // is valid for reading it. The value may exist: the parent was given one, `F: Copy` allows any number of copies
        // and has no destructor, and a function item or a closure without captures has just one value.
        unsafe { NonNull::<F>::dangling().read() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hello::Greeting;
    use crate::image::image;

    fn twice(_rank: usize, x: u32) -> Result<u32, String> {
        Ok(2 * x)
    }

    fn target_of<F, A, R>(_: F) -> Target
    where
        F: Fn(usize, A) -> R + Copy + Send + 'static,
        A: Serialize + DeserializeOwned,
        R: Outcome,
    {
        target::<F, A, R>(image().unwrap()).unwrap()
    }

    fn hello(target: Target) -> Hello {
        Hello::new(&Greeting {
            build: image().unwrap().build(),
            signature: target.signature,
            offset: target.offset,
            arguments: [0; 2],
            outcome: [0; 2],
            parent: 1,
            rank: 0,
            depth: 1,
            stdin: false,
            role: crate::hello::WORKER,
            inline: false,
            supervisor: crate::link::Member::default(),
            context: 0,
            name: "x".into(),
        })
    }

    #[test]
    fn an_offset_leads_back_to_its_trampoline() {
        let target = target_of(twice);
        let found = resolve(image().unwrap(), &hello(target)).unwrap();
        assert_eq!(
            image().unwrap().offset_of(found as usize),
            Some(target.offset)
        );
    }

    #[test]
    fn a_function_of_a_shared_library_is_an_error() {
        // Nothing calls it: it only stands for one that lies outside of the executable.
        let address = libc::dl_iterate_phdr as *const ();
        // SAFETY: function pointers have the size and the validity of any pointer that is not null.
        let foreign = unsafe { std::mem::transmute::<*const (), Trampoline>(address) };
        let place = place(
            image().unwrap(),
            foreign,
            Signature::of::<fn(), (), ()>(),
            "app::f",
        );
        if cfg!(target_feature = "crt-static") {
            return;
        }
        let reason = place.unwrap_err();
        assert!(
            reason.contains("`app::f` lies outside the executable"),
            "{reason}"
        );
    }

    #[test]
    fn another_build_or_an_offset_into_data_is_refused() {
        let target = target_of(twice);
        let mut other = hello(target);
        other.offset = other.offset.wrapping_add(1 << 40);
        assert!(
            resolve(image().unwrap(), &other)
                .unwrap_err()
                .contains("no code")
        );
    }
}
