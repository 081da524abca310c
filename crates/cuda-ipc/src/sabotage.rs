//! Leaving out a guard on purpose, so that tests can show that they would notice.
//!
//! Only in builds with the feature `sabotage`, and there only what the environment variable `CUDA_IPC_SABOTAGE` names.

/// Whether the guard of that name is to be left out.
#[cfg(feature = "sabotage")]
pub(crate) fn is(guard: &str) -> bool {
    static WANTED: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    WANTED.get_or_init(|| std::env::var("CUDA_IPC_SABOTAGE").unwrap_or_default()) == guard
}

/// Never, in a build without the feature `sabotage`.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub(crate) const fn is(_guard: &str) -> bool {
    false
}
