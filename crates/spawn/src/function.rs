//! [`Function`]: a function of this program by its place, small enough for a message, so that a process that runs already
//! can be asked to call it.
//!
//! A greeting may name its function by the place of its code, because it comes over a socket that only the parent can
//! write. A message comes out of shared memory, where a process that went wrong may have written anything. So what a
//! `Function` names is not code but a *descriptor*: a constant in the executable's own data that the compiler makes for
//! each function, between two marks. Whatever number arrives, what it leads to is either such a constant, whose pointers
//! this process's own loader has put there, or an error.

#![allow(unsafe_code)]

use std::any::TypeId;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use zerocopy::IntoBytes;

use crate::error::{Error, ErrorKind, Result};
use crate::image::{Image, image};
use crate::link::take_unreported;
use crate::outcome::{Outcome, tell};
use crate::panic;
use crate::text::executable_memory;
use crate::typed::Carried;

/// What a descriptor begins and ends with: numbers that mean nothing and occur nowhere else with three pointers between.
const BEGIN: u64 = 0x6d70_a54c_91e3_7f0d;
const END: u64 = 0xc23b_58f6_0e9d_a471;

/// Words of a descriptor.
const WORDS: usize = 5;

/// Names a function `Fn(&mut C)` of this program to another process that runs the same executable.
///
/// It is made of a function item or of a closure that captures nothing (or only what has no size itself, such as another
/// function item), and can be sent in any message. What it needs comes in the context `C`.
///
/// ```
/// use spawn::Function;
///
/// let double = Function::<u64>::of(|context| *context *= 2)?;
/// let mut number = 21;
/// double.resolve()?(&mut number); // here, or in a process that was sent it
/// assert_eq!(number, 42);
/// # Ok::<(), spawn::Error>(())
/// ```
///
/// What captures something is refused when it is built:
///
/// ```compile_fail
/// let factor = 2;
/// spawn::Function::<u64>::of(move |context| *context *= factor).unwrap();
/// ```
pub struct Function<C> {
    /// A digest of the build that the place belongs to.
    build: u32,
    /// The distance of the descriptor from [`ANCHOR`].
    place: i64,
    context: PhantomData<fn(&mut C)>,
}

/// A constant in the executable for each function.
#[repr(C)]
struct Descriptor<C> {
    begin: u64,
    context: fn() -> TypeId,
    name: fn() -> &'static str,
    call: fn(&mut C),
    end: u64,
}

/// The point that places are measured from.
static ANCHOR: u64 = 0;

impl<C: 'static> Function<C> {
    /// Names `f`.
    ///
    /// # Errors
    /// `Usage` when the code is not part of the executable but of a shared library, `Launch` when the executable cannot be
    /// looked at.
    pub fn of<F>(f: F) -> Result<Self>
    where
        F: Fn(&mut C) + Copy + Send + 'static,
    {
        let _ = f;
        let descriptor: &'static Descriptor<C> = const {
            assert!(
                size_of::<F>() == 0,
                "a function item or a closure that captures nothing is needed: another process does not have what was \
                 captured, nor what a function pointer points to"
            );
            assert!(size_of::<Descriptor<C>>() == WORDS * 8);
            &Descriptor {
                begin: BEGIN,
                context: TypeId::of::<C>,
                name: std::any::type_name::<F>,
                call: enter::<C, F>,
                end: END,
            }
        };
        let here = known().map_err(|reason| Error::new(ErrorKind::Launch, reason.clone()))?;
        let address = std::ptr::from_ref(descriptor).expose_provenance();
        if !here.holds(address) {
            return Err(Error::new(
                ErrorKind::Usage,
                format!(
                    "`{}` lies outside the executable (in a shared library?), where another process cannot find it by \
                     its place",
                    std::any::type_name::<F>()
                ),
            ));
        }
        Ok(Self {
            build: here.build,
            place: address.wrapping_sub(anchor()) as i64,
            context: PhantomData,
        })
    }

    /// The function, to be called in this process.
    ///
    /// # Errors
    /// `Usage` when this process runs another build, or what arrived names no function of this kind.
    pub fn resolve(&self) -> Result<fn(&mut C)> {
        let here = known().map_err(|reason| Error::new(ErrorKind::Launch, reason.clone()))?;
        let refused = |reason: &str| {
            Err(Error::new(
                ErrorKind::Usage,
                format!("a message names a function that cannot be called: {reason}"),
            ))
        };
        if self.build != here.build {
            return refused("its sender runs another build than this process");
        }
        let address = anchor().wrapping_add(self.place as usize);
        let Some([begin, context, _, call, end]) = here.read(address) else {
            return refused("its place is not part of this executable");
        };
        let code = |word: u64| here.image.offset_of(word as usize).is_some();
        if begin != BEGIN || end != END || !code(context) || !code(call) {
            return refused("nothing that can be called is at its place");
        }
        let pointer = std::ptr::with_exposed_provenance::<()>(context as usize);
        // SAFETY: between its two marks this is a `Descriptor`, which only `of` makes and which the compiler keeps as a
        // constant; so the word is the pointer to code that the constant was made with, as this process's loader placed
        // it. Its type is the same for every `C`.
        let context = unsafe { std::mem::transmute::<*const (), fn() -> TypeId>(pointer) };
        if context() != TypeId::of::<C>() {
            return refused("it takes something else");
        }
        let pointer = std::ptr::with_exposed_provenance::<()>(call as usize);
        // SAFETY: as above; and the descriptor says itself that it is one of `C`, for which this word is a `fn(&mut C)`.
        Ok(unsafe { std::mem::transmute::<*const (), fn(&mut C)>(pointer) })
    }
}

/// Calls `F`.
fn enter<C, F: Fn(&mut C) + Copy + 'static>(context: &mut C) {
    const { assert!(size_of::<F>() == 0) };
    // SAFETY: `F` has no bytes, so an aligned pointer that is not null is valid for reading it. The value may exist: `of`
    // was given one, `F: Copy` allows any number of copies and has no destructor. Any other size is refused when this is
    // compiled.
    let f = unsafe { NonNull::<F>::dangling().read() };
    f(context);
}

fn anchor() -> usize {
    std::ptr::from_ref(&ANCHOR).expose_provenance()
}

/// What resolving needs to know of this process's executable.
struct Known {
    image: &'static Image,
    build: u32,
    memory: Vec<Range<usize>>,
}

fn known() -> Result<&'static Known, &'static String> {
    static KNOWN: OnceLock<Result<Known, String>> = OnceLock::new();
    KNOWN
        .get_or_init(|| {
            let image = image()?;
            let build = image.build();
            let digest = build.as_bytes().iter().fold(0x811c_9dc5, |hash, &byte| {
                (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
            });
            Ok(Known {
                image,
                build: digest,
                memory: executable_memory(),
            })
        })
        .as_ref()
}

impl Known {
    /// Whether a descriptor can lie there.
    fn holds(&self, address: usize) -> bool {
        let Some(end) = address.checked_add(WORDS * 8) else {
            return false;
        };
        address.is_multiple_of(8)
            && self
                .memory
                .iter()
                .any(|range| range.start <= address && end <= range.end)
    }

    /// The words at an address, if it lies in the executable.
    fn read(&self, address: usize) -> Option<[u64; WORDS]> {
        self.holds(address).then(|| {
            std::array::from_fn(|index| {
                let word = std::ptr::with_exposed_provenance::<AtomicU64>(address + index * 8);
                // SAFETY: `holds` has found these words in a readable part of the executable, which stays mapped, and
                // aligned. They may be a variable that another thread changes, hence the atomic load; a load of eight
                // bytes does not write, so the part may be read-only.
                let word = unsafe { &*word };
                word.load(Ordering::Relaxed)
            })
        })
    }
}

impl<C> Copy for Function<C> {}

impl<C> Clone for Function<C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> PartialEq for Function<C> {
    fn eq(&self, other: &Self) -> bool {
        (self.build, self.place) == (other.build, other.place)
    }
}

impl<C> Eq for Function<C> {}

impl<C> fmt::Debug for Function<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function({:#x} of build {:08x})", self.place, self.build)
    }
}

impl<C> Serialize for Function<C> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.build, self.place).serialize(serializer)
    }
}

impl<'de, C> Deserialize<'de> for Function<C> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (build, place) = Deserialize::deserialize(deserializer)?;
        Ok(Self {
            build,
            place,
            context: PhantomData,
        })
    }
}

/// How a call went wrong, as data that can be sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// It returned an error.
    Raised {
        /// The error's text, then that of its source, and so on.
        chain: Vec<String>,
        /// The backtrace that the error carried, if any.
        backtrace: Option<String>,
        /// The error itself, if it is [`Typed`](crate::Typed).
        typed: Option<Carried>,
    },
    /// It panicked, and the panic was caught.
    Panicked {
        /// What the panic said.
        message: String,
        /// `file:line:column`, as far as known.
        location: Option<String>,
        /// The backtrace, when `RUST_BACKTRACE` asked for one.
        backtrace: Option<String>,
    },
}

/// Calls `f` and turns its error, or its panic, into data. The place of a panic is known in processes that were spawned.
///
/// # Errors
/// What happened instead of a value.
pub fn attempt<R: Outcome>(f: impl FnOnce() -> R) -> Result<R::Value, Failure> {
    // What the caught code touched is the caller's to judge.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        f().into_result()
            // A loop that ended early for a reason its function never saw must not pass for success.
            .and_then(|value| take_unreported().map_or(Ok(value), |error| Err(error.into())))
            .map_err(|error| tell(error.as_ref()))
    }));
    match outcome {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(told)) => Err(Failure::Raised {
            chain: told.chain,
            backtrace: told.backtrace,
            typed: told.typed.map(Carried),
        }),
        Err(payload) => {
            let noted = panic::caught(payload);
            panic::is_over(&noted);
            Err(Failure::Panicked {
                message: noted.message,
                location: noted.location,
                backtrace: noted.backtrace,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made<C: 'static, F: Fn(&mut C) + Copy + Send + 'static>(f: F) -> Function<C> {
        Function::of(f).unwrap()
    }

    #[test]
    fn a_function_that_was_sent_is_the_one_that_was_named() {
        let up = made(|number: &mut u32| *number += 1);
        let down = made(|number: &mut u32| *number -= 1);
        let mut number = 7;
        for function in [up, up, down] {
            let bytes = postcard::to_stdvec(&function).unwrap();
            let arrived: Function<u32> = postcard::from_bytes(&bytes).unwrap();
            arrived.resolve().unwrap()(&mut number);
        }
        assert_eq!(number, 8);
    }

    #[test]
    fn a_captured_function_item_is_no_capture() {
        fn twice(number: &mut u32) {
            *number *= 2;
        }
        fn wrapped<F: Fn(&mut u32) + Copy + Send + 'static>(f: F) -> Function<u32> {
            made(move |number: &mut u32| f(number))
        }
        let mut number = 4;
        wrapped(twice).resolve().unwrap()(&mut number);
        assert_eq!(number, 8);
    }

    #[test]
    fn no_number_that_arrives_leads_to_anything_but_a_function() {
        let real = made(|number: &mut u32| *number += 1);
        let mut wrong = 0;
        for step in 1..2000 {
            for place in [real.place + step, real.place - step, step * 4096] {
                let function = Function::<u32> { place, ..real };
                // Another descriptor may well lie here; it must then be one of this context.
                wrong += usize::from(function.resolve().is_err());
            }
        }
        assert!(wrong > 5000, "{wrong}");
        for place in [i64::MAX, i64::MIN, 0] {
            assert!(Function::<u32> { place, ..real }.resolve().is_err());
        }
        let other_build = Function::<u32> {
            build: !real.build,
            ..real
        };
        assert!(other_build.resolve().is_err());
    }

    #[test]
    fn a_function_of_another_context_is_refused() {
        let real = made(|number: &mut u32| *number += 1);
        let other = Function::<String> {
            build: real.build,
            place: real.place,
            context: PhantomData,
        };
        let error = other.resolve().unwrap_err().to_string();
        assert!(error.contains("takes something else"), "{error}");
    }

    #[test]
    fn an_error_and_a_panic_become_data() {
        assert_eq!(attempt(|| Ok::<_, String>(7)), Ok(7));
        let raised = attempt(|| Err::<(), _>("no weights")).unwrap_err();
        assert!(matches!(raised, Failure::Raised { chain, .. } if chain == ["no weights"]));
        let panicked = attempt(|| -> Result<(), String> { panic!("broken {}", 3) }).unwrap_err();
        assert!(matches!(panicked, Failure::Panicked { message, .. } if message == "broken 3"));
    }
}
