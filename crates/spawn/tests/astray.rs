//! `init` where only `init_in_test!` works. Alone in its file: what it does concerns the whole process.

use spawn::ErrorKind;

#[test]
fn init_in_a_test_is_an_error_that_names_what_to_use() {
    fn nothing(_rank: usize, _: ()) {}
    // A harness that runs one test at a time does so on the main thread.
    let error = std::thread::spawn(|| {
        spawn::init();
        spawn::spawn(nothing, (), 1).unwrap_err()
    })
    .join()
    .unwrap();
    assert!(matches!(error.kind(), ErrorKind::NotInitialized), "{error}");
    assert!(error.to_string().contains("init_in_test!()"), "{error}");
}
