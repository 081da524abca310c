//! Where `unsafe` may be, and that each use has its SAFETY comment.
//!
//! Clippy checks that a comment stands above each block; this checks that only the listed files have any, that the crates
//! above the lowest layer refuse it altogether, and counts.

use super::tree::Tree;
use super::{Problem, source};

/// The files that may hold `unsafe`, and what for. A file that no longer does has to leave the list.
const ALLOWED: &[(&str, &str)] = &[
    (
        "bench-peers/src/iceoryx2.rs",
        "memory that iceoryx2 loans is sent without being filled",
    ),
    (
        "crates/cuda-ipc/src/bytes.rs",
        "elements as bytes, and zeros",
    ),
    (
        "crates/cuda-ipc/src/driver/cuda/context.rs",
        "calls of the driver about contexts",
    ),
    (
        "crates/cuda-ipc/src/driver/cuda/ipc.rs",
        "calls of the driver about handles",
    ),
    (
        "crates/cuda-ipc/src/driver/cuda/memory.rs",
        "calls of the driver about memory",
    ),
    (
        "crates/cuda-ipc/src/driver/cuda/mod.rs",
        "calls of the driver about devices",
    ),
    (
        "crates/cuda-ipc/src/driver/cuda/order.rs",
        "calls of the driver about streams and events",
    ),
    (
        "crates/cuda-ipc/src/driver/cuda/symbols.rs",
        "loads the driver library and looks its calls up",
    ),
    (
        "crates/cuda-ipc/src/driver/cuda/virtual_memory.rs",
        "calls of the driver about mapped memory",
    ),
    (
        "crates/cuda-ipc/src/driver/handle.rs",
        "takes handles of streams and events over from others",
    ),
    (
        "crates/cuda-ipc/src/driver/mod.rs",
        "the call that pins memory of the host",
    ),
    (
        "crates/cuda-ipc/src/exit.rs",
        "registers what is done when the process ends",
    ),
    (
        "crates/cuda-ipc/src/interop.rs",
        "takes cudarc's streams for the length of a call",
    ),
    (
        "crates/cuda-ipc/src/lent.rs",
        "takes a stream over from others",
    ),
    (
        "crates/cuda-ipc/src/pinned.rs",
        "copies to a device that read memory of the host later",
    ),
    (
        "crates/cuda-ipc/src/regions.rs",
        "registers memory of the arena with the driver",
    ),
    (
        "crates/cuda-ipc/src/tensor.rs",
        "takes memory over from others",
    ),
    (
        "crates/cuda-ipc/src/used.rs",
        "takes cudarc's streams and events for the length of a call",
    ),
    (
        "crates/shm-core/src/audit.rs",
        "gives back what leaked, for those who know that nobody works on the arena",
    ),
    (
        "crates/shm-core/src/message/reach.rs",
        "handles reach the message that is being written or read, which lies in a frame further up",
    ),
    (
        "crates/shm-core/src/dlpack/export.rs",
        "boxes what C code holds until it calls the deleter",
    ),
    (
        "crates/shm-core/src/dlpack/import.rs",
        "reads what a C struct of another library points to",
    ),
    (
        "crates/shm-core/src/dlpack/mod.rs",
        "owns a C struct, and calls its deleter",
    ),
    (
        "crates/shm-core/src/dlpack/sys.rs",
        "the type of a C function",
    ),
    (
        "crates/shm-core/src/dlpack/tests.rs",
        "hands out C structs as another library would",
    ),
    (
        "crates/shm-core/src/participant/lock.rs",
        "OFD locks, which rustix does not have",
    ),
    (
        "crates/shm-core/src/prefetch.rs",
        "the instruction that brings a line nearer",
    ),
    (
        "crates/shm-core/src/segment.rs",
        "turns checked offsets into references to atomics",
    ),
    (
        "crates/shm-core/src/segment/extent.rs",
        "turns ranges that were checked before into references to atomics",
    ),
    (
        "crates/shm-core/src/segment/fork_page.rs",
        "the page that a fork wipes: a mapping and one atomic in it",
    ),
    (
        "crates/shm-core/src/segment/tests.rs",
        "writes through raw pointers into the mapping it tests",
    ),
    (
        "crates/shm-core/src/slots/hand.rs",
        "slices of slots, which one loan or any number of borrows have",
    ),
    (
        "crates/shm-core/src/slots/mod.rs",
        "addresses of slots within their memory",
    ),
    (
        "crates/shm-core/src/storage.rs",
        "copies bytes into and out of message blocks; a block's handle crosses threads",
    ),
    (
        "crates/shm-core/src/tensor/aliased.rs",
        "passes on the slices that the caller answers for",
    ),
    (
        "crates/shm-core/src/tensor/aliased/tests.rs",
        "takes slices of aliased tensors",
    ),
    (
        "crates/shm-core/src/tensor/atomic.rs",
        "an element as the integer of its atomic",
    ),
    (
        "crates/shm-core/src/strategy/file_descriptor.rs",
        "promises that its files are the arena's alone",
    ),
    (
        "crates/shm-core/src/strategy/file_system.rs",
        "promises that its files are the arena's alone",
    ),
    (
        "crates/shm-core/src/strategy/mod.rs",
        "the trait by which a strategy promises that its files are the arena's alone",
    ),
    (
        "crates/shm-core/src/tensor/cast.rs",
        "bytes seen as elements, which any bytes are",
    ),
    (
        "crates/shm-core/src/exit.rs",
        "registers the exit handler by which the last process removes a named arena",
    ),
    (
        "crates/shm-core/src/tensor/dynamic.rs",
        "calls what places a received storage in a tensor",
    ),
    (
        "crates/shm-core/src/tensor/element.rs",
        "the sealed trait of types for which any bytes are valid",
    ),
    (
        "crates/shm-core/src/tensor/exclusive.rs",
        "calls what places a received storage in a tensor",
    ),
    (
        "crates/shm-core/src/tensor/ndarray.rs",
        "places a storage in a tensor with strides that no view makes, to test them",
    ),
    (
        "crates/shm-core/src/tensor/placed.rs",
        "slices of tensors, from a storage and a checked geometry",
    ),
    (
        "crates/shm-core/src/tensor/racy.rs",
        "a slice of atomics over a storage, from a checked geometry",
    ),
    (
        "crates/shm-core/src/tensor/shared.rs",
        "calls what places a received storage in a tensor",
    ),
    (
        "crates/shm-core/src/tensor/whole.rs",
        "slices of all bytes of a storage, by its mode",
    ),
    (
        "crates/shm-core/src/tensor/walk.rs",
        "walks the elements of a strided view",
    ),
    (
        "crates/shm-core/src/testing.rs",
        "ends and signals single threads of test children",
    ),
    (
        "crates/shm-core/src/tests/limits.rs",
        "a bare fork, to see that it can do nothing",
    ),
    (
        "crates/spawn/src/function.rs",
        "a checked descriptor in the executable becomes the function it names",
    ),
    (
        "crates/spawn/src/fork.rs",
        "the copy that a fork server makes of itself, and that copy's command line and environment",
    ),
    (
        "crates/spawn/src/signals.rs",
        "signal masks and dispositions that survive an exec",
    ),
    (
        "crates/spawn/src/text.rs",
        "asks the loader where the executable's code and data are",
    ),
    (
        "crates/spawn/src/trampoline.rs",
        "the one transmute: a checked address becomes the function it is",
    ),
    (
        "crates/spawn/src/vfork.rs",
        "a process that has this one's memory until it has its program: system calls on what was prepared",
    ),
    (
        "crates/spawn/tests/processes/support.rs",
        "hosts that ignore or block signals, change their environment, close descriptors and have their system calls \
         filtered; a line that C prints",
    ),
    (
        "tests/cuda-emulator/src/board/lock.rs",
        "a robust mutex between processes, which std does not have, and what it guards",
    ),
    (
        "tests/cuda-emulator/src/board/map.rs",
        "maps the emulated devices' file",
    ),
    (
        "tests/cuda-emulator/src/driver.rs",
        "calls C functions by name, as programs call a driver",
    ),
    (
        "tests/cuda-emulator/src/exit.rs",
        "registers what looks for leaks at the end of the process",
    ),
    (
        "tests/cuda-emulator/src/load.rs",
        "loads the emulated driver, and sets the environment of a test",
    ),
    (
        "tests/cuda-emulator/src/raw.rs",
        "works with the addresses that C callers pass",
    ),
    (
        "tests/cuda-emulator/src/symbols/mod.rs",
        "gives functions the names that programs look for",
    ),
    (
        "tests/tests/devices/again.rs",
        "streams that the test itself makes and destroys",
    ),
    (
        "tests/tests/devices/legacy.rs",
        "streams and device memory that the test itself makes",
    ),
    (
        "tests/tests/devices/misuse.rs",
        "device memory that the test itself allocates; forks; a word that they share",
    ),
    (
        "tests/tests/devices/owners.rs",
        "memory that the test itself makes, and wraps",
    ),
    (
        "tests/tests/devices/others.rs",
        "device memory that the test itself allocates",
    ),
    (
        "tests/tests/tensors/dlpack.rs",
        "hands C structs to another library and back",
    ),
];

/// The roots of the crates that refuse `unsafe`.
const REFUSING: [&str; 5] = [
    "crates/mp-queue/src/lib.rs",
    "crates/pipeline/src/lib.rs",
    "crates/tensormp/src/bin/tensormp/main.rs",
    "crates/tensormp/src/lib.rs",
    "xtask/src/main.rs",
];

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Unsafety {
    pub(crate) problems: Vec<Problem>,
    /// Files that hold any.
    pub(crate) files: usize,
    /// Blocks and impls, which need a SAFETY comment; functions and attributes are not counted.
    pub(crate) count: usize,
    pub(crate) comments: usize,
}

pub(crate) fn check(tree: &Tree) -> Unsafety {
    let mut found = with_allowed(tree, ALLOWED);
    for path in REFUSING {
        let refuses = |text: &str| {
            text.contains("#![deny(unsafe_code)]") || text.contains("#![forbid(unsafe_code)]")
        };
        if !tree.file(path).is_some_and(|file| refuses(&file.text)) {
            found.problems.push(format!(
                "{path}: must say `#![deny(unsafe_code)]` or `#![forbid(unsafe_code)]`"
            ));
        }
    }
    found
}

fn with_allowed(tree: &Tree, allowed: &[(&str, &str)]) -> Unsafety {
    let mut found = Unsafety::default();
    for file in tree.with_ending(".rs") {
        let code = source::code(&file.text);
        let lines = source::lines_with_word(&code, "unsafe");
        let listed = allowed.iter().any(|(path, _)| *path == file.path);
        let Some(first) = lines.first() else {
            if listed {
                found.problems.push(format!(
                    "{}: holds no `unsafe`; take it off the list in xtask/src/tidy/unsafety.rs",
                    file.path
                ));
            }
            continue;
        };
        let count = blocks_and_impls(&code);
        let comments = source::comments(&file.text).matches("SAFETY:").count();
        if !listed {
            found.problems.push(format!(
                "{}:{first}: `unsafe` outside of the files that may hold it; move it down, or list the file with its reason in xtask/src/tidy/unsafety.rs",
                file.path
            ));
        }
        if comments < count {
            found.problems.push(format!(
                "{}: {count} unsafe blocks and impls, but {comments} SAFETY comments",
                file.path
            ));
        }
        found.files += 1;
        found.count += count;
        found.comments += comments;
    }
    for (path, _) in allowed.iter().filter(|(path, _)| tree.file(path).is_none()) {
        found.problems.push(format!(
            "{path}: does not exist; take it off the list in xtask/src/tidy/unsafety.rs"
        ));
    }
    found
}

fn blocks_and_impls(code: &str) -> usize {
    let tokens = code.replace('{', " { ");
    let words: Vec<&str> = tokens.split_whitespace().collect();
    words
        .windows(2)
        .filter(|pair| pair[0].ends_with("unsafe") && matches!(pair[1], "{" | "impl"))
        .count()
}

#[cfg(test)]
mod tests {
    use super::{Tree, blocks_and_impls, with_allowed};

    const ONE: &str = "// SAFETY: because.\nunsafe { f() }\n";

    #[test]
    fn unsafe_in_an_unlisted_file_is_found() {
        let tree = Tree::of(&[("a.rs", ONE)]);
        assert_eq!(with_allowed(&tree, &[]).problems.len(), 1);
        assert_eq!(with_allowed(&tree, &[("a.rs", "maps")]).problems, [""; 0]);
    }

    #[test]
    fn a_block_without_its_proof_is_found() {
        let tree = Tree::of(&[(
            "a.rs",
            "// SAFETY: because.\nlet x = unsafe { f() }; unsafe impl Send for X {}\n",
        )]);
        assert_eq!(with_allowed(&tree, &[("a.rs", "maps")]).problems.len(), 1);
    }

    #[test]
    fn the_list_does_not_grow_stale() {
        let tree = Tree::of(&[("a.rs", "fn f() {}\n")]);
        assert_eq!(
            with_allowed(&tree, &[("a.rs", "maps"), ("b.rs", "is gone")])
                .problems
                .len(),
            2
        );
    }

    #[test]
    fn words_in_comments_strings_and_lint_names_are_not_unsafe_code() {
        let tree = Tree::of(&[(
            "a.rs",
            "//! unsafe\n#![deny(unsafe_code)]\nconst A: &str = \"unsafe {\";\n",
        )]);
        assert_eq!(with_allowed(&tree, &[]).problems, [""; 0]);
    }

    #[test]
    fn functions_are_not_counted_as_blocks() {
        assert_eq!(
            blocks_and_impls(
                "unsafe fn f() { (unsafe{g()}, unsafe { h() }) } unsafe impl A for B {}"
            ),
            3
        );
    }
}
