//! An executable that is nothing but the worker of `tests/named.rs`.

use integration_tests::named::{decode, double, panics};

tensormp::spawn_api::worker_main! { decode, double::<f32>, panics }
