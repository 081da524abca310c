//! The race detector within one process: it finds each order that is missing, and none that is there.

use std::process::ExitCode;

use cuda_emulator::{Driver, Kind, Knobs, Session};
use integration_tests::tests;

fn main() -> ExitCode {
    let tests = tests![
        a_read_that_does_not_wait_for_the_write,
        a_write_that_does_not_wait_for_the_read,
        two_writes_that_do_not_wait_for_each_other,
        a_record_before_the_write_is_too_early,
        a_wait_before_the_record_is_too_early,
        a_writer_that_waits_for_one_of_two_readers,
        bytes_that_overlap_in_one,
        a_pool_that_frees_while_another_stream_reads,
        an_event_is_enough,
        an_event_by_way_of_a_third_stream_is_enough,
        waiting_on_the_host_is_enough,
        a_query_that_succeeds_is_enough_and_one_that_does_not_is_not,
        bytes_beside_each_other_are_no_race,
        two_readers_are_no_race,
        many_ranges_do_not_confuse_it,
        a_report_names_both_places,
        it_can_be_switched_off,
    ];
    integration_tests::main(&tests)
}

struct Scene {
    session: Session,
    driver: Driver,
    /// Two streams that do not wait for anything by themselves.
    a: usize,
    b: usize,
    /// 1,024 bytes of shared memory, and as many of each stream's own.
    at: u64,
    own: [u64; 2],
    event: usize,
}

fn start() -> Scene {
    let session = Knobs::new().load().unwrap();
    scene(session)
}

fn scene(session: Session) -> Scene {
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let alloc = || driver.alloc(1024).unwrap();
    let stream = || driver.stream(1).unwrap();
    let event = driver.event(2).unwrap();
    Scene {
        session,
        driver,
        a: stream(),
        b: stream(),
        at: alloc(),
        own: [alloc(), alloc()],
        event,
    }
}

impl Scene {
    fn write(&self, stream: usize) {
        self.driver.fill_async(self.at, 1, 1024, stream).unwrap();
    }

    fn read(&self, stream: usize) {
        let to = self.own[usize::from(stream == self.b)];
        self.driver.copy_async(to, self.at, 1024, stream).unwrap();
    }

    fn record(&self, stream: usize) {
        self.driver.record(self.event, stream).unwrap();
    }

    fn wait(&self, stream: usize) {
        self.driver.wait(stream, self.event, 0).unwrap();
    }

    #[track_caller]
    fn assert_races(&self, count: usize) {
        let races = self.session.reports_of(Kind::Race);
        assert_eq!(races.len(), count, "{races:#?}");
        self.driver.synchronize().unwrap();
    }
}

fn a_read_that_does_not_wait_for_the_write() {
    let it = start();
    it.write(it.a);
    it.read(it.b);
    it.assert_races(1);
}

fn a_write_that_does_not_wait_for_the_read() {
    let it = start();
    it.read(it.a);
    it.write(it.b);
    it.assert_races(1);
}

fn two_writes_that_do_not_wait_for_each_other() {
    let it = start();
    it.write(it.a);
    it.write(it.b);
    it.assert_races(1);
}

fn a_record_before_the_write_is_too_early() {
    let it = start();
    it.record(it.a);
    it.write(it.a);
    it.wait(it.b);
    it.read(it.b);
    it.assert_races(1);
}

fn a_wait_before_the_record_is_too_early() {
    let it = start();
    it.write(it.a);
    it.wait(it.b);
    it.record(it.a);
    it.read(it.b);
    it.assert_races(1);
}

fn a_writer_that_waits_for_one_of_two_readers() {
    let it = start();
    let c = it.driver.stream(1).unwrap();
    it.read(it.a);
    it.record(it.a);
    it.read(it.b);
    it.wait(c);
    it.write(c);
    it.assert_races(1);
}

fn bytes_that_overlap_in_one() {
    let it = start();
    it.driver.fill_async(it.at, 1, 513, it.a).unwrap();
    it.driver
        .copy_async(it.own[1], it.at + 512, 512, it.b)
        .unwrap();
    it.assert_races(1);
}

fn a_pool_that_frees_while_another_stream_reads() {
    let it = start();
    let pooled = it.driver.alloc_async(64, it.a).unwrap();
    it.driver.synchronize().unwrap();
    it.driver.copy_async(it.own[1], pooled, 64, it.b).unwrap();
    it.driver.free_async(pooled, it.a).unwrap();
    assert_eq!(it.session.reports_of(Kind::Race).len(), 1);
}

fn an_event_is_enough() {
    let it = start();
    for _ in 0..3 {
        it.write(it.a);
        it.record(it.a);
        it.wait(it.b);
        it.read(it.b);
        it.record(it.b);
        it.wait(it.a);
    }
    it.assert_races(0);
}

fn an_event_by_way_of_a_third_stream_is_enough() {
    let it = start();
    let c = it.driver.stream(1).unwrap();
    let second = it.driver.event(2).unwrap();
    it.write(it.a);
    it.record(it.a);
    it.wait(c);
    it.driver.record(second, c).unwrap();
    it.driver.wait(it.b, second, 0).unwrap();
    it.read(it.b);
    it.assert_races(0);
}

fn waiting_on_the_host_is_enough() {
    let it = start();
    it.write(it.a);
    it.driver.synchronize_stream(it.a).unwrap();
    it.read(it.b);
    it.record(it.b);
    it.driver.synchronize_event(it.event).unwrap();
    it.write(it.a);
    it.driver.synchronize().unwrap();
    it.write(it.b);
    it.assert_races(0);
}

fn a_query_that_succeeds_is_enough_and_one_that_does_not_is_not() {
    let it = start();
    it.session.hold();
    it.write(it.a);
    it.record(it.a);
    assert!(it.driver.query_event(it.event).is_err());
    it.read(it.b);
    assert_eq!(it.session.reports_of(Kind::Race).len(), 1);
    it.session.let_go();
    while it.driver.query_event(it.event).is_err() {
        std::thread::yield_now();
    }
    it.driver.copy_async(it.own[0], it.at, 1024, it.b).unwrap();
    it.assert_races(1);
}

fn bytes_beside_each_other_are_no_race() {
    let it = start();
    it.driver.fill_async(it.at, 1, 512, it.a).unwrap();
    it.driver.fill_async(it.at + 512, 2, 512, it.b).unwrap();
    it.assert_races(0);
}

fn two_readers_are_no_race() {
    let it = start();
    it.write(it.a);
    it.record(it.a);
    it.wait(it.b);
    it.read(it.a);
    it.read(it.b);
    it.record(it.b);
    it.wait(it.a);
    it.write(it.a);
    it.assert_races(0);
}

fn many_ranges_do_not_confuse_it() {
    let it = start();
    let large = it.driver.alloc(1 << 20).unwrap();
    for round in 0..3 {
        for at in (0..1000).map(|i| large + i * 1024) {
            it.driver.fill_async(at, round, 700, it.a).unwrap();
        }
        it.record(it.a);
        it.wait(it.b);
        for at in (0..1000).map(|i| large + i * 1024) {
            it.driver.copy_async(it.own[1], at, 700, it.b).unwrap();
        }
        it.record(it.b);
        it.wait(it.a);
    }
    it.assert_races(0);
    it.driver.fill_async(large + 5, 1, 1, it.a).unwrap();
    it.driver.fill_async(large + 5, 1, 1, it.b).unwrap();
    it.assert_races(1);
}

fn a_report_names_both_places() {
    let it = start();
    let (driver, at, stream) = (it.driver, it.at, it.a);
    let context = driver.retain(0).unwrap();
    let writer = std::thread::Builder::new()
        .name("the-writer".to_owned())
        .spawn(move || {
            driver.set_current(context).unwrap();
            driver.fill_async(at, 1, 1024, stream).unwrap();
        });
    writer.unwrap().join().unwrap();
    it.read(it.b);
    let races = it.session.reports_of(Kind::Race);
    let text = &races[0].text;
    for part in [
        "cuMemsetD8Async",
        "the-writer",
        "cuMemcpyDtoDAsync_v2",
        "bytes 0..1024",
        &std::process::id().to_string(),
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    it.driver.synchronize().unwrap();
}

fn it_can_be_switched_off() {
    let session = Knobs::new().without_races().load().unwrap();
    let it = scene(session);
    it.write(it.a);
    it.write(it.b);
    it.assert_races(0);
}
