//! Tests that spawn under the standard harness: the first line of each is `init_in_test!()`.

use std::io::{Read, Write};

fn double(_rank: usize, x: u32) -> Result<u32, String> {
    Ok(2 * x)
}

fn nested(_rank: usize, x: u32) -> spawn::Result<u32> {
    Ok(spawn::spawn(double, x, 1)?.join()?[0])
}

#[test]
fn a_test_of_the_standard_harness_may_spawn() {
    spawn::init_in_test!();
    assert_eq!(
        spawn::spawn(double, 21, 2).unwrap().join().unwrap(),
        [42, 42]
    );
    assert_eq!(spawn::spawn(nested, 4, 1).unwrap().join().unwrap(), [8]);
}

#[test]
fn a_worker_of_a_test_prints_only_what_its_function_prints() {
    spawn::init_in_test!();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut context = spawn::builder()
        .stdout(writer)
        .spawn(|_, ()| std::io::stdout().write_all(b"only this\n"), (), 1)
        .unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "only this\n");
    context.join().unwrap();
}

/// This executable once more, with these words.
fn again(words: &[&str]) -> (bool, String) {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output = command.args(words).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text + &complaints)
}

#[test]
fn tests_that_run_one_at_a_time_may_spawn() {
    // They run on the main thread then.
    let others = ["--skip", "one_at_a_time", "--skip", "the_line"];
    let (passed, text) = again(&[&others[..], &["--test-threads=1"]].concat());
    assert!(passed && text.contains("4 passed"), "{text}");
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let command = command.args(others).env("RUST_TEST_THREADS", "1");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("4 passed"),
        "{text}"
    );
}

#[test]
fn a_test_that_forgets_the_line_is_told_though_another_has_it() {
    let (passed, text) = again(&["--ignored", "--test-threads=3", "forgetting::"]);
    assert!(passed && text.contains("3 passed"), "{text}");
}

mod forgetting {
    use std::sync::atomic::{AtomicBool, Ordering};

    static SAID: AtomicBool = AtomicBool::new(false);

    #[test]
    #[ignore = "a part of another test"]
    fn one_has_the_line() {
        spawn::init_in_test!();
        assert_eq!(
            spawn::spawn(super::double, 1, 1).unwrap().join().unwrap(),
            [2]
        );
        // A thread of its own is no other test, with a name or without.
        let named = std::thread::Builder::new().name("loader".to_owned());
        let spawns = || {
            spawn::spawn(super::double, 2, 1)
                .unwrap()
                .into_results()
                .unwrap()
        };
        assert_eq!(named.spawn(spawns).unwrap().join().unwrap(), [4]);
        SAID.store(true, Ordering::Release);
    }

    #[test]
    #[ignore = "a part of another test"]
    fn a_third_forgets_the_line_and_calls_init() {
        if std::thread::current().name() == Some("main") {
            return;
        }
        while !SAID.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        spawn::init();
        let error = spawn::spawn(super::double, 1, 1).unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error.kind(), spawn::ErrorKind::NotInitialized)
                && text.contains("`init()` was called on another thread than that of `main`")
                && text.contains("make `init_in_test!()`"),
            "{text}"
        );
    }

    #[test]
    #[ignore = "a part of another test"]
    fn the_other_forgets_the_line() {
        // Where tests run one at a time this is the thread of the test above.
        if std::thread::current().name() == Some("main") {
            return;
        }
        // A worker, which is run for this test alone, waits for no other.
        if std::env::args().any(|word| word == "--exact") {
            spawn::init_in_test!();
        }
        while !SAID.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        for _ in 0..2 {
            let error = spawn::spawn(super::double, 1, 1).unwrap_err();
            assert!(
                matches!(error.kind(), spawn::ErrorKind::NotInitialized),
                "{error}"
            );
            assert!(
                error
                    .to_string()
                    .contains("not the first line of this test"),
                "{error}"
            );
        }
        spawn::init_in_test!();
        assert_eq!(
            spawn::spawn(super::double, 1, 1).unwrap().join().unwrap(),
            [2]
        );
    }
}

#[test]
fn the_line_in_a_function_that_a_test_calls_leads_to_that_test_and_spoils_no_other() {
    let (passed, text) = again(&["--ignored", "--test-threads=2", "by_function::"]);
    assert!(passed && text.contains("2 passed"), "{text}");
    let alone = ["by_function::it_is_called", "--exact"];
    let (passed, text) = again(&[&["--ignored", "--test-threads=2"], &alone[..]].concat());
    assert!(passed && text.contains("1 passed"), "{text}");
    let (passed, text) = again(&["--ignored", "--test-threads=1", "by_function::"]);
    assert!(passed && text.contains("2 passed"), "{text}");
}

mod by_function {
    fn line() {
        spawn::init_in_test!();
    }

    #[test]
    #[ignore = "a part of another test"]
    fn it_is_called() {
        line();
        assert_eq!(
            spawn::spawn(super::nested, 4, 1).unwrap().join().unwrap(),
            [8]
        );
        // Of a thread of its own nobody can tell which test it belongs to.
        let error = std::thread::spawn(|| {
            line();
            let mut context = spawn::spawn(super::double, 4, 1).unwrap();
            context.join().unwrap_err().to_string()
        });
        let error = error.join().unwrap();
        assert!(
            error.contains("make `init_in_test!()` the first line of the test itself"),
            "{error}"
        );
    }

    #[test]
    #[ignore = "a part of another test"]
    fn it_is_there() {
        spawn::init_in_test!();
        assert_eq!(
            spawn::spawn(super::double, 1, 1).unwrap().join().unwrap(),
            [2]
        );
    }
}

mod inner {
    #[tokio::test]
    async fn an_async_test_in_a_module_may_spawn() {
        spawn::init_in_test!();
        let mut context = spawn::spawn(super::double, 1, 1).unwrap();
        assert_eq!(context.join_async().await.unwrap(), [2]);
    }

    #[test]
    #[should_panic(expected = "returned an error: no")]
    fn a_test_that_should_panic_may_spawn() {
        spawn::init_in_test!();
        spawn::spawn(|_, ()| Err::<(), _>("no"), (), 1)
            .unwrap()
            .join()
            .unwrap();
    }
}
