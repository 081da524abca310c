//! The mapping: what is reserved, committed, refused and given back.

use super::*;
use crate::room::{FixedLimits, Limit, SystemLimits};
use crate::strategy::FileDescriptor;
use crate::testing::{self, assert_passed, output, rerun};
use proptest::prelude::*;
use rustix::fs::fstat;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::atomic::Ordering;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn unlimited() -> Arc<dyn Limits> {
    Arc::new(FixedLimits::new(u64::MAX))
}

fn segment(capacity: u64, limits: Arc<dyn Limits>) -> Segment {
    Segment::create(&FileDescriptor, Capacity::exactly(capacity), limits).unwrap()
}

/// Bytes that the file behind the segment has taken.
fn taken(segment: &Segment) -> u64 {
    fstat(segment).unwrap().st_blocks.cast_unsigned() * 512
}

fn shortage(error: &Error) -> &Shortage {
    match error.kind() {
        ErrorKind::OutOfRoom(shortage) => shortage,
        other => panic!("{other:?}: {error}"),
    }
}

fn limit(resource: Resource, bytes: u64) {
    setrlimit(
        resource,
        Rlimit {
            current: Some(bytes),
            maximum: getrlimit(resource).maximum,
        },
    )
    .unwrap();
}

#[test]
fn reserving_an_arena_takes_no_memory() {
    let segment = segment(64 * GIB, unlimited());
    assert_eq!(segment.capacity(), 64 * GIB);
    assert_eq!(taken(&segment), 0);
}

#[test]
fn what_is_committed_is_shared_and_what_is_punched_is_given_back() {
    let first = segment(GIB, unlimited());
    first.commit(4 * MIB, 40 * MIB).unwrap();
    assert_eq!(taken(&first), 40 * MIB);

    let descriptor = rustix::io::fcntl_dupfd_cloexec(&first, 0).unwrap();
    let second = Segment::open(FileDescriptor.adopt(descriptor).unwrap(), unlimited()).unwrap();
    first
        .u64_at(4 * MIB + 64)
        .unwrap()
        .store(7, Ordering::Release);
    assert_eq!(
        second.u64_at(4 * MIB + 64).unwrap().load(Ordering::Acquire),
        7
    );

    second.punch(4 * MIB, 40 * MIB).unwrap();
    assert_eq!(taken(&first), 0);
    first.commit(4 * MIB, 4096).unwrap();
    assert_eq!(
        first.u64_at(4 * MIB + 64).unwrap().load(Ordering::Relaxed),
        0
    );
}

#[test]
fn committing_again_keeps_what_is_there() {
    let segment = segment(16 * MIB, unlimited());
    segment.commit(0, MIB).unwrap();
    segment.u64_at(8).unwrap().store(9, Ordering::Relaxed);
    segment.commit(0, 2 * MIB).unwrap();
    assert_eq!(segment.u64_at(8).unwrap().load(Ordering::Relaxed), 9);
    assert_eq!(taken(&segment), 2 * MIB);
}

#[test]
fn a_refused_commit_takes_nothing() {
    let limits = Arc::new(FixedLimits::new(10 * MIB));
    let segment = segment(GIB, Arc::clone(&limits) as _);
    let error = segment.commit(0, 12 * MIB).unwrap_err();
    assert_eq!(
        (shortage(&error).asked, shortage(&error).free),
        (12 * MIB, 10 * MIB)
    );
    assert_eq!(taken(&segment), 0);
    limits.set_free(12 * MIB);
    segment.commit(0, 12 * MIB).unwrap();
}

/// Leaves room for some questions, then none: as when other programs take memory during a long commit.
#[derive(Debug)]
struct Shrinking(AtomicU64);

impl Limits for Shrinking {
    fn each(&self, _: u64, _: BorrowedFd<'_>, see: &mut dyn FnMut(Limit<'_>)) -> Result<()> {
        let more = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
        let free = if more.is_ok() { u64::MAX } else { 0 };
        see(Limit {
            name: &"others",
            free,
            reserve: 0,
            hint: "wait",
        });
        Ok(())
    }
}

#[test]
fn a_commit_that_fails_half_way_gives_back_what_it_took() {
    let segment = segment(GIB, Arc::new(Shrinking(AtomicU64::new(2))));
    let error = segment.commit(0, 64 * MIB).unwrap_err();
    assert_eq!(
        shortage(&error).asked,
        32 * MIB,
        "two steps of 16 MiB were taken before"
    );
    assert_eq!(taken(&segment), 0);
}

#[test]
fn ranges_outside_the_arena_or_off_pages_are_errors() {
    let segment = segment(16 * MIB, unlimited());
    for (offset, len) in [
        (0, 17 * MIB),
        (16 * MIB, 4096),
        (u64::MAX - 4095, 4096),
        (100, 4096),
        (0, 100),
    ] {
        assert_eq!(
            segment.commit(offset, len).unwrap_err().kind(),
            &ErrorKind::Layout
        );
        assert_eq!(
            segment.punch(offset, len).unwrap_err().kind(),
            &ErrorKind::Layout
        );
    }
    segment.commit(16 * MIB, 0).unwrap();
    segment.punch(16 * MIB, 0).unwrap();
}

proptest! {
    #[test]
    fn only_aligned_offsets_inside_the_arena_are_reached(offset in prop_oneof![0..3 * MIB, any::<u64>()], count in prop_oneof![0..3 * MIB, any::<u64>()]) {
        const SIZE: u128 = (2 * MIB) as u128;
        let segment = segment(2 * MIB, unlimited());
        let inside = |bytes: u128| u128::from(offset) + bytes <= SIZE;
        prop_assert_eq!(segment.bytes_at(offset, count).is_some(), inside(count.into()));
        prop_assert_eq!(segment.u64_at(offset).is_some(), offset % 8 == 0 && inside(8));
        prop_assert_eq!(segment.u32_at(offset).is_some(), offset % 4 == 0 && inside(4));
        let words = segment.words_at(offset, count);
        prop_assert_eq!(words.is_some(), offset % 8 == 0 && inside(u128::from(count) * 8));
        prop_assert!(words.is_none_or(|words| words.len() as u64 == count));
        prop_assert_eq!(taken(&segment), 0);
    }

    #[test]
    fn halving_ends_at_the_minimum(wanted in any::<u64>(), minimum in any::<u64>()) {
        let capacity = Capacity::at_most(wanted, minimum);
        let mut size = capacity.wanted;
        let mut steps = 0;
        while let Some(next) = capacity.next_after(size) {
            prop_assert!(next < size && next >= capacity.minimum && next % GRANULE == 0);
            size = next;
            steps += 1;
        }
        prop_assert_eq!(size, capacity.minimum);
        prop_assert!(steps < 64);
    }
}

#[test]
fn a_core_dump_leaves_the_arena_out() {
    let segment = segment(64 * MIB, unlimited());
    let start = format!("{:x}-", segment.bytes_at(0, 0).unwrap().as_ptr() as usize);
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mapping = smaps.lines().skip_while(|line| !line.starts_with(&start));
    let flags = mapping
        .into_iter()
        .find(|line| line.starts_with("VmFlags:"))
        .unwrap();
    assert!(flags.split(' ').any(|flag| flag == "dd"), "{flags}");
}

#[test]
fn a_low_ulimit_v_halves_the_arena_down_to_a_stated_minimum() {
    let Some(mut child) =
        rerun("segment::tests::a_low_ulimit_v_halves_the_arena_down_to_a_stated_minimum")
    else {
        limit(Resource::As, 6 * GIB);
        let segment = Segment::create(&FileDescriptor, Capacity::default(), unlimited()).unwrap();
        let wanted = Capacity::default().wanted;
        assert_eq!(segment.wanted_capacity(), wanted);
        assert!(
            (2 * GIB..6 * GIB).contains(&segment.capacity()),
            "{}",
            segment.capacity()
        );
        assert_eq!(
            fstat(&segment).unwrap().st_size.cast_unsigned(),
            segment.capacity()
        );

        // Another process that may have less cannot map it at all, and is told why.
        let descriptor = rustix::io::fcntl_dupfd_cloexec(&segment, 0).unwrap();
        let error =
            Segment::open(FileDescriptor.adopt(descriptor).unwrap(), unlimited()).unwrap_err();
        assert!(error.to_string().contains("ulimit -v"), "{error}");
        drop(segment);

        limit(Resource::As, GIB / 2);
        let error = Segment::create(&FileDescriptor, Capacity::default(), unlimited()).unwrap_err();
        assert_eq!(
            (shortage(&error).asked, shortage(&error).free),
            (MINIMUM, GIB / 2)
        );
        assert!(error.to_string().contains("ulimit -v"), "{error}");
        return;
    };
    assert_passed(&output(&mut child));
}

#[test]
fn a_low_ulimit_f_is_an_error_and_no_signal() {
    let Some(mut child) = rerun("segment::tests::a_low_ulimit_f_is_an_error_and_no_signal") else {
        limit(Resource::Fsize, 3 * GIB);
        let segment = Segment::create(
            &FileDescriptor,
            Capacity::at_most(64 * GIB, MINIMUM),
            unlimited(),
        )
        .unwrap();
        assert_eq!(segment.capacity(), 2 * GIB);
        limit(Resource::Fsize, MIB);
        let error = Segment::create(&FileDescriptor, Capacity::default(), unlimited()).unwrap_err();
        assert_eq!(
            (shortage(&error).asked, shortage(&error).free),
            (MINIMUM, MIB)
        );
        assert!(error.to_string().contains("ulimit -f"), "{error}");
        // What was made before goes on: its size is fixed, and committing is no growing.
        segment.commit(GIB, 4 * MIB).unwrap();
        let error = FileDescriptor
            .fix_size(&mut FileDescriptor.create().unwrap(), GIB)
            .unwrap_err();
        assert_eq!(shortage(&error).asked, GIB);
        return;
    };
    assert_passed(&output(&mut child));
}

#[test]
fn a_hail_of_signals_does_not_keep_a_commit_from_ending() {
    extern "C" fn nothing(_: libc::c_int) {}
    let Some(mut child) =
        rerun("segment::tests::a_hail_of_signals_does_not_keep_a_commit_from_ending")
    else {
        let handler: extern "C" fn(libc::c_int) = nothing;
        // SAFETY: installs a handler that does nothing, which is safe at any point of any thread.
        unsafe { libc::signal(libc::SIGALRM, handler as libc::sighandler_t) };
        let often = libc::timeval {
            tv_sec: 0,
            tv_usec: 300,
        };
        let timer = libc::itimerval {
            it_interval: often,
            it_value: often,
        };
        // SAFETY: `timer` is valid for the call, and the old value is not asked for.
        let started = unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) };
        assert_eq!(started, 0);
        let segment = segment(GIB, unlimited());
        segment.commit(0, 64 * MIB).unwrap();
        assert_eq!(taken(&segment), 64 * MIB);
        return;
    };
    assert_passed(&output(&mut child));
}

/// Commits pieces of 2 MiB until there is no room, then writes to all of them; answers how much that was and what ended it.
fn fill(segment: &Segment) -> (u64, Error) {
    let mut filled = 0;
    let error = loop {
        match segment.commit(filled, 2 * MIB) {
            Ok(()) => filled += 2 * MIB,
            Err(error) => break error,
        }
    };
    for page in (0..filled).step_by(4096) {
        segment.u64_at(page).unwrap().store(page, Ordering::Relaxed);
    }
    (filled, error)
}

#[test]
fn a_full_tmpfs_is_an_error_not_a_sigbus() {
    let Some(child) = rerun("segment::tests::a_full_tmpfs_is_an_error_not_a_sigbus") else {
        let directory = testing::tmpfs();
        // Asked first by the system's limits, then found out by fallocate alone.
        for limits in [SystemLimits::shared() as Arc<dyn Limits>, unlimited()] {
            let path = directory.join("arena");
            let file = std::fs::File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(&path)
                .unwrap();
            file.set_len(64 * MIB).unwrap();
            let backing = Backing::new(file.into(), 64 * MIB, Some(path.clone()));
            let segment = Segment::open(backing, limits).unwrap();
            let (filled, error) = fill(&segment);
            std::fs::remove_file(&path).unwrap();
            assert_eq!(filled, 8 * MIB);
            assert_eq!(
                (shortage(&error).asked, shortage(&error).free),
                (2 * MIB, 0)
            );
            assert!(
                error.to_string().contains(path.to_str().unwrap()),
                "{error}"
            );
        }
        return;
    };
    match testing::in_tmpfs(&child, 8) {
        Ok(output) => assert_passed(&output),
        Err(reason) => eprintln!("skipped: {reason}"),
    }
}

#[test]
fn a_cgroup_limit_is_an_error_not_a_kill() {
    let Some(mut child) = rerun("segment::tests::a_cgroup_limit_is_an_error_not_a_kill") else {
        let cgroup = testing::Cgroup::enter();
        let segment = segment(GIB, SystemLimits::shared());
        let (filled, error) = fill(&segment);
        eprintln!("filled {filled} bytes, then: {error}");
        assert!((40 * MIB..64 * MIB).contains(&filled), "{filled}: {error}");
        assert!(
            shortage(&error).limit.contains(cgroup.to_str().unwrap()),
            "{error}"
        );
        // Room that is given back can be taken again.
        segment.punch(0, 8 * MIB).unwrap();
        segment.commit(0, 4 * MIB).unwrap();
        return;
    };
    let cgroup = match testing::Cgroup::new(64 * MIB) {
        Ok(cgroup) => cgroup,
        Err(reason) => return eprintln!("skipped: no memory cgroup can be made here: {reason}"),
    };
    let output = output(cgroup.lend(&mut child));
    eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    assert_passed(&output);
}

#[test]
fn an_arena_cannot_be_mapped_a_second_time_as_a_plain_segment() {
    let arena = crate::Arena::builder().capacity(1 << 30).create().unwrap();
    let descriptor = arena.as_fd().try_clone_to_owned().unwrap();
    let backing = FileDescriptor.adopt(descriptor).unwrap();
    let error = Segment::open(backing, unlimited()).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::WrongMode, "{error}");
}
