//! Tests of named files.
