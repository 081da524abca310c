//! What a program says by `tracing`, kept for a test to read.

use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};

/// Keeps the fields of warnings and errors as text.
#[derive(Debug)]
pub struct Keeper(pub Arc<Mutex<String>>);

impl tracing::Subscriber for Keeper {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Text<'a>(&'a mut String);
        impl Visit for Text<'_> {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                *self.0 += &format!("{field}={value:?} ");
            }
        }
        event.record(&mut Text(&mut self.0.lock().unwrap()));
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
