//! Contributor commands.
fn main() {}
