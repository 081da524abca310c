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
